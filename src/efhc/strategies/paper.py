"""The strategies of the paper, and periodic broadcasts: tables that differ in nothing but the trigger."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

from pydantic import Field

from efhc.base.arrays import Floats
from efhc.core.parts import Parts, Strategy
from efhc.core.triggers import AlwaysTrigger, Bandwidths, CoinTrigger, NeverTrigger, NormTrigger, PeriodTrigger


class ThresholdStrategy(Strategy, ABC):
    """A strategy whose trigger is all that distinguishes it. A subclass may change its thresholds."""

    @abstractmethod
    def parts(self) -> Parts:
        """The table of its parts."""

    def thresholds(self, k: int, gamma: float, bandwidths: Bandwidths, coins: Callable[[int], Floats]) -> Floats:
        """threshold_i(k) for all devices; `gamma` is gamma(k). 0 always fires, infinity never."""
        thresholds: Floats = self.parts().trigger.thresholds(k, gamma, bandwidths, coins)
        return thresholds


class EventTriggered(ThresholdStrategy):
    """EF-HC: threshold_i(k) = r gamma(k) / b_i. A slow device waits for a larger drift."""

    kind: Literal["ef-hc"] = "ef-hc"
    r: float = Field(default=250.0, ge=0)
    """The threshold scale r."""

    def parts(self) -> Parts:
        return Parts(NormTrigger(r=self.r, rho="own"))


class GlobalThreshold(ThresholdStrategy):
    """GT: threshold(k) = r rho gamma(k), one rho for all devices."""

    kind: Literal["gt"] = "gt"
    r: float = Field(default=250.0, ge=0)
    """The threshold scale r."""
    rho: Literal["nominal", "mean"] = "nominal"
    """rho: "nominal" is 1/b_M as printed in the paper, "mean" the mean of all 1/b_i as described there."""

    def parts(self) -> Parts:
        return Parts(NormTrigger(r=self.r, rho=self.rho))


class ZeroThreshold(ThresholdStrategy):
    """ZT: threshold(k) = 0. Every device fires at every iteration."""

    kind: Literal["zt"] = "zt"

    def parts(self) -> Parts:
        return Parts(AlwaysTrigger())


class RandomizedGossip(ThresholdStrategy):
    """RG: threshold_i(k) = 0 with probability p, else infinite, whatever the drift."""

    kind: Literal["rg"] = "rg"
    probability: float | None = Field(default=None, ge=0, le=1)
    """p. Default: 1/m."""

    def parts(self) -> Parts:
        return Parts(CoinTrigger(probability=self.probability))


class Never(ThresholdStrategy):
    """No device ever fires: only new neighbours (Event 1) exchange models. The floor to beat."""

    kind: Literal["never"] = "never"

    def parts(self) -> Parts:
        return Parts(NeverTrigger())


class PeriodicBroadcast(ThresholdStrategy):
    """threshold(k) = 0 if k is a multiple of `every`, else infinite: all devices fire together."""

    kind: Literal["periodic"] = "periodic"
    every: int = Field(default=10, ge=1)
    """Number of iterations between two broadcasts."""

    def parts(self) -> Parts:
        return Parts(PeriodTrigger(every=self.every))
