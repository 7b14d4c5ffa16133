"""The paper's exchange in virtual time: iterations, messages, retries, and rows of the table.

The law is `core.device`; this decides when gradients are ready and how long messages take.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from efhc.base.arrays import Floats
from efhc.base.threads import in_ranges
from efhc.core import protocol
from efhc.core.device import Device, Exchange, durable, react, restarted, steps_in_order
from efhc.core.local_steps import SGD
from efhc.core.protocol import Effect, Event, Message, Token
from efhc.drivers.event_driven.clocked_links import ClockedLinks
from efhc.drivers.event_driven.gradients import Gradients, as_rows
from efhc.drivers.event_driven.timers import ProgressTimers
from efhc.kernels import model_loops as loops
from efhc.scenarios.decisions import drift_of
from efhc.strategies.forms import Form

if TYPE_CHECKING:
    from efhc.drivers.event_driven.simulator import Simulator

PROGRESS = (protocol.Offer, protocol.Accept, protocol.Body, protocol.Ready, protocol.Commit, protocol.ModelRequest)
"""Messages whose sender makes progress with an exchange, or tries again after waiting."""


class ExchangeLinks(ClockedLinks):
    """The devices of one run, and all exchanges between them."""

    SAVED: ClassVar = (*ClockedLinks.SAVED, "_fired", "_open")

    def __init__(self, run: Simulator, form: Form) -> None:
        super().__init__(run, form, Gradients(run.scenario, run.reader))
        self._reader, self._threads = run.reader, run.threads
        self._timers = ProgressTimers(run.settings.patience_seconds)
        self._give_up_seconds = run.settings.give_up_seconds
        self._model_bytes = run.messages.model_bytes
        self._is_plain = self._parts.local == SGD()
        self._fired: set[int] = set()
        """The devices that broadcast in their current iteration."""
        self._drifts: dict[int, float] = {}
        """The drifts of the devices that have just stepped."""
        self._open: dict[Token, list[Any]] = {}
        """When each exchange was offered, and the bytes sent for it since."""

    # Devices

    def new_device(self, number: int, *, copies: bool = False) -> Device:
        model = self._scenario.initial_model(number)
        self._rows.forget(number)
        return Device(number, self.sessions[number], model, model, waits_for_model=copies)

    durable = staticmethod(durable)

    def restarted(self, kept: Device) -> Device:
        return restarted(kept, self.sessions[kept.number])

    def in_doubt(self, device: Device) -> list[int]:
        return [neighbour for neighbour, link in device.links.items() if link.in_doubt]

    def linked(self, device: Device) -> list[tuple[int, bool]]:
        return [(neighbour, link.up) for neighbour, link in device.links.items()]

    def models(self, run: Simulator) -> Floats:
        return np.stack([device.model for device in run.devices])

    def drifts(self, run: Simulator) -> list[float]:
        """Return how far each device's model is from its last broadcast."""
        return [drift_of(device.model, device.last_broadcast) for device in run.devices]

    def react(self, run: Simulator, number: int, event: Event) -> None:
        """Let a device react to an event, and carry out the effects in order."""
        self._carry_out(run, number, react(run.devices[number], event, combined))

    def _carry_out(self, run: Simulator, number: int, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, protocol.Send):
                self._send(run, number, effect.neighbour, effect.message)
            elif isinstance(effect, protocol.Ended):
                if effect.outcome != "committed":
                    self._messages.withdraw(run.now, effect.exchange.token)
                self._note_end(run, number, effect.neighbour, effect.exchange, effect.outcome)
            elif isinstance(effect, protocol.Keep):
                run.journal(number)
            elif isinstance(effect, protocol.Fired):
                self._fired.add(number)
                self.broadcasts += 1
            elif isinstance(effect, protocol.Apply):
                self._apply(run, number)
            elif isinstance(effect, protocol.Copied):
                self.begin(run, [number])

    def _apply(self, run: Simulator, number: int) -> None:
        """Make the steps of committed exchanges of a finished device."""
        device = run.devices[number]
        if device.steps:
            (model, _) = mixed([device], [np.zeros_like(device.model)], [0.0])[0]
            self.react(run, number, protocol.Stepped(model, len(device.steps)))

    # Iterations

    def begin(self, run: Simulator, numbers: Iterable[int]) -> None:
        """Events 1 and 2; the gradients start."""
        numbers = sorted(numbers)
        self.beginning.difference_update(numbers)
        devices = [run.devices[number] for number in numbers]
        for device in devices:
            number = device.number
            drift = self._drifts.pop(number, None)
            if drift is None:
                drift = drift_of(device.model, device.last_broadcast)
            if not self.has_steps_to_make(device):
                self.running.discard(number)
                self.react(run, number, protocol.Finish())
                self._apply(run, number)  # steps from before a crash
                continue
            self.running.add(number)
            self.react(run, number, protocol.Begin(drift, self.threshold(number, device.k)))
            self._start_gradient(run, device)

    def threshold(self, number: int, k: int) -> float:
        return self._reader.threshold(self._parts.trigger, number, k, self._measured(number))

    def step(self, run: Simulator, due: Iterable[tuple[Any, ...]], leaving: Collection[int]) -> None:
        """Events 3 and 4."""
        numbers = self._current(due)
        if not numbers:
            return
        devices = [run.devices[number] for number in numbers]
        gradients, losses = zip(*(self.gradients.take(number) for number in numbers), strict=True)
        step_sizes = [self._scenario.step_size(device.k) for device in devices]
        if not self._is_plain:
            gradients = tuple(self._descend(devices, np.stack(gradients), step_sizes))
        stepped = mixed(devices, gradients, step_sizes, self._threads)
        fired, steps = self._fired, run.record.steps
        for device, (model, drift), loss in zip(devices, stepped, losses, strict=True):
            number = device.number
            self._drifts[number] = drift
            steps.append((number, device.k, run.now, number in fired, loss))
            self.react(run, number, protocol.Stepped(model, len(device.steps)))
        fired.difference_update(numbers)
        self.steps += len(numbers)
        self.beginning.update(number for number in numbers if number not in leaving)

    def _descend(self, devices: list[Device], gradients: Floats, step_sizes: list[float]) -> Floats:
        """Return the directions u - h, and let what the local step remembers follow the links."""
        x, gates = np.stack([device.model for device in devices]), np.ones((len(devices), 1))
        directions = self._descent(devices, x, gradients, step_sizes, gates)
        if self._parts.local.follows_links:
            for device in devices:
                pull, kind = np.zeros_like(x[0]), x.dtype.type
                for _, beta, sent, received in steps_in_order(device):
                    pull += kind(beta) * (received - sent)
                self._rows.pulled(device.number, pull, pull)
        return directions

    def end_session(self, number: int) -> None:
        super().end_session(number)
        self._drifts.pop(number, None)
        self._fired.discard(number)

    # Messages

    def _send(self, run: Simulator, sender: int, receiver: int, message: Message) -> None:
        if isinstance(message, protocol.Offer | protocol.Accept):
            self._open[message.token] = [run.now, 0]
        elif isinstance(message, protocol.Body):
            for token in (message.token, message.of):
                if token in self._open:
                    self._open[token][1] += self._model_bytes
        is_timed = not self._messages.is_orderly or self._timers.is_watched(sender, receiver)
        if is_timed and isinstance(message, PROGRESS):
            self._timers.note_progress(run, sender, receiver)
        self._messages.send(run.now, sender, receiver, message)

    def deliver(self, run: Simulator) -> None:
        messages, queue = self._messages, self._messages.queue
        while True:
            while queue:
                sender, receiver, message = queue.popleft()
                self.react(run, receiver, protocol.Received(sender, message))
            if messages.next_time() > run.now:
                return
            for outcome, sender, receiver, message in messages.take(run.now):
                self._notice(run, outcome, sender, receiver, message)

    def _notice(self, run: Simulator, outcome: str, sender: int, receiver: int, message: Message) -> None:
        """A message has arrived, is lost or is stalled."""
        if outcome != "arrived":
            self._timers.watch(run, sender, receiver)
            self._timers.watch(run, receiver, sender)
            return
        if isinstance(message, protocol.Body | protocol.ModelReply) and self._timers.is_watched(receiver, sender):
            self._timers.note_progress(run, receiver, sender)
            self._timers.note_progress(run, sender, receiver)
        self.react(run, receiver, protocol.Received(sender, message))

    # Links and devices that come and go

    def link_up(self, run: Simulator, i: int, j: int, *, new: bool) -> None:
        for number, neighbour in ((i, j), (j, i)):
            self.react(run, number, protocol.LinkUp(neighbour, new))

    def link_down(self, run: Simulator, number: int, neighbour: int) -> None:
        self.react(run, number, protocol.LinkDown(neighbour))

    def cut(self, run: Simulator, i: int, j: int) -> None:
        self._messages.cut(run.now, i, j)
        self._timers.forget(i, j)
        self._timers.forget(j, i)

    def leave(self, run: Simulator, number: int) -> None:
        self.react(run, number, protocol.Leave())
        self.react(run, number, protocol.Finish())
        self._apply(run, number)

    def part(self, run: Simulator, number: int, neighbour: int) -> None:
        exchange = run.devices[number].links[neighbour].exchange
        if exchange is not None and exchange.in_doubt:  # only the neighbour knows how it ended
            self._open.pop(exchange.token, None)
        elif exchange is not None:
            self._note_end(run, number, neighbour, exchange, "withdrawn")

    def switch_on(self, run: Simulator, number: int, *, anew: bool) -> None:
        device = run.devices[number]
        if anew:
            self.gradients.forget_local(number)
        if device.finished:
            self._apply(run, number)  # steps from before the crash
        elif not device.waits_for_model:  # a device without a model begins when it has one
            self.beginning.add(number)

    # Retries

    def retry(self, run: Simulator, number: int, neighbour: int, *, is_present: bool) -> None:
        """Let the device withdraw or ask, unless there was progress; then wait on."""
        if not is_present or not self._waits(run, number, neighbour):
            self._timers.stop((number, neighbour))
            return
        moves = self._any(run, number, neighbour, self._messages.moves)
        if self._timers.has_expired(run, number, neighbour, moves=moves):
            self.react(run, number, protocol.NoProgress(neighbour))
            if self._waits(run, number, neighbour):
                self._timers.watch(run, number, neighbour)

    def may_progress(self, run: Simulator, number: int, neighbour: int) -> bool:
        """Return whether an exchange is in flight that is not held up by a rate of 0."""
        is_stalled = self._any(run, number, neighbour, self._messages.is_stalled)
        return self._is_in_flight(run, number, neighbour) and not is_stalled

    def give_up(self, run: Simulator, number: int, neighbour: int) -> None:
        self.react(run, number, protocol.GiveUp(neighbour))

    def _waits(self, run: Simulator, number: int, neighbour: int) -> bool:
        """Return whether a device waits for a message of a neighbour in reach."""
        link = run.devices[number].links.get(neighbour)
        is_requested = run.devices[number].model_requested_from == neighbour and link is not None and link.up
        return is_requested or self._is_in_flight(run, number, neighbour)

    @staticmethod
    def _is_in_flight(run: Simulator, number: int, neighbour: int) -> bool:
        """Return whether a device has an exchange in flight with a neighbour in reach, or has to begin one."""
        device, link = run.devices[number], run.devices[number].links.get(neighbour)
        if link is None or not link.up:
            return False
        if link.exchange is not None or (device.finished and link.pending_offer):
            return True
        return any(decision.neighbour == neighbour for decision in device.unacknowledged.values())

    @staticmethod
    def _any(run: Simulator, number: int, neighbour: int, holds: Callable[[Token], bool]) -> bool:
        """Return whether `holds` is true of the model that either end of an exchange sends."""
        links = (run.devices[a].links.get(b) for a, b in ((number, neighbour), (neighbour, number)))
        exchanges = (link.exchange for link in links if link is not None)
        return any(exchange is not None and holds(exchange.token) for exchange in exchanges)

    # The record

    def _note_end(self, run: Simulator, number: int, neighbour: int, exchange: Exchange, outcome: str) -> None:
        """Write the row of an exchange, unless the other end writes it."""
        offered = self._open.pop(exchange.token, None)
        if not exchange.decides and outcome != "unresolved":  # its row is written by the end that decides
            return
        start, sent = offered or (run.now, 0)
        self.committed += outcome == "committed"
        self.unresolved += outcome == "unresolved"
        run.record.exchanges.append((
            start, run.now, number, neighbour, exchange.k, exchange.partner_k, exchange.share, exchange.event or None,
            outcome, sent, _step_norm(exchange) if outcome == "unresolved" else None,
        ))  # fmt: skip

    def unresolved_text(self, count: int) -> str:
        text = f"{count} exchange{'s'[: count != 1]} left unresolved: a device did not come back"
        return f"{text} within give_up_seconds, {self._give_up_seconds:g}"

    def finish(self, run: Simulator, present: list[bool]) -> None:
        for number, device in enumerate(run.devices):
            for neighbour, link in device.links.items():
                if link.exchange is not None and present[number]:
                    self._note_end(run, number, neighbour, link.exchange, "unfinished")

    def imbalance(self, run: Simulator) -> float:
        """The norm of the sum of the committed steps that one end has made and the other has not."""
        return imbalance(run.devices)

    # Checkpoints

    def state(self) -> dict[str, Any]:
        """Return plain data that `restore` goes on from. Drifts are computed again."""
        return super().state() | {"timers": self._timers.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._timers.restore(state["timers"])


def _step_norm(exchange: Exchange) -> float:
    """||beta (u_j - u_i)||, which the other end may have added to its model."""
    ends: tuple[Any, Any] = exchange.sent, exchange.received
    sent, received = (model.astype(np.float64) for model in ends)
    return exchange.share * float(np.linalg.norm(received - sent))


def combined(terms: Sequence[tuple[float, Floats]]) -> Floats:
    """Return a new model, sum_t weight_t model_t."""
    weights, models = zip(*terms, strict=True)
    pool = as_rows([*models, models[0]])
    loops.combine_rows(pool, np.arange(len(models)), np.array(weights, pool.dtype), len(models))
    model: Floats = pool[-1].copy()
    return model


def mixed(
    devices: Sequence[Device], gradients: Sequence[Floats], step_sizes: Sequence[float], threads: int = 1
) -> list[tuple[Floats, float]]:
    """Events 3 and 4: return w_i + sum beta (u_j - u_i) - alpha g_i, and its drift from the device's last broadcast.

    Where u_i is w_i itself, this is the row of P W - alpha G to the last bit.
    """
    arrays: dict[int, tuple[int, Floats]] = {}
    places: list[int] = []
    partners: list[int] = []
    weights: list[float] = []
    takes: list[bool] = []

    def place(array: Floats) -> int:
        """Return the row of the pool that holds this array."""
        return arrays.setdefault(id(array), (len(arrays), array))[0]

    for device, gradient in zip(devices, gradients, strict=True):
        own = device.model
        places += (place(own), place(gradient), place(device.last_broadcast), len(partners))
        for _, beta, sent, received in steps_in_order(device):
            ends = [(received, beta, sent is own)] + [(sent, -beta, False)] * (sent is not own)
            for array, weight, is_given_away in ends:
                partners.append(place(array))
                weights.append(weight)
                takes.append(is_given_away)
    places += (0, 0, 0, len(partners))
    pool = as_rows([array for _, array in arrays.values()])
    terms = loops.AddedTerms(
        np.array(places).reshape(-1, 4),
        np.array(partners, np.int64),
        np.array(weights, pool.dtype),
        np.array(takes, bool),
    )
    drifts = np.empty(len(devices))
    in_ranges(loops.mix_picked, (pool, terms, np.array(step_sizes, pool.dtype), drifts), len(devices), threads)
    new = (pool[place(gradient)].copy() for gradient in gradients)
    return list(zip(new, drifts.tolist(), strict=True))


def imbalance(devices: Sequence[Device]) -> float:
    """The norm of the committed steps that one end has made and the other has not."""
    weights: dict[int, tuple[float, Any]] = {}

    def add(beta: float, sent: Any, received: Any) -> None:
        for model, share in ((received, beta), (sent, -beta)):
            weights[id(model)] = weights.get(id(model), (0.0,))[0] + share, model

    for device in devices:
        for step in device.steps:
            add(*step[1:])
        for neighbour, link in device.links.items():
            if (exchange := link.exchange) is not None and _is_committed_there(devices[neighbour], exchange):
                add(exchange.share, exchange.sent, exchange.received)
    total = np.zeros(1)
    for weight, model in weights.values():
        if weight:
            total = total + weight * model
    return float(np.linalg.norm(total))


def _is_committed_there(neighbour: Device, exchange: Exchange) -> bool:
    """Return whether the neighbour has committed an exchange that is in doubt here."""
    if not exchange.in_doubt or exchange.partner is None:
        return False
    decision = neighbour.unacknowledged.get(exchange.partner)
    return decision is not None and decision.partner == exchange.token
