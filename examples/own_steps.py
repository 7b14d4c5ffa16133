"""A local step and a step limit of your own, which docs/strategies.md explains."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from efhc.core.local_steps import LocalStep
from efhc.core.step_limits import StepLimit


class Lion(LocalStep):
    """u = sign(beta1 m + (1 - beta1) g),  m <- beta2 m + (1 - beta2) g  (Chen et al., NeurIPS 2023)."""

    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.99, ge=0, lt=1)

    @property
    def memory(self):
        return ("smoothed",)

    def direction(self, rows, gradient, moment):
        m, number = rows["smoothed"], gradient.dtype.type
        u = np.sign(number(self.beta1) * m + number(1 - self.beta1) * gradient)
        return u, {"smoothed": number(self.beta2) * m + number(1 - self.beta2) * gradient}


class FarLess(StepLimit):
    """1 / (1 + (distance / radius)^2): the farther away a neighbour's model is, the less it counts."""

    radius: float = Field(default=1.0, gt=0)

    def factor(self, own, other):
        distance = np.linalg.norm(np.subtract(other, own, dtype=np.float64))
        return float(1 / (1 + (distance / self.radius) ** 2))
