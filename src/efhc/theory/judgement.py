"""From what runs showed to what the theorems promise, and how each assumption and promise came out."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from efhc.base.arrays import Floats, Ints
from efhc.core.schedules import Constant, Diminishing, Schedule
from efhc.theory import nonconvex, rates
from efhc.theory.bounds import Constants, asymptotic_gap, error_bound
from efhc.theory.checks import Promises, SeedCheck, StrategyCheck, of_seeds
from efhc.theory.problem import Curvature
from efhc.theory.step_sizes import check_schedule, limits
from efhc.theory.verdicts import (
    connectivity_findings,
    contraction_finding,
    problem_findings,
    promise_findings,
    slope_findings,
    worst_findings,
)


def judge(
    strategy: str,
    seeds: Mapping[int, SeedCheck],
    schedule: Schedule,
    total_iterations: int,
    iterations: Ints,
    window: int | None,
) -> StrategyCheck:
    """Put together what all seeds showed; `iterations` are the k looked at, of 0 .. `total_iterations`."""
    curvature = Curvature.worst([seed.curvature for seed in seeds.values()])
    step_sizes = np.array([schedule(k) for k in range(total_iterations)])
    promises = _promises(seeds, curvature, window, schedule, step_sizes, iterations)
    slope, promised_slope = _slopes(schedule, iterations, of_seeds(seeds, "optimisation_error"))
    findings = [
        *worst_findings(seeds, [seed.findings for seed in seeds.values()]),
        *connectivity_findings(seeds, total_iterations),
        contraction_finding(seeds, window),
        *problem_findings(seeds, curvature),
        check_schedule(schedule, total_iterations),
        *promise_findings(promises, curvature, schedule, seeds, iterations),
        *slope_findings(slope, promised_slope, schedule),
    ]
    return StrategyCheck(strategy, seeds, iterations, findings, curvature, window, promises, slope, promised_slope)


def _promises(
    seeds: Mapping[int, SeedCheck],
    curvature: Curvature,
    window: int | None,
    schedule: Schedule,
    step_sizes: Floats,
    iterations: Ints,
) -> Promises | None:
    contractions = [seed.contractions.largest for seed in seeds.values() if seed.contractions]
    if window is None or not math.isfinite(curvature.L):
        return None
    constants = Constants(
        devices=len(curvature.smoothness),
        smoothness=curvature.L,
        convexity=curvature.mu,
        diversity=float(of_seeds(seeds, "diversity").max()),
        noise=float(of_seeds(seeds, "noise").max()),
        window=window,
        contraction=max(contractions),
    )
    start = np.array([of_seeds(seeds, name)[:, 0].mean() for name in ("optimisation_error", "consensus_error")])
    strongly_convex = constants.convexity > 0 and not np.isnan(start[0])
    least_losses = [seed.optimum.loss if seed.optimum else 0.0 for seed in seeds.values()]  # no loss is negative
    loss_gap = float(of_seeds(seeds, "loss")[:, 0].mean() - np.mean(least_losses))
    one_more = np.append(step_sizes, schedule(len(step_sizes)))  # the mean up to k has k + 1 terms
    gradient_bound = nonconvex.running_mean_bound(constants, one_more, loss_gap, float(start[1]))
    constant = isinstance(schedule, Constant)
    return Promises(
        constants,
        limits(constants),
        bound=error_bound(constants, step_sizes, start)[iterations],
        gap=asymptotic_gap(constants, schedule(0)) if strongly_convex and constant else None,
        gradient_bound=gradient_bound[iterations],
        printed_weights=nonconvex.printed_weights(constants, schedule(0)),
    )


def _slopes(schedule: Schedule, iterations: Ints, errors: Floats) -> tuple[rates.Slope | None, float | None]:
    """Over the second half of the iterations, in log k: before, the start is still felt."""
    if not isinstance(schedule, Diminishing) or schedule.power == 0 or np.isnan(errors).any():
        return None, None
    late = (iterations >= math.sqrt(iterations[-1])) & (iterations >= 2)
    usable = late & (errors > 0).all(axis=0)
    if usable.sum() < 3:
        return None, None
    promised = rates.rate(schedule.power) and rates.envelope_slope(schedule.power, iterations[usable])
    return rates.fit_slope(iterations[usable], errors[:, usable]), promised
