"""EF-HC in which broadcasts need no answer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from efhc.core.parts import HalfStepsMixing, Parts
from efhc.core.triggers import NormTrigger
from efhc.strategies.estimating import EstimatingStrategy, local_step
from efhc.strategies.parts.codecs import FullCodec, LevelsCodec


class OneWay(EstimatingStrategy):
    """One-way EF-HC with drift correction: a device broadcasts at the paper's threshold, without answers.

        v_i = [ (1/n)^(1/2) ||y_i - x_hat_i||_2 >= r gamma(k) / b_i ]
        x_hat_i <- y_i if v_i (or, with `bits`, x_hat_i plus the difference in levels)

    Each message to a neighbour j is a half-step of both: i adds d = rate beta_ij (x_hat_j - x_hat_i), j adds -d, and
    each adds theta / A of it to h; A is the sum of alpha since i's last message to j. The broadcast without an answer
    is that of George and Gurram (AAAI 2020), who mix in every iteration, not only after a message; the correction
    follows Alghunaim (2023). It runs in lockstep, event-driven and on nodes.
    """

    kind: Literal["one-way"] = "one-way"
    r: float = Field(default=250.0, ge=0)
    """The threshold scale r."""
    rate: float = Field(default=0.5, gt=0, le=0.5)
    """Share of beta_ij that one message moves."""
    correction: float = Field(default=0.3, ge=0, le=1)
    """theta: how fast the drift correction learns. 0: none."""
    bits: Annotated[int, Field(ge=1, le=32)] | None = None
    """Bits per level of differences. Default: whole models."""

    def parts(self) -> Parts:
        return Parts(
            NormTrigger(r=self.r),
            local_step(self.momentum, self.correction),
            FullCodec() if self.bits is None else LevelsCodec(bits=self.bits),
            mixing=HalfStepsMixing(rate=self.rate),
            budget=self.budget,
        )
