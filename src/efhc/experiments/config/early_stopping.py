"""When a run ends before its last iteration, because it no longer gets better."""

from __future__ import annotations

from pydantic import Field

from efhc.base.policy import Policy


class EarlyStopping(Policy):
    """A run ends after `patience` evaluations in a row that are no better than the best one before them."""

    measure: str = "accuracy"
    """The measure that has to get better, such as "own_accuracy" or "loss"."""
    patience: int = Field(default=10, ge=1)
    """Number of evaluations in a row without a gain."""
    least_gain: float = Field(default=0.0, ge=0)
    """A gain of at most this size counts as none."""
