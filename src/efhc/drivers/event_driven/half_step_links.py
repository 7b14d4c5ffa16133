"""Half-steps in virtual time: local steps, frames and acknowledgements.

The law is `core.half_steps`; this decides when gradients are ready and how long messages take. The steps of all frames
of one instant are summed up before they are added to a device's model, as in lockstep.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from efhc.base.arrays import Floats
from efhc.base.errors import InputError
from efhc.core.cost import BITS_PER_NUMBER
from efhc.core.half_step_messages import (
    Acknowledgement,
    Committed,
    Effect,
    Frame,
    Introduction,
    Message,
    Send,
    Start,
    TakeBack,
    Unresolved,
    bytes_of,
    payload_bits,
)
from efhc.core.half_steps import HalfSteps
from efhc.core.uplink import Uplink, bandwidths_to_go_by, is_due, smoothed
from efhc.drivers.event_driven.clocked_links import ClockedLinks
from efhc.drivers.event_driven.gradients import Gradients
from efhc.drivers.event_driven.timers import FrameTimes
from efhc.kernels.compiled_arithmetic import StepArithmetic
from efhc.scenarios.decisions import Decisions, largest_drift
from efhc.strategies.forms import Form

if TYPE_CHECKING:
    from efhc.drivers.event_driven.simulator import Simulator


class HalfStepLinks(ClockedLinks):
    """The devices of one run with half-steps, and the messages between them."""

    SAVED: ClassVar = (*ClockedLinks.SAVED, "_began", "_credit", "_spent", "_step_seconds", "_in_flight", "_changed")

    def __init__(self, run: Simulator, form: Form) -> None:
        super().__init__(run, form, Gradients(run.scenario, run.reader))
        assert form.half_steps is not None
        scenario = run.scenario
        self._limit, self._link_law = form.half_steps.limit, self._parts.link_law
        self._keeps_no_history, self._chooses_links = form.keeps_no_history, form.chooses_links
        self._arithmetic = StepArithmetic(self._parts.codec)
        self._decisions = Decisions(self._parts.trigger, form.own_memory, run.reader)
        self._other_bandwidths = bandwidths_to_go_by(self._parts.pacing, scenario.bandwidths.values, run.randomness)
        self._bytes_per_number = np.dtype(scenario.learner.data.precision).itemsize
        self._times = FrameTimes(is_paced=self._parts.pacing is not None)
        devices = len(scenario.bandwidths.values)
        self._began: dict[int, Floats] = {}
        """The model at which a device's current gradient is taken."""
        self._credit = [0.0] * devices
        """The bits that each device may still send within its budget."""
        self._spent = [0.0] * devices
        """The transmission time that each device has spent."""
        self._step_seconds = [0.0] * devices
        """The duration of a local step of each device, smoothed."""
        self._in_flight: dict[tuple[int, int, bool], int] = {}
        """The number of messages in flight, by sender, receiver, and whether they are introductions."""
        self._changed: set[int] = set()
        """The devices whose links have changed at this instant."""
        self._moved: set[int] = set()
        """The devices whose models change at this instant."""

    # Devices

    def new_device(self, number: int, *, copies: bool = False) -> HalfSteps:
        model = None if copies else self._scenario.initial_model(number)
        self._rows.forget(number)
        return HalfSteps(number, self.sessions[number], self._link_law, model)

    @staticmethod
    def durable(device: HalfSteps) -> HalfSteps:
        """Return the device without its links. They begin anew after a crash, and so does h."""
        kept = copy(device)
        kept.links, kept.redundant, kept.silent = {}, set(), False
        return kept

    def restarted(self, kept: HalfSteps) -> HalfSteps:
        device = copy(kept)
        device.session, device.links, device.redundant = self.sessions[device.number], {}, set()
        self._rows.forget(device.number)
        return device

    def models(self, run: Simulator) -> Floats:
        """Return the models of all devices, (m, n). A device that waits for a model counts with its initial one."""
        found = (
            self._scenario.initial_model(device.number) if device.model is None else device.model
            for device in run.devices
        )
        return np.stack(list(found))

    def drifts(self, run: Simulator) -> list[float]:
        """Return the drift of each device: the largest over its links."""
        return [
            0.0 if device.model is None else largest_drift(device.model, device.links.values())
            for device in run.devices
        ]

    def threshold(self, number: int, k: int) -> float:
        return self._decisions.threshold(number, k, self._measured(number))

    # Iterations

    def begin(self, run: Simulator, numbers: Iterable[int]) -> None:
        numbers = list(numbers)
        self.beginning.difference_update(numbers)
        for number in numbers:
            device = run.devices[number]
            if device.model is None:
                continue  # it begins when it has a model
            if not self.has_steps_to_make(device):
                self.running.discard(number)
                self._carry_out(run, number, device.fall_silent())
                continue
            self.running.add(number)
            self._began[number] = device.model
            seconds = self._start_gradient(run, device)
            self._step_seconds[number] = smoothed(self._step_seconds[number] or None, seconds)

    def step(self, run: Simulator, due: Iterable[tuple[Any, ...]], leaving: Collection[int]) -> None:
        numbers = self._current(due)
        if not numbers:
            return
        devices = [run.devices[number] for number in numbers]
        alphas = [float(self._scenario.step_size(device.k)) for device in devices]
        for device, alpha in zip(devices, alphas, strict=True):
            if not alpha > 0:
                given = f"{alpha} at k = {device.k}"
                raise InputError("step_size", given, "a positive number, because half-steps divide by it")
        gradients, losses = zip(*(self.gradients.take(number) for number in numbers), strict=True)
        began = np.stack([self._began.pop(number) for number in numbers])
        gates = np.array([[device.gate] for device in devices])
        down = self._descent(devices, began, np.stack(gradients), alphas, gates)
        for device, alpha, loss, direction in zip(devices, alphas, losses, down, strict=True):
            self._make_step(run, device, alpha, loss, direction)
        self.steps += len(numbers)
        self.beginning.update(number for number in numbers if number not in leaving)
        self.deliver(run)

    def _make_step(self, run: Simulator, device: HalfSteps, alpha: float, loss: float, direction: Floats) -> None:
        """Make a local step, and send what follows from it."""
        number, k = device.number, device.k
        model = device.model - direction.dtype.type(alpha) * direction
        decide = self._decisions.decide(
            number, k, model, (loss, self._spent[number], device.degree), self._measured(number)
        )
        pays = self._budget_of(device) if self._parts.budget else None
        uplink = self._uplink(run, number) if self._parts.pacing else None
        effects = device.stepped(model, alpha, decide, self._arithmetic, pays, self._limit, uplink)
        fired = any(isinstance(one, Send) and isinstance(one.message, Frame) for one in effects)
        self.broadcasts += fired
        run.record.steps.append((number, k, run.now, fired, loss))
        self._carry_out(run, number, effects)
        self._moved.add(number)

    def _uplink(self, run: Simulator, number: int) -> Uplink:
        """Return what a device knows of its uplink now."""
        assert self._parts.pacing is not None
        known = self._messages.measured if self._measures else self._scenario.bandwidths.values
        rate = float((known if self._other_bandwidths is None else self._other_bandwidths)[number])

        def may_follow(neighbour: int) -> bool:
            end, awaits = (number, neighbour), run.devices[number].awaits(neighbour)
            trip, since = self._times.round_trips.get(end), self._times.since_last(run.now, end)
            return is_due(self._link_law.window, awaits, trip, since)

        return Uplink(
            self._parts.pacing,
            rate,
            self._bytes_per_number,
            lambda neighbour: self._messages.backlog(run.now, number, neighbour),
            may_follow,
            self._step_seconds[number],
            self._chooses_links,
            not self._measures or number in self._messages.is_measured,
        )

    def _budget_of(self, device: HalfSteps) -> Callable[[float], bool]:
        """Add the income of an iteration to a device's credit. Returns the function that pays from it."""
        assert self._parts.budget is not None
        number = device.number
        if device.links:
            self._credit[number] += self._parts.budget.income(len(device.model))

        def pays(bits: float) -> bool:
            is_enough = bits <= self._credit[number]
            self._credit[number] -= bits if is_enough else 0.0
            return is_enough

        return pays

    def end_session(self, number: int) -> None:
        super().end_session(number)
        self._began.pop(number, None)

    # Messages

    def _carry_out(self, run: Simulator, number: int, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(neighbour, message):
                    self._send(run, number, neighbour, message)
                case Committed(neighbour, frame):
                    self.committed += 1
                    self._note(run, neighbour, number, frame, "committed")
                    self._moved.add(number)
                case TakeBack(_, link_correction):
                    self._rows.take_back(number, link_correction)
                case Unresolved(neighbour, norm):
                    self.unresolved += 1
                    self._note(run, number, neighbour, None, "unresolved", norm)
                    self._times.forget((number, neighbour))
                case Start():
                    run.journal(number)
                    if not run.devices[number].silent:  # a silent one is leaving
                        self.begin(run, [number])
                case _:
                    raise AssertionError(f"devices of one run keep to the law: {effect}")

    def _send(self, run: Simulator, sender: int, receiver: int, message: Message) -> None:
        bits, size, is_introduction = payload_bits(message), bytes_of(message), isinstance(message, Introduction)
        degree = max(1, len(run.devices[sender].links))
        self._spent[sender] += bits / degree / BITS_PER_NUMBER / float(self._scenario.bandwidths.values[sender])
        if is_introduction and self._parts.budget:
            self._credit[sender] -= bits / degree  # it is sent even if the credit becomes negative
        if not isinstance(message, Acknowledgement):
            number = message.number if isinstance(message, Frame) else 0
            self._times.note_sent(run.now, (sender, receiver), number, size)
            if not self._messages.is_orderly:
                self._times.plan_retry(run, (sender, receiver))
        kind = sender, receiver, is_introduction
        self._in_flight[kind] = self._in_flight.get(kind, 0) + 1
        self._messages.send_sized(run.now, sender, receiver, message, size / self._bytes_per_number, size)

    def deliver(self, run: Simulator) -> None:
        """Deliver all messages of this instant, by receiver and sender, and their replies; then add the steps."""
        while True:
            while self._changed:
                number = min(self._changed)
                self._changed.discard(number)
                self._carry_out(run, number, run.devices[number].announce())
            queue, arrived = self._messages.queue, []
            while queue:
                arrived.append(queue.popleft())
            while self._messages.next_time() <= run.now:
                for outcome, sender, receiver, message in self._messages.take(run.now):
                    if outcome == "arrived":
                        arrived.append((sender, receiver, message))
                    elif outcome == "lost":
                        self._in_flight[sender, receiver, isinstance(message, Introduction)] -= 1
            if not arrived:
                break
            for sender, receiver, message in sorted(arrived, key=lambda one: (one[1], one[0])):
                self._receive(run, sender, receiver, message)
        for number in sorted(self._moved):
            self._add_pull(run, run.devices[number])
        self._moved.clear()

    def _receive(self, run: Simulator, sender: int, receiver: int, message: Any) -> None:
        self._in_flight[sender, receiver, isinstance(message, Introduction)] -= 1
        device = run.devices[receiver]
        end = device.links.get(sender)
        before = None if end is None else end.acknowledged
        effects = device.received(sender, message, self._arithmetic)
        end = device.links.get(sender)
        if end is not None and before is not None and end.acknowledged > before:
            numbers = range(before + 1, end.acknowledged + 1)
            self._times.note_acknowledged(run.now, (receiver, sender), numbers)
        self._carry_out(run, receiver, effects)
        may_be_lost = self._parts.pacing is not None and not self._messages.is_orderly
        if may_be_lost and end is not None and end.pending:
            oldest = end.pending[0].frame.number
            if self._times.is_lost(run.now, (receiver, sender), oldest):
                self._repeat(run, receiver, sender)

    def _repeat(self, run: Simulator, number: int, neighbour: int) -> None:
        self._times.note_repeat(run.now, (number, neighbour))
        self._carry_out(run, number, run.devices[number].retry(neighbour))

    def _add_pull(self, run: Simulator, device: HalfSteps) -> None:
        """Add the steps over links to the model, x += f, and to what the local step remembers."""
        found = device.take_pull()
        if found is not None:
            device.model = self._rows.pulled(device.number, device.model, *found)
        run.journal(device.number)

    def retry(self, run: Simulator, number: int, neighbour: int, *, is_present: bool) -> None:
        """Send again what is not acknowledged, unless it or a reply is still in flight.

        An introduction of the neighbour is no reply.
        """
        end, back = (number, neighbour), (neighbour, number)
        self._times.stop(end)
        if not is_present or not run.devices[number].awaits(neighbour):
            return
        if any(self._in_flight.get(kind) for kind in ((*end, True), (*end, False), (*back, False))):
            self._times.plan_retry(run, end)
        else:
            self._repeat(run, number, neighbour)

    def may_progress(self, run: Simulator, number: int, neighbour: int) -> bool:
        device = run.devices[number]
        return device.model is not None and bool(device.awaits(neighbour))

    # Links and devices that come and go

    def link_up(self, run: Simulator, i: int, j: int, *, new: bool) -> None:
        if new and run.now > 0 and self._keeps_no_history:
            raise InputError("mixing.take_back", "false on a network that changes", "true, or one that stays as it is")
        one, other = run.devices[i], run.devices[j]
        shared = not new and run.now == 0 and one.model is not None and np.array_equal(one.model, other.model)
        if shared:
            other.model = one.model  # equal models share memory
        for device, neighbour in ((one, j), (other, i)):
            device.link_up(neighbour, is_new=new, shared_start=one.model if shared else None)
            self._changed.add(device.number)

    def link_down(self, run: Simulator, number: int, neighbour: int) -> None:
        self.part(run, number, neighbour)
        self._changed.add(number)

    def part(self, run: Simulator, number: int, neighbour: int) -> None:
        self._carry_out(run, number, run.devices[number].link_down(neighbour))
        self._times.forget((number, neighbour))

    def cut(self, run: Simulator, i: int, j: int) -> None:
        self._messages.cut(run.now, i, j)
        for kind in ((i, j, True), (i, j, False), (j, i, True), (j, i, False)):
            self._in_flight.pop(kind, None)

    def leave(self, run: Simulator, number: int) -> None:
        self._carry_out(run, number, run.devices[number].fall_silent())

    def switch_on(self, run: Simulator, number: int, *, anew: bool) -> None:
        if anew:
            self.gradients.forget_local(number)
            self._decisions.forget(number)
            self._credit[number] = self._spent[number] = 0.0
        if run.devices[number].model is not None:
            self.beginning.add(number)

    # The record

    def _note(
        self, run: Simulator, number: int, neighbour: int, frame: Frame | None, outcome: str, norm: float | None = None
    ) -> None:
        """Write the row of a frame: when it was first sent and received, and the bytes that were sent for it."""
        start, sent = self._times.first_sent(run.now, (number, neighbour), 0 if frame is None else frame.number)
        k, weight = (frame.k, frame.weight) if frame is not None else (run.devices[number].k, None)
        run.record.exchanges.append(
            (start, run.now, number, neighbour, k, run.devices[neighbour].k, weight, 2, outcome, sent, norm)
        )

    def unresolved_text(self, count: int) -> str:
        return f"{count} frame{'s'[: count != 1]} left unresolved: a link went down before they were acknowledged"

    def finish(self, run: Simulator, present: list[bool]) -> None:
        for device in run.devices:
            for neighbour, end in device.links.items():
                for frame, *_ in end.pending:
                    if run.devices[neighbour].links[device.number].last_received < frame.number:
                        self._note(run, device.number, neighbour, frame, "unfinished")

    def imbalance(self, run: Simulator) -> float:
        """Return the norm of the sum of the steps that the sender has made and the receiver has not."""
        total = 0.0
        for device in run.devices:
            for neighbour, end in device.links.items():
                other = run.devices[neighbour].links.get(device.number)
                if end.pending:
                    total = total + end.steps_after(-1 if other is None else other.last_received)
        return float(np.linalg.norm(total))

    # Checkpoints

    def state(self) -> dict[str, Any]:
        return super().state() | {"times": self._times.state()}

    def tensors(self) -> dict[str, np.ndarray]:
        return super().tensors() | {f"trigger/{name}": rows for name, rows in self._decisions.memory.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._times.restore(state["times"])
