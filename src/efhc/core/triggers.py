"""Event 2: who fires. Device i broadcasts when its drift reaches its threshold,

    (1/n)^(1/2) ||w_i - w_hat_i||_2  >=  threshold_i(k)

and the paper's strategies differ in nothing but that threshold. `coins(k)` are the numbers that randomized gossip
tosses. An entrywise trigger holds each coordinate against the threshold instead: |w_il - w_hat_il| >= threshold_i(k).

The formulas here hold for one iteration, and for many at once: with k and gamma(k) as columns (iterations, 1), they
give one row of thresholds per iteration, to the last bit those of the iterations one by one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from pydantic import Field

from efhc.base.arrays import Floats, Ints
from efhc.base.policy import Policy


@dataclass(frozen=True, eq=False)
class Bandwidths:
    """What each device's outgoing links carry per unit of time."""

    values: Floats
    """b_i, one per device, all positive."""
    nominal: float
    """b_M: the scale of the distribution that the b_i were drawn from."""


class Trigger(Protocol):
    """The threshold of every device at iteration k. It depends on the arguments only, and is computed in advance."""

    def thresholds(self, k: int, gamma: float, bandwidths: Bandwidths, coins: Callable[[int], Floats]) -> Floats:
        """threshold_i(k) for all devices; `gamma` is gamma(k). 0 always fires, infinity never."""
        ...


@runtime_checkable
class DeviceTrigger(Trigger, Protocol):
    """A trigger that needs no array over all devices to know the threshold of one."""

    def threshold_of(
        self, device: int, k: int, gamma: float, bandwidths: Bandwidths, coin: Callable[[int], Any]
    ) -> float:
        """threshold_i(k) of one device, to the last bit that of `thresholds`; `coin(k)` is that device's coin."""
        ...


class TriggerPolicy(Policy, ABC):
    """A trigger that a config can name."""

    is_entrywise: ClassVar[bool] = False
    """Whether the threshold is one of coordinates instead of the whole model."""

    @abstractmethod
    def thresholds(self, k: int, gamma: float, bandwidths: Bandwidths, coins: Callable[[int], Floats]) -> Floats:
        """threshold_i(k) for all devices; `gamma` is gamma(k). 0 always fires, infinity never."""


Rho = Literal["own", "nominal", "mean", "one"]


def _threshold_scale(rho: Rho, bandwidths: Bandwidths) -> Floats:
    """Return rho_i of all devices: 1/b_i ("own"), or one for all: 1/b_M ("nominal"), the mean of all 1/b_i, or 1."""
    if rho == "one":
        return np.ones(len(bandwidths.values))
    if rho == "own":
        own: Floats = 1.0 / bandwidths.values
        return own
    common = 1.0 / bandwidths.nominal if rho == "nominal" else float(np.mean(1.0 / bandwidths.values))
    return np.full(len(bandwidths.values), common)


When = int | Ints
"""k, or a column of several."""
Decay = float | Floats
"""gamma(k), or a column of several."""


def _the_same_for_all(threshold: float | Floats, k: When, bandwidths: Bandwidths) -> Floats:
    """Return one threshold for all devices, at every k."""
    return np.full((*np.shape(k)[:-1], len(bandwidths.values)), threshold)


class NormTrigger(TriggerPolicy):
    """The paper's trigger: threshold_i(k) = r rho_i gamma(k)."""

    kind: Literal["norm"] = "norm"
    r: float = Field(default=250.0, ge=0)
    """The threshold scale r."""
    rho: Rho = "own"
    """rho_i: 1/b_i ("own": a slow device waits for a larger drift), 1/b_M ("nominal"), the mean of all 1/b_i ("mean"),
    or 1 ("one")."""
    every: int = Field(default=1, ge=1)
    """Drift is checked at multiples of this number of iterations."""

    def thresholds(self, k: When, gamma: Decay, bandwidths: Bandwidths, coins: Callable[[Any], Floats]) -> Floats:
        thresholds = self.r * _threshold_scale(self.rho, bandwidths) * gamma
        return thresholds if self.every == 1 else np.where(k % self.every == 0, thresholds, np.inf)

    def threshold_of(
        self, device: int, k: int, gamma: float, bandwidths: Bandwidths, coin: Callable[[int], Any]
    ) -> float:
        if self.rho in ("mean", "one") or k % self.every:
            return float(self.thresholds(k, gamma, bandwidths, coin)[device])
        rho: float = 1.0 / (bandwidths.values[device] if self.rho == "own" else bandwidths.nominal)
        return self.r * rho * gamma


class EntrywiseTrigger(TriggerPolicy):
    """A device sends the coordinates that differ by r rho_i gamma(k) from what its neighbours know."""

    is_entrywise: ClassVar[bool] = True

    kind: Literal["entrywise"] = "entrywise"
    r: float = Field(default=1000.0, ge=0)
    """The threshold scale r."""
    rho: Rho = "nominal"
    """rho_i: 1/b_M ("nominal"), 1/b_i ("own"), the mean of all 1/b_i ("mean"), or 1 ("one")."""

    def thresholds(self, k: When, gamma: Decay, bandwidths: Bandwidths, coins: Callable[[Any], Floats]) -> Floats:
        return self.r * _threshold_scale(self.rho, bandwidths) * gamma


class CoinTrigger(TriggerPolicy):
    """threshold_i(k) = 0 with a probability, else infinite, whatever the drift."""

    kind: Literal["coin"] = "coin"
    probability: float | None = Field(default=None, ge=0, le=1)
    """Probability p of firing. Default: 1/m."""

    def thresholds(self, k: When, gamma: Decay, bandwidths: Bandwidths, coins: Callable[[Any], Floats]) -> Floats:
        p = 1.0 / len(bandwidths.values) if self.probability is None else self.probability
        return np.where(coins(k) < p, 0.0, np.inf)

    def threshold_of(
        self, device: int, k: int, gamma: float, bandwidths: Bandwidths, coin: Callable[[int], Any]
    ) -> float:
        return float(self.thresholds(k, gamma, bandwidths, coin))


class PeriodTrigger(TriggerPolicy):
    """threshold(k) = 0 if k is a multiple of `every`, else infinite: all devices fire together."""

    kind: Literal["period"] = "period"
    every: int = Field(default=10, ge=1)
    """Number of iterations between two broadcasts."""

    def thresholds(self, k: When, gamma: Decay, bandwidths: Bandwidths, coins: Callable[[Any], Floats]) -> Floats:
        return _the_same_for_all(np.where(k % self.every == 0, 0.0, np.inf), k, bandwidths)


class AlwaysTrigger(TriggerPolicy):
    """threshold(k) = 0: every device fires at every iteration."""

    kind: Literal["always"] = "always"

    def thresholds(self, k: When, gamma: Decay, bandwidths: Bandwidths, coins: Callable[[Any], Floats]) -> Floats:
        return _the_same_for_all(0.0, k, bandwidths)


class NeverTrigger(TriggerPolicy):
    """threshold(k) is infinite: no device ever fires."""

    kind: Literal["never"] = "never"

    def thresholds(self, k: When, gamma: Decay, bandwidths: Bandwidths, coins: Callable[[Any], Floats]) -> Floats:
        return _the_same_for_all(np.inf, k, bandwidths)
