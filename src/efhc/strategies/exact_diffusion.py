"""D2 and NIDS: decentralized SGD that does not mind how different the devices' data are."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from efhc.core.local_steps import DriftCorrected
from efhc.core.parts import EstimatesMixing, Parts, Strategy
from efhc.core.triggers import AlwaysTrigger
from efhc.strategies.parts.codecs import FullCodec


class ExactDiffusion(Strategy):
    """D2 (Tang et al., ICML 2018); with `rate` = 0.5, NIDS (Li, Shi, Yan 2019).

        x(k+1) = W (2 x(k) - x(k-1) - alpha (g(k) - g(k-1))),    x(1) = W (x(0) - alpha g(0)),    W = I - rate (I - P)

    where P has the Metropolis weights beta_ij. Written with the drift correction h, which is the same for a constant
    step size alpha: y = x - alpha (g - h), x <- W y, h <- h + (W y - y) / alpha. With a step size that changes, h is
    in units of gradients, so that nothing has to be undone. Both want all eigenvalues of W above -1/3, which is true of
    NIDS on every graph and of D2 on many; and a graph that stays as it is: on one that changes, h learns too much.
    """

    kind: Literal["d2"] = "d2"
    rate: float = Field(default=1.0, gt=0, le=1)
    """The share of the way to its neighbours that a device goes in one iteration: 1 for D2, 0.5 for NIDS."""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """mu: quasi-global momentum of the local step. Default: none."""

    def parts(self) -> Parts:
        local = DriftCorrected(correction=1.0, momentum=self.momentum)
        return Parts(AlwaysTrigger(), local, FullCodec(), mixing=EstimatesMixing(rate=self.rate))
