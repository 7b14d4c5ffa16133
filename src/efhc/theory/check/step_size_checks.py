"""`assump:stepsizes`, and the step size against the limit of the theorem that applies."""

from __future__ import annotations

import math

import numpy as np

from efhc.core.schedules import Constant, Diminishing, Schedule
from efhc.theory.bounds.recursion import Constants
from efhc.theory.bounds.step_size_limits import LABELS, limits, theorem_for
from efhc.theory.check.outcome import Check, Subject


def check_schedule(schedule: Schedule, iterations: int) -> Check:
    """`assump:stepsizes`: (a) constant, or (b) diminishing, with sum alpha infinite and sum alpha^2 finite."""
    subject: Subject = "step-sizes"
    label = "assump:stepsizes"
    if isinstance(schedule, Constant) or (isinstance(schedule, Diminishing) and schedule.power == 0):
        return Check(subject, f"{label}-(a)", "held", "constant")
    if not isinstance(schedule, Diminishing):
        alphas = np.array([schedule(k) for k in range(iterations)])
        if (rises := np.diff(alphas) > 0).any():
            k = int(np.argmax(rises)) + 1
            return Check(subject, label, "broken", "rises", {"alpha": float(alphas[k])}, k)
        return Check(subject, label, "not checkable", "own-function")
    theta = schedule.power
    if theta > 0.5:
        return Check(subject, f"{label}-(b)", "held", "summable", {"theta": theta})
    reason = "half" if theta == 0.5 else "not-summable"
    return Check(subject, f"{label}-(b)", "broken", reason, {"theta": theta})


def check_step_size(schedule: Schedule, constants: Constants) -> Check:
    """alpha(0) against the limit of the theorem that speaks of this schedule."""
    subject: Subject = "step-size-limit"
    name = theorem_for(schedule, constants.convexity)
    limit, label, alpha = getattr(limits(constants), name), LABELS[name], schedule(0)
    values = {"alpha": alpha, "limit": limit, "times": alpha / limit if limit else math.inf}
    if alpha <= limit:
        return Check(subject, label, "held", "within", values)
    return Check(subject, label, "broken", "above" if limit else "none", values, 0)
