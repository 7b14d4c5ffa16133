"""What a free-running node remembers of each neighbour beside `core.device`: sessions, interruptions, counts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from efhc.core.protocol import Accept, Offer
from efhc.runtime.messages import Hello, Message
from efhc.runtime.status import NeighbourStatus


@dataclass
class NeighbourRecord:
    """One neighbour, seen from this node."""

    status: NeighbourStatus
    committed: int = 0
    """Exchanges with it that this node has committed and not lost."""
    given_up: int = 0
    """Exchanges with it that were given up in doubt since the two ends last compared their counts."""
    last_progress: float = 0.0
    """When something last moved between the two, by the loop's clock."""
    silent_since: float | None = None
    """Since when there is no connection; None while there is one."""
    _last_begun: tuple[int, int] = (-1, -1)
    """Session and number of the last exchange that the neighbour began or accepted."""
    down_timer: asyncio.TimerHandle | None = field(default=None, repr=False)

    def stop_timer(self) -> None:
        """The link is not going down after all, or is down already."""
        if self.down_timer is not None:
            self.down_timer.cancel()
            self.down_timer = None

    def problem_with(self, message: Message) -> str | None:
        """Return why a message cannot be one of this neighbour, by the token that it names its exchange with.

        A new exchange has a token of its present session, with a number above all earlier ones: what was recorded once
        and is sent again is refused. What is said of older exchanges may come from an earlier session.
        """
        token = getattr(message, "token", None)
        if token is None:
            return None
        device, session, number = token
        if device != self.status.device:
            return f"it names an exchange as device {device} would"
        if isinstance(message, Offer | Accept):
            if session != self.status.session:
                return "it begins an exchange of another session"
            if session == self._last_begun[0] and number <= self._last_begun[1]:
                return f"it begins exchange {number}, after exchange {self._last_begun[1]}"
            self._last_begun = session, number
        return None

    def settle(self, theirs: Hello, in_doubt: bool) -> int:
        """Return how many committed exchanges one of the two ends has lost, by their two counts; then both count alike.

        What is undecided at the end that counts fewer explains a difference: it may have been committed at the other.
        """
        difference, given_up, self.given_up = self.committed - theirs.committed, self.given_up, 0
        undecided = theirs.undecided if difference > 0 else given_up + in_doubt
        explained = min(abs(difference), undecided)
        lost = abs(difference) - explained
        if difference < 0:
            self.committed += lost + min(explained, given_up)  # one that is in doubt is counted when it is committed
        return lost

    def facts(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        status = self.status
        counts = {"committed": self.committed, "given_up": self.given_up}
        return counts | {"exchanges": dict(status.exchanges), "lost": status.lost, "downs": status.downs}

    def take(self, facts: Mapping[str, Any]) -> None:
        """Go on from what `facts` returned."""
        self.committed, self.given_up = facts["committed"], facts["given_up"]
        self.status.lost, self.status.downs = facts["lost"], facts["downs"]
        self.status.exchanges |= facts["exchanges"]
