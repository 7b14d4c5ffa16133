"""The exchanges of a run: their messages, what is done at once, patience, and their rows of the table."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from efhc.core.at_once import Answer, answer_at_once, exchange_at_once, offer_at_once, pair_at_once, settle_at_once
from efhc.core.device import Reaction
from efhc.core.device_state import Device, Exchange, Link
from efhc.core.protocol import (
    Accept,
    AskModel,
    Body,
    Commit,
    GiveModel,
    Message,
    NoProgress,
    Offer,
    Ready,
    Received,
    Token,
)
from efhc.drivers.event_driven.checkpoints import attributes, set_attributes
from efhc.drivers.event_driven.mail import Mail
from efhc.drivers.event_driven.patience import Patience
from efhc.drivers.event_driven.rows import Rows
from efhc.drivers.event_driven.run import Run
from efhc.drivers.event_driven.settings import EventDriven

GETS_ON = (Offer, Accept, Body, Ready, Commit, AskModel)
"""Who says this has got on with an exchange, or has asked again after waiting."""

Owed = tuple[Device, int, Link]
"""A device that owes an offer, the neighbour, and the link to it."""


class Exchanges:
    """All exchanges of one run."""

    def __init__(
        self,
        mail: Mail,
        settings: EventDriven,
        model_bytes: int,
        reorder: Callable[[deque[Any]], None] | None = None,
    ) -> None:
        self._mail, self._model_bytes, self._reorder = mail, model_bytes, reorder
        self._patience = Patience(settings.patience_seconds)
        self.at_once = mail.headers_at_once and reorder is None and settings.churn is None
        """Whether offers are answered without messages."""
        self.committed = 0
        self.unresolved = 0
        self._open: dict[Token, list[Any]] = {}
        """Exchanges that were offered: when, and the bytes sent for them since."""
        self._owed: tuple[list[Owed], list[Owed]] = ([], [])
        """On links that have just become free: of those who decided, and of the others."""

    # Messages

    def send(self, run: Run, sender: int, receiver: int, message: Message) -> None:
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
                run.react(receiver, Received(sender, message))
            if mail.next_time() > run.now:
                return
            for what, sender, receiver, message in mail.take(run.now):
                self._notice(run, what, sender, receiver, message)
            if self._owed[0] or self._owed[1]:  # those who decided hear of it first
                owed, self._owed = self._owed[0] + self._owed[1], ([], [])
                self.make_at_once(run, owed)

    def _notice(self, run: Run, what: str, sender: int, receiver: int, message: Message) -> None:
        """Something has become of a message."""
        if what != "arrived":  # both ends will lose patience, unless they get on
            self._patience.watch(run, sender, receiver)
            self._patience.watch(run, receiver, sender)
            return
        if isinstance(message, Body | GiveModel) and self._patience.watches(receiver, sender):
            self._patience.got_on(run, receiver, sender)
            self._patience.got_on(run, sender, receiver)
        if not (self.at_once and isinstance(message, Body) and self._settle_at_once(run, sender, receiver, message)):
            run.react(receiver, Received(sender, message))

    def cut(self, run: Run, i: int, j: int) -> None:
        """Lose everything that is under way between two devices."""
        self._mail.cut(run.now, i, j)
        self._patience.forget(i, j)
        self._patience.forget(j, i)

    def measured_rate(self, number: int) -> float:
        """Return what a device measured of its own bandwidth."""
        return self._mail.measured[number]

    # What is done at once

    def make_at_once(self, run: Run, owed: Iterable[Owed]) -> None:
        """Make the exchanges that are owed on these links without messages, as far as they take no time.

        All is done in the order in which the messages would do it: offers, answers, and what follows an answer.
        """
        offers = [(one, neighbour) for one, neighbour, link in owed if offer_at_once(one, link)]
        answered: list[tuple[Device, float, int, Body | None]] = []
        crossed: dict[tuple[int, int], Body] = {}
        """Models that go out when the second of two crossed offers comes."""
        for one, neighbour in offers:
            if (body := crossed.pop((one.number, neighbour), None)) is not None:
                self._mail.send(run.now, neighbour, one.number, body)
            answer = answer_at_once(one, run.devices[neighbour])
            if answer is None:
                reaction = Reaction(one, run.rows.combined)
                reaction.offer_if_free(neighbour, one.links[neighbour])  # unless the offers crossed
                run.carry_out(one.number, reaction.effects)
                continue
            body = self._begin_at_once(run, answer, one, neighbour)
            if body is not None and answer.crossed:
                crossed[neighbour, one.number] = body
            elif body is not None or answer.left:
                answered.append((one, answer.left, neighbour, body))
        for one, left, neighbour, body in answered:
            one.free += left
            if body is not None:
                self._mail.send(run.now, one.number, neighbour, body)

    def _begin_at_once(self, run: Run, answer: Answer, one: Device, neighbour: int) -> Body | None:
        """Begin an exchange, and end it if models take no time; else returns what `one` has to send."""
        decider, follower, beta, event = answer[:4]
        now, sent = run.now, 2 * self._model_bytes
        if not beta:
            run.record.exchanges.append(
                (now, now, one.number, neighbour, one.k, -1, answer.share, event, "refused", 0, None)
            )
            return None
        if self._mail.models_at_once:
            exchange_at_once(decider, follower, beta, run.rows.combined)
            self.committed += 1
            self._mail.bytes += sent
            run.record.exchanges.append(
                (now, now, decider.number, follower.number, decider.k, follower.k, beta, event, "committed", sent, None)
            )
            return None
        ours, theirs = pair_at_once(decider, follower, beta, run.rows.combined)
        self._open[ours.token] = [now, sent]
        if decider is not one:
            ours, theirs = theirs, ours
        self._mail.send(now, neighbour, one.number, Body(theirs.token, ours.token, theirs.sent))
        return Body(ours.token, theirs.token, ours.sent)

    def _settle_at_once(self, run: Run, sender: int, receiver: int, body: Body) -> bool:
        """Commit an exchange whose second model has arrived, and note what is owed on its link."""
        one, other = run.devices[sender], run.devices[receiver]
        exchange = settle_at_once(one, other, body)
        if exchange is None:
            return False
        decider, follower = (one, other) if exchange.token[0] == one.number else (other, one)
        self.note_end(run, decider.number, follower.number, exchange, "committed")
        link, back = decider.links[follower.number], follower.links[decider.number]
        if link.owes:
            self._owed[0].append((decider, follower.number, link))
        if back.owes:
            self._owed[1].append((follower, decider.number, back))
        return True

    # Patience

    def end_patience(self, run: Run, number: int, neighbour: int, *, is_there: bool) -> None:
        """Withdraw or ask, unless something has moved since; then wait on."""
        if not is_there or not self.waits(run, number, neighbour):
            self._patience.end(number, neighbour)
        elif self._patience.is_over(run, number, neighbour, moves=self._any(run, number, neighbour, self._mail.moves)):
            run.react(number, NoProgress(neighbour))
            if self.waits(run, number, neighbour):
                self._patience.watch(run, number, neighbour)

    def waits(self, run: Run, number: int, neighbour: int) -> bool:
        """Whether a device that is there expects something of a neighbour that is in reach."""
        link = run.devices[number].links.get(neighbour)
        is_asked = run.devices[number].asked == neighbour and link is not None and link.up
        return is_asked or self.is_in_flight(run, number, neighbour)

    @staticmethod
    def is_in_flight(run: Run, number: int, neighbour: int) -> bool:
        """Whether a device has an exchange in flight with a neighbour in reach, awaits its answer, or owes it one."""
        device, link = run.devices[number], run.devices[number].links.get(neighbour)
        if link is None or not link.up:
            return False
        if link.exchange is not None or (device.finished and link.owes):
            return True
        return any(decision.neighbour == neighbour for decision in device.unacknowledged.values())

    def is_stalled(self, run: Run, number: int, neighbour: int) -> bool:
        """Whether a model between two devices does not move, since the rate of its sender is 0."""
        return self._any(run, number, neighbour, self._mail.is_stalled)

    @staticmethod
    def _any(run: Run, number: int, neighbour: int, holds: Callable[[Token], bool]) -> bool:
        """Whether something holds for the model that either end of an exchange sends."""
        links = (run.devices[a].links.get(b) for a, b in ((number, neighbour), (neighbour, number)))
        exchanges = (link.exchange for link in links if link is not None)
        return any(exchange is not None and holds(exchange.token) for exchange in exchanges)

    # Rows of the table

    def end(self, run: Run, number: int, neighbour: int, exchange: Exchange, outcome: str) -> None:
        """An exchange is over at one end."""
        if outcome != "committed":
            self._mail.withdraw(run.now, exchange.token)
        self.note_end(run, number, neighbour, exchange, outcome)

    def forget(self, token: Token) -> None:
        """The end that offered this exchange is gone, and does not know how it ends."""
        self._open.pop(token, None)

    def note_end(self, run: Run, number: int, neighbour: int, exchange: Exchange, outcome: str) -> None:
        """Write the row of an exchange, if it is this end's to write."""
        offered = self._open.pop(exchange.token, None)
        if not exchange.decides and outcome != "unresolved":  # its row is written by the end that decides
            return
        start, sent = offered or (run.now, 0)
        self.committed += outcome == "committed"
        self.unresolved += outcome == "unresolved"
        run.record.exchanges.append((
            start, run.now, number, neighbour, exchange.k, exchange.partner_k, exchange.share, exchange.event or None,
            outcome, sent, _step_norm(exchange, run.rows) if outcome == "unresolved" else None,
        ))  # fmt: skip

    # Checkpoints

    SAVED = ("committed", "unresolved", "_open")

    def state(self) -> dict[str, Any]:
        """Return plain data that `restore` goes on from. Between two instants nothing is owed at once."""
        return attributes(self, self.SAVED) | {"patience": self._patience.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        set_attributes(self, self.SAVED, state)
        self._patience.restore(state["patience"])


def _step_norm(exchange: Exchange, rows: Rows) -> float:
    """||beta (u_j - u_i)||, which the other end may have added to its model."""
    ends: tuple[Any, Any] = exchange.sent, exchange.received
    sent, received = (rows.array[row.index].astype(np.float64) for row in ends)
    return exchange.share * float(np.linalg.norm(received - sent))
