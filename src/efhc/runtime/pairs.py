"""Two neighbours in lockstep, seen from one end: what was said to the other, and what the other has said.

An iteration that both are linked in cannot end at one end before the other has begun it. So the other end can need
what was said in the last two such iterations, and nothing older; and it can be ahead by one such iteration at most.
Of each iteration, an end says at most one message of a type.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from efhc.runtime.messages import IterationHeader
from efhc.runtime.status import NeighbourStatus

AT_ONCE = 2
"""Number of iterations in which both are linked that are kept in either direction."""

NEVER, EARLIER = 0, -1
"""In place of a connection, which has a number from 1 on: sent over none, or over one before this node's start."""


@dataclass
class _Said:
    message: Any
    over: int = NEVER
    """The connection that it was sent over last."""


@dataclass
class Pair:
    """One neighbour, and what there is between it and this node."""

    status: NeighbourStatus
    dropped: int = -1
    """The last iteration of which this end may have said something that it no longer keeps."""
    heard: dict[int, dict[type, Any]] = field(default_factory=dict)
    """What the other end has said of iterations that are not over here, by iteration and type."""
    needs: int = 0
    """The iteration that the other end is in: it needs what was said of this one and of later ones."""
    refused: int = -1
    """The iteration of the last message that could not be taken."""
    _said: dict[int, dict[type, _Said]] = field(default_factory=dict)
    _connections: int = 0

    # To the other end

    def connect(self, k: int) -> bool:
        """There is a new connection, and the other end is in iteration k. Returns False if that is too far behind."""
        self._connections += 1
        self.needs = k
        return k > self.dropped

    def say(self, message: Any) -> None:
        """Keep what this end says of an iteration, instead of what it said in the last but one."""
        said = self._said.setdefault(message.k, {})
        known = said.setdefault(type(message), _Said(message))
        if known.over == EARLIER and next(iter(said.values())) is known:
            # Made again after a restart: the first message tells the other end where this one is.
            known.over = NEVER
        while len(self._said) > AT_ONCE:
            self.dropped = min(self._said)
            del self._said[self.dropped]

    def due(self) -> list[Any]:
        """Return what is to be sent now: what the other end needs and was not sent over this connection."""
        due: list[Any] = []
        if not self.status.connected:
            return due
        for k, messages in sorted(self._said.items()):
            for said in messages.values():
                if said.over == NEVER or (said.over != self._connections and k >= self.needs):
                    said.over = self._connections
                    due.append(said.message)
        return due

    @property
    def has_said(self) -> bool:
        """Whether the other end may need anything of this one."""
        return bool(self._said)

    def sent_before(self) -> list[Any]:
        """Return what a checkpoint has to keep for the other end."""
        return [said.message for messages in self._said.values() for said in messages.values()]

    def restore(self, sent: Iterable[Any]) -> None:
        """Go on from what a checkpoint kept."""
        self._said = {}
        for message in sent:
            self._said.setdefault(message.k, {})[type(message)] = _Said(message, EARLIER)
        self.dropped = min(self._said) - 1 if self._said else -1

    # From the other end

    def is_behind(self, k: int) -> bool:
        """The other end speaks of iteration k. Returns whether it is too far behind to be helped."""
        if k >= self.needs:
            return False
        self.needs = k  # it had not begun when it connected, and has told by this where it began
        return k <= self.dropped

    def hear(self, message: Any, k: int) -> str | None:
        """Take a message, while this node is in iteration k. Returns what is wrong with it, if anything is."""
        if message.k < k:
            return None  # sent again, and not needed
        if message.k not in self.heard and len(self.heard) == AT_ONCE:
            return f"it speaks of iteration {message.k}, which is too far ahead of iteration {k}"
        heard = self.heard.setdefault(message.k, {})
        if isinstance(message, IterationHeader) and heard.get(IterationHeader, message) != message:
            return f"it says two different things of iteration {message.k}"
        heard.setdefault(type(message), message)
        return None

    def forget_before(self, k: int) -> None:
        """Iterations before k are over here."""
        self.heard = {at: messages for at, messages in self.heard.items() if at >= k}
