"""stub"""

from __future__ import annotations

from abc import ABC
from typing import Annotated, ClassVar, Literal

import numpy as np

from efhc.base.policy import Policy
from efhc.base.registry import Family
from efhc.core.parts import ChosenLinks


class LinksPolicy(Policy, ABC):
    is_fixed: ClassVar[bool] = True


class AllLinks(LinksPolicy):
    kind: Literal["all"] = "all"

    def choose(self, now):
        return ChosenLinks(np.ones(len(now.graph.links), bool))


class MatchaLinks(LinksPolicy):
    is_fixed: ClassVar[bool] = False
    kind: Literal["matcha"] = "matcha"
    budget: float = 0.5

    def choose(self, now):
        return ChosenLinks(now.random().random(len(now.graph.links)) < self.budget)


LINKS = Family(LinksPolicy, (__name__,), ("choose",), default="all")
AnyLinkChoice = Annotated[LinksPolicy, LINKS]
