"""The strategy of PROJECT."""

from typing import ClassVar

import numpy as np
from pydantic import Field

import efhc


class Steady(efhc.Strategy):
    """A device moves its threshold so that it fires in the given share of all iterations, whatever the data."""

    share: float = Field(default=0.2, gt=0, lt=1)
    """The share of iterations in which a device sends its model."""
    memory: ClassVar = {"threshold": efhc.Memory(per="device", start=0.001)}

    def fires(self, seen: efhc.Seen, memory: dict[str, np.ndarray]) -> np.ndarray:
        """Return which devices send their models now. All that is kept for the next iteration is in `memory`."""
        fires = seen.drift >= memory["threshold"]
        memory["threshold"] *= np.exp(0.5 * (fires - self.share))
        return fires
