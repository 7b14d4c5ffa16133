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

        An exchange that is in doubt at the end that counts fewer explains a difference of one: it will be committed.
        """
        difference = self.committed - theirs.committed
        explained = (difference > 0 and theirs.in_doubt) or (difference < 0 and in_doubt)
        lost = abs(difference) - explained
        if difference < 0:
            self.committed += lost
        return lost

    def facts(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        status = self.status
        return {"committed": self.committed, "exchanges": status.exchanges, "lost": status.lost, "downs": status.downs}

    def take(self, facts: Mapping[str, Any]) -> None:
        """Go on from what `facts` returned."""
        self.committed, self.status.lost, self.status.downs = (facts[name] for name in ("committed", "lost", "downs"))
        self.status.exchanges |= facts["exchanges"]
