"""Decentralized SGD over links that are chosen anew in every iteration."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from efhc.core.parts import Parts, Strategy
from efhc.core.triggers import AlwaysTrigger
from efhc.strategies.estimating import local_step
from efhc.strategies.parts.links import MatchaLinks


class Matcha(Strategy):
    """MATCHA (Wang, Sahu, Yang, Joshi, Kar 2019): matchings of the graph are used at random, vital ones more often.

        x(k+1) = W(k) x(k) - alpha(k) g(k),    W(k) = I - a sum_j B_j(k) L_j

    L_j: the Laplacian of matching j; B_j(k): whether it is used, with probability p_j; see `MatchaLinks`. In their Alg.
    1 the gradient step comes before the mixing; here both start from x(k), as in EF-HC.
    """

    kind: Literal["matcha"] = "matcha"
    budget: float = Field(default=0.5, gt=0, le=1)
    """The share of the matchings that is used on average."""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """mu: quasi-global momentum of the local step. Default: none."""

    def parts(self) -> Parts:
        return Parts(AlwaysTrigger(), local_step(self.momentum), links=MatchaLinks(budget=self.budget))
