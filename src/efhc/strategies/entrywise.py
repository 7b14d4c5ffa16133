"""Devices send only the coordinates that have drifted."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from efhc.core.parts import HalfStepsMixing, Parts
from efhc.core.triggers import EntrywiseTrigger
from efhc.strategies.estimating import EstimatingStrategy, local_step
from efhc.strategies.parts.codecs import LevelsCodec


class Entrywise(EstimatingStrategy):
    """Coordinate l of device i is sent when it differs enough from what the neighbours know.

        y_i    = x_i - alpha (mu m_i + g_i - h_i)
        q_il   = level_il max_l |y_il - x_hat_il| / 4     if |y_il - x_hat_il| >= r gamma(k) / b_M and level_il is not 0
        x_hat_i <- x_hat_i + q_i

    Each message to a neighbour j is a half-step of both: i adds d = rate beta_ij (x_hat_j - x_hat_i), j adds -d, and
    each adds theta / A of it to h; A is the sum of alpha since i's last message to j. The levels are -4 ... 4 (3 bits),
    mu is `momentum`, theta `correction`. Close to LEAD (Liu et al., ICLR 2021) and to hard thresholds (Sahu et al.,
    NeurIPS 2021). It runs in lockstep, event-driven and on nodes.
    """

    kind: Literal["entrywise"] = "entrywise"
    r: float = Field(default=1000.0, ge=0)
    """The threshold scale r."""
    rate: float = Field(default=0.25, gt=0, le=0.5)
    """Share of beta_ij that one message moves."""
    correction: Annotated[float, Field(ge=0, le=1)] | None = None
    """theta: how fast the drift correction learns. Default: 0.1 sqrt(1 - mu)."""
    bits: int = Field(default=3, ge=1, le=32)
    """Bits per level -L ... L (without 0), L = 2^(bits - 1)."""

    def parts(self) -> Parts:
        correction = 0.1 * math.sqrt(1 - self.momentum) if self.correction is None else self.correction
        return Parts(
            EntrywiseTrigger(r=self.r),
            local_step(self.momentum, correction),
            LevelsCodec(bits=self.bits),
            mixing=HalfStepsMixing(rate=self.rate),
            budget=self.budget,
        )
