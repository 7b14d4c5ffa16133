"""Broadcasts at fixed times."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from efhc.core.parts import Parts
from efhc.core.triggers import PeriodTrigger
from efhc.strategies.paper import ThresholdStrategy


class PeriodicBroadcast(ThresholdStrategy):
    """threshold(k) = 0 if k is a multiple of `every`, else infinite: all devices fire together."""

    kind: Literal["periodic"] = "periodic"
    every: int = Field(default=10, ge=1)
    """Number of iterations between two broadcasts."""

    def parts(self) -> Parts:
        return Parts(PeriodTrigger(every=self.every))
