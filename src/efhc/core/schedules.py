"""Step sizes alpha(k) and threshold decays gamma(k). Any function of k can be one; these have a kind."""

from __future__ import annotations

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
    """eta, the number of iterations after which the value is divided by 2 ** power."""
    power: float = Field(default=0.5, ge=0, le=1)
    """theta, how fast the value falls."""

    def __call__(self, k: int) -> float:
        return float(self.initial / (1 + k / self.timescale) ** self.power)
