"""Broadcasts at fixed times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from pydantic import Field

from efhc.base.arrays import Floats
from efhc.core.triggers import Bandwidths, Strategy


class PeriodicBroadcast(Strategy):
    """threshold(k) = 0 if k is a multiple of `every`, else infinite: all devices fire together at fixed times."""

    kind: Literal["periodic"] = "periodic"
    every: int = Field(default=10, ge=1)
    """Number of iterations from one broadcast to the next."""

    def thresholds(self, k: int, gamma: float, bandwidths: Bandwidths, coins: Callable[[int], Floats]) -> Floats:
        return np.full(len(bandwidths.values), 0.0 if k % self.every == 0 else np.inf)
