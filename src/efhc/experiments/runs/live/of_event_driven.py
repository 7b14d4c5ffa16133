"""What followers hear of a run in which every device has its own clock.

There is no iteration of all devices here: the k that followers hear is the mean number of steps that a device has made,
rounded down. So is that of pages that show the tables of a complete run, which have the number of all steps.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import numpy as np

from efhc.drivers.event_driven.record import EXCHANGES, STEPS, TIMELINE
from efhc.drivers.event_driven.simulator import Simulator
from efhc.experiments.runs.live.followers import DeviceSample, EventSample
from efhc.experiments.runs.live.of_lockstep import EVENTS_PER_SECOND, SAMPLE_SECONDS, SAMPLE_SHARE
from efhc.experiments.runs.live.telling import Allowance, Followers, pairs
from efhc.network.over_time import GraphsOverTime, StaticGraph

END, OUTCOME, ONE, OTHER = (list(EXCHANGES).index(name) for name in ("end", "outcome", "device", "neighbour"))
DEVICE, SECONDS, FIRED = (list(STEPS).index(name) for name in ("device", "seconds", "fired"))


class EventDrivenTelling:
    """Tells followers of a run. Call `tell` after every `advance`, before the record is emptied."""

    def __init__(self, followers: Followers, simulator: Simulator, network: GraphsOverTime) -> None:
        self._followers, self._simulator = followers, simulator
        self._events = Allowance(EVENTS_PER_SECOND)
        self._next_sample, self._last_k = 0.0, self.k
        self._fired: set[int] = set()
        self._used: set[tuple[int, int]] = set()
        """Since the last sample of events or the last change of the network."""
        graph, self._rewired_at = simulator.wiring
        is_first = self.k == 0 and np.array_equal(graph.links, network.graph(0).links)
        self._graph_since = None if is_first or isinstance(network, StaticGraph) else self.k
        """The k from which on there are links that followers do not know. None: they know them."""
        self.begin_piece()

    @property
    def k(self) -> int:
        """The mean number of steps of a device."""
        return self._simulator.steps // len(self._simulator.devices)

    def begin_piece(self) -> None:
        """The record was emptied."""
        self._seen = {"timeline": 0, "steps": 0, "exchanges": 0}

    def tell(self) -> None:
        """Tell of what was recorded since the last call."""
        if not len(self._followers):
            return
        self._followers.reached(self.k)
        rows = self._new("timeline")
        for row in rows:
            self._followers.evaluated(dict(zip(TIMELINE, row, strict=True)))
        if self._simulator.is_over or (rows and time.monotonic() >= self._next_sample):
            self._tell_devices()
        graph, rewired_at = self._simulator.wiring
        if rewired_at != self._rewired_at:  # what happened before used links of which some are gone
            self._rewired_at, self._graph_since = rewired_at, max(self.k, self._last_k + 1)
            self._fired, self._used = set(), set()
        self._fired |= {row[DEVICE] for row in self._new("steps") if row[FIRED] and row[SECONDS] >= rewired_at}
        exchanges = (row for row in self._new("exchanges") if row[OUTCOME] == "committed" and row[END] >= rewired_at)
        self._used |= {(min(row[ONE], row[OTHER]), max(row[ONE], row[OTHER])) for row in exchanges}
        if self.k > self._last_k and self._events.left():
            if self._graph_since is not None:
                self._events.spend(len(graph.links))
                self._followers.rewired(min(self._graph_since, self.k), pairs(graph.links))
                self._graph_since = None
            self._events.spend(len(self._fired) + len(self._used))
            self._followers.happened([EventSample(self.k, sorted(self._fired), sorted(self._used))])
            self._last_k, self._fired, self._used = self.k, set(), set()

    def _tell_devices(self) -> None:
        """Tell of the devices as they are now, right after a sample."""
        started, simulator = time.monotonic(), self._simulator
        accuracies, drifts, thresholds = simulator.accuracies.tolist(), simulator.drifts(), None
        with suppress(Exception):  # the user's own trigger: if it fails, the run itself says so
            thresholds = simulator.thresholds()
        self._followers.sampled(DeviceSample(self.k, accuracies, drifts, thresholds))
        took = time.monotonic() - started
        self._next_sample = started + max(SAMPLE_SECONDS, took / SAMPLE_SHARE)

    def _new(self, table: str) -> list[tuple[Any, ...]]:
        """Return the rows of a table that were recorded since the last call."""
        rows: list[tuple[Any, ...]] = getattr(self._simulator.record, table)
        new, self._seen[table] = rows[self._seen[table] :], len(rows)
        return new
