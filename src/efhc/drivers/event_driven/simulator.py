"""Devices on their own clocks, in virtual time: a heap of what is due, and one core per device.

The rules of training and gossip are those of the link law (`ExchangeLinks` or `HalfStepLinks`); this decides what time
and the network are. At one instant come, in this order: gradients that are there, links and devices that come and go,
iterations that begin, messages, waits that end, a sample. Nothing here reads a clock, and every fault comes from the
seed.
"""

from __future__ import annotations

import gc
import math
from collections import deque
from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from efhc.base.arrays import Flags, Floats
from efhc.core.graph import Graph
from efhc.core.randomness import Randomness
from efhc.core.state import Diverged, Local
from efhc.drivers.event_driven.checkpoints import attributes, packed, set_attributes, unpacked
from efhc.drivers.event_driven.churn import draw_churn
from efhc.drivers.event_driven.compute import draw_compute_times
from efhc.drivers.event_driven.exchange_links import ExchangeLinks
from efhc.drivers.event_driven.gradients import Gradients
from efhc.drivers.event_driven.half_step_links import HalfStepLinks
from efhc.drivers.event_driven.links import draw_transfers
from efhc.drivers.event_driven.mail import Mail
from efhc.drivers.event_driven.presence import Presence
from efhc.drivers.event_driven.record import EventRecord
from efhc.drivers.event_driven.rows import Rows
from efhc.drivers.event_driven.run import CHURN, GIVE_UP, GRADIENT, NETWORK, RETRY, SAMPLE, Links
from efhc.drivers.event_driven.samples import quality
from efhc.drivers.event_driven.settings import EventDriven
from efhc.scenarios.scenario import Scenario
from efhc.strategies.forms import form_of

NUMBERS_AT_ONCE, INSTANTS_AT_ONCE = 1 << 25, 10_000
"""`advance` comes back after steps on this many parameters, or after this many instants, if no sample comes before."""

IDLE_SAMPLES = 100
"""Samples that are taken at most while nothing happens."""


class Simulator:
    """One run: `advance` until it `is_over`.

    This is its clock. `Links` are what devices do by themselves and with one another, and `Presence` is who is there.
    """

    def __init__(
        self,
        scenario: Scenario,
        strategy: Any,
        settings: EventDriven,
        iterations: int,
        randomness: Randomness,
        *,
        evaluate_every: int = 50,
        threads: int = 1,
        reorder: Callable[[deque[Any]], None] | None = None,
    ) -> None:
        """`reorder` may change the order of the messages of one instant, if links are instant: tests shuffle them."""
        self._scenario, self._settings, self._last, self._threads = scenario, settings, iterations, threads
        parameters, bandwidths = scenario.learner.backend.parameters, scenario.bandwidths
        count = len(bandwidths.values)
        reader = scenario.device_reader()
        clock = draw_compute_times(settings.compute, count, randomness)
        churn = draw_churn(settings.churn, count, randomness)
        transfers = draw_transfers(settings.links, bandwidths.values, randomness)
        model_bytes = parameters * np.dtype(scenario.learner.data.precision).itemsize
        self._mail = mail = Mail(transfers, parameters, model_bytes, [bandwidths.nominal] * count)
        self.rows = Rows(parameters, scenario.learner.data.precision, 0, threads)
        """The models of exchanges; half-steps have arrays of their own."""
        form = form_of(strategy)
        self._links: Links
        if form.half_steps is not None:
            gradients = Gradients(scenario, reader)
            self._links = HalfStepLinks(scenario, form, settings, iterations, clock, gradients, mail, randomness)
        else:
            self.rows = Rows(parameters, scenario.learner.data.precision, 3 * count + 64, threads)
            self._links = ExchangeLinks(scenario, form, settings, iterations, clock, reader, self.rows, mail, reorder)
        self._presence = Presence(scenario, settings, churn, self._links)
        self._sample_seconds = settings.sample_seconds or evaluate_every * float(
            np.median([clock.seconds(device, 0) for device in range(count)])
        )

        self.now = 0.0
        self.due: list[tuple[Any, ...]] = []
        """A heap of (time, what, ...)."""
        self.record = EventRecord()
        self.warnings: list[str] = []
        self.accuracies = np.full(count, np.nan)
        """The accuracy of each device at the latest sample; NaN if it was not there."""
        self.is_over = False
        self.draining = False
        """Whether no device makes steps any more, and only what is under way is awaited."""
        self._sampled_at: float | None = None
        self._sample_number = 0
        self.devices: list[Any] = [self._links.new_device(number) for number in range(count)]
        self._start()

    # What others read

    @property
    def models(self) -> Floats:
        """The models of all devices, (m, n); of those that are not there, the last."""
        return self._links.models(self)

    @property
    def local(self) -> Local:
        """What devices keep to themselves."""
        return self._links.local

    @property
    def steps(self) -> int:
        """The number of steps that all devices have made."""
        return self._links.steps

    @property
    def progress(self) -> float:
        """The share of the run that is done."""
        if self.is_over:
            return 1.0
        if self._settings.seconds is not None:
            return min(1.0, self.now / self._settings.seconds)
        return min(1.0, self.steps / (len(self.devices) * self._last))

    @property
    def wiring(self) -> tuple[Graph, float]:
        """The graph, and the second at which its links changed; 0 if that was before the run began or went on."""
        return self._presence.wiring

    def drifts(self) -> list[float]:
        """Return how far each device's model is from what its neighbours know of it."""
        return self._links.drifts(self)

    def thresholds(self) -> list[float]:
        """Return the threshold of each device at its own iteration; infinite if it has none left to make."""
        links = self._links
        return [
            links.threshold(device.number, device.k) if links.has_steps_to_make(device) else math.inf
            for device in self.devices
        ]

    def journal(self, number: int) -> None:
        """A device writes down what must survive a crash, if there can be one."""
        if self._presence.changes:
            self._presence.keep(self.devices[number])

    # Time

    def advance(self) -> None:
        """Make what is due up to and including the next sample, or as much as takes a moment."""
        target = self.steps + max(1, NUMBERS_AT_ONCE // self._scenario.learner.backend.parameters)
        sampled, instants = len(self.record.timeline), 0
        collects = gc.isenabled()
        gc.disable()  # what is made here holds no cycles, and there is much of it
        try:
            while not self.is_over and self.steps < target and instants < INSTANTS_AT_ONCE:
                self._advance_to(self._next_time())
                instants += 1
                if len(self.record.timeline) > sampled:
                    break
        finally:
            if collects:
                gc.enable()

    def _next_time(self) -> float:
        return min(self.due[0][0] if self.due else math.inf, self._mail.next_time())

    def _advance_to(self, time: float) -> None:
        """Make all that is due at one instant, or end the run if nothing is."""
        links, presence, end = self._links, self._presence, self._settings.seconds
        if (end is None and not links.running and not presence.anybody_to_come(self)) or time == math.inf:
            self.draining = True
        if (self.draining and not self._is_moving()) or (end is not None and time > end):
            self._finish(self.now if end is None else end)
            return
        self.now = time
        due = self.due
        if due and due[0][0] <= time:
            if due[0][1] <= CHURN:
                if due[0][1] == GRADIENT:
                    links.step(self, self._take(GRADIENT), presence.leaving)
                for _ in self._take(NETWORK):
                    presence.change_network(self)
                for (number,) in self._take(CHURN):
                    presence.make_churn(self, number)
                if links.beginning:
                    links.begin(self, sorted(links.beginning))
            links.deliver(self)
            if due and due[0][0] <= time:
                self._end_waiting()
        links.deliver(self)
        if presence.leaving:
            presence.let_go(self)
        if due and due[0][0] <= time and self._take(SAMPLE):
            if not self.draining:
                self._sample()
            self._plan_sample()

    def _plan_sample(self) -> None:
        """Samples are taken at multiples of `sample_seconds`, except where nothing happens for very long."""
        self._sample_number += 1
        happens = self._next_time() / self._sample_seconds
        if self._sample_number + IDLE_SAMPLES < happens < math.inf:
            self._sample_number = math.ceil(happens)
        heappush(self.due, (self._sample_number * self._sample_seconds, SAMPLE))

    def _end_waiting(self) -> None:
        """A wait is over: for an answer, or for a device that does not return."""
        for number, neighbour in self._take(RETRY):
            self._links.wait_is_over(self, number, neighbour, is_there=self._presence.present[number])
            self._links.deliver(self)
        for number, neighbour in self._take(GIVE_UP):
            self._presence.give_up(self, number, neighbour)

    def _take(self, what: int) -> list[tuple[Any, ...]]:
        """Take everything of one sort that is due now."""
        due, taken = self.due, []
        while due and due[0][0] <= self.now and due[0][1] == what:
            taken.append(heappop(due)[2:])
        return taken

    def _start(self) -> None:
        self._presence.start(self)
        heappush(self.due, (0.0, SAMPLE))
        self._links.begin(self, self._presence.there())
        self._links.deliver(self)

    def _is_moving(self) -> bool:
        """Whether anything under way can still arrive or be asked about, now that no device makes steps any more."""
        return (
            bool(self._mail.queue)
            or self._mail.next_time() < math.inf
            or any(entry[1] == RETRY and self._may_get_on(*entry[2:]) for entry in self.due)
            or self._presence.may_hear(self)
        )

    def _may_get_on(self, number: int, neighbour: int) -> bool:
        return self._presence.present[number] and self._links.may_get_on(self, number, neighbour)

    def _finish(self, time: float) -> None:
        """The run is over: what is still in flight is counted as it is."""
        self.now = time
        present = self._presence.present
        self._links.finish(self, present)
        if self._sampled_at != time:
            self._sample()
        self.is_over = True
        for number, since in self._mail.silent_devices(time).items():
            self.warnings.append(f"device {number} could send nothing from second {since:g} on: its rate is 0")
        for number, device in enumerate(self.devices):
            if self._links.waits_for_model(device) and present[number]:
                self.warnings.append(f"device {number} made no step: it found no neighbour whose model it could copy")
        if unresolved := self._links.unresolved:
            self.warnings.append(self._links.unresolved_text(unresolved))

    def _sample(self) -> None:
        """How good the models are, and how far apart."""
        self._sampled_at = self.now
        there = self._presence.there()
        models, local = self.models[there], {name: values[there] for name, values in self.local.items()}

        def diverged(finite_there: Flags) -> Diverged:
            finite = np.ones(len(self.devices), dtype=bool)
            finite[there] = finite_there
            return Diverged(max(self.devices[number].k for number in there), "model", finite)

        when = f"at second {self.now:g}"
        accuracies, summary = quality(models, local, when, self._scenario.learner, self._threads, diverged)
        self.record.timeline.append((
            self.now, self.steps, self._links.broadcasts, self._links.committed, self._mail.bytes, len(there),
            *summary, self._links.imbalance(self),
        ))  # fmt: skip
        self.accuracies[:] = np.nan
        self.accuracies[there] = accuracies

    # Checkpoints

    SAVED = ("now", "due", "devices", "warnings", "draining", "_sampled_at", "_sample_number")

    def checkpoint(self) -> tuple[dict[str, np.ndarray], dict[str, str]]:
        """Return all that the run needs to go on from here, between two instants."""
        state = {
            "run": attributes(self, self.SAVED),
            "links": self._links.state(),
            "presence": self._presence.state(),
            "mail": self._mail.state(),
            "pieces": self.record.pieces,
        }
        tensors, facts = packed(state, self.rows)
        return tensors | self._links.tensors(), facts

    def restore(self, tensors: Mapping[str, np.ndarray], facts: Mapping[str, str]) -> None:
        """Go on from a checkpoint of the same run. Raises `ValueError` if it does not fit."""
        state = unpacked(tensors, facts, self.rows, 3 * len(self.devices) + 64)
        if "run" not in state or "links" not in state:
            raise ValueError("it was written by another version")
        set_attributes(self, self.SAVED, state["run"])
        heapify(self.due)
        self._links.restore(state["links"], tensors)
        self._presence.restore(state["presence"])
        self._mail.restore(state["mail"])
        self.record = EventRecord(pieces=state["pieces"])
