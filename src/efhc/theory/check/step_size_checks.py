"""The largest step sizes that the theorems allow, `assump:stepsizes`, and the step size against its limit."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from efhc.core.schedules import Constant, Diminishing, Schedule
from efhc.theory.bounds import nonconvex, recursion
from efhc.theory.bounds.recursion import Constants
from efhc.theory.check.outcome import Check, finding


class StepSizeLimits(NamedTuple):
    """The largest alpha(0) that each theorem allows, or 0 if it allows none; `LABELS` has the theorems."""

    non_increasing: float
    constant: float
    diminishing: float
    nonconvex: float


LABELS = {
    "non_increasing": "proposition:nonIncreasing",
    "constant": "theorem:constant",
    "diminishing": "theorem:diminishing",
    "nonconvex": "theorem:nonconvex",
}


def limits(constants: Constants) -> StepSizeLimits:
    """The limits of all theorems.

    They follow from the recursion that `constants.dependent` selects. Where P may depend on the noise, the first three
    are lower by a factor of at most sqrt(1 + rho^2). That of `theorem:nonconvex` is the same for both, and is small
    enough for both.
    """
    any_schedule = recursion.largest_step_size(constants)
    return StepSizeLimits(
        any_schedule,
        any_schedule,
        recursion.largest_diminishing_step_size(constants),
        nonconvex.largest_step_size(constants),
    )


def theorem_for(schedule: Schedule, convexity: float) -> str:
    """The field of `StepSizeLimits` whose theorem applies to `schedule`."""
    if convexity <= 0:
        return "nonconvex"  # `proposition:nonconvex` has the same limit for diminishing step sizes
    theta = schedule.power if isinstance(schedule, Diminishing) else None
    if isinstance(schedule, Constant) or theta == 0:
        return "constant"
    return "non_increasing" if theta is None or theta < 0.5 else "diminishing"


def check_schedule(schedule: Schedule, iterations: int) -> Check:
    """`assump:stepsizes`: (a) constant, or (b) diminishing, with sum alpha infinite and sum alpha^2 finite."""
    if isinstance(schedule, Constant) or (isinstance(schedule, Diminishing) and schedule.power == 0):
        return finding("step-sizes", "constant", label="assump:stepsizes-(a)")
    if not isinstance(schedule, Diminishing):
        alphas = np.array([schedule(k) for k in range(iterations)])
        if (rises := np.diff(alphas) > 0).any():
            k = int(np.argmax(rises)) + 1
            return finding("step-sizes", "rises", {"alpha": float(alphas[k])}, k)
        return finding("step-sizes", "own-function")
    theta = schedule.power
    reason = "summable" if theta > 0.5 else "half" if theta == 0.5 else "not-summable"
    return finding("step-sizes", reason, {"theta": theta}, label="assump:stepsizes-(b)")


def check_step_size(schedule: Schedule, constants: Constants, *, certain: bool = True) -> Check:
    """alpha(0) against the limit of the theorem that speaks of this schedule.

    `certain` says that the B of `constants` holds for ever. Where it was only seen, the limit is that of the run.
    """
    name = theorem_for(schedule, constants.convexity)
    limit, label, alpha = getattr(limits(constants), name), LABELS[name], schedule(0)
    values = {"alpha": alpha, "limit": limit, "times": alpha / limit if limit else math.inf}
    if alpha <= limit:
        return finding("step-size-limit", "within", values, label=label, certain=certain)
    return finding("step-size-limit", "above" if limit else "none", values, 0, label=label)
