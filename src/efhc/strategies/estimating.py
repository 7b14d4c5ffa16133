"""What all strategies have in common in which neighbours keep estimates of each other's models."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from efhc.core.parts import SGD, Budget, DriftCorrected, EstimatesMixing, QuasiGlobalMomentum, Strategy


class EstimatingStrategy(Strategy):
    """A strategy whose mixing is one of estimates: only who sends pays, and for what was sent."""

    momentum: float = Field(default=0.0, ge=0, lt=1)
    """mu: quasi-global momentum of the local step. Default: none."""
    per: Literal["device", "link"] = "device"
    """Whether all neighbours know the same of a device ("device": it broadcasts), or each is sent a message of its own,
    which it acknowledges ("link": messages may get lost)."""
    budget: Budget | None = None
    """What a device may spend: `{ share = 0.01 }` is 1 % of what ZT would, and more on a network that changes, where
    new neighbours are told all. Devices then mix only over links that something was just sent over. Default: no
    limit."""

    def estimates(self, rate: float, every: int = 1) -> EstimatesMixing:
        """Return the mixing. What nobody can afford to bring up to date must not be mixed again and again."""
        return EstimatesMixing(rate=rate, per=self.per, every=every, when="sent" if self.budget else "always")


def local_step(momentum: float, correction: float = 0.0) -> SGD | QuasiGlobalMomentum | DriftCorrected:
    """Return the local step with this momentum mu and drift correction theta."""
    if correction:
        return DriftCorrected(correction=correction, momentum=momentum)
    return QuasiGlobalMomentum(momentum=momentum) if momentum else SGD()
