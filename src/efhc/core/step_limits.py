"""How far one message may move two devices: a factor on the weight of a half-step, which the sender chooses.

The factor is part of the weight c that travels in the frame. So both ends make the same step, with opposite signs, and
mixing never moves the mean model, whatever the factor is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from numbers import Real
from typing import Literal

import numpy as np
from pydantic import Field

from efhc.base.arrays import Floats, read_only
from efhc.base.errors import InputError
from efhc.base.own_code import is_built_in, quoting
from efhc.base.policy import Policy


class StepLimit(Policy, ABC):
    """A limit of steps that a config can name."""

    @abstractmethod
    def factor(self, own: Floats, other: Floats) -> float:
        """Return by what the weight of a step is multiplied, from 0 to 1.

        `own` is what the receiver now knows of the sender's model, `other` what the sender knows of the receiver's,
        both (n,).
        """


def factor_of(limit: StepLimit, own: Floats, other: Floats) -> float:
    """Return the factor of a limit. Raises `InputError` if a limit of the user's own returns no number from 0 to 1."""
    if is_built_in(limit):
        return limit.factor(own, other)
    name = f"limit {getattr(limit, 'kind', type(limit).__name__)}"
    with quoting(limit, name):
        factor = limit.factor(read_only(own), read_only(other))
    if not isinstance(factor, Real) or not 0 <= factor <= 1:
        raise InputError(name, f"{factor!r} from factor", "a number from 0 to 1")
    return float(factor)


class NoLimit(StepLimit):
    """Every step counts in full."""

    kind: Literal["none"] = "none"

    def factor(self, own: Floats, other: Floats) -> float:
        return 1.0


class ClippedSteps(StepLimit):
    """min(1, radius / ||other - own||): a neighbour further away than `radius` pulls no more than one at that distance.

    Self-centred clipping (He, Karimireddy, Jaggi 2022) by the sender.
    """

    kind: Literal["clip"] = "clip"
    radius: float = Field(gt=0)
    """Distance of two models up to which a step counts in full."""

    def factor(self, own: Floats, other: Floats) -> float:
        distance = float(np.linalg.norm(np.subtract(other, own, dtype=np.float64)))
        return min(1.0, self.radius / distance) if distance > 0 else 1.0
