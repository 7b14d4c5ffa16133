"""The largest step sizes that the theorems allow."""

from __future__ import annotations

from typing import NamedTuple

from efhc.core.schedules import Constant, Diminishing, Schedule
from efhc.theory import bounds, nonconvex
from efhc.theory.bounds import Constants


class Limits(NamedTuple):
    """The largest alpha(0) that each theorem allows; 0 where it allows none."""

    non_increasing: float
    """`proposition:nonIncreasing`"""
    constant: float
    """`theorem:constant`, the same."""
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
    """Of all theorems."""
    any_schedule = bounds.largest_step_size(constants)
    return Limits(
        any_schedule,
        any_schedule,
        bounds.largest_diminishing_step_size(constants),
        nonconvex.largest_step_size(constants),
    )


def theorem_for(schedule: Schedule, convexity: float) -> str:
    """Which theorem speaks of this schedule, by its name in `Limits`."""
    if convexity <= 0:
        return "nonconvex"  # `proposition:nonconvex` has the same limit for steps that diminish
    theta = schedule.power if isinstance(schedule, Diminishing) else None
    if isinstance(schedule, Constant) or theta == 0:
        return "constant"
    return "non_increasing" if theta is None or theta < 0.5 else "diminishing"
