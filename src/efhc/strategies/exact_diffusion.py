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
