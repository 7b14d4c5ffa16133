"""Messages on their way between devices: those that take no time in a queue, all others as transfers.

A model has n parameters, every other message is a header of size 0.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from efhc.core.protocol import Body, GiveModel, Message, Token
from efhc.drivers.event_driven.transfers import InstantTransfers, Transfers

MEASURING = 0.25
"""Weight of the latest model sent in what a device measures of its own bandwidth."""


class Mail:
    """All messages of one run."""

    def __init__(self, transfers: Transfers, parameters: int, model_bytes: int, rates: list[float]) -> None:
        """`rates` is what each device takes for its bandwidth before it has sent a model."""
        self._transfers, self._parameters, self._model_bytes = transfers, parameters, model_bytes
        self.models_at_once = isinstance(transfers, InstantTransfers)
        self.headers_at_once = self.models_at_once or bool(getattr(transfers, "headers_at_once", False))
        self.is_orderly = self.models_at_once or bool(getattr(transfers, "is_orderly", False))
        """Whether no message is lost, or overtakes one that was sent before it."""
        self.queue: deque[tuple[int, int, Message]] = deque()
        """Messages of this instant: sender, receiver, message."""
        self.bytes = 0
        """Bytes of all models whose sending began."""
        self.measured = rates
        """What each device measured of its own bandwidth."""
        self.silent: dict[int, float] = {}
        """Devices that have a model to send at rate 0, and since when."""
        self._under_way: dict[int, tuple[int, int, Message, float]] = {}
        """By ticket: sender, receiver, message, when it was sent."""
        self._tickets = 0
        self._bodies: dict[Token, int] = {}
        """The tickets of the models under way, by the sender's token."""
        self.next_time = transfers.next_time

    def send(self, now: float, sender: int, receiver: int, message: Message) -> None:
        """Put a message on its way."""
        size = 0
        if isinstance(message, (Body, GiveModel)) and message.model is not None:
            size = self._parameters
            self.bytes += self._model_bytes
        if self.models_at_once or (not size and self.headers_at_once):
            self.queue.append((sender, receiver, message))
            return
        ticket = self._tickets = self._tickets + 1
        self._under_way[ticket] = sender, receiver, message, now
        if isinstance(message, Body):
            self._bodies[message.token] = ticket
        self._transfers.send(now, sender, receiver, size, ticket)

    def take(self, now: float) -> list[tuple[str, int, int, Message]]:
        """Return what has become of messages: "arrived", "lost" or "stalled", sender, receiver, message."""
        found: list[tuple[str, int, int, Message]] = []
        for ticket, what in self._transfers.take(now):
            if ticket not in self._under_way:  # cut or cancelled at this very instant
                continue
            sender, receiver, message, sent = self._under_way[ticket]
            found.append((what, sender, receiver, message))
            if what == "stalled":
                self.silent.setdefault(sender, now)
                continue
            del self._under_way[ticket]
            if isinstance(message, Body):
                self._bodies.pop(message.token, None)
                if what == "arrived":
                    self.silent.pop(sender, None)
                    self._measure(sender, now - sent)
        return found

    def _measure(self, sender: int, seconds: float) -> None:
        if seconds > 0:
            self.measured[sender] += MEASURING * (self._parameters / seconds - self.measured[sender])

    def withdraw(self, now: float, token: Token) -> None:
        """Stop sending the model of an exchange that is off."""
        ticket = self._bodies.pop(token, None)
        if ticket is not None:
            del self._under_way[ticket]
            self._transfers.cancel(now, ticket)

    def cut(self, now: float, i: int, j: int) -> None:
        """Lose everything between two devices."""
        for ticket in self._transfers.cut(now, i, j):
            message = self._under_way.pop(ticket)[2]
            if isinstance(message, Body):
                self._bodies.pop(message.token, None)

    def moves(self, token: Token) -> bool:
        """Whether the model that this end of an exchange sends is on its way and moves."""
        ticket = self._bodies.get(token)
        return ticket is not None and not self._transfers.is_stalled(ticket)

    def is_stalled(self, token: Token) -> bool:
        """Whether the model that this end of an exchange sends is on its way and does not move."""
        ticket = self._bodies.get(token)
        return ticket is not None and self._transfers.is_stalled(ticket)

    def state(self) -> dict[str, Any]:
        """Return plain data that `restore` goes on from. Between two instants the queue is empty."""
        own = {
            name: getattr(self, name) for name in ("bytes", "measured", "silent", "_under_way", "_tickets", "_bodies")
        }
        return own | {"transfers": self._transfers.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._transfers.restore(state.pop("transfers"))
        for name, value in state.items():
            setattr(self, name, value)
