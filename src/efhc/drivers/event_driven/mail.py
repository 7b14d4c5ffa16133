"""Messages on their way between devices: those that take no time in a queue, all others as transfers.

In an exchange, a model has n parameters and every other message is a header of size 0. Messages of half-steps have the
size of their bytes.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from efhc.core.protocol import Body, GiveModel, Message, Token
from efhc.drivers.event_driven.checkpoints import attributes, set_attributes
from efhc.drivers.event_driven.transfers import Carrier

MEASURING = 0.25
"""Weight of the latest model sent in what a device measures of its own bandwidth."""


SAMPLE_SECONDS = 2.0
"""A busy uplink is measured in parts of so many seconds."""


class Mail:
    """All messages of one run."""

    def __init__(self, transfers: Carrier, parameters: int, model_bytes: int, rates: list[float]) -> None:
        """`rates` is what each device takes for its bandwidth before it has sent a model."""
        self._transfers, self._parameters, self._model_bytes = transfers, parameters, model_bytes
        self.models_at_once, self.headers_at_once = transfers.models_at_once, transfers.headers_at_once
        self.is_orderly = transfers.is_orderly
        """Whether no message is lost, or overtakes one that was sent before it."""
        self.queue: deque[tuple[int, int, Message]] = deque()
        """Messages of this instant: sender, receiver, message."""
        self.bytes = 0
        """Bytes of all models whose sending began."""
        self.measured = rates
        """What each device measured of its own bandwidth."""
        self._busy: dict[int, tuple[float, float, float]] = {}
        """Of devices with half-steps, since and until when the uplink was busy without a pause, and what it sent."""
        self.is_measured: set[int] = set()
        """Those of them that have measured their uplink at least once."""
        self.silent: dict[int, float] = {}
        """Devices none of whose models has moved since one stalled, and since when: see `silent_devices`."""
        self._under_way: dict[int, tuple[int, int, Any, float, float]] = {}
        """By ticket: sender, receiver, message, when it was sent, and its size in parameters."""
        self._tickets = 0
        self._bodies: dict[Token, int] = {}
        """The tickets of the models under way, by the sender's token."""
        self.next_time = transfers.next_time

    def send(self, now: float, sender: int, receiver: int, message: Message) -> None:
        """Put a message of an exchange on its way."""
        is_model = _is_model(message)
        size, counted = (self._parameters, self._model_bytes) if is_model else (0, 0)
        self.send_sized(now, sender, receiver, message, size, counted)

    def send_sized(self, now: float, sender: int, receiver: int, message: Any, size: float, counted: int) -> None:
        """Put a message on its way that takes as long as `size` parameters, and counts so many bytes."""
        self.bytes += counted
        if self.models_at_once or (not size and self.headers_at_once):
            self.queue.append((sender, receiver, message))
            return
        ticket = self._tickets = self._tickets + 1
        self._under_way[ticket] = sender, receiver, message, now, size
        if isinstance(message, Body):
            self._bodies[message.token] = ticket
        self._transfers.send(now, sender, receiver, size, ticket)

    def take(self, now: float) -> list[tuple[str, int, int, Message]]:
        """Return what has become of messages: "arrived", "lost" or "stalled", sender, receiver, message."""
        found: list[tuple[str, int, int, Message]] = []
        for ticket, what in self._transfers.take(now):
            if ticket not in self._under_way:  # cut or cancelled at this very instant
                continue
            sender, receiver, message, sent, size = self._under_way[ticket]
            found.append((what, sender, receiver, message))
            if what == "stalled":
                if size:
                    self._note_silence(sender, now)
                continue
            del self._under_way[ticket]
            if self.silent and what == "arrived" and size:
                self.silent.pop(sender, None)
            if isinstance(message, Body):
                self._bodies.pop(message.token, None)
            if what == "arrived" and isinstance(message, Body):
                self._measure(sender, size, now - sent)
            elif size and not isinstance(message, Body | GiveModel):
                self._measure_uplink(sender, size, sent, now - self._transfers.latency_of(ticket))
        return found

    def _note_silence(self, sender: int, now: float) -> None:
        since = self.silent.setdefault(sender, now)
        if self._transfers.could_send(sender, since, now):  # a time at which it had nothing to send
            self.silent[sender] = now

    def silent_devices(self, now: float) -> dict[int, float]:
        """Return the devices that had a model to send at rate 0 and whose rate is still 0, and since when it is.

        Of links of the user's own, only what became of models is known: none of the device has moved since.
        """
        moving = {
            sender
            for ticket, (sender, _, _, _, size) in self._under_way.items()
            if sender in self.silent and size and not self._transfers.is_stalled(ticket)
        }
        return {
            device: since
            for device, since in sorted(self.silent.items())
            if device not in moving and not self._transfers.could_send(device, since, now)
        }

    def _measure(self, sender: int, size: float, seconds: float) -> None:
        if seconds > 0:
            self.measured[sender] += MEASURING * (size / seconds - self.measured[sender])

    def _measure_uplink(self, sender: int, size: float, sent: float, left: float) -> None:
        """Measure what the uplink of a device carries while it is busy, whatever it is shared by."""
        since, until, total = self._busy.get(sender, (sent, sent, 0.0))
        if sent >= until and total and until > since:  # it had a pause: what it carried before is known
            if sender in self.is_measured:
                self._measure(sender, total, until - since)
            self.is_measured.add(sender)
            since, until, total = sent, sent, 0.0
        until, total = max(until, left), total + size
        if sender not in self.is_measured and until > since:
            self.measured[sender] = total / (until - since)
        elif until - since > SAMPLE_SECONDS:  # it may never have a pause
            self._measure(sender, total, until - since)
            since, total = until, 0.0
        self._busy[sender] = since, until, total

    def backlog(self, now: float, sender: int, receiver: int) -> float:
        """Return the seconds until all is sent that waits in front of a link; 0 if that is not known."""
        return self._transfers.backlog(now, sender, receiver)

    def withdraw(self, now: float, token: Token) -> None:
        """Stop sending the model of an exchange that is off."""
        ticket = self._bodies.pop(token, None)
        if ticket is not None:
            del self._under_way[ticket]
            self._transfers.cancel(now, ticket)

    def cut(self, now: float, i: int, j: int) -> None:
        """Lose everything between two devices."""
        for ticket in self._transfers.cut(now, i, j):
            found = self._under_way.pop(ticket, None)
            if found is not None and isinstance(found[2], Body):
                self._bodies.pop(found[2].token, None)

    def moves(self, token: Token) -> bool:
        """Whether the model that this end of an exchange sends is on its way and moves."""
        ticket = self._bodies.get(token)
        return ticket is not None and not self._transfers.is_stalled(ticket)

    def is_stalled(self, token: Token) -> bool:
        """Whether the model that this end of an exchange sends is on its way and does not move."""
        ticket = self._bodies.get(token)
        return ticket is not None and self._transfers.is_stalled(ticket)

    SAVED = ("bytes", "measured", "_busy", "is_measured", "silent", "_under_way", "_tickets", "_bodies")

    def state(self) -> dict[str, Any]:
        """Return plain data that `restore` goes on from. Between two instants the queue is empty."""
        return attributes(self, self.SAVED) | {"transfers": self._transfers.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._transfers.restore(state["transfers"])
        set_attributes(self, self.SAVED, state)


def _is_model(message: Message) -> bool:
    return isinstance(message, (Body, GiveModel)) and message.model is not None
