"""Checks of step sizes: against Assumption `assump:stepsizes`, and against the limits of the theorems."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from efhc.core.schedules import Constant, Diminishing, Schedule
from efhc.theory import bounds, nonconvex
from efhc.theory.bounds import Constants
from efhc.theory.findings import Finding


def check_schedule(schedule: Schedule, iterations: int) -> Finding:
    """`assump:stepsizes`: (a) a constant step size, or (b) one with sum alpha infinite and sum alpha^2 finite.

    A function of your own is checked only for not increasing over the `iterations` of a run.
    """
    label, what = "assump:stepsizes", "step sizes"
    if isinstance(schedule, Constant) or (isinstance(schedule, Diminishing) and schedule.power == 0):
        return Finding(f"{label}-(a)", what, "held", "constant")
    if not isinstance(schedule, Diminishing):
        alphas = np.array([schedule(k) for k in range(iterations)])
        if (rises := np.diff(alphas) > 0).any():
            return Finding(label, what, "broken", "larger than the one before", int(np.argmax(rises)) + 1)
        return Finding(label, what, "not checkable", "a function of your own; not increasing in this run")
    theta = schedule.power
    if theta > 0.5:
        return Finding(f"{label}-(b)", what, "held", f"theta = {theta:g}: sum alpha diverges, sum alpha^2 does not")
    allowed = "; theorem:diminishing does without it" if theta == 0.5 else ""
    detail = f"theta = {theta:g}: sum alpha^2 diverges{allowed}"
    return Finding(f"{label}-(b)", what, "broken", detail)


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
    any_schedule = bounds.largest_step_size(constants)
    return Limits(
        any_schedule,
        any_schedule,
        bounds.largest_diminishing_step_size(constants),
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


def check_step_size(schedule: Schedule, constants: Constants) -> Finding:
    """Compare alpha(0) with the limit of the theorem that applies to `schedule`."""
    name = theorem_for(schedule, constants.convexity)
    limit, label, alpha = getattr(limits(constants), name), LABELS[name], schedule(0)
    comparison = f"alpha(0) = {alpha:.3g}, limit {limit:.3g}"
    if alpha <= limit:
        return Finding(label, "step-size limit", "held", comparison)
    excess = f"{alpha / limit:.3g} times too large" if limit else "no step size is small enough"
    return Finding(label, "step-size limit", "broken", f"{comparison}: {excess}", 0)
