"""How fast the optimisation error falls, next to the paper's rate."""

from __future__ import annotations

import math

import numpy as np

from efhc.base.arrays import Floats, Ints
from efhc.core.schedules import Diminishing, Schedule
from efhc.theory.bounds import rates
from efhc.theory.check.outcome import Check, Subject, Value


def slopes_of(schedule: Schedule, iterations: Ints, errors: Floats) -> tuple[rates.Slope | None, float | None]:
    """Return the measured slope of `errors`, (seeds, points), against k and that of the paper's rate, in log-log scale.

    Only the second half of the iterations counts, in log k; before, the start is still felt. None where the step size
    does not diminish, or too few errors are known.
    """
    if not isinstance(schedule, Diminishing) or schedule.power == 0 or np.isnan(errors).any():
        return None, None
    late = (iterations >= math.sqrt(iterations[-1])) & (iterations >= 2)
    usable = late & (errors > 0).all(axis=0)
    if usable.sum() < 3:
        return None, None
    promised = rates.rate(schedule.power) and rates.envelope_slope(schedule.power, iterations[usable])
    return rates.fit_slope(iterations[usable], errors[:, usable]), promised


def check_rate(slope: rates.Slope | None, promised: float | None, schedule: Schedule) -> list[Check]:
    """How fast the error falls, next to the paper's rate.

    A rate is a promise for k -> infinity: a run that does not show it does not break it, nor does one that shows it
    prove it.
    """
    if slope is None or not isinstance(schedule, Diminishing):
        return []
    subject: Subject = "rate"
    label = "theorem:diminishing" if schedule.power == 0.5 else "appendix:generalTheta"
    values: dict[str, Value] = {"slope": slope.value, "low": slope.low, "high": slope.high, "theta": schedule.power}
    known = rates.rate(schedule.power)
    if promised is None or known is None:
        return [Check(subject, label, "not checkable", "no-rate", values)]
    values |= {"promised": promised, "text": known.text, "proved": known.proved}
    if slope.seeds == 1:
        return [Check(subject, label, "undecided", "one-seed", values)]
    if slope.high <= promised:
        return [Check(subject, label, "held where looked", "as-fast", values)]
    return [Check(subject, label, "undecided", "slower", values)]
