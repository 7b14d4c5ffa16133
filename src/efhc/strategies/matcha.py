"""Decentralized SGD over links that are chosen anew in every iteration."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from efhc.core.parts import Parts, Strategy
from efhc.core.triggers import AlwaysTrigger
from efhc.strategies.estimating import local_step
from efhc.strategies.parts.link_choices import MatchaLinks


class Matcha(Strategy):
    """MATCHA (Wang, Sahu, Yang, Joshi, Kar 2019): random matchings of the graph, vital ones more often.

        x(k+1) = W(k) x(k) - alpha(k) g(k),    W(k) = I - a sum_j B_j(k) L_j

    L_j: the Laplacian of matching j; B_j(k): whether it is used, with probability p_j (see `MatchaLinks`). Unlike in
    their Alg. 1, gradient step and mixing both start from x(k), as in EF-HC.
    """

    kind: Literal["matcha"] = "matcha"
    budget: float = Field(default=0.5, gt=0, le=1)
    """Share of the matchings used on average."""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """mu: quasi-global momentum."""

    def parts(self) -> Parts:
        return Parts(AlwaysTrigger(), local_step(self.momentum), links=MatchaLinks(budget=self.budget))
