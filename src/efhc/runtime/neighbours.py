"""What a free-running node remembers of each neighbour beside `core.device`: sessions, interruptions, counts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from efhc.runtime.messages import Hello
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
    down_timer: asyncio.TimerHandle | None = field(default=None, repr=False)

    def stop_timer(self) -> None:
        """The link is not going down after all, or is down already."""
        if self.down_timer is not None:
            self.down_timer.cancel()
            self.down_timer = None

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
        return counts | {"exchanges": status.exchanges, "lost": status.lost, "downs": status.downs}

    def take(self, facts: Mapping[str, Any]) -> None:
        """Go on from what `facts` returned."""
        self.committed, self.given_up = facts["committed"], facts["given_up"]
        self.status.lost, self.status.downs = facts["lost"], facts["downs"]
        self.status.exchanges |= facts["exchanges"]
