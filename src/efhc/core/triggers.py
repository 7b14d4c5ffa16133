"""Event 2: who fires. Device i broadcasts when its drift reaches its threshold,

    (1/n)^(1/2) ||w_i - w_hat_i||_2  >=  threshold_i(k)

and the strategies differ in nothing but that threshold. `coins(k)` are the numbers that randomized gossip tosses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from pydantic import Field

from efhc.base.arrays import Floats
from efhc.base.policy import Policy


@dataclass(frozen=True, eq=False)
class Bandwidths:
    """What each device's outgoing links carry per unit of time."""

    values: Floats
    """b_i, one per device, all positive."""
    nominal: float
    """b_M: the scale of the distribution that the b_i were drawn from."""


class Trigger(Protocol):
    """A strategy: the threshold of every device at iteration k."""

    def thresholds(self, k: int, gamma: float, bandwidths: Bandwidths, coins: Callable[[int], Floats]) -> Floats:
        """threshold_i(k) for all devices; `gamma` is gamma(k). 0 always fires, infinity never."""
        ...


@runtime_checkable
class DeviceTrigger(Trigger, Protocol):
    """A strategy that needs no array over all devices to know the threshold of one."""

    def threshold_of(
        self, device: int, k: int, gamma: float, bandwidths: Bandwidths, coin: Callable[[int], Any]
    ) -> float:
        """threshold_i(k) of one device, to the last bit that of `thresholds`; `coin(k)` is that device's coin."""
        ...


class Strategy(Policy, ABC):
    """A strategy that a config can name."""

    @abstractmethod
    def thresholds(self, k: int, gamma: float, bandwidths: Bandwidths, coins: Callable[[int], Floats]) -> Floats:
        """threshold_i(k) for all devices; `gamma` is gamma(k). 0 always fires, infinity never."""


class EventTriggered(Strategy):
    """EF-HC: threshold_i(k) = r gamma(k) / b_i. A slow device waits for a larger drift."""

    kind: Literal["ef-hc"] = "ef-hc"
    r: float = Field(default=250.0, ge=0)
    """The threshold scale r."""

    def thresholds(self, k: int, gamma: float, bandwidths: Bandwidths, coins: Callable[[int], Floats]) -> Floats:
        rho: Floats = 1.0 / bandwidths.values
        return self.r * rho * gamma

    def threshold_of(
        self, device: int, k: int, gamma: float, bandwidths: Bandwidths, coin: Callable[[int], Any]
    ) -> float:
        rho: float = 1.0 / bandwidths.values[device]
        return self.r * rho * gamma


class GlobalThreshold(Strategy):
    """GT: threshold(k) = r rho gamma(k), one rho for all devices."""

    kind: Literal["gt"] = "gt"
    r: float = Field(default=250.0, ge=0)
    """The threshold scale r."""
    rho: Literal["nominal", "mean"] = "nominal"
    """rho = 1/b_M as the paper prints it, or the mean of all 1/b_i, as it describes it."""

    def thresholds(self, k: int, gamma: float, bandwidths: Bandwidths, coins: Callable[[int], Floats]) -> Floats:
        rho = 1.0 / bandwidths.nominal if self.rho == "nominal" else float(np.mean(1.0 / bandwidths.values))
        return np.full(len(bandwidths.values), self.r * rho * gamma)


class ZeroThreshold(Strategy):
    """ZT: threshold(k) = 0. Every device fires at every iteration."""

    kind: Literal["zt"] = "zt"

    def thresholds(self, k: int, gamma: float, bandwidths: Bandwidths, coins: Callable[[int], Floats]) -> Floats:
        return np.zeros(len(bandwidths.values))


class RandomizedGossip(Strategy):
    """RG: threshold_i(k) = 0 with probability p, else infinite, whatever the drift."""

    kind: Literal["rg"] = "rg"
    probability: float | None = Field(default=None, ge=0, le=1)
    """p. Default: 1/m."""

    def thresholds(self, k: int, gamma: float, bandwidths: Bandwidths, coins: Callable[[int], Floats]) -> Floats:
        p = 1.0 / len(bandwidths.values) if self.probability is None else self.probability
        return np.where(coins(k) < p, 0.0, np.inf)

    def threshold_of(
        self, device: int, k: int, gamma: float, bandwidths: Bandwidths, coin: Callable[[int], Any]
    ) -> float:
        return float(self.thresholds(k, gamma, bandwidths, coin))


class Never(Strategy):
    """No device ever fires: only neighbours that have just met (Event 1) exchange models. The floor to beat."""

    kind: Literal["never"] = "never"

    def thresholds(self, k: int, gamma: float, bandwidths: Bandwidths, coins: Callable[[int], Floats]) -> Floats:
        return np.full(len(bandwidths.values), np.inf)
