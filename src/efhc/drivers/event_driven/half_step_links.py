"""Half-steps on devices' own clocks: local steps, frames and acknowledgements in virtual time.

The law is `core.half_steps`; this decides when gradients are there, and how long messages take. At one instant, what
all frames add to a device is summed up first and then added to its model, as in lockstep.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from copy import copy
from heapq import heappush
from typing import Any

import numpy as np

from efhc.base.arrays import Floats
from efhc.base.errors import InputError
from efhc.core.cost import BITS_PER_NUMBER, whole_message_bits
from efhc.core.half_steps import (
    Acknowledgement,
    Effect,
    Frame,
    HalfSteps,
    Introduction,
    Send,
    Start,
    TakeBack,
    Unresolved,
    bytes_of,
)
from efhc.core.local_rows import LocalRows
from efhc.core.local_steps import Moment
from efhc.core.randomness import Randomness
from efhc.core.state import Local
from efhc.core.uplink import Uplink, bandwidths_to_go_by, is_due
from efhc.drivers.event_driven.checkpoints import attributes, set_attributes
from efhc.drivers.event_driven.compute import ComputeClock
from efhc.drivers.event_driven.gradients import Gradients
from efhc.drivers.event_driven.mail import Mail
from efhc.drivers.event_driven.run import GRADIENT, RETRY, Run
from efhc.drivers.event_driven.settings import EventDriven
from efhc.kernels.step_arithmetic import StepArithmetic
from efhc.scenarios.decisions import Decisions, largest_drift
from efhc.scenarios.scenario import Scenario
from efhc.strategies.forms import Form

FIRST_TIMEOUT = 1.0
"""Seconds after which an unacknowledged message is sent again before any round trip was measured."""
OVERDUE = 1.25
"""So many round trips after it was sent, a frame that is not acknowledged is lost, if the other end is heard."""
PATIENT = 1.5
"""A device that paces itself waits so many times longer: its neighbours acknowledge with their next frame."""
MARGIN_SECONDS = 0.01
"""What is added to twice the measured round trip."""

Pair = tuple[int, int]
"""A device, and one of its neighbours."""


class HalfStepLinks:
    """The devices of one run, and all that goes over their links."""

    def __init__(
        self,
        scenario: Scenario,
        form: Form,
        settings: EventDriven,
        iterations: int,
        clock: ComputeClock,
        gradients: Gradients,
        mail: Mail,
        randomness: Randomness,
    ) -> None:
        assert form.parts is not None
        assert form.half_steps is not None
        self._scenario, self._parts, self._law, self._clock = scenario, form.parts, form.half_steps, clock
        self._iterations = iterations if settings.seconds is None else None
        self._measures = settings.bandwidth == "measured"
        self._mail, self.gradients = mail, gradients
        self._arithmetic = StepArithmetic(self._parts.codec)
        self._decisions = Decisions(self._parts.trigger, form.own_memory, gradients.reader)
        devices, parameters = len(scenario.bandwidths.values), scenario.learner.backend.parameters
        self._rows = LocalRows(self._parts.local, devices, parameters, scenario.learner.data.precision)
        self._keeps_no_history = form.keeps_no_history
        self._other_bandwidths = bandwidths_to_go_by(self._parts.pacing, scenario.bandwidths.values, randomness)
        self._link_law, self._chooses_links = self._parts.link_law, form.chooses_links
        self._bytes_per_number = np.dtype(scenario.learner.data.precision).itemsize
        self.steps = self.broadcasts = self.committed = self.unresolved = 0
        self.running: set[int] = set()
        """The devices that have an iteration under way."""
        self.beginning: set[int] = set()
        """The devices that begin an iteration at this instant."""
        self.sessions = [0] * devices
        self._began: dict[int, Floats] = {}
        """The model at which the gradient under way is taken, by device."""
        self._credit, self._spent = [0.0] * devices, [0.0] * devices
        """Bits that each device may send, and the transmission time that it has spent."""
        self._changed: set[int] = set()
        """Devices whose links have changed at this instant."""
        self._touched: set[int] = set()
        """Devices to which steps were added at this instant."""
        self._sent_at: dict[tuple[int, int, int], tuple[float, int]] = {}
        """By sender, receiver and number of an unacknowledged frame: when it was first sent, and its bytes so far."""
        self._last_sent: dict[Pair, float] = {}
        """When an end sent its last frame."""
        self._round_trips: dict[Pair, float] = {}
        self._step_seconds = [0.0] * devices
        """How long a local step takes, smoothed."""
        self._under_way: dict[tuple[int, int, bool], int] = {}
        """Number of messages between two devices, by sender, receiver, and whether they are introductions."""
        self._retries: set[Pair] = set()
        """The ends whose retry is on the heap."""
        self._resends: dict[Pair, int] = {}
        """How often an end has sent again since it last heard of the other."""
        self._repeated_at: dict[Pair, float] = {}
        """When an end has last sent again."""
        self._resent: set[Pair] = set()
        """The ends whose unacknowledged message was sent more than once."""

    # Devices

    def new_device(self, number: int, *, copies: bool = False) -> HalfSteps:
        """Return a device with its initial model, in a new session; one that `copies` waits for a neighbour's."""
        model = None if copies else self._scenario.initial_model(number)
        self._rows.forget(number)
        return HalfSteps(number, self.sessions[number], self._link_law, model)

    def durable(self, device: HalfSteps) -> HalfSteps:
        """What a crash leaves: the model. Its links are gone when it comes back, and with them all of h."""
        kept = copy(device)
        kept.links, kept.quiet, kept.silent = {}, set(), False
        return kept

    def restarted(self, kept: HalfSteps) -> HalfSteps:
        """The device that starts from what `durable` kept, in a new session and without a link."""
        device = copy(kept)
        device.session, device.links, device.quiet = self.sessions[device.number], {}, set()
        self._rows.forget(device.number)
        return device

    def waits_for_model(self, device: HalfSteps) -> bool:
        """Whether a device waits for a model to start from."""
        return device.model is None

    def has_steps_to_make(self, device: HalfSteps) -> bool:
        """Whether a device is not at its last iteration yet."""
        return self._iterations is None or device.k < self._iterations

    @property
    def local(self) -> Local:
        """What devices keep to themselves."""
        return self.gradients.local

    def models(self, run: Run) -> Floats:
        """The models of all devices, (m, n); of one that waits for a model, its initial one."""
        found = (
            self._scenario.initial_model(device.number) if device.model is None else device.model
            for device in run.devices
        )
        return np.stack(list(found))

    def drifts(self, run: Run) -> list[float]:
        """Return how far each device's model is from what its neighbours know of it: the largest over its links."""
        return [
            0.0 if device.model is None else largest_drift(device.model, device.links.values())
            for device in run.devices
        ]

    def threshold(self, number: int, k: int) -> float:
        """threshold_i(k) of a device; NaN of a trigger that has none."""
        return self._decisions.threshold(number, k, self._mail.measured[number] if self._measures else None)

    # Iterations

    def begin(self, run: Run, numbers: Iterable[int]) -> None:
        """Iterations begin: gradients start at the models of this moment."""
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
            first, count = device.k * self._parts.local.steps, self._parts.local.steps
            self.gradients.start(number, first, device.model)
            seconds = sum(self._clock.seconds(number, first + s) for s in range(count))
            before = self._step_seconds[number]
            self._step_seconds[number] = before + (seconds - before) / 4 if before else seconds
            heappush(run.due, (run.now + seconds, GRADIENT, number, self.sessions[number]))

    def step(self, run: Run, due: Iterable[tuple[Any, ...]], leaving: Collection[int]) -> None:
        """Gradients are there, (device, session): local steps, and what is sent of them."""
        numbers = [number for number, session in due if self.sessions[number] == session]
        if not numbers:
            return
        devices = [run.devices[number] for number in numbers]
        alphas = [float(self._scenario.step_size(device.k)) for device in devices]
        for device, alpha in zip(devices, alphas, strict=True):
            if not alpha > 0:
                raise InputError(
                    "step_size", f"{alpha} at k = {device.k}", "a positive number, which half-steps divide by"
                )
        losses, down = self._descend(numbers, devices, alphas)
        for device, alpha, loss, direction in zip(devices, alphas, losses, down, strict=True):
            number, k = device.number, device.k
            model = device.model - direction.dtype.type(alpha) * direction
            seen = loss, self._spent[number], device.degree
            measured = self._mail.measured[number] if self._measures else None
            decide = self._decisions.decide(number, k, model, seen, measured)
            affords = self._affords(device) if self._parts.budget else None
            uplink = self._uplink(run, number) if self._parts.pacing else None
            effects = device.stepped(model, alpha, decide, self._arithmetic, affords, self._law.limit, uplink)
            fired = any(isinstance(one, Send) and isinstance(one.message, Frame) for one in effects)
            self.broadcasts += fired
            run.record.steps.append((number, k, run.now, fired, loss))
            self._carry_out(run, number, effects)
            self._touched.add(number)
        self.steps += len(numbers)
        self.beginning.update(number for number in numbers if number not in leaving)
        self.deliver(run)

    def _descend(self, numbers: list[int], devices: list[HalfSteps], alphas: list[float]) -> tuple[list[float], Floats]:
        """Return the losses and the directions u - h of devices whose gradients are there."""
        steps, taken = self._parts.local.steps, [self.gradients.take(number) for number in numbers]
        losses, gradients = [loss for _, loss in taken], np.stack([gradient for gradient, _ in taken])
        began = np.stack([self._began.pop(number) for number in numbers])
        column = np.array(alphas, gradients.dtype)[:, None]
        gates = np.array([[device.gate] for device in devices])
        x = began
        for s in range(steps):
            if s > 0:
                gradients = self.gradients.at(numbers, [device.k * steps + s for device in devices], x)
            number = np.array([device.k * steps + s + 1 for device in devices])
            down = self._rows.descent(numbers, x, gradients, alphas, Moment(column, number, gates))
            if steps > 1:
                x = x - column * down
        return losses, down if steps == 1 else (began - x) / column

    def _uplink(self, run: Run, number: int) -> Uplink:
        """What a device knows of its uplink now."""
        assert self._parts.pacing is not None
        known = self._mail.measured if self._measures else self._scenario.bandwidths.values
        rate = float((known if self._other_bandwidths is None else self._other_bandwidths)[number])

        def may_follow(neighbour: int) -> bool:
            pair = number, neighbour
            since = run.now - self._last_sent.get(pair, run.now)
            return is_due(self._law.window, run.devices[number].awaits(neighbour), self._round_trips.get(pair), since)

        return Uplink(
            self._parts.pacing,
            rate,
            self._bytes_per_number,
            lambda neighbour: self._mail.backlog(run.now, number, neighbour),
            may_follow,
            self._step_seconds[number],
            self._chooses_links,
            not self._measures or number in self._mail.is_measured,
        )

    def _affords(self, device: HalfSteps) -> Any:
        """Add this iteration's share of what ZT would spend to a device's credit; returns what pays from it."""
        assert self._parts.budget is not None
        number = device.number
        if device.links:
            self._credit[number] += self._parts.budget.share * BITS_PER_NUMBER * len(device.model)

        def pays(bits: float) -> bool:
            is_enough = bits <= self._credit[number]
            self._credit[number] -= bits if is_enough else 0.0
            return is_enough

        return pays

    def end_session(self, number: int) -> None:
        """The step of a device that is under way is not made."""
        self.beginning.discard(number)
        self.running.discard(number)
        self._began.pop(number, None)
        self.gradients.drop(number)
        self.sessions[number] += 1

    # Messages

    def _carry_out(self, run: Run, number: int, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._send(run, number, effect.neighbour, effect.message)
            elif isinstance(effect, TakeBack):
                self._rows.take_back(number, effect.taught)
            elif isinstance(effect, Unresolved):
                self.unresolved += 1
                self._note(run, number, effect.neighbour, None, "unresolved", effect.norm)
                self._forget_times(number, effect.neighbour)
            elif isinstance(effect, Start):
                run.journal(number)
                if not run.devices[number].silent:  # else it is leaving
                    self.begin(run, [number])
            else:
                raise AssertionError(f"devices of one run keep to the law: {effect}")

    def _send(self, run: Run, sender: int, receiver: int, message: Any) -> None:
        bits = 0
        if isinstance(message, Frame):
            bits = message.bits
        elif isinstance(message, Introduction) and message.model is not None:
            bits = whole_message_bits(message.model[None])
        is_frame, size = not isinstance(message, Acknowledgement), bytes_of(message)
        degree = max(1, len(run.devices[sender].links))
        self._spent[sender] += bits / degree / BITS_PER_NUMBER / float(self._scenario.bandwidths.values[sender])
        if isinstance(message, Introduction) and self._parts.budget:
            self._credit[sender] -= bits / degree  # on credit if need be
        if is_frame:
            number = message.number if isinstance(message, Frame) else 0
            first, sent = self._sent_at.get((sender, receiver, number), (run.now, 0))
            self._sent_at[sender, receiver, number] = first, sent + size
            self._last_sent[sender, receiver] = run.now
            if not self._mail.is_orderly:
                self._plan_retry(run, sender, receiver)
        kind = sender, receiver, isinstance(message, Introduction)
        self._under_way[kind] = self._under_way.get(kind, 0) + 1
        self._mail.send_sized(run.now, sender, receiver, message, size / self._bytes_per_number, size)

    def deliver(self, run: Run) -> None:
        """Deliver all messages of this instant, by receiver and sender, and those that they lead to; then add steps."""
        while True:
            while self._changed:
                number = min(self._changed)
                self._changed.discard(number)
                self._carry_out(run, number, run.devices[number].announce())
            queue, messages = self._mail.queue, []
            while queue:
                messages.append(queue.popleft())
            while self._mail.next_time() <= run.now:
                for what, sender, receiver, message in self._mail.take(run.now):
                    if what == "arrived":
                        messages.append((sender, receiver, message))
                    elif what == "lost":
                        self._under_way[sender, receiver, isinstance(message, Introduction)] -= 1
            if not messages:
                break
            for sender, receiver, message in sorted(messages, key=lambda one: (one[1], one[0])):
                self._receive(run, sender, receiver, message)
        for number in sorted(self._touched):
            self._add_pull(run, run.devices[number])
        self._touched.clear()

    def _receive(self, run: Run, sender: int, receiver: int, message: Any) -> None:
        self._under_way[sender, receiver, isinstance(message, Introduction)] -= 1
        device = run.devices[receiver]
        end = device.links.get(sender)
        before = None if end is None else (end.inn, end.acknowledged)
        made = [message] if isinstance(message, Frame) else []
        made += [end.early[one] for one in sorted(end.early)] if end is not None and made else []
        effects = device.received(sender, message, self._arithmetic)
        end = device.links.get(sender)
        if end is not None and before is not None:
            if end.acknowledged > before[1]:
                self._note_round_trip(run, receiver, sender, before[1])
            for frame in made[: end.inn - before[0]]:
                self.committed += 1
                self._note(run, sender, receiver, frame, "committed")
                self._touched.add(receiver)
        self._carry_out(run, receiver, effects)
        if end is not None and end.pending and self._parts.pacing and not self._mail.is_orderly:
            self._repeat_if_overdue(run, receiver, sender, end.pending[0].frame.number)

    def _repeat_if_overdue(self, run: Run, number: int, neighbour: int, oldest: int) -> None:
        """A neighbour is heard, and has not acknowledged a frame for longer than that takes: the frame is lost."""
        trip = self._round_trips.get((number, neighbour))
        first = self._sent_at.get((number, neighbour, oldest), (run.now, 0))[0]
        since = max(first, self._repeated_at.get((number, neighbour), 0.0))
        if trip is not None and run.now - since > OVERDUE * trip:
            self._repeat(run, number, neighbour)

    def _repeat(self, run: Run, number: int, neighbour: int) -> None:
        self._resent.add((number, neighbour))
        self._resends[number, neighbour] = self._resends.get((number, neighbour), 0) + 1
        self._repeated_at[number, neighbour] = run.now
        self._carry_out(run, number, run.devices[number].retry(neighbour))

    def _note_round_trip(self, run: Run, number: int, neighbour: int, since: int) -> None:
        """What an end sent is acknowledged: learn how long that takes, unless it was sent more than once."""
        was_resent, newest = (number, neighbour) in self._resent, run.devices[number].links[neighbour].acknowledged
        self._resent.discard((number, neighbour))
        self._resends.pop((number, neighbour), None)
        found = [self._sent_at.pop((number, neighbour, one), None) for one in range(since + 1, newest + 1)]
        if found and found[-1] is not None and not was_resent:
            seconds, before = run.now - found[-1][0], self._round_trips.get((number, neighbour))
            weight = 4 if self._parts.pacing else 8
            self._round_trips[number, neighbour] = seconds if before is None else before + (seconds - before) / weight

    def _add_pull(self, run: Run, device: HalfSteps) -> None:
        """x += f, and h and momentum follow."""
        found = device.take_pull()
        if found is not None:
            device.model = self._rows.pulled(device.number, device.model, *found)
        run.journal(device.number)

    # Waiting

    def _plan_retry(self, run: Run, number: int, neighbour: int) -> None:
        if (number, neighbour) not in self._retries:
            self._retries.add((number, neighbour))
            trip = self._round_trips.get((number, neighbour))
            wait = FIRST_TIMEOUT if trip is None else 2 * trip + MARGIN_SECONDS
            if self._parts.pacing:
                wait *= PATIENT * 2 ** min(6, self._resends.get((number, neighbour), 0))
            heappush(run.due, (run.now + wait, RETRY, number, neighbour))

    def wait_is_over(self, run: Run, number: int, neighbour: int, *, is_there: bool) -> None:
        """Send again what is not acknowledged, unless it or an answer is still under way. No introduction is one."""
        self._retries.discard((number, neighbour))
        if not is_there or not run.devices[number].awaits(neighbour):
            return
        out, back = (number, neighbour), (neighbour, number)
        if any(self._under_way.get(kind) for kind in ((*out, True), (*out, False), (*back, False))):
            self._plan_retry(run, number, neighbour)
        else:
            self._repeat(run, number, neighbour)

    def may_get_on(self, run: Run, number: int, neighbour: int) -> bool:
        """Whether waiting can still lead to something, now that no device makes steps any more."""
        device = run.devices[number]
        return device.model is not None and bool(device.awaits(neighbour))

    def is_idle(self, device: HalfSteps) -> bool:
        """Whether nothing of a device waits for an acknowledgement."""
        return device.is_idle

    # Links and devices that come and go

    def link_up(self, run: Run, i: int, j: int, *, new: bool) -> None:
        """Two devices have come into reach of one another; `new`: they have just met, and know nothing of another."""
        if new and run.now > 0 and self._keeps_no_history:
            raise InputError("mixing.take_back", "false on a network that changes", "true, or one that stays as it is")
        one, other = run.devices[i], run.devices[j]
        shared = not new and run.now == 0 and one.model is not None and np.array_equal(one.model, other.model)
        if shared:
            other.model = one.model  # what is equal is shared
        for device, neighbour in ((one, j), (other, i)):
            device.link_up(neighbour, is_new=new, shared_start=one.model if shared else None)
            self._changed.add(device.number)

    def link_down(self, run: Run, number: int, neighbour: int) -> None:
        """A neighbour is out of a device's reach."""
        self._carry_out(run, number, run.devices[number].link_down(neighbour))
        self._forget_times(number, neighbour)
        self._changed.add(number)

    def _forget_times(self, number: int, neighbour: int) -> None:
        """A link is over: nothing that was sent over it is timed any more."""
        for one in [key for key in self._sent_at if key[:2] == (number, neighbour)]:
            del self._sent_at[one]
        self._resent.discard((number, neighbour))
        self._resends.pop((number, neighbour), None)

    def cut(self, run: Run, i: int, j: int) -> None:
        """Lose everything that is under way between two devices."""
        self._mail.cut(run.now, i, j)
        for kind in ((i, j, True), (i, j, False), (j, i, True), (j, i, False)):
            self._under_way.pop(kind, None)

    def leave(self, run: Run, number: int) -> None:
        """A device is to go: it sends nothing new, and goes once it is idle."""
        self._carry_out(run, number, run.devices[number].fall_silent())

    def linked(self, device: HalfSteps) -> list[tuple[int, bool]]:
        """The neighbours of a device; all their links are up."""
        return [(neighbour, True) for neighbour in device.links]

    def part(self, run: Run, number: int, neighbour: int) -> None:
        """A device is gone: its frame that a neighbour has not acknowledged is unresolved."""
        self._carry_out(run, number, run.devices[number].link_down(neighbour))
        self._forget_times(number, neighbour)

    def switch_on(self, run: Run, number: int, *, anew: bool) -> None:
        """A device is there again."""
        if anew:
            self.gradients.forget_local(number)
            self._decisions.forget(number)
            self._credit[number] = self._spent[number] = 0.0
        if run.devices[number].model is not None:
            self.beginning.add(number)

    def in_doubt(self, device: HalfSteps) -> list[int]:
        """The neighbours that have to say how something ended: none."""
        return []

    def give_up(self, run: Run, number: int, neighbour: int) -> None:
        """Nothing is in doubt."""

    # The record

    def _note(
        self, run: Run, number: int, neighbour: int, frame: Frame | None, outcome: str, norm: float | None = None
    ) -> None:
        """Write the row of a frame: when it was first sent and received, and the bytes that it took."""
        key = number, neighbour, 0 if frame is None else frame.number
        start, sent = self._sent_at.get(key, (run.now, 0))
        k, weight = (frame.k, frame.weight) if frame is not None else (run.devices[number].k, None)
        run.record.exchanges.append(
            (start, run.now, number, neighbour, k, run.devices[neighbour].k, weight, 2, outcome, sent, norm)
        )

    def unresolved_text(self, count: int) -> str:
        """Return the warning that `count` steps may be at one end only."""
        return f"{count} frame{'s'[: count != 1]} left unresolved: a link went down before they were acknowledged"

    def finish(self, run: Run, present: list[bool]) -> None:
        """The run is over: what is still under way is counted as it is."""
        for device in run.devices:
            for neighbour, end in device.links.items():
                for frame, *_ in end.pending:
                    if run.devices[neighbour].links[device.number].inn < frame.number:
                        self._note(run, device.number, neighbour, frame, "unfinished")

    def imbalance(self, run: Run) -> float:
        """The norm of the sum of the steps that the sender has made and the receiver has not."""
        total = 0.0
        for device in run.devices:
            for neighbour, end in device.links.items():
                other = run.devices[neighbour].links.get(device.number)
                if end.pending:
                    total = total + end.steps_after(-1 if other is None else other.inn)
        return float(np.linalg.norm(total))

    # Checkpoints

    SAVED = (
        "steps", "broadcasts", "committed", "unresolved", "running", "beginning", "sessions", "_began", "_credit",
        "_spent", "_sent_at", "_last_sent", "_round_trips", "_step_seconds", "_resends",
        "_repeated_at", "_under_way", "_retries", "_resent", "_changed",
    )  # fmt: skip

    def state(self) -> dict[str, Any]:
        """Return plain data that `restore` goes on from."""
        return attributes(self, self.SAVED) | {"gradients": self.gradients.state()}

    def tensors(self) -> dict[str, np.ndarray]:
        """Return arrays that `restore` goes on from."""
        own = {f"trigger/{name}": rows for name, rows in self._decisions.memory.items()}
        return self.gradients.tensors() | self._rows.tensors() | own

    def restore(self, state: dict[str, Any], tensors: Mapping[str, np.ndarray]) -> None:
        """Go on from what `state` and `tensors` returned."""
        set_attributes(self, self.SAVED, state)
        self.gradients.restore(state["gradients"], tensors)
        self._rows.restore(tensors)
        for name, rows in self._decisions.memory.items():
            rows[...] = tensors[f"trigger/{name}"]
