"""The paper's exchange on devices' own clocks: iterations, messages, patience, and rows of the table.

The rules are those of `core.device`; this decides when gradients are there, and how long messages take.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from heapq import heappush
from typing import Any

import numpy as np

from efhc.base.arrays import Floats
from efhc.core.device import react, restarted
from efhc.core.device_state import Device, Exchange, durable, is_idle, steps_in_order
from efhc.core.local_rows import LocalRows
from efhc.core.local_steps import SGD, Moment
from efhc.core.protocol import (
    Accept,
    Apply,
    AskModel,
    Begin,
    Body,
    Commit,
    Copied,
    Effect,
    Ended,
    Event,
    Finish,
    Fired,
    GiveModel,
    GiveUp,
    Keep,
    Leave,
    LinkDown,
    LinkUp,
    Message,
    NoProgress,
    Offer,
    Ready,
    Received,
    Send,
    Stepped,
    Token,
)
from efhc.core.state import Local
from efhc.drivers.event_driven.checkpoints import attributes, set_attributes
from efhc.drivers.event_driven.compute import ComputeClock
from efhc.drivers.event_driven.gradients import RowGradients
from efhc.drivers.event_driven.mail import Mail
from efhc.drivers.event_driven.patience import Patience
from efhc.drivers.event_driven.rows import Rows
from efhc.drivers.event_driven.run import GRADIENT, Run
from efhc.drivers.event_driven.settings import EventDriven
from efhc.scenarios.device_reader import DeviceReader
from efhc.scenarios.scenario import Scenario
from efhc.strategies.forms import Form

GETS_ON = (Offer, Accept, Body, Ready, Commit, AskModel)
"""Who says this has got on with an exchange, or has asked again after waiting."""


class ExchangeLinks:
    """The devices of one run, and all exchanges between them."""

    def __init__(
        self,
        scenario: Scenario,
        form: Form,
        settings: EventDriven,
        iterations: int,
        clock: ComputeClock,
        reader: DeviceReader,
        rows: Rows,
        mail: Mail,
        reorder: Callable[[deque[Any]], None] | None = None,
    ) -> None:
        """`reorder` may change the order of the messages of one instant, if links are instant: tests shuffle them."""
        assert form.parts is not None
        self._scenario, self._parts, self._clock, self._mail = scenario, form.parts, clock, mail
        self._iterations = iterations if settings.seconds is None else None
        self._measures = settings.bandwidth == "measured"
        self._reader, self._reorder = reader, reorder
        self._patience, self._give_up_seconds = Patience(settings.patience_seconds), settings.give_up_seconds
        self.rows, self.gradients = rows, RowGradients(scenario, reader, rows)
        devices, parameters = len(scenario.bandwidths.values), scenario.learner.backend.parameters
        self._model_bytes = parameters * rows.array.itemsize
        self._local_rows = LocalRows(self._parts.local, devices, parameters, str(rows.array.dtype))
        self._is_plain = self._parts.local == SGD()
        self.steps = self.broadcasts = self.committed = self.unresolved = 0
        self.running: set[int] = set()
        """The devices that have an iteration under way."""
        self.sessions = [0] * devices
        """By device: the gradient of an earlier session is not used."""
        self.beginning: set[int] = set()
        """The devices that begin an iteration at this instant."""
        self._fired: set[int] = set()
        self._drifts: dict[int, float] = {}
        """Of the devices that have just stepped."""
        self._open: dict[Token, list[Any]] = {}
        """Exchanges that were offered: when, and the bytes sent for them since."""

    # Devices

    def new_device(self, number: int, *, copies: bool = False) -> Device:
        """Return a device with its initial model, in a new session; one that `copies` waits for a neighbour's."""
        model = self.rows.holding(self._scenario.initial_model(number))
        self._local_rows.forget(number)
        return Device(number, self.sessions[number], model, model, copies=copies)

    durable = staticmethod(durable)
    is_idle = staticmethod(is_idle)

    def restarted(self, kept: Device) -> Device:
        """The device that starts from what `durable` kept, in a new session and without a link."""
        return restarted(kept, self.sessions[kept.number])

    def waits_for_model(self, device: Device) -> bool:
        """Whether a device waits for a model to start from."""
        return device.copies

    def has_steps_to_make(self, device: Device) -> bool:
        """Whether a device is not at its last iteration yet."""
        return self._iterations is None or device.k < self._iterations

    def in_doubt(self, device: Device) -> list[int]:
        """The neighbours that have to say how an exchange ended."""
        return [neighbour for neighbour, link in device.links.items() if link.in_doubt]

    @property
    def local(self) -> Local:
        """What devices keep to themselves."""
        return self.gradients.local

    def models(self, run: Run) -> Floats:
        """The models of all devices, (m, n); of those that are not there, the last."""
        return self.rows.gathered([device.model for device in run.devices])

    def drifts(self, run: Run) -> list[float]:
        """Return how far each device's model is from its last broadcast."""
        models = [device.model.index for device in run.devices]
        return self.rows.drifts(models, [device.last_broadcast.index for device in run.devices])

    def react(self, run: Run, number: int, event: Event) -> None:
        """Let a device react, and carry out what it wants done, in order."""
        self._carry_out(run, number, react(run.devices[number], event, self.rows.combined))

    def _carry_out(self, run: Run, number: int, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._send(run, number, effect.neighbour, effect.message)
            elif isinstance(effect, Ended):
                if effect.outcome != "committed":
                    self._mail.withdraw(run.now, effect.exchange.token)
                self._note_end(run, number, effect.neighbour, effect.exchange, effect.outcome)
            elif isinstance(effect, Keep):
                run.journal(number)
            elif isinstance(effect, Fired):
                self._fired.add(number)
                self.broadcasts += 1
            elif isinstance(effect, Apply):
                self._apply(run, number)
            elif isinstance(effect, Copied):
                self.begin(run, [number])

    def _apply(self, run: Run, number: int) -> None:
        """A device that has finished makes the steps of committed exchanges at once."""
        device = run.devices[number]
        if device.steps:
            row = self.rows.new()
            self.rows.array[row.index] = 0
            self.rows.step([device], [row], [0.0])
            self.react(run, number, Stepped(row, len(device.steps)))

    # Iterations

    def begin(self, run: Run, numbers: Iterable[int]) -> None:
        """Iterations begin: Events 1 and 2, and the gradients start."""
        numbers = sorted(numbers)
        self.beginning.difference_update(numbers)
        devices = [run.devices[number] for number in numbers]
        if unknown := [device for device in devices if device.number not in self._drifts]:
            drifts = self.rows.drifts([d.model.index for d in unknown], [d.last_broadcast.index for d in unknown])
            self._drifts.update(zip((device.number for device in unknown), drifts, strict=True))
        steps = self._parts.local.steps
        for device in devices:
            number, k = device.number, device.k
            drift = self._drifts.pop(number)
            if not self.has_steps_to_make(device):
                self.running.discard(number)
                self.react(run, number, Finish())
                self._apply(run, number)  # of before a crash
                continue
            self.running.add(number)
            self.react(run, number, Begin(drift, self.threshold(number, k)))
            self.gradients.start(number, k * steps, device.model)
            seconds = sum(self._clock.seconds(number, k * steps + s) for s in range(steps))
            heappush(run.due, (run.now + seconds, GRADIENT, number, self.sessions[number]))

    def threshold(self, number: int, k: int) -> float:
        """threshold_i(k) of a device."""
        if self._measures:
            return self._reader.threshold_with(self._parts.trigger, number, k, self._mail.measured[number])
        return self._reader.threshold(self._parts.trigger, number, k)

    def step(self, run: Run, due: Iterable[tuple[Any, ...]], leaving: Collection[int]) -> None:
        """Gradients are there, (device, session): Events 3 and 4. Devices that are leaving do not begin again."""
        numbers = [number for number, session in due if self.sessions[number] == session]
        if not numbers:
            return
        devices = [run.devices[number] for number in numbers]
        taken = [self.gradients.take(number) for number in numbers]
        step_sizes = [self._scenario.step_size(device.k) for device in devices]
        if not self._is_plain:
            self._descend(devices, [row for row, _ in taken], step_sizes)
        drifts = self.rows.step(devices, [row for row, _ in taken], step_sizes)
        self._drifts.update(zip(numbers, drifts, strict=True))
        fired, steps = self._fired, run.record.steps
        for device, (row, loss) in zip(devices, taken, strict=True):
            number = device.number
            steps.append((number, device.k, run.now, number in fired, loss))
            self.react(run, number, Stepped(row, len(device.steps)))
        fired.difference_update(numbers)
        self.steps += len(numbers)
        self.beginning.update(number for number in numbers if number not in leaving)

    def _descend(self, devices: list[Device], rows: list[Any], step_sizes: list[float]) -> None:
        """Replace gradients by the directions u - h of the local step, and let what it remembers follow the links."""
        numbers, places, local = [device.number for device in devices], [row.index for row in rows], self._parts.local
        gradients, x = self.rows.array[places], self.rows.array[[device.model.index for device in devices]]
        began, steps = x, local.steps
        alphas, gates = np.array(step_sizes, gradients.dtype)[:, None], np.ones((len(devices), 1))
        for s in range(steps):
            if s > 0:
                gradients = self.gradients.at(numbers, [device.k * steps + s for device in devices], x)
            count = np.array([device.k * steps + s + 1 for device in devices])
            down = self._local_rows.descent(numbers, x, gradients, step_sizes, Moment(alphas, count, gates))
            if steps > 1:
                x = x - alphas * down
        self.rows.array[places] = down if steps == 1 else (began - x) / alphas
        if local.follows_links:
            for device in devices:
                pull, kind = np.zeros_like(began[0]), began.dtype.type
                for _, beta, sent, received in steps_in_order(device):
                    pull += kind(beta) * (self.rows.array[received.index] - self.rows.array[sent.index])
                self._local_rows.pulled(device.number, pull, pull)

    def end_session(self, number: int) -> None:
        """The step of a device that is under way is not made."""
        self.beginning.discard(number)
        self.running.discard(number)
        self._drifts.pop(number, None)
        self._fired.discard(number)
        self.gradients.drop(number)
        self.sessions[number] += 1

    # Messages

    def _send(self, run: Run, sender: int, receiver: int, message: Message) -> None:
        """Put a message on its way."""
        if isinstance(message, Offer | Accept):
            self._open[message.token] = [run.now, 0]
        elif isinstance(message, Body):
            for token in (message.token, message.of):
                if token in self._open:
                    self._open[token][1] += self._model_bytes
        if isinstance(message, GETS_ON) and (not self._mail.is_orderly or self._patience.watches(sender, receiver)):
            self._patience.got_on(run, sender, receiver)
        self._mail.send(run.now, sender, receiver, message)

    def deliver(self, run: Run) -> None:
        """Deliver all messages of this instant, and those that they lead to at the same instant."""
        mail, queue = self._mail, self._mail.queue
        while True:
            while queue:
                if self._reorder:
                    self._reorder(queue)
                sender, receiver, message = queue.popleft()
                self.react(run, receiver, Received(sender, message))
            if mail.next_time() > run.now:
                return
            for what, sender, receiver, message in mail.take(run.now):
                self._notice(run, what, sender, receiver, message)

    def _notice(self, run: Run, what: str, sender: int, receiver: int, message: Message) -> None:
        """Something has become of a message."""
        if what != "arrived":  # both ends will lose patience, unless they get on
            self._patience.watch(run, sender, receiver)
            self._patience.watch(run, receiver, sender)
            return
        if isinstance(message, Body | GiveModel) and self._patience.watches(receiver, sender):
            self._patience.got_on(run, receiver, sender)
            self._patience.got_on(run, sender, receiver)
        self.react(run, receiver, Received(sender, message))

    # Links and devices that come and go

    def link_up(self, run: Run, i: int, j: int, *, new: bool) -> None:
        """Two devices have come into reach of one another; `new`: they have just met (Event 1)."""
        for number, neighbour in ((i, j), (j, i)):
            self.react(run, number, LinkUp(neighbour, new))

    def link_down(self, run: Run, number: int, neighbour: int) -> None:
        """A neighbour is out of a device's reach."""
        self.react(run, number, LinkDown(neighbour))

    def cut(self, run: Run, i: int, j: int) -> None:
        """Lose everything that is under way between two devices."""
        self._mail.cut(run.now, i, j)
        self._patience.forget(i, j)
        self._patience.forget(j, i)

    def leave(self, run: Run, number: int) -> None:
        """A device is to go: it begins nothing new, and goes once it is idle."""
        self.react(run, number, Leave())
        self.react(run, number, Finish())
        self._apply(run, number)

    def linked(self, device: Device) -> list[tuple[int, bool]]:
        """The neighbours with which a device has anything to do, and whether the link to each is up."""
        return [(neighbour, link.up) for neighbour, link in device.links.items()]

    def part(self, run: Run, number: int, neighbour: int) -> None:
        """A device is gone: note what becomes of what it had under way with a neighbour."""
        exchange = run.devices[number].links[neighbour].exchange
        if exchange is not None and exchange.in_doubt:  # nobody here knows how it ends
            self._open.pop(exchange.token, None)
        elif exchange is not None:
            self._note_end(run, number, neighbour, exchange, "withdrawn")

    def switch_on(self, run: Run, number: int, *, anew: bool) -> None:
        """A device is there again."""
        device = run.devices[number]
        if anew:
            self.gradients.forget_local(number)
        if device.finished:
            self._apply(run, number)  # of before the crash
        elif not device.copies:  # one that waits for a model begins when that is there
            self.beginning.add(number)

    # Patience

    def wait_is_over(self, run: Run, number: int, neighbour: int, *, is_there: bool) -> None:
        """Withdraw or ask, unless something has moved since; then wait on."""
        if not is_there or not self._waits(run, number, neighbour):
            self._patience.end(number, neighbour)
        elif self._patience.is_over(run, number, neighbour, moves=self._any(run, number, neighbour, self._mail.moves)):
            self.react(run, number, NoProgress(neighbour))
            if self._waits(run, number, neighbour):
                self._patience.watch(run, number, neighbour)

    def may_get_on(self, run: Run, number: int, neighbour: int) -> bool:
        """Whether waiting can still lead to something: no rate of 0 holds the exchange up."""
        is_stalled = self._any(run, number, neighbour, self._mail.is_stalled)
        return self._is_in_flight(run, number, neighbour) and not is_stalled

    def give_up(self, run: Run, number: int, neighbour: int) -> None:
        """A neighbour that has to say how an exchange ended will not return."""
        self.react(run, number, GiveUp(neighbour))

    def _waits(self, run: Run, number: int, neighbour: int) -> bool:
        """Whether a device that is there expects something of a neighbour that is in reach."""
        link = run.devices[number].links.get(neighbour)
        is_asked = run.devices[number].asked == neighbour and link is not None and link.up
        return is_asked or self._is_in_flight(run, number, neighbour)

    @staticmethod
    def _is_in_flight(run: Run, number: int, neighbour: int) -> bool:
        """Whether a device has an exchange in flight with a neighbour in reach, awaits its answer, or owes it one."""
        device, link = run.devices[number], run.devices[number].links.get(neighbour)
        if link is None or not link.up:
            return False
        if link.exchange is not None or (device.finished and link.owes):
            return True
        return any(decision.neighbour == neighbour for decision in device.unacknowledged.values())

    @staticmethod
    def _any(run: Run, number: int, neighbour: int, holds: Callable[[Token], bool]) -> bool:
        """Whether something holds for the model that either end of an exchange sends."""
        links = (run.devices[a].links.get(b) for a, b in ((number, neighbour), (neighbour, number)))
        exchanges = (link.exchange for link in links if link is not None)
        return any(exchange is not None and holds(exchange.token) for exchange in exchanges)

    # The record

    def _note_end(self, run: Run, number: int, neighbour: int, exchange: Exchange, outcome: str) -> None:
        """Write the row of an exchange, if it is this end's to write."""
        offered = self._open.pop(exchange.token, None)
        if not exchange.decides and outcome != "unresolved":  # its row is written by the end that decides
            return
        start, sent = offered or (run.now, 0)
        self.committed += outcome == "committed"
        self.unresolved += outcome == "unresolved"
        run.record.exchanges.append((
            start, run.now, number, neighbour, exchange.k, exchange.partner_k, exchange.share, exchange.event or None,
            outcome, sent, _step_norm(exchange, self.rows) if outcome == "unresolved" else None,
        ))  # fmt: skip

    def unresolved_text(self, count: int) -> str:
        """Return the warning that `count` steps may be at one end only."""
        text = f"{count} exchange{'s'[: count != 1]} left unresolved: a device did not come back"
        return f"{text} within give_up_seconds, {self._give_up_seconds:g}"

    def finish(self, run: Run, present: list[bool]) -> None:
        """The run is over: what is still in flight is counted as it is."""
        for number, device in enumerate(run.devices):
            for neighbour, link in device.links.items():
                if link.exchange is not None and present[number]:
                    self._note_end(run, number, neighbour, link.exchange, "unfinished")

    def imbalance(self, run: Run) -> float:
        """The norm of the sum of the committed steps that one end has made and the other has not."""
        return imbalance(run.devices, self.rows)

    # Checkpoints

    SAVED = (
        "steps", "broadcasts", "committed", "unresolved", "running", "sessions", "beginning", "_fired", "_open",
    )  # fmt: skip

    def state(self) -> dict[str, Any]:
        """Return plain data that `restore` goes on from. Drifts are computed again."""
        parts = {"gradients": self.gradients.state(), "patience": self._patience.state()}
        return attributes(self, self.SAVED) | parts

    def tensors(self) -> dict[str, np.ndarray]:
        """Return arrays that `restore` goes on from."""
        return self.gradients.tensors() | self._local_rows.tensors()

    def restore(self, state: dict[str, Any], tensors: Mapping[str, np.ndarray]) -> None:
        """Go on from what `state` and `tensors` returned."""
        set_attributes(self, self.SAVED, state)
        self.gradients.restore(state["gradients"], tensors)
        self._patience.restore(state["patience"])
        self._local_rows.restore(tensors)


def _step_norm(exchange: Exchange, rows: Rows) -> float:
    """||beta (u_j - u_i)||, which the other end may have added to its model."""
    ends: tuple[Any, Any] = exchange.sent, exchange.received
    sent, received = (rows.array[row.index].astype(np.float64) for row in ends)
    return exchange.share * float(np.linalg.norm(received - sent))


def imbalance(devices: Sequence[Device], rows: Rows) -> float:
    """The norm of the committed steps that one end has made and the other has not."""
    weights: dict[int, float] = {}

    def add(beta: float, sent: Any, received: Any) -> None:
        weights[received.index] = weights.get(received.index, 0.0) + beta
        weights[sent.index] = weights.get(sent.index, 0.0) - beta

    for device in devices:
        for step in device.steps:
            add(*step[1:])
        for neighbour, link in device.links.items():
            if (exchange := link.exchange) is not None and _is_owed(devices[neighbour], exchange):
                add(exchange.share, exchange.sent, exchange.received)
    places = [index for index, weight in weights.items() if weight]
    if not places:
        return 0.0
    total = np.zeros(rows.array.shape[1])
    for index in places:
        total += weights[index] * rows.array[index]
    return float(np.linalg.norm(total))


def _is_owed(neighbour: Device, exchange: Exchange) -> bool:
    """Whether the neighbour has committed an exchange whose end is in doubt here."""
    if not exchange.in_doubt or exchange.partner is None:
        return False
    decision = neighbour.unacknowledged.get(exchange.partner)
    return decision is not None and decision.partner == exchange.token
