"""Devices on their own clocks, in virtual time: a heap of what is due, and one core per device.

The rules of training and gossip are those of `core.device`; this decides what time and the network are. At one instant
come, in this order: gradients that are there, links and devices that come and go, iterations that begin (Events 1 and
2), messages, patience that ends, a sample. Nothing here reads a clock, and every fault comes from the seed.
"""

from __future__ import annotations

import gc
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from efhc.base.arrays import Floats
from efhc.core.at_once import Answer, answer_at_once, exchange_at_once, offer_at_once, pair_at_once, settle_at_once
from efhc.core.device import Device, Exchange, Link, Reaction, durable, is_idle, react, restarted
from efhc.core.protocol import (
    Apply,
    Begin,
    Body,
    Copied,
    Effect,
    Ended,
    Event,
    Finish,
    Fired,
    GiveUp,
    Keep,
    Leave,
    LinkDown,
    LinkUp,
    Message,
    NoProgress,
    Offer,
    Received,
    Send,
    Stepped,
    Token,
)
from efhc.core.randomness import Randomness
from efhc.core.state import Diverged, Local
from efhc.core.triggers import Trigger
from efhc.drivers.event_driven.churn import draw_churn
from efhc.drivers.event_driven.compute import draw_compute_times
from efhc.drivers.event_driven.gradients import Gradients
from efhc.drivers.event_driven.links import draw_transfers
from efhc.drivers.event_driven.mail import Mail
from efhc.drivers.event_driven.plain_data import from_json, rows_in, to_json
from efhc.drivers.event_driven.record import EventRecord
from efhc.drivers.event_driven.rows import Row, Rows
from efhc.drivers.event_driven.settings import EventDriven
from efhc.kernels.compiled_arithmetic import consensus_error
from efhc.learning.backends.backend import ScoresNotFinite
from efhc.network.over_time import StaticGraph
from efhc.scenarios.scenario import Scenario

GRADIENT, NETWORK, CHURN, PATIENCE, GIVE_UP, SAMPLE = range(6)
"""What is due, in the order of one instant; messages come before PATIENCE."""

STEPS_AT_ONCE = 4096
"""Device steps after which `advance` comes back, if no sample does before."""


class Simulator:
    """One run: `advance` until it `is_over`."""

    def __init__(
        self,
        scenario: Scenario,
        trigger: Trigger,
        settings: EventDriven,
        iterations: int,
        randomness: Randomness,
        *,
        evaluate_every: int = 50,
        threads: int = 1,
        reorder: Callable[[deque[Any]], None] | None = None,
    ) -> None:
        """`reorder` may change the order of the messages of one instant, if links are instant: tests shuffle them."""
        self._scenario, self._trigger, self._settings = scenario, trigger, settings
        self._iterations, self._threads, self._reorder = iterations, threads, reorder
        backend = scenario.learner.backend
        devices = self._count = len(scenario.bandwidths.values)
        self._reader = scenario.device_reader()
        self._clock = draw_compute_times(settings.compute, devices, randomness)
        self._churn = draw_churn(settings.churn, devices, randomness)
        transfers = draw_transfers(settings.links, scenario.bandwidths.values, randomness)
        self._rows = Rows(backend.parameters, scenario.learner.data.precision, 3 * devices + 64, threads)
        self._gradients = Gradients(scenario, self._reader, self._rows)
        self._model_bytes = backend.parameters * self._rows.array.itemsize
        self._mail = Mail(transfers, backend.parameters, self._model_bytes, [scenario.bandwidths.nominal] * devices)
        self._sample_seconds = settings.sample_seconds or evaluate_every * float(
            np.median([self._clock.seconds(device, 0) for device in range(devices)])
        )
        self._network_changes = not isinstance(scenario.network, StaticGraph)

        self.now = 0.0
        self.record = EventRecord()
        self.warnings: list[str] = []
        self.is_over = False
        self._draining = False
        self._due: list[tuple[Any, ...]] = []
        """A heap of (time, what, ...)."""
        self._open: dict[Token, list[Any]] = {}
        """Exchanges that were offered: when, and the bytes sent for them since."""
        self._progress: dict[tuple[int, int], float] = {}
        """When something last arrived on a link on which something was lost or did not move."""
        self._beginning: set[int] = set()
        self._fired: set[int] = set()
        self._present = [device not in self._churn.absent for device in range(devices)]
        self._leaving: dict[int, float] = {}
        self._sessions = [0] * devices
        self._churn_counts = [0] * devices
        self._journals: dict[int, Device] = {}
        self._crashes = settings.churn is not None
        self._totals = {"steps": 0, "broadcasts": 0, "exchanges": 0, "unresolved": 0}
        self._sampled_at: float | None = None
        self._graph_number, self._graph = 0, scenario.network.graph(0)
        self._drifts: dict[int, float] = {}
        """Of the devices that have just stepped."""
        self._owed: tuple[list[tuple[Device, int, Link]], list[tuple[Device, int, Link]]] = ([], [])
        """On links that have just become free: of those who decided, and of the others."""
        self._at_once = self._mail.headers_at_once and reorder is None and not self._crashes
        self.devices = [self._new_device(number) for number in range(devices)]
        self._running = sum(self._present)
        self._start()

    # What others read

    @property
    def models(self) -> Floats:
        """The models of all devices, (m, n); of those that are not there, the last."""
        return self._rows.gathered([device.model for device in self.devices])

    @property
    def local(self) -> Local:
        """What devices keep to themselves."""
        return self._gradients.local

    @property
    def steps(self) -> int:
        """The number of steps that all devices have made."""
        return self._totals["steps"]

    @property
    def progress(self) -> float:
        """The share of the run that is done."""
        if self.is_over:
            return 1.0
        if self._settings.seconds is not None:
            return min(1.0, self.now / self._settings.seconds)
        return min(1.0, self._totals["steps"] / (self._count * self._iterations))

    # Time

    def advance(self) -> None:
        """Make what is due up to and including the next sample, or a few thousand steps."""
        target = self._totals["steps"] + STEPS_AT_ONCE
        sampled = len(self.record.timeline)
        collects = gc.isenabled()
        gc.disable()  # what is made here holds no cycles, and there is much of it
        try:
            while not self.is_over and self._totals["steps"] < target and len(self.record.timeline) == sampled:
                self._advance_to(self._next_time())
        finally:
            if collects:
                gc.enable()

    def _next_time(self) -> float:
        return min(self._due[0][0] if self._due else math.inf, self._mail.next_time())

    def _advance_to(self, time: float) -> None:
        """Make all that is due at one instant, or end the run if nothing is."""
        end = self._settings.seconds
        if (end is None and self._running == 0 and not self._anybody_to_come()) or time == math.inf:
            self._draining = True
        if (self._draining and not self._is_moving()) or (end is not None and time > end):
            self._finish(self.now if end is None else end)
            return
        self.now = time
        due = self._due
        if due and due[0][0] <= time:
            if due[0][1] <= CHURN:
                if due[0][1] == GRADIENT:
                    self._step(
                        [number for number, session in self._take(GRADIENT) if self._sessions[number] == session]
                    )
                for _ in self._take(NETWORK):
                    self._change_network()
                for (number,) in self._take(CHURN):
                    self._make_churn(number)
                if self._beginning:
                    self._begin(sorted(self._beginning))
            self._deliver()
            if due and due[0][0] <= time:
                self._end_waiting()
        self._deliver()
        if self._leaving:
            self._let_go()
        if due and due[0][0] <= time and self._take(SAMPLE):
            self._sample()
            heappush(due, (time + self._sample_seconds, SAMPLE))

    def _end_waiting(self) -> None:
        """Patience ends, with an exchange that does not move or with a device that does not return."""
        for number, neighbour in self._take(PATIENCE):
            self._end_patience(number, neighbour)
        for number, neighbour, token in self._take(GIVE_UP):
            link = self.devices[number].links.get(neighbour)
            if self._present[number] and link and link.exchange and link.exchange.token == token:
                self._react(number, GiveUp(neighbour))

    def _take(self, what: int) -> list[tuple[Any, ...]]:
        """Take everything of one sort that is due now."""
        due, taken = self._due, []
        while due and due[0][0] <= self.now and due[0][1] == what:
            taken.append(heappop(due)[2:])
        return taken

    def _start(self) -> None:
        for number in range(self._count):
            self._plan_churn(number)
        new = self._scenario.exchange_at_start
        for i, j in self._graph.links.tolist():
            if self._present[i] and self._present[j]:
                self._connect(i, j, new=new)
        self._note_network()
        if self._network_changes:
            heappush(self._due, (self._settings.network_seconds, NETWORK))
        heappush(self._due, (0.0, SAMPLE))
        self._beginning = {number for number in range(self._count) if self._present[number]}
        self._begin(sorted(self._beginning))
        self._deliver()

    def _finish(self, time: float) -> None:
        """The run is over: what is still in flight is counted as it is."""
        self.now = time
        for number, device in enumerate(self.devices):
            for neighbour, link in device.links.items():
                if link.exchange is not None and self._present[number]:
                    self._note_end(number, neighbour, link.exchange, "unfinished")
        if self._sampled_at != time:
            self._sample()
        self.is_over = True
        for number, since in sorted(self._mail.silent.items()):
            self.warnings.append(f"device {number} could send nothing from second {since:g} on: its rate is 0")
        for number, device in enumerate(self.devices):
            if device.copies and self._present[number]:
                self.warnings.append(f"device {number} made no step: it found no neighbour whose model it could copy")
        if unresolved := self._totals["unresolved"]:
            text = f"{unresolved} exchange{'s'[: unresolved != 1]} left unresolved: a device did not come back"
            self.warnings.append(f"{text} within give_up_seconds, {self._settings.give_up_seconds:g}")

    def _is_owed(self, neighbour: int, exchange: Exchange) -> bool:
        """Whether the neighbour has committed an exchange whose end is in doubt here."""
        if not exchange.in_doubt or exchange.partner is None:
            return False
        decision = self.devices[neighbour].unacknowledged.get(exchange.partner)
        return decision is not None and decision.partner == exchange.token

    def _is_moving(self) -> bool:
        """Whether anything under way can still arrive or be asked about, now that no device makes steps any more."""
        return (
            bool(self._mail.queue)
            or self._mail.next_time() < math.inf
            or any(entry[1] == PATIENCE and self._waits(*entry[2:]) for entry in self._due)
            or any(entry[1] == GIVE_UP and self._may_hear_of(*entry[2:]) for entry in self._due)
        )

    def _may_hear_of(self, number: int, neighbour: int, token: Token) -> bool:
        """Whether a device in doubt may come into reach of the one that can tell."""
        link = self.devices[number].links.get(neighbour)
        if not self._present[number] or link is None or link.exchange is None or link.exchange.token != token:
            return False
        if self._present[neighbour]:
            return self._network_changes
        return self._churn.next_event(neighbour, self._churn_counts[neighbour]) is not None

    def _anybody_to_come(self) -> bool:
        """Whether a device that has not finished is away and will come back."""
        if not self._crashes:
            return False
        away = (n for n in range(self._count) if not self._present[n] and not self.devices[n].finished)
        return any(self._churn.next_event(number, self._churn_counts[number]) is not None for number in away)

    # Devices

    def _react(self, number: int, event: Event) -> None:
        """Let a device react, and carry out what it wants done, in order."""
        self._carry_out(number, react(self.devices[number], event, self._rows.combined))

    def _carry_out(self, number: int, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._send(number, effect.neighbour, effect.message)
            elif isinstance(effect, Ended):
                self._end_exchange(number, effect.neighbour, effect.exchange, effect.outcome)
            elif isinstance(effect, Keep):
                if self._crashes:
                    self._journals[number] = durable(self.devices[number])
            elif isinstance(effect, Fired):
                self._fired.add(number)
                self._totals["broadcasts"] += 1
            elif isinstance(effect, Apply):
                self._apply(number)
            elif isinstance(effect, Copied):
                self._running += 1
                self._begin([number])

    def _new_device(self, number: int, *, copies: bool = False) -> Device:
        """A device with its initial model, in a new session."""
        model = self._rows.holding(self._scenario.initial_model(number))
        return Device(number, self._sessions[number], model, model, copies=copies)

    def _begin(self, numbers: list[int]) -> None:
        """Iterations begin: Events 1 and 2, and the gradients start."""
        self._beginning.difference_update(numbers)
        devices = [self.devices[number] for number in numbers]
        if unknown := [device for device in devices if device.number not in self._drifts]:
            drifts = self._rows.drifts([d.model.index for d in unknown], [d.last_broadcast.index for d in unknown])
            self._drifts.update(zip((device.number for device in unknown), drifts, strict=True))
        for device in devices:
            number, k = device.number, device.k
            drift = self._drifts.pop(number)
            if self._settings.seconds is None and k >= self._iterations:
                self._running -= 1
                self._react(number, Finish())
                if device.steps:  # of before a crash
                    self._apply(number)
                continue
            self._react(number, Begin(drift, self._threshold(number, k), self._at_once))
            self._gradients.start(device)
            seconds = self._clock.seconds(number, k)
            heappush(self._due, (self.now + seconds, GRADIENT, number, self._sessions[number]))
        if self._at_once:
            self._exchange_at_once(
                (device, neighbour, link) for device in devices for neighbour, link in device.links.items() if link.owes
            )

    def _threshold(self, number: int, k: int) -> float:
        if self._settings.bandwidth == "measured":
            return self._reader.threshold_with(self._trigger, number, k, self._mail.measured[number])
        return self._reader.threshold(self._trigger, number, k)

    def _step(self, numbers: list[int]) -> None:
        """Gradients are there: Events 3 and 4."""
        if not numbers:
            return
        devices = [self.devices[number] for number in numbers]
        taken = [self._gradients.take(number, self.devices) for number in numbers]
        step_sizes = [self._scenario.step_size(device.k) for device in devices]
        drifts = self._rows.step(devices, [row for row, _ in taken], step_sizes)
        self._drifts.update(zip(numbers, drifts, strict=True))
        fired, steps = self._fired, self.record.steps
        for device, (row, loss) in zip(devices, taken, strict=True):
            number = device.number
            steps.append((number, device.k, self.now, number in fired, loss))
            self._carry_out(number, react(device, Stepped(row), self._rows.combined))
        fired.difference_update(numbers)
        self._totals["steps"] += len(numbers)
        self._beginning.update(number for number in numbers if number not in self._leaving)

    def _apply(self, number: int) -> None:
        """A device that has finished makes a step at once."""
        row = self._rows.new()
        self._rows.array[row.index] = 0
        self._rows.step([self.devices[number]], [row], [0.0])
        self._react(number, Stepped(row))

    # Messages

    def _send(self, sender: int, receiver: int, message: Message) -> None:
        if isinstance(message, Offer):
            self._open[message.token] = [self.now, 0]
        elif isinstance(message, Body):
            for token in (message.token, message.of):
                if token in self._open:
                    self._open[token][1] += self._model_bytes
        self._mail.send(self.now, sender, receiver, message)

    def _deliver(self) -> None:
        """Deliver all messages of this instant, and those that they lead to at the same instant."""
        mail, queue = self._mail, self._mail.queue
        while True:
            while queue:
                if self._reorder:
                    self._reorder(queue)
                sender, receiver, message = queue.popleft()
                self._react(receiver, Received(sender, message))
            if mail.next_time() > self.now:
                return
            for what, sender, receiver, message in mail.take(self.now):
                self._notice(what, sender, receiver, message)
            if self._owed[0] or self._owed[1]:  # those who decided hear of it first
                owed, self._owed = self._owed[0] + self._owed[1], ([], [])
                self._exchange_at_once(owed)

    def _exchange_at_once(self, owed: Iterable[tuple[Device, int, Link]]) -> None:
        """Make the exchanges that are owed on these links without messages, as far as they take no time.

        All is done in the order in which the messages would do it: offers, answers, and what follows an answer.
        """
        offers = [(one, neighbour) for one, neighbour, link in owed if offer_at_once(one, link)]
        answered: list[tuple[Device, float, int, Body | None]] = []
        crossed: dict[tuple[int, int], Body] = {}
        """Models that go out when the second of two crossed offers comes."""
        for one, neighbour in offers:
            if (body := crossed.pop((one.number, neighbour), None)) is not None:
                self._mail.send(self.now, neighbour, one.number, body)
            answer = answer_at_once(one, self.devices[neighbour])
            if answer is None:
                reaction = Reaction(one, self._rows.combined)
                reaction.offer_if_free(neighbour, one.links[neighbour])  # unless the offers crossed
                self._carry_out(one.number, reaction.effects)
                continue
            body = self._begin_at_once(answer, one, neighbour)
            if body is not None and answer.crossed:
                crossed[neighbour, one.number] = body
            elif body is not None or answer.left:
                answered.append((one, answer.left, neighbour, body))
        for one, left, neighbour, body in answered:
            one.free += left
            if body is not None:
                self._mail.send(self.now, one.number, neighbour, body)

    def _begin_at_once(self, answer: Answer, one: Device, neighbour: int) -> Body | None:
        """Begin an exchange, and end it if models take no time; else returns what `one` has to send."""
        decider, follower, beta, event = answer[:4]
        now, sent = self.now, 2 * self._model_bytes
        if not beta:
            self.record.exchanges.append(
                (now, now, one.number, neighbour, one.k, -1, answer.share, event, "refused", 0, None)
            )
            return None
        if self._mail.models_at_once:
            exchange_at_once(decider, follower, beta, self._rows.combined)
            self._totals["exchanges"] += 1
            self._mail.bytes += sent
            self.record.exchanges.append(
                (now, now, decider.number, follower.number, decider.k, follower.k, beta, event, "committed", sent, None)
            )
            return None
        ours, theirs = pair_at_once(decider, follower, beta, self._rows.combined)
        self._open[ours.token] = [now, sent]
        if decider is not one:
            ours, theirs = theirs, ours
        self._mail.send(now, neighbour, one.number, Body(theirs.token, ours.token, theirs.sent))
        return Body(ours.token, theirs.token, ours.sent)

    def _settle_at_once(self, sender: int, receiver: int, body: Body) -> bool:
        """Commit an exchange whose second model has arrived, and note what is owed on its link."""
        one, other = self.devices[sender], self.devices[receiver]
        exchange = settle_at_once(one, other, body)
        if exchange is None:
            return False
        decider, follower = (one, other) if exchange.token[0] == one.number else (other, one)
        self._note_end(decider.number, follower.number, exchange, "committed")
        link, back = decider.links[follower.number], follower.links[decider.number]
        if link.owes:
            self._owed[0].append((decider, follower.number, link))
        if back.owes:
            self._owed[1].append((follower, decider.number, back))
        return True

    def _notice(self, what: str, sender: int, receiver: int, message: Message) -> None:
        """Something has become of a message."""
        if what != "arrived":
            if what == "lost" or not self._draining:
                self._watch(sender, receiver)
            return
        if self._progress:
            link = _pair(sender, receiver)
            if link in self._progress:
                self._progress[link] = self.now
        if not (self._at_once and isinstance(message, Body) and self._settle_at_once(sender, receiver, message)):
            self._react(receiver, Received(sender, message))

    def _watch(self, i: int, j: int) -> None:
        """Something on this link was lost, or does not move: both ends will lose patience unless something comes."""
        self._progress[_pair(i, j)] = self.now
        for number, neighbour in ((i, j), (j, i)):
            heappush(self._due, (self.now + self._settings.patience_seconds, PATIENCE, number, neighbour))

    def _end_patience(self, number: int, neighbour: int) -> None:
        """Withdraw or ask, unless something has moved since; then wait on."""
        if not self._waits(number, neighbour):
            return
        again = self._progress.get(_pair(number, neighbour), self.now) + self._settings.patience_seconds
        if again <= self.now and self._moves(number, neighbour):
            again = self.now + self._settings.patience_seconds
        if again > self.now:
            heappush(self._due, (again, PATIENCE, number, neighbour))
        else:
            self._react(number, NoProgress(neighbour))

    def _waits(self, number: int, neighbour: int) -> bool:
        """Whether a device expects something of a neighbour that is in reach."""
        device, link = self.devices[number], self.devices[number].links.get(neighbour)
        if not self._present[number] or link is None or not link.up:
            return False
        decisions = device.unacknowledged.values()
        return (
            link.exchange is not None
            or device.asked == neighbour
            or any(decision.neighbour == neighbour for decision in decisions)
        )

    def _moves(self, number: int, neighbour: int) -> bool:
        """Whether a model is on its way between two devices: an exchange that moves is never timed out."""
        links = (self.devices[a].links.get(b) for a, b in ((number, neighbour), (neighbour, number)))
        exchanges = (link.exchange for link in links if link is not None)
        return any(exchange is not None and self._mail.moves(exchange.token) for exchange in exchanges)

    def _end_exchange(self, number: int, neighbour: int, exchange: Exchange, outcome: str) -> None:
        """An exchange is over at one end."""
        if outcome != "committed":
            self._mail.withdraw(self.now, exchange.token)
        self._note_end(number, neighbour, exchange, outcome)

    def _note_end(self, number: int, neighbour: int, exchange: Exchange, outcome: str) -> None:
        offered = self._open.pop(exchange.token, None)
        if not exchange.decides and outcome != "unresolved":  # its row is written by the end that decides
            return
        start, sent = offered or (self.now, 0)
        self._totals["exchanges"] += outcome == "committed"
        self._totals["unresolved"] += outcome == "unresolved"
        self.record.exchanges.append((
            start, self.now, number, neighbour, exchange.k, exchange.partner_k, exchange.share, exchange.event or 2,
            outcome, sent, self._step_norm(exchange) if outcome == "unresolved" else None,
        ))  # fmt: skip

    def _step_norm(self, exchange: Exchange) -> float:
        """||beta (u_j - u_i)||, which the other end may have added to its model."""
        rows: tuple[Any, Any] = exchange.sent, exchange.received
        sent, received = (self._rows.array[row.index].astype(np.float64) for row in rows)
        return exchange.share * float(np.linalg.norm(received - sent))

    # Links that come and go

    def _connect(self, i: int, j: int, *, new: bool = True) -> None:
        for number, neighbour in ((i, j), (j, i)):
            self._react(number, LinkUp(neighbour))
            if not new:
                self.devices[number].links[neighbour].new = False

    def _disconnect(self, i: int, j: int) -> None:
        self._mail.cut(self.now, i, j)
        self._progress.pop(_pair(i, j), None)
        for number, neighbour in ((i, j), (j, i)):
            if self._present[number]:
                self._react(number, LinkDown(neighbour))
                self._plan_to_give_up(number, neighbour)

    def _plan_to_give_up(self, number: int, neighbour: int) -> None:
        """A device in doubt about a neighbour out of reach does not wait for ever."""
        link = self.devices[number].links.get(neighbour)
        if link is not None and link.exchange is not None:
            due = self.now + self._settings.give_up_seconds
            heappush(self._due, (due, GIVE_UP, number, neighbour, link.exchange.token))

    def _change_network(self) -> None:
        """The next graph: links that it does not have go down, those that it has are up."""
        self._graph_number += 1
        before, now = self._graph, self._scenario.graphs(self._graph_number)[1]
        heappush(self._due, (self.now + self._settings.network_seconds, NETWORK))
        if now is before:
            return
        self._graph = now
        for i, j in before.links[before.new_since(now)].tolist():
            if self._present[i] and self._present[j]:
                self._disconnect(i, j)
        if (new := now.new_since(before)).any() or len(now.links) != len(before.links):
            for i, j in now.links[new].tolist():
                if self._present[i] and self._present[j]:
                    self._connect(i, j)
            self._note_network()

    def _note_network(self) -> None:
        i, j = self._graph.links.T.tolist()
        self.record.network.append((self._graph_number, i, j))

    # Devices that come and go

    def _plan_churn(self, number: int) -> None:
        if event := self._churn.next_event(number, self._churn_counts[number]):
            heappush(self._due, (event.seconds, CHURN, number))

    def _make_churn(self, number: int) -> None:
        event = self._churn.next_event(number, self._churn_counts[number])
        assert event is not None
        self._churn_counts[number] += 1
        self._plan_churn(number)
        if event.what == "leave":
            self._leave(number)
        elif event.what == "crash":
            self._switch_off(number)
            if self._churn.journal == "lose":
                self._journals.pop(number, None)
        else:
            self._switch_on(number, anew=event.what == "join" or self._churn.journal == "lose")

    def _leave(self, number: int) -> None:
        """A device that leaves ends what is in flight before it goes."""
        if not self.devices[number].finished and not self.devices[number].copies:
            self._running -= 1
        self._leaving[number] = self.now
        heappush(self._due, (self.now + self._settings.give_up_seconds, GIVE_UP, number, -1, None))
        self._beginning.discard(number)
        self._drifts.pop(number, None)
        self._gradients.drop(number)
        self._sessions[number] += 1  # the step under way is not made
        self._react(number, Leave())
        self._react(number, Finish())
        if self.devices[number].steps:
            self._apply(number)

    def _let_go(self) -> None:
        """Let devices go that have nothing in flight any more, or have waited too long for that."""
        for number, since in list(self._leaving.items()):
            waited = self.now - since
            if is_idle(self.devices[number]) or waited >= self._settings.give_up_seconds:
                del self._leaving[number]
                self.devices[number].leaving = False
                self._switch_off(number, was_running=False)

    def _switch_off(self, number: int, *, was_running: bool | None = None) -> None:
        """A device is gone at once, and its neighbours notice."""
        device = self.devices[number]
        if number in self._leaving:
            del self._leaving[number]
        elif was_running is None and not device.finished and not device.copies:
            self._running -= 1
        self._present[number] = False
        self._beginning.discard(number)
        self._drifts.pop(number, None)
        self._fired.discard(number)
        self._gradients.drop(number)
        self._sessions[number] += 1
        for neighbour, link in list(device.links.items()):
            if link.exchange is not None and not link.exchange.in_doubt:
                self._note_end(number, neighbour, link.exchange, "withdrawn")
            if link.up:
                self._disconnect(number, neighbour)

    def _switch_on(self, number: int, *, anew: bool) -> None:
        """A device comes: from its journal, or with a first model."""
        if anew:
            self._gradients.forget_local(number)
            self._journals.pop(number, None)
            self.devices[number] = self._new_device(number, copies=self._churn.start == "copy")
        else:
            kept = self._journals.get(number) or self._new_device(number)
            self.devices[number] = restarted(kept, self._sessions[number])
            for neighbour in self.devices[number].links:
                self._plan_to_give_up(number, neighbour)
        self._present[number] = True
        if self.devices[number].copies:
            pass  # it waits for a model, and a run does not wait for it
        elif not self.devices[number].finished:
            self._running += 1
            self._beginning.add(number)
        elif self.devices[number].steps:  # of before the crash
            self._apply(number)
        for i, j in self._graph.links[(self._graph.links == number).any(axis=1)].tolist():
            if self._present[i] and self._present[j]:
                self._connect(i, j)

    # Samples

    def _sample(self) -> None:
        """How good the models are, and how far apart."""
        self._sampled_at = self.now
        there = [number for number in range(self._count) if self._present[number]]
        totals = self._totals
        counts = (self.now, totals["steps"], totals["broadcasts"], totals["exchanges"], self._mail.bytes, len(there))
        if not there:
            self.record.timeline.append((*counts, None, None, None, None, None, self._imbalance()))
            return
        models = self._rows.gathered([self.devices[number].model for number in there])
        local = {name: values[there] for name, values in self.local.items()}
        error = consensus_error(models, self._threads)
        if not math.isfinite(error):
            finite = np.ones(self._count, dtype=bool)
            finite[there] = np.isfinite(models).all(axis=1)
            raise Diverged(max(self.devices[number].k for number in there), "model", finite)
        try:
            accuracies, of_mean = self._scenario.learner.accuracies(models, local)
        except ScoresNotFinite as failure:
            raise failure.about(f"at second {self.now:g}") from failure
        row = (*counts, float(accuracies.mean()), float(accuracies.min()), float(accuracies.max()), of_mean, error)
        self.record.timeline.append((*row, self._imbalance()))

    def _imbalance(self) -> float:
        """The norm of the committed steps that one end has made and the other has not."""
        weights: dict[int, float] = {}

        def add(beta: float, sent: Any, received: Any) -> None:
            weights[received.index] = weights.get(received.index, 0.0) + beta
            weights[sent.index] = weights.get(sent.index, 0.0) - beta

        for device in self.devices:
            for step in device.steps:
                add(*step[1:])
            for neighbour, link in device.links.items():
                if (exchange := link.exchange) is not None and self._is_owed(neighbour, exchange):
                    add(exchange.share, exchange.sent, exchange.received)
        rows = [index for index, weight in weights.items() if weight]
        if not rows:
            return 0.0
        total = np.zeros(self._rows.array.shape[1])
        for index in rows:
            total += weights[index] * self._rows.array[index]
        return float(np.linalg.norm(total))

    # Checkpoints

    SAVED = (
        "now", "devices", "_due", "_open", "_progress", "_beginning", "_fired",
        "_present", "_leaving", "_sessions", "_churn_counts", "_journals", "_totals", "_graph_number",
        "_running", "_draining", "_sampled_at", "warnings",
    )  # fmt: skip

    def checkpoint(self) -> tuple[dict[str, np.ndarray], dict[str, str]]:
        """Return all that the run needs to go on from here, between two instants."""
        gradients = self._gradients
        state = {name: getattr(self, name) for name in self.SAVED}
        state |= {
            "under_way": gradients.under_way,
            "computed": gradients.computed,
            "pieces": self.record.pieces,
            "mail": self._mail.state(),
        }
        text = to_json(state)
        places = rows_in(text)
        tensors = {"rows": self._rows.array[places], "places": np.array(places, dtype=np.int64)}
        tensors |= {f"local/{name}": values for name, values in gradients.local.items()}
        tensors |= {f"next_local/{name}": values for name, values in gradients.next_local.items()}
        return tensors, {"state": text}

    def restore(self, tensors: Mapping[str, np.ndarray], facts: Mapping[str, str]) -> None:
        """Go on from a checkpoint of the same run. Raises `ValueError` if it does not fit."""
        rows, places = tensors["rows"], tensors["places"]
        shape = self._rows.array.shape[1]
        if rows.dtype != self._rows.array.dtype or rows.shape != (len(places), shape) or not np.isfinite(rows).all():
            raise ValueError("its models are not those of this run")
        self._rows = Rows(shape, str(rows.dtype), max([3 * self._count + 64, *(places + 1).tolist()]), self._threads)
        gradients = self._gradients = Gradients(self._scenario, self._reader, self._rows)
        handles: dict[int, Row] = {}

        def handle(index: int) -> Row:
            if index not in handles:
                handles[index] = self._rows.at(index)
            return handles[index]

        self._rows.array[places] = rows
        state = from_json(facts["state"], handle)
        for name in self.SAVED:
            setattr(self, name, state[name])
        gradients.under_way, gradients.computed = state["under_way"], state["computed"]
        for kind, values in (("local", gradients.local), ("next_local", gradients.next_local)):
            for name, rows_of in values.items():
                rows_of[...] = tensors[f"{kind}/{name}"]
        heapify(self._due)
        self.record = EventRecord(pieces=state["pieces"])
        self._mail.restore(state["mail"])
        self._graph = self._scenario.network.graph(self._graph_number)


def _pair(i: int, j: int) -> tuple[int, int]:
    return (i, j) if i < j else (j, i)
