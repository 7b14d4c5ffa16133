"""How long messages take: kinds instant, per-link, shared."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Any, Literal

from pydantic import Field

from efhc.base.policy import Policy
from efhc.base.registry import Family
from efhc.core.randomness import Randomness
from efhc.core.triggers import Bandwidths


class LinkPolicy(Policy, ABC):
    """Links that a config can name."""

    @abstractmethod
    def transfers(self, bandwidths: Bandwidths, randomness: Randomness) -> Any:
        """Return the messages under way in one run."""


class InstantLinks(LinkPolicy):
    """Every message arrives at the instant at which it is sent."""

    kind: Literal["instant"] = "instant"

    def transfers(self, bandwidths: Bandwidths, randomness: Randomness) -> Any:
        raise NotImplementedError


class PerLink(LinkPolicy):
    """Each link of device i carries b_i."""

    kind: Literal["per-link"] = "per-link"
    latency: float = Field(default=0.0, ge=0)
    """Seconds."""

    def transfers(self, bandwidths: Bandwidths, randomness: Randomness) -> Any:
        raise NotImplementedError


class SharedLinks(LinkPolicy):
    """The transfers of device i share b_i."""

    kind: Literal["shared"] = "shared"
    latency: float = Field(default=0.0, ge=0)
    """Seconds."""

    def transfers(self, bandwidths: Bandwidths, randomness: Randomness) -> Any:
        raise NotImplementedError


LINKS = Family(LinkPolicy, (__name__,), ("transfers",), default="per-link")
AnyLinks = Annotated[LinkPolicy, LINKS]
