"""Whether step sizes keep to their limit, and measured errors and gradients to their bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from scipy.special import stdtrit

from efhc.base.arrays import Floats, Ints
from efhc.core.schedules import Diminishing, Schedule
from efhc.theory.bounds import convergence_rates
from efhc.theory.check.outcome import Certainty, Check, Value, finding
from efhc.theory.check.promises import BOUNDS, ROUNDING, Promises, SeedCheck, mean_over_seeds, observed_window, of_seeds
from efhc.theory.check.step_size_checks import check_step_size
from efhc.theory.constants.measured import running_mean
from efhc.theory.constants.problem import Curvature

FEW_SEEDS = 5
"""The number of seeds below which a mean proves nothing about an expected value."""
CONFIDENCE = 0.95
"""The confidence level of the interval around a mean over seeds."""
HUGE = 1e100
"""Larger distances below a bound are cut to this one: their squares would not be finite."""


def check_promises(
    promises: Promises | None,
    curvature: Curvature,
    schedule: Schedule,
    seeds: Mapping[int, SeedCheck],
    iterations: Ints,
    certainty: Certainty,
    *,
    optimum_sought: bool,
) -> list[Check]:
    """Step sizes against their limit, errors and gradients against their bounds."""
    if promises is None:
        return [finding("step-size-limit", "no-window" if math.isfinite(curvature.L) else "no-smoothness")]
    limit = check_step_size(schedule, promises.constants, certain=certainty.flow)
    if promises.constants.window < (observed := observed_window(seeds)):
        limit = finding("step-size-limit", "short", {"observed": observed}, label=limit.label)
    checks = [limit]
    for column, (subject, name) in enumerate(BOUNDS.items()):
        missing = "no-optimum" if optimum_sought else "optimum-not-sought"
        bounds = promises.bounds[:, :, column]
        checks.append(check_bound(subject, of_seeds(seeds, name), bounds, iterations, promises, missing))
    if len(iterations) > 2:  # else the mean over all of them is not known
        running = np.stack([running_mean(iterations, each) for each in of_seeds(seeds, "gradient_norm")])
        bounds = promises.gradient_bounds
        checks.append(check_bound("gradient-bound", running, bounds, iterations, promises, "not-looked"))
    if curvature.known == "estimate":
        return [
            check._replace(verdict="not checkable", values={**check.values, "estimate": True}, iteration=None)
            for check in checks
        ]
    return checks


def check_bound(
    subject: str, measured: Floats, bounds: Floats, iterations: Ints, promises: Promises, missing: str = "no-optimum"
) -> Check:
    """Check whether `measured`, (seeds, points), is below its bound, (seeds, points), in the mean over seeds.

    The bounds are on expected values. Without noise every run must keep to its own; with noise the mean difference over
    seeds and its confidence interval decide, and fewer than `FEW_SEEDS` seeds decide nothing, above or below. At k = 0
    both are equal by construction. No verdict is better than "held where looked": delta and sigma^2 are known where
    they were measured.
    """
    values: dict[str, Value] = {"seeds": len(measured), "points": measured.shape[1]}
    if reason := _nothing_to_compare(measured, bounds, promises, missing):
        return finding(subject, reason, values)
    low, high = _excess(measured, bounds, noisy=promises.constants.noise > 0)
    above = low > 0
    place = int(np.argmax(above)) + 1 if above.any() else -1
    values |= {"measured": float(measured[:, place].mean()), "bound": float(mean_over_seeds(bounds)[place])}
    if above.any():
        k = int(iterations[place])
        return finding(subject, "above", values | {"k": k}, k)
    if subject in promises.growing:
        return finding(subject, "grows", values)
    if (high > 0).any():
        return finding(subject, "few-seeds" if len(measured) < FEW_SEEDS else "interval", values)
    return finding(subject, "below", values)


def _excess(measured: Floats, bounds: Floats, *, noisy: bool) -> tuple[Floats, Floats]:
    """For each point but the first an interval of how far the mean is above its bound, from low to high."""
    with np.errstate(over="ignore"):
        excess = (measured - bounds * (1 + ROUNDING))[:, 1:]
    if not noisy:
        return np.max(excess, axis=0), np.max(excess, axis=0)
    excess = np.maximum(excess, -HUGE)  # whose squares are still numbers
    count, mean = len(excess), excess.mean(axis=0)
    if count < FEW_SEEDS:
        return np.full_like(mean, -np.inf), np.full_like(mean, np.inf)
    half = stdtrit(count - 1, (1 + CONFIDENCE) / 2) * excess.std(axis=0, ddof=1) / math.sqrt(count)
    return mean - half, mean + half


def _nothing_to_compare(measured: Floats, bounds: Floats, promises: Promises, missing: str) -> str | None:
    if measured.shape[1] < 2:
        return "only-start"
    if np.isnan(measured).any():
        return missing
    if not np.isfinite(bounds).all():
        return "infinite-rho" if promises.constants.contraction >= 1 else "infinite-step"
    return None


def slopes_of(
    schedule: Schedule, iterations: Ints, errors: Floats
) -> tuple[convergence_rates.Slope | None, float | None]:
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
    promised = convergence_rates.rate(schedule.power) and convergence_rates.envelope_slope(
        schedule.power, iterations[usable]
    )
    return convergence_rates.fit_slope(iterations[usable], errors[:, usable]), promised


def check_rate(slope: convergence_rates.Slope | None, promised: float | None, schedule: Schedule) -> list[Check]:
    """How fast the error falls, next to the paper's rate.

    A rate is a promise for k -> infinity: a run that does not show it does not break it, nor does one that shows it
    prove it.
    """
    if slope is None or not isinstance(schedule, Diminishing):
        return []
    label = "theorem:diminishing" if schedule.power == 0.5 else None
    values: dict[str, Value] = {"slope": slope.value, "low": slope.low, "high": slope.high, "theta": schedule.power}
    known = convergence_rates.rate(schedule.power)
    if promised is None or known is None:
        return [finding("rate", "no-rate", values)]
    values |= {"promised": promised, "text": known.text, "proved": known.proved}
    reason = "one-seed" if slope.seeds == 1 else "as-fast" if slope.high <= promised else "slower"
    return [finding("rate", reason, values, label=label)]
