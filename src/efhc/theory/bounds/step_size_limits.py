"""The largest step sizes that the theorems allow."""

from __future__ import annotations

from typing import NamedTuple

from efhc.core.schedules import Constant, Diminishing, Schedule
from efhc.theory.bounds import nonconvex, recursion
from efhc.theory.bounds.recursion import Constants


class Limits(NamedTuple):
    """The largest alpha(0) that each theorem allows, or 0 if it allows none."""

    non_increasing: float
    """`proposition:nonIncreasing`"""
    constant: float
    """`theorem:constant`: equal to `non_increasing`."""
    diminishing: float
    """`theorem:diminishing`"""
    nonconvex: float
    """`theorem:nonconvex`"""


LABELS = {
    "non_increasing": "proposition:nonIncreasing",
    "constant": "theorem:constant",
    "diminishing": "theorem:diminishing",
    "nonconvex": "theorem:nonconvex",
}


def limits(constants: Constants) -> Limits:
    """The limits of all theorems.

    They follow from the recursion that `constants.dependent` selects. Where P may depend on the noise, the first three
    are lower by a factor of at most sqrt(1 + rho^2). That of `theorem:nonconvex` is the same for both, and is small
    enough for both.
    """
    any_schedule = recursion.largest_step_size(constants)
    return Limits(
        any_schedule,
        any_schedule,
        recursion.largest_diminishing_step_size(constants),
        nonconvex.largest_step_size(constants),
    )


def theorem_for(schedule: Schedule, convexity: float) -> str:
    """The field of `Limits` whose theorem applies to `schedule`."""
    if convexity <= 0:
        return "nonconvex"  # `proposition:nonconvex` has the same limit for diminishing step sizes
    theta = schedule.power if isinstance(schedule, Diminishing) else None
    if isinstance(schedule, Constant) or theta == 0:
        return "constant"
    return "non_increasing" if theta is None or theta < 0.5 else "diminishing"
