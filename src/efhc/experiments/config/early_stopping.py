"""When a run ends before its last iteration, because a measure no longer improves."""

from __future__ import annotations

from pydantic import Field

from efhc.base.policy import Policy


class EarlyStopping(Policy):
    """A run ends after `patience` evaluations in a row that do not exceed the best by more than `least_gain`.

    The best is the last one that did. Runs then have different lengths, and no shares of ZT's total time.
    """

    measure: str | None = Field(default=None, min_length=1)
    """The measure that has to improve, such as "own_accuracy" or "loss". Default: accuracy, or the first metric of an
    objective without it."""
    patience: int = Field(default=10, ge=1)
    """Number of evaluations in a row without an improvement."""
    least_gain: float = Field(default=0.0, ge=0)
    """An improvement of at most this size counts as none."""
