"""What carries messages in simulated time: how long they take, and which are lost."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import ConfigDict, Field

from efhc.base.arrays import Floats
from efhc.base.errors import within
from efhc.base.own_code import is_built_in, quoting
from efhc.base.policy import Policy
from efhc.base.registry import Family
from efhc.core.randomness import Randomness
from efhc.drivers.event_driven.checked_transfers import CheckedTransfers
from efhc.drivers.event_driven.rates import AnyRates, ConstantRates, draw_rates
from efhc.drivers.event_driven.timed_transfers import TimedTransfers
from efhc.drivers.event_driven.transfers import Carrier, Notice, Transfers, WhenLost

__all__ = ["LINKS", "AnyLinks", "InstantLinks", "LinkPolicy", "Notice", "PerLink", "SharedLinks", "Transfers"]

Seconds = Annotated[float, Field(ge=0, le=1e100)]


class LinkPolicy(Policy, ABC):
    """Links that a config can name."""

    @abstractmethod
    def transfers(self, bandwidths: Floats, randomness: Randomness) -> Transfers:
        """Return what carries the messages of one run between devices with the bandwidths b_i, (m,)."""


class InstantLinks(LinkPolicy):
    """Messages arrive at the instant at which they are sent."""

    kind: Literal["instant"] = "instant"

    def transfers(self, bandwidths: Floats, randomness: Randomness) -> Transfers:
        rates = ConstantRates().over_time(np.full(len(bandwidths), np.inf), randomness)
        return TimedTransfers(len(bandwidths), rates, randomness, at_once=True)


class TimedLinks(LinkPolicy):
    """Links on which messages take time and get lost."""

    model_config = ConfigDict(defer_build=True)  # kinds of installed packages may need what is here

    SHARED: ClassVar[bool]

    latency: Seconds = 0.0
    """Seconds added to every message."""
    jitter: Seconds = 0.0
    """Largest further delay in seconds, uniform in [0, jitter)."""
    loss: float = Field(default=0.0, ge=0, lt=1)
    """Probability that a message is lost."""
    when_lost: WhenLost = "resend"
    """"resend": a lost message is sent again when it would have arrived. "drop": it never arrives."""
    rates: AnyRates = ConstantRates()
    """b_i over time."""

    def transfers(self, bandwidths: Floats, randomness: Randomness) -> Transfers:
        with within("rates"):
            rates = draw_rates(self.rates, bandwidths, randomness)
        return TimedTransfers(
            len(bandwidths),
            rates,
            randomness,
            shared=self.SHARED,
            latency=self.latency,
            jitter=self.jitter,
            loss=self.loss,
            when_lost=self.when_lost,
        )


class PerLink(TimedLinks):
    """Each link carries b_i parameters per second from device i, whatever i sends to others."""

    SHARED = False
    kind: Literal["per-link"] = "per-link"


class SharedLinks(TimedLinks):
    """All messages that device i has under way share its b_i parameters per second equally."""

    SHARED = True
    kind: Literal["shared"] = "shared"


LINKS = Family(LinkPolicy, (__name__,), ("transfers",), default="per-link")
AnyLinks = Annotated[LinkPolicy, LINKS]


def draw_transfers(links: LinkPolicy, bandwidths: Floats, randomness: Randomness) -> Carrier:
    """Return what carries the messages of one run. Raises `InputError` if the setting `driver.links` cannot be used."""
    with within("driver.links"), quoting(links, "kind"):
        transfers: Any = links.transfers(bandwidths, randomness)
    carrier: Carrier = transfers if is_built_in(transfers) else CheckedTransfers(links, transfers)
    return carrier
