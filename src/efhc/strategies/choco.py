"""Gossip with compressed differences, at every iteration or when there is enough to say."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from efhc.core.parts import Parts
from efhc.core.triggers import AlwaysTrigger, NormTrigger
from efhc.strategies.estimating import EstimatingStrategy, local_step
from efhc.strategies.parts.codecs import AnyCodec, LevelsCodec


class ChocoSGD(EstimatingStrategy):
    """CHOCO-SGD (Koloskova, Stich, Jaggi, ICML 2019), their Alg. 2.

        y_i = x_i - alpha g_i
        x_hat_i <- x_hat_i + Q(y_i - x_hat_i)
        x_i <- y_i + gamma sum_j w_ij (x_hat_j - x_hat_i)

    Q: `codec`; gamma: `rate`; w_ij: the Metropolis weights; alpha: the paper's eta_t. With a `budget`, devices mix only
    over links that were just used. The paper starts from x_hat = 0, this from x_hat = x(0).
    """

    model_config = ConfigDict(defer_build=True)  # kinds of installed packages may need what is here

    kind: Literal["choco"] = "choco"
    rate: float = Field(default=1.0, gt=0, le=1)
    """gamma: share of the way to the neighbours per iteration. Codecs that leave out much need a small one."""
    codec: AnyCodec = LevelsCodec()
    """How the differences are compressed."""

    def parts(self) -> Parts:
        mixing = self.estimates(self.rate)
        return Parts(AlwaysTrigger(), local_step(self.momentum), self.codec, mixing=mixing, budget=self.budget)


class SparqSGD(EstimatingStrategy):
    """SPARQ-SGD (Singh, Data, George, Diggavi 2019), their Alg. 1: CHOCO-SGD with local steps and a trigger.

    At multiples of H = `every` iterations, device i sends C(y_i - x_hat_i) if ||y_i - x_hat_i||^2 > c_t eta_t^2, and
    all devices mix; in between they make local steps. C: `codec`; gamma: `rate`; c_t = n (r / b_M)^2, the threshold of
    GT, if gamma(k) is alpha(k).
    """

    model_config = ConfigDict(defer_build=True)  # kinds of installed packages may need what is here

    kind: Literal["sparq"] = "sparq"
    r: float = Field(default=250.0, ge=0)
    """The threshold scale r."""
    every: int = Field(default=5, ge=1)
    """H: number of iterations between two checks of the trigger."""
    rate: float = Field(default=0.6, gt=0, le=1)
    """gamma: share of the way to the neighbours per mixing. Codecs that leave out much need a small one."""
    codec: AnyCodec = LevelsCodec()
    """How the differences are compressed."""

    def parts(self) -> Parts:
        trigger = NormTrigger(r=self.r, rho="nominal", every=self.every)
        mixing = self.estimates(self.rate, self.every)
        return Parts(trigger, local_step(self.momentum), self.codec, mixing=mixing, budget=self.budget)
