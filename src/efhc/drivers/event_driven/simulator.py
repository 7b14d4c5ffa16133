"""Devices on their own clocks, in virtual time: a heap of entries that are due.

The link law (`ExchangeLinks` or `HalfStepLinks`) says how devices train and communicate; this says what time and the
network are. The order of one instant is: gradients, changes of links and devices, iterations that begin, messages,
timers, a sample. Nothing here reads a clock, and all randomness comes from the seed.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import Any, ClassVar

import numpy as np

from efhc.base.arrays import Floats
from efhc.core.arithmetic import finite_rows
from efhc.core.graph import Graph
from efhc.core.randomness import Purpose, Randomness, Sequences
from efhc.core.state import Diverged, Local
from efhc.drivers.event_driven.checkpoints import packed, unpacked
from efhc.drivers.event_driven.churn import draw_churn
from efhc.drivers.event_driven.clocked_links import CHURN, GIVE_UP, GRADIENT, NETWORK, RETRY, SAMPLE
from efhc.drivers.event_driven.compute import draw_compute_times
from efhc.drivers.event_driven.exchange_links import ExchangeLinks
from efhc.drivers.event_driven.half_step_links import HalfStepLinks
from efhc.drivers.event_driven.in_flight import MessagesInFlight
from efhc.drivers.event_driven.links import draw_transfers
from efhc.drivers.event_driven.membership import Membership
from efhc.drivers.event_driven.record import EventRecord
from efhc.drivers.settings import EventDriven
from efhc.kernels.compiled_arithmetic import consensus_error
from efhc.learning.backends.backend import ScoresNotFinite
from efhc.learning.measures import Evaluation
from efhc.scenarios.scenario import Scenario
from efhc.strategies.forms import form_of

NUMBERS_AT_ONCE, INSTANTS_AT_ONCE = 1 << 25, 10_000
"""`advance` returns after steps on this many parameters or this many instants, or after a sample."""

BLOCK = 256
"""Windows whose samples are drawn at once. Part of a run's identity."""
IDLE_SAMPLES = 100
"""The largest number of samples in a row while nothing happens."""


class Simulator:
    """One run: `advance` until it `is_over`.

    `Links` are the devices and the messages between them; `Membership` says which devices are present.
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
        draws_samples: bool = False,
        threads: int = 1,
    ) -> None:
        """With `draws_samples`, each sample is at a time within its window of `sample_seconds` that the seed draws.
        Without, it is at its end.
        """
        self.scenario, self.settings, self.iterations, self.randomness = scenario, settings, iterations, randomness
        self.reader, self.threads = scenario.device_reader(), threads
        parameters, precision = scenario.learner.backend.parameters, scenario.learner.data.precision
        count, form = len(scenario.bandwidths.values), form_of(strategy)
        self.clock = draw_compute_times(settings.compute, count, randomness)
        churn = draw_churn(settings.churn, count, randomness)
        transfers = draw_transfers(settings.links, scenario.bandwidths.values, randomness)
        model_bytes = parameters * np.dtype(precision).itemsize
        self.messages = MessagesInFlight(transfers, parameters, model_bytes, [scenario.bandwidths.nominal] * count)
        self._like = np.empty((0, parameters), precision)
        """Of what kind models are."""
        self._links = HalfStepLinks(self, form) if form.half_steps else ExchangeLinks(self, form)
        self._membership = Membership(self, churn, self._links)
        self._sample_seconds = settings.sample_seconds or evaluate_every * float(
            np.median([self.clock.seconds(device, 0) for device in range(count)])
        )

        self._place_in_window = Sequences(
            randomness, Purpose.EVALUATIONS, BLOCK, lambda stream: 1.0 - stream.random(BLOCK) * draws_samples
        )
        """Where the sample of each window is, above 0 and at most 1."""

        self.now = 0.0
        self.due: list[tuple[Any, ...]] = []
        """A heap of (time, what, ...)."""
        self.record = EventRecord()
        self.warnings: list[str] = []
        self.evaluation: Evaluation | None = None
        """How good the models of the devices were that were present at the latest sample. None if nobody was."""
        self.is_over = False
        self.draining = False
        """Whether no device makes steps any more, and the run waits for messages in flight."""
        self._sampled_at: float | None = None
        self._sample_number = 0
        self.devices: list[Any] = [self._links.new_device(number) for number in range(count)]
        self._start()

    # What observers read

    @property
    def models(self) -> Floats:
        """The models of all devices, (m, n); of absent devices, the last ones."""
        return self._links.models(self)

    @property
    def local(self) -> Local:
        """What devices never mix."""
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
        if self.settings.seconds is not None:
            return min(1.0, self.now / self.settings.seconds)
        return min(1.0, self.steps / (len(self.devices) * self.iterations))

    @property
    def wiring(self) -> tuple[Graph, float]:
        """The graph, and the second at which its links changed; 0 if that was before the run began or went on."""
        return self._membership.wiring

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
        """Write to a device's journal what must survive a crash, if devices can crash."""
        if self._membership.changes:
            self._membership.keep(self.devices[number])

    # Time

    def advance(self) -> None:
        """Handle what is due up to and including the next sample, or for a limited amount of work."""
        target = self.steps + max(1, NUMBERS_AT_ONCE // self.scenario.learner.backend.parameters)
        sampled, instants = len(self.record.timeline), 0
        collects = gc.isenabled()
        gc.disable()  # many objects are made here, and none is in a cycle
        try:
            while not self.is_over and self.steps < target and instants < INSTANTS_AT_ONCE:
                self._advance_to(self._next_time())
                instants += 1
                if len(self.record.timeline) > sampled:
                    break
        finally:
            if collects:
                gc.enable()

    def end(self) -> None:
        """End the run now. Messages in flight are not delivered."""
        self._finish(self.now)

    def _next_time(self) -> float:
        return min(self.due[0][0] if self.due else math.inf, self.messages.next_time())

    def _advance_to(self, time: float) -> None:
        """Handle all that is due at one instant, or end the run if nothing is."""
        links, membership, end = self._links, self._membership, self.settings.seconds
        if (end is None and not links.running and not membership.awaits_return(self)) or time == math.inf:
            self.draining = True
        if (self.draining and not self._is_moving()) or (end is not None and time > end):
            self._finish(self.now if end is None else end)
            return
        self.now = time
        due = self.due
        if due and due[0][0] <= time:
            if due[0][1] <= CHURN:
                if due[0][1] == GRADIENT:
                    links.step(self, self._take(GRADIENT), membership.leaving)
                for _ in self._take(NETWORK):
                    membership.change_network(self)
                for (number,) in self._take(CHURN):
                    membership.make_churn(self, number)
                if links.beginning:
                    links.begin(self, sorted(links.beginning))
            links.deliver(self)
            if due and due[0][0] <= time:
                self._run_timers()
        links.deliver(self)
        if membership.leaving:
            membership.let_go(self)
        if due and due[0][0] <= time and self._take(SAMPLE):
            if not self.draining:
                self._sample()
            self._plan_sample()

    def _plan_sample(self) -> None:
        """Plan the next sample, in the next window of `sample_seconds`. Long times without events are skipped."""
        self._sample_number += 1
        happens = self._next_time() / self._sample_seconds
        if self._sample_number + IDLE_SAMPLES < happens < math.inf:
            self._sample_number = math.ceil(happens)
        windows = self._sample_number - 1 + self._place_in_window(self._sample_number)
        heappush(self.due, (windows * self._sample_seconds, SAMPLE))

    def _run_timers(self) -> None:
        """Handle the timers that have run out."""
        for number, neighbour in self._take(RETRY):
            self._links.retry(self, number, neighbour, is_present=self._membership.present[number])
            self._links.deliver(self)
        for number, neighbour in self._take(GIVE_UP):
            self._membership.give_up(self, number, neighbour)

    def _take(self, kind: int) -> list[tuple[Any, ...]]:
        """Take all entries of one kind that are due now."""
        due, taken = self.due, []
        while due and due[0][0] <= self.now and due[0][1] == kind:
            taken.append(heappop(due)[2:])
        return taken

    def _start(self) -> None:
        self._membership.start(self)
        heappush(self.due, (0.0, SAMPLE))
        self._links.begin(self, self._membership.present_devices())
        self._links.deliver(self)

    def _is_moving(self) -> bool:
        """Return whether anything in flight can still arrive or be resolved, now that no device makes steps."""
        return (
            bool(self.messages.queue)
            or self.messages.next_time() < math.inf
            or any(entry[1] == RETRY and self._may_progress(*entry[2:]) for entry in self.due)
            or self._membership.may_resolve(self)
        )

    def _may_progress(self, number: int, neighbour: int) -> bool:
        return self._membership.present[number] and self._links.may_progress(self, number, neighbour)

    def _finish(self, time: float) -> None:
        """End the run. What is still in flight is recorded as unfinished."""
        self.now = time
        present = self._membership.present
        self._links.finish(self, present)
        if self._sampled_at != time:
            self._sample()
        self.is_over = True
        for number, since in self.messages.silent_devices(time).items():
            self.warnings.append(f"device {number} could send nothing from second {since:g} on: its rate is 0")
        for number, device in enumerate(self.devices):
            if device.waits_for_model and present[number]:
                self.warnings.append(f"device {number} made no step: it found no neighbour whose model it could copy")
        if unresolved := self._links.unresolved:
            self.warnings.append(self._links.unresolved_text(unresolved))

    def _sample(self) -> None:
        """Evaluate the models of the devices that are present. Without any, all results are None."""
        self._sampled_at = self.now
        present = self._membership.present_devices()
        measures: dict[str, float | None] = {}
        error = None
        self.evaluation = None
        if present:
            models, local = self.models[present], {name: values[present] for name, values in self.local.items()}
            error = consensus_error(models, self.threads)
            if not math.isfinite(error):
                finite = np.ones(len(self.devices), dtype=bool)
                finite[present] = finite_rows(models)
                raise Diverged(max(self.devices[number].k for number in present), "model", finite)
            try:
                evaluation = self.scenario.learner.evaluate(models, local, np.array(present))
            except ScoresNotFinite as failure:
                raise failure.about(f"at second {self.now:g}") from failure
            self.evaluation, measures = evaluation, evaluation.columns
        self.record.timeline.append({
            "seconds": self.now, "steps": self.steps, "broadcasts": self._links.broadcasts,
            "exchanges": self._links.committed, "bytes": self.messages.bytes, "devices": len(present),
            "consensus_error": error, "imbalance": self._links.imbalance(self), **measures,
        })  # fmt: skip

    # Checkpoints

    SAVED: ClassVar = ("now", "due", "devices", "warnings", "draining", "_sampled_at", "_sample_number")

    def checkpoint(self) -> tuple[dict[str, np.ndarray], dict[str, str]]:
        """Return all that the run needs to continue from here, between two instants."""
        state = {
            "run": {name: getattr(self, name) for name in self.SAVED},
            "links": self._links.state(),
            "membership": self._membership.state(),
            "messages": self.messages.state(),
            "pieces": self.record.pieces,
        }
        tensors, facts = packed(state)
        return tensors | self._links.tensors(), facts

    def restore(self, tensors: Mapping[str, np.ndarray], facts: Mapping[str, str]) -> None:
        """Go on from a checkpoint of the same run. Raises `ValueError` if it does not fit."""
        try:
            state = unpacked(tensors, facts, self._like)
            for name in self.SAVED:
                setattr(self, name, state["run"][name])
            heapify(self.due)
            self._links.restore(state["links"])
            self._links.restore_tensors(tensors)
            self._membership.restore(state["membership"])
            self.messages.restore(state["messages"])
        except KeyError:
            raise ValueError("it was written by another version") from None
        self.record = EventRecord(pieces=state["pieces"])
