"""Whether step sizes keep to their limit, and measured errors and gradients to their bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from scipy.special import stdtrit

from efhc.base.arrays import Floats, Ints
from efhc.core.schedules import Schedule
from efhc.theory.check.outcome import Check, Subject, Value
from efhc.theory.check.promises import BOUNDS, ROUNDING
from efhc.theory.check.step_size_checks import check_step_size
from efhc.theory.check.strategy_check import Promises, SeedCheck, mean_over_seeds, observed_window, of_seeds
from efhc.theory.constants.measured import running_mean
from efhc.theory.constants.problem import Curvature

FEW_SEEDS = 5
"""The number of seeds below which a mean proves nothing about an expected value."""
CONFIDENCE = 0.95
"""The confidence level of the interval around a mean over seeds."""
HUGE = 1e100
"""The largest distance below a bound that is told apart: the squares of larger ones would not be finite."""


def check_promises(
    promises: Promises | None,
    curvature: Curvature,
    schedule: Schedule,
    seeds: Mapping[int, SeedCheck],
    iterations: Ints,
    *,
    optimum_sought: bool,
    by_chance: bool = False,
) -> list[Check]:
    """Step sizes against their limit, errors and gradients against their bounds.

    `by_chance` says that no B holds for ever: then a step size is within the limit of the B that was seen, no more.
    """
    if promises is None:
        reason = "no-smoothness" if not math.isfinite(curvature.L) else "no-window"
        return [Check("step-size-limit", "proposition:nonIncreasing", "not checkable", reason)]
    limit = check_step_size(schedule, promises.constants)
    if promises.constants.window < (observed := observed_window(seeds)):
        limit = limit._replace(verdict="not checkable", reason="short", values={"observed": observed}, iteration=None)
    if by_chance and limit.verdict == "held":
        limit = limit._replace(verdict="held where looked")
    checks = [limit]
    for column, (subject, label, name) in enumerate(BOUNDS):
        values = of_seeds(seeds, name)
        no_optimum = "no-optimum" if optimum_sought else "optimum-not-sought"
        checks.append(
            check_bound(subject, label, values, promises.bounds[:, :, column], iterations, promises, no_optimum)
        )
    if len(iterations) > 2:  # else the mean over all of them is not known
        running = np.stack([running_mean(iterations, each) for each in of_seeds(seeds, "gradient_norm")])
        checks.append(
            check_bound(
                "gradient-bound",
                "lemma:nonconvex_lossdec",
                running,
                promises.gradient_bounds,
                iterations,
                promises,
                "not-looked",
            )
        )
    if curvature.known == "estimate":
        return [
            check._replace(verdict="not checkable", values={**check.values, "estimate": True}, iteration=None)
            for check in checks
        ]
    return checks


def check_bound(
    subject: Subject,
    label: str,
    measured: Floats,
    bounds: Floats,
    iterations: Ints,
    promises: Promises,
    missing: str = "no-optimum",
) -> Check:
    """Whether what was measured, (seeds, points), is below its bound, (seeds, points), in the mean over seeds.

    The bounds are on expected values. Without noise every run must keep to its own; with noise the mean difference over
    seeds and its confidence interval decide, and fewer than `FEW_SEEDS` seeds decide nothing, above or below. At k = 0
    both are equal by construction. No verdict is better than "held where looked": delta and sigma^2 are known where
    they were measured.
    """
    values: dict[str, Value] = {"seeds": len(measured), "points": measured.shape[1]}
    if reason := _nothing_to_compare(measured, bounds, promises, missing):
        return Check(subject, label, "not checkable", reason, values)
    values |= {"measured": float(measured[:, -1].mean()), "bound": float(mean_over_seeds(bounds)[-1])}
    low, high = _excess(measured, bounds, noisy=promises.constants.noise > 0)
    if (above := low > 0).any():
        place = int(np.argmax(above)) + 1
        k = int(iterations[place])
        values |= {"measured": float(measured[:, place].mean()), "bound": float(mean_over_seeds(bounds)[place]), "k": k}
        return Check(subject, label, "broken", "above", values, k)
    if subject in promises.growing:
        return Check(subject, label, "not checkable", "grows", values)
    if (high > 0).any():
        few = len(measured) < FEW_SEEDS
        return Check(subject, label, "undecided", "few-seeds" if few else "interval", values)
    return Check(subject, label, "held where looked", "below", values)


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
