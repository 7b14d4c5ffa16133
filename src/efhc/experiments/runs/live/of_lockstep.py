"""What followers hear of a run in which all devices step together."""

from __future__ import annotations

import time
from contextlib import suppress
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from efhc.base.arrays import Floats
from efhc.base.own_code import is_built_in
from efhc.core.graph import Graph
from efhc.core.parts import ExchangeMixing, FeedbackTrigger
from efhc.core.state import State
from efhc.drivers.observers import Observer
from efhc.drivers.record import Record
from efhc.drivers.steps import Steps
from efhc.experiments.runs.live.followers import DeviceSample, EventSample
from efhc.experiments.runs.live.telling import Allowance, Followers, pairs
from efhc.experiments.runs.live.totals import Totals
from efhc.kernels.compiled_arithmetic import drift
from efhc.network.over_time import StaticGraph
from efhc.scenarios.scenario import Scenario
from efhc.strategies.forms import form_of

EVENTS_PER_SECOND = 20.0
"""Iterations of whose events followers hear, and changes of the network, together."""
REACHED_SECONDS = 0.1
"""Least time between two reports of how far the run is."""
TELLING_SECONDS = 0.25
"""Least time between two times that rows are told: of many at once, each costs a fraction."""
SAMPLE_SECONDS, SAMPLE_SHARE = 0.5, 0.005
"""Least time between two samples of the devices, and the greatest share of a run's time that they may take."""


class _Noted(NamedTuple):
    """What is known of an iteration before its models are evaluated."""

    seconds: float
    totals: dict[str, float | int | None]
    drift: Floats | None
    threshold: Floats | None
    is_sampled: bool


class LockstepTelling(Observer):
    """Tells followers of a run. It makes the driver stop at no iteration, and samples models rarely."""

    def __init__(
        self,
        followers: Followers,
        record: Record,
        scenario: Scenario,
        strategy: Any,
        last: int,
        seconds: float,
        totals: Totals,
    ) -> None:
        """`last` is the number of iterations of the whole run; `seconds` and `totals` are those of earlier sessions."""
        self._followers, self._record, self._last = followers, record, last
        self.totals, self._parameters = totals, scenario.learner.backend.parameters
        self._began_at = time.monotonic() - seconds
        self._events = Allowance(EVENTS_PER_SECOND)
        self._told_graph: Graph | None = None
        """The graph whose links followers know. None: that of a run that goes on, which they may not have heard of."""
        self._graph_since: int | None = None
        """The iteration from which on the graph has the links that it has. None: that at which the run goes on."""
        self._noted: dict[int, _Noted] = {}
        self._waiting: list[tuple[int, Floats]] = []
        """Iterations that were evaluated, and accuracies, of which nobody has heard yet."""
        self._next_telling = self._next_sample = self._next_reached = 0.0
        self._lock = Lock()
        parts = form_of(strategy).parts
        # A strategy that mixes estimates measures drift after the local step: only the iteration itself knows it.
        self._measures_drift = parts is not None and isinstance(parts.mixing, ExchangeMixing)
        has_thresholds = parts is not None and not isinstance(parts.trigger, FeedbackTrigger)
        self._trigger = parts.trigger if parts is not None and has_thresholds else None
        self._reader, self._network = scenario.reader(), scenario.network

    @property
    def seconds(self) -> float:
        """The time for which the run has been made, earlier sessions included."""
        return time.monotonic() - self._began_at

    def after(self, steps: Steps, state: State) -> None:
        self.totals.add(steps, self._parameters)  # also if nobody hears: the checkpoint keeps them
        if not len(self._followers):
            return
        if (now := time.monotonic()) >= self._next_reached or state.k == self._last:
            self._next_reached = now + REACHED_SECONDS
            self._followers.reached(state.k)
        if self._graph_since is None or steps.has_other_links:
            self._graph_since = steps.k
        if count := min(self._events.left(), len(steps)):
            self._tell_wiring(steps.graph)
            self._tell_events(steps, count)

    def begin(self, state: State) -> None:
        if state.k == 0 or isinstance(self._network, StaticGraph):
            self._told_graph, self._graph_since = self._network.graph(0), 0

    def _tell_wiring(self, graph: Graph) -> None:
        """Tell of the links in force, unless followers know them: the events that are told next use no others."""
        told, self._told_graph = self._told_graph, graph
        if told is graph or (told is not None and np.array_equal(told.links, graph.links)):
            return
        assert self._graph_since is not None
        self._events.spend(len(graph.links))
        self._followers.rewired(self._graph_since, pairs(graph.links))

    def _tell_events(self, steps: Steps, count: int) -> None:
        """Tell of some of the iterations, evenly spread, the last one included."""
        events: list[EventSample] = []
        for place in range(len(steps) - 1 - (count - 1) * (len(steps) // count), len(steps), len(steps) // count):
            fired = np.flatnonzero(steps.fired[place]).tolist()
            used = pairs(steps.graph.links[np.flatnonzero(steps.used[place])])
            events.append(EventSample(steps.k + place, fired, used))
            self._events.spend(len(fired) + len(used))
        self._followers.happened(events)

    def before_evaluation(self, steps: Steps, state: State) -> None:
        """Note what changes while the models of a state are evaluated. Call it for each that is."""
        self.totals.add(steps, self._parameters)
        if not len(self._followers):
            return
        started = time.monotonic()
        is_sampled = started >= self._next_sample or state.k == self._last
        drifts = thresholds = None
        if is_sampled:
            if self._measures_drift:
                drifts = drift(state.models, state.last_broadcast)
            if self._trigger is not None and (state.k < self._last or is_built_in(self._trigger)):
                with suppress(Exception):  # the user's own trigger: if it fails, the run itself says so
                    thresholds = self._reader.thresholds(self._trigger, state.k).copy()
            self._next_sample = started + SAMPLE_SECONDS
            self._count(time.monotonic() - started)
        self._noted[state.k - 1] = _Noted(started - self._began_at, self.totals.row, drifts, thresholds, is_sampled)

    def evaluated(self, iteration: int, accuracies: Floats) -> None:
        """The models that an iteration left were evaluated: tell of them now, or soon with others."""
        if not len(self._followers):
            return
        with self._lock:
            self._waiting.append((iteration, accuracies))
            is_due = time.monotonic() >= self._next_telling
        if is_due:
            self.settle()

    def settle(self) -> None:
        """Tell of all models that were evaluated. Call it before the record is emptied."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            for iteration, accuracies in waiting:
                self._tell_row(iteration, accuracies)
            self._next_telling = time.monotonic() + TELLING_SECONDS

    def _tell_row(self, iteration: int, accuracies: Floats) -> None:
        noted = self._noted.pop(iteration)
        row = self._record.row(iteration)
        self._followers.evaluated({**row, **noted.totals, "seconds": round(noted.seconds, 3)})
        if noted.is_sampled:
            started = time.monotonic()
            drifts, thresholds = (None if one is None else one.tolist() for one in (noted.drift, noted.threshold))
            self._followers.sampled(DeviceSample(iteration + 1, accuracies.tolist(), drifts, thresholds))
            self._count(time.monotonic() - started)

    def _count(self, seconds: float) -> None:
        """A sample of the devices took this long: the next one has to wait."""
        self._next_sample = max(self._next_sample, time.monotonic() + seconds / SAMPLE_SHARE)
