"""Messages in flight between devices: in a queue if they take no time, otherwise as transfers.

In an exchange, a model has n parameters and every other message is a header of size 0. Messages of half-steps have the
size of their bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar

from efhc.core.protocol import Body, Message, ModelReply, Token
from efhc.core.uplink import smoothed
from efhc.drivers.event_driven.checkpoints import Saved
from efhc.drivers.event_driven.transfers import Carrier

MEASURING = 0.25
"""Weight of the latest model sent in the bandwidth that a device measures."""
SAMPLE_SECONDS = 2.0
"""An uplink that is busy without a pause is measured once in this time."""


class MessagesInFlight(Saved):
    """All messages in flight of one run."""

    def __init__(self, transfers: Carrier, parameters: int, model_bytes: int, rates: list[float]) -> None:
        """`rates` has the bandwidth that each device assumes before it has sent a model."""
        self._transfers, self._parameters, self.model_bytes = transfers, parameters, model_bytes
        self.models_at_once, self.headers_at_once = transfers.models_at_once, transfers.headers_at_once
        self.is_orderly = transfers.is_orderly
        """Whether no message is lost, and none overtakes another."""
        self.queue: deque[tuple[int, int, Message]] = deque()
        """The messages of this instant: sender, receiver, message."""
        self.bytes = 0
        """The number of bytes of all messages sent."""
        self.measured = rates
        """The bandwidth that each device has measured."""
        self._busy: dict[int, tuple[float, float, float]] = {}
        """By device with half-steps: when its uplink began and ceased to be busy, and what it sent in between."""
        self.is_measured: set[int] = set()
        """The devices that have measured their uplink at least once."""
        self.silent: dict[int, float] = {}
        """When a model of a device stalled after which none has moved, by device: see `silent_devices`."""
        self._under_way: dict[int, tuple[int, int, Any, float, float]] = {}
        """Sender, receiver, message, time of sending and size in parameters, by ticket."""
        self._tickets = 0
        self._bodies: dict[Token, int] = {}
        """The tickets of the models in flight, by the sender's token."""
        self.next_time = transfers.next_time

    def send(self, now: float, sender: int, receiver: int, message: Message) -> None:
        """Send a message of an exchange."""
        is_model = _is_model(message)
        size, counted = (self._parameters, self.model_bytes) if is_model else (0, 0)
        self.send_sized(now, sender, receiver, message, size, counted)

    def send_sized(self, now: float, sender: int, receiver: int, message: Any, size: float, counted: int) -> None:
        """Send a message that takes as long as `size` parameters and counts `counted` bytes."""
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
        """Return the outcomes of messages: "arrived", "lost" or "stalled", sender, receiver, message."""
        found: list[tuple[str, int, int, Message]] = []
        for ticket, outcome in self._transfers.take(now):
            if ticket not in self._under_way:  # cut or cancelled at this very instant
                continue
            sender, receiver, message, sent, size = self._under_way[ticket]
            found.append((outcome, sender, receiver, message))
            if outcome == "stalled":
                if size:
                    self._note_silence(sender, now)
                continue
            del self._under_way[ticket]
            if self.silent and outcome == "arrived" and size:
                self.silent.pop(sender, None)
            if isinstance(message, Body):
                self._bodies.pop(message.token, None)
            if outcome == "arrived" and isinstance(message, Body):
                self._measure(sender, size, now - sent)
            elif size and not isinstance(message, Body | ModelReply):
                self._measure_uplink(sender, size, sent, now - self._transfers.latency_of(ticket))
        return found

    def _note_silence(self, sender: int, now: float) -> None:
        since = self.silent.setdefault(sender, now)
        if self._transfers.could_send(sender, since, now):  # a time at which it had nothing to send
            self.silent[sender] = now

    def silent_devices(self, now: float) -> dict[int, float]:
        """Return the devices that have a model to send at rate 0, and since when.

        Links of the user's own have no known rates: a device of theirs is silent if none of its models has moved since.
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
            self.measured[sender] = smoothed(self.measured[sender], size / seconds, MEASURING)

    def _measure_uplink(self, sender: int, size: float, sent: float, left: float) -> None:
        """Measure what the uplink of a device carries while it is busy, whichever messages share it."""
        since, until, total = self._busy.get(sender, (sent, sent, 0.0))
        if sent >= until and total and until > since:  # after a pause, what it carried before is known
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
        """Return the seconds until everything that waits in front of a link is sent; 0 if unknown."""
        return self._transfers.backlog(now, sender, receiver)

    def withdraw(self, now: float, token: Token) -> None:
        """Stop sending the model of an exchange that was withdrawn."""
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
        """Return whether the model that this end of an exchange sends is in flight and moves."""
        ticket = self._bodies.get(token)
        return ticket is not None and not self._transfers.is_stalled(ticket)

    def is_stalled(self, token: Token) -> bool:
        """Return whether the model that this end of an exchange sends is in flight and does not move."""
        ticket = self._bodies.get(token)
        return ticket is not None and self._transfers.is_stalled(ticket)

    SAVED: ClassVar = ("bytes", "measured", "_busy", "is_measured", "silent", "_under_way", "_tickets", "_bodies")

    def state(self) -> dict[str, Any]:
        """Return plain data that `restore` goes on from. Between two instants the queue is empty."""
        return super().state() | {"transfers": self._transfers.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        if not self.models_at_once:  # else nothing was under way
            self._transfers.restore(state["transfers"])
        super().restore(state)


def _is_model(message: Message) -> bool:
    return isinstance(message, (Body, ModelReply)) and message.model is not None
