"""Step sizes alpha(k) and threshold decays gamma(k). Any function of k can be one; these have a kind."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

from pydantic import Field

from efhc.base.policy import Policy

Schedule = Callable[[int], float]


class SchedulePolicy(Policy, ABC):
    """A schedule that a config can name."""

    @abstractmethod
    def __call__(self, k: int) -> float:
        """The value at iteration k."""


class Constant(SchedulePolicy):
    """value, at every iteration"""

    kind: Literal["constant"] = "constant"
    value: float = Field(default=0.01, gt=0)
    """The value at every iteration."""

    def __call__(self, k: int) -> float:
        return self.value


class Diminishing(SchedulePolicy):
    """initial / (1 + k / timescale) ** power at iteration k; the paper's alpha_0 / (1 + k/eta)^theta"""

    kind: Literal["diminishing"] = "diminishing"
    initial: float = Field(default=0.1, gt=0)
    """alpha_0, the value at k = 0."""
    timescale: float = Field(default=1.0, gt=0)
    """eta: number of iterations until the value is divided by 2 ** power."""
    power: float = Field(default=0.5, ge=0, le=1)
    """theta."""

    def __call__(self, k: int) -> float:
        return float(self.initial / (1 + k / self.timescale) ** self.power)


class WarmUp(Diminishing):
    """min(1, (k + 1) / iterations) initial / (1 + k / timescale) ** power: `diminishing` that begins slowly"""

    kind: Literal["warm-up"] = "warm-up"  # type: ignore[assignment]
    iterations: int = Field(default=100, ge=1)
    """Number of iterations of the warm-up."""

    def __call__(self, k: int) -> float:
        return min(1.0, (k + 1) / self.iterations) * super().__call__(k)


class Cosine(SchedulePolicy):
    """From `initial` to `final` along half a cosine, in `iterations` iterations, after a linear warm-up"""

    kind: Literal["cosine"] = "cosine"
    initial: float = Field(default=0.1, gt=0)
    """The value after the warm-up."""
    final: float = Field(default=0.001, gt=0)
    """The value from k = `iterations` on."""
    iterations: int = Field(default=1000, ge=1)
    """Number of iterations until the final value, warm-up included."""
    warm_up: int = Field(default=0, ge=0)
    """Number of iterations of the warm-up."""

    def __call__(self, k: int) -> float:
        if k < self.warm_up:
            return self.initial * (k + 1) / self.warm_up
        share = min((k - self.warm_up) / max(1, self.iterations - self.warm_up), 1.0)
        return self.final + (self.initial - self.final) * (1 + math.cos(math.pi * share)) / 2
