"""What strategies have in common that send changes of what neighbours know: momentum and a budget."""

from __future__ import annotations

from pydantic import Field

from efhc.core.local_steps import SGD, DriftCorrected, LocalStep, QuasiGlobalMomentum
from efhc.core.parts import Budget, EstimatesMixing, Strategy


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
