"""Strategies whose messages are half-steps: a device sends, and waits for no answer. They run on every driver."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from efhc.base.errors import Unusable
from efhc.core.half_steps import MOST_WINDOW
from efhc.core.parts import HalfStepsMixing, Parts
from efhc.core.triggers import EntrywiseTrigger, NormTrigger
from efhc.core.uplink import Pacing
from efhc.strategies.estimating import EstimatingStrategy, local_step
from efhc.strategies.parts.codecs import FullCodec, LevelsCodec
from efhc.strategies.parts.link_choices import AllLinks, AnyLinkChoice, BandwidthLinks


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


class Entrywise(EstimatingStrategy):
    """Coordinate l of device i is sent when it differs enough from what the neighbours know.

        y_i    = x_i - alpha (mu m_i + g_i - h_i)
        q_il   = level_il max_l |y_il - x_hat_il| / 4     if |y_il - x_hat_il| >= r gamma(k) / b_M and level_il is not 0
        x_hat_i <- x_hat_i + q_i

    Each message to a neighbour j is a half-step of both: i adds d = rate beta_ij (x_hat_j - x_hat_i), j adds -d, and
    each adds theta / A of it to h; A is the sum of alpha since i's last message to j. The levels are -4 ... 4 (3 bits),
    mu is `momentum`, theta `correction`. Close to LEAD (Liu et al., ICLR 2021) and to hard thresholds (Sahu et al.,
    NeurIPS 2021). It runs in lockstep, event-driven and on nodes.
    """

    kind: Literal["entrywise"] = "entrywise"
    r: float = Field(default=1000.0, ge=0)
    """The threshold scale r."""
    rate: float = Field(default=0.25, gt=0, le=0.5)
    """Share of beta_ij that one message moves."""
    correction: Annotated[float, Field(ge=0, le=1)] | None = None
    """theta: how fast the drift correction learns. Default: 0.1 sqrt(1 - mu)."""
    bits: int = Field(default=3, ge=1, le=32)
    """Bits per level -L ... L (without 0), L = 2^(bits - 1)."""

    def parts(self) -> Parts:
        correction = 0.1 * math.sqrt(1 - self.momentum) if self.correction is None else self.correction
        return Parts(
            EntrywiseTrigger(r=self.r),
            local_step(self.momentum, correction),
            LevelsCodec(bits=self.bits),
            mixing=HalfStepsMixing(rate=self.rate),
            budget=self.budget,
        )


class Paced(EstimatingStrategy):
    """For slow links: each device sends when its own uplink is idle, as much as it carries, over its best links.

        y_i     = x_i - alpha (mu m_i + g_i - h_i)
        q_il    = level_il max_l |delta_il| / 2     for those of the coordinates that differ most, and by r gamma(k)
        known_ij <- known_ij + q_ij,  delta_ij = (y_i - E_ij) - known_ij

    E_ij is what the link i, j has added to x_i so far. A message to j is a step d = c ((known_ji - known_ij) - 2 E_ij)
    of i and the opposite step of j: repeated without news, it brings both to their average. Each adds d theta min(N,
    most_steps) / A to h; A and N are the sum of alpha and the number of local steps since the last acknowledged
    message. A device sends while its uplink has less than `pacing.backlog` seconds to send, first to the neighbours
    that have waited longest, at most what it carries in `pacing.seconds`. Slow devices leave out links that common
    neighbours make up for.

    It needs no settings by bandwidth. It is made for event-driven runs and nodes; in lockstep devices send to all
    neighbours over the links that are left.
    """

    kind: Literal["paced"] = "paced"
    r: float = Field(default=0.32, ge=0)
    """The threshold of coordinates is r gamma(k). A larger r saves bytes on fast links."""
    rate: float = Field(default=1.0, gt=0, le=1)
    """Share of beta_ij that one message moves."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """mu: quasi-global momentum."""
    correction: float = Field(default=0.1, ge=0, le=1)
    """theta: how fast the drift correction learns."""
    most_steps: int = Field(default=8, ge=1)
    """Largest number of local steps that one message adds to the drift correction until k = 50; then fewer."""
    bits: int = Field(default=2, ge=2, le=32)
    """Bits per level -L ... L (without 0), L = 2^(bits - 1)."""
    window: int = Field(default=4, ge=1, le=MOST_WINDOW)
    """Largest number of messages under way to a neighbour, spread over the measured round trip."""
    pacing: Pacing | None = Pacing()
    """How a device uses its uplink. None: it sends to all neighbours whenever the trigger fires."""
    links: AnyLinkChoice = BandwidthLinks()
    """Over which links: "bandwidth" or "all"."""

    @model_validator(mode="after")
    def _goes_with_a_pace(self) -> Self:
        if not isinstance(self.links, AllLinks | BandwidthLinks):
            kind = getattr(self.links, "kind", type(self.links).__name__)
            raise Unusable("links", f"'{kind}'", "'bandwidth' or 'all'")
        if self.pacing is None and isinstance(self.links, BandwidthLinks):
            raise Unusable("links", "'bandwidth' without a pace", "'all'; or a table `pacing`")
        return self

    def parts(self) -> Parts:
        return Parts(
            EntrywiseTrigger(r=self.r, rho="one"),
            local_step(self.momentum, self.correction),
            LevelsCodec(bits=self.bits),
            None if isinstance(self.links, AllLinks) else self.links,
            HalfStepsMixing(rate=self.rate, settle=True, window=self.window, most_steps=self.most_steps),
            self.budget,
            self.pacing,
        )
