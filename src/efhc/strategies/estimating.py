"""Strategies in which neighbours estimate each other's models, and what these share with strategies of half-steps."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from efhc.core.local_steps import SGD, DriftCorrected, LocalStep, QuasiGlobalMomentum
from efhc.core.parts import Budget, EstimatesMixing, Parts, Strategy
from efhc.core.triggers import AlwaysTrigger, NormTrigger
from efhc.strategies.parts.codecs import AnyCodec, FullCodec, LevelsCodec


class EstimatingStrategy(Strategy):
    """A strategy in which neighbours know something of each other: only who sends pays, and for what was sent."""

    momentum: float = Field(default=0.0, ge=0, lt=1)
    """mu: quasi-global momentum."""
    budget: Budget | None = None
    """What a device may spend: `{ share = 0.01 }` is 1 % of what ZT spends (more if new neighbours meet). Devices then
    mix only over links that were just used. Default: no limit."""

    def estimates(self, rate: float, every: int = 1) -> EstimatesMixing:
        """Return the mixing. With a budget, outdated knowledge must not be mixed again and again."""
        return EstimatesMixing(rate=rate, every=every, when="sent" if self.budget else "always")


def local_step(momentum: float, correction: float = 0.0) -> LocalStep:
    """Return the local step with this momentum mu and drift correction theta."""
    if correction:
        return DriftCorrected(correction=correction, momentum=momentum)
    return QuasiGlobalMomentum(momentum=momentum) if momentum else SGD()


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


class ExactDiffusion(Strategy):
    """D2 (Tang et al., ICML 2018); with `rate` = 0.5, NIDS (Li, Shi, Yan 2019).

        x(k+1) = W (2 x(k) - x(k-1) - alpha (g(k) - g(k-1))),    x(1) = W (x(0) - alpha g(0)),    W = I - rate (I - P)

    P has the Metropolis weights beta_ij. Written with the drift correction h, which is the same for a constant alpha: y
    = x - alpha (g - h), x <- W y, h <- h + (W y - y) / alpha. With a changing alpha nothing has to be undone, because h
    is in units of gradients. All eigenvalues of W must be above -1/3, which holds for NIDS on every graph and for D2 on
    many. On a graph that changes, h learns too much.
    """

    kind: Literal["d2"] = "d2"
    rate: float = Field(default=1.0, gt=0, le=1)
    """Share of the way to the neighbours per iteration: 1 for D2, 0.5 for NIDS."""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """mu: quasi-global momentum."""

    def parts(self) -> Parts:
        local = DriftCorrected(correction=1.0, momentum=self.momentum)
        return Parts(AlwaysTrigger(), local, FullCodec(), mixing=EstimatesMixing(rate=self.rate))
