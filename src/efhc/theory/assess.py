"""From what the runs of one strategy showed to what the theorems promise, and how each assumption came out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from scipy.special import stdtrit

from efhc.base.arrays import Flags, Floats, Ints
from efhc.core.schedules import Constant, Diminishing, Schedule
from efhc.theory import nonconvex, rates
from efhc.theory.bounds import Constants, asymptotic_gap, error_bound
from efhc.theory.checks import ChosenWindow, Promises, SeedCheck, StrategyCheck, mean_over_seeds, of_seeds
from efhc.theory.measured import running_mean
from efhc.theory.network import Connectivity, check_connectivity
from efhc.theory.outcome import Check, Subject, Value
from efhc.theory.problem import Curvature
from efhc.theory.step_sizes import LABELS, limits, theorem_for

Firing = Literal["fixed", "coins", "drift"]
"""By what devices fire: at fixed iterations, by independent coins, or by how far their models have drifted.

Only in the last case does P(k) depend on the noise of earlier gradients. A strategy of unknown kind counts as "drift".
"""

FEW_SEEDS = 5
"""With fewer, a mean proves nothing of an expected value."""
CONFIDENCE = 0.95
ROUNDING = 1e-6
"""How far above its bound, relative to it, a measured error may be: single precision."""
HUGE = 1e100
"""A distance below a bound from which on it does not matter how far it is."""
BOUNDS: tuple[tuple[Subject, str, str], ...] = (
    ("optimisation-bound", "eqn:PhikPsikRecursive", "optimisation_error"),
    ("consensus-bound", "eqn:PhikPsikRecursive", "consensus_error"),
)


def assess(
    strategy: str,
    seeds: Mapping[int, SeedCheck],
    schedule: Schedule,
    total_iterations: int,
    iterations: Ints,
    chosen: ChosenWindow | None,
    firing: Firing = "drift",
    *,
    optimum_sought: bool = True,
) -> StrategyCheck:
    """Put together what all seeds showed.

    `iterations` are the k at which models were looked at, of 0 .. `total_iterations`. `optimum_sought` is False where
    no w* was looked for.
    """
    curvature = Curvature.worst([seed.curvature for seed in seeds.values()])
    step_sizes = np.array([schedule(k) for k in range(total_iterations)])
    promises = _promises(seeds, curvature, chosen, schedule, step_sizes, iterations, firing)
    slope, promised_slope = _slopes(schedule, iterations, of_seeds(seeds, "optimisation_error"))
    checks = [
        *worst_checks(list(seeds), [seed.checks for seed in seeds.values()]),
        *check_windows(
            {seed: each.connectivity for seed, each in seeds.items()}, total_iterations, coins=firing == "coins"
        ),
        check_contraction(seeds, chosen),
        *check_problem(
            curvature,
            *(of_seeds(seeds, name) for name in ("diversity", "noise", "noise_error")),
            total_iterations=total_iterations,
        ),
        check_schedule(schedule, total_iterations),
        *_promise_checks(promises, curvature, schedule, seeds, iterations, optimum_sought=optimum_sought),
        *check_rate(slope, promised_slope, schedule),
    ]
    return StrategyCheck(strategy, seeds, iterations, checks, curvature, chosen, promises, slope, promised_slope)


# Several seeds


def worst_checks(seeds: Sequence[int], by_seed: Sequence[Sequence[Check]]) -> list[Check]:
    """For each subject the worst check, that of the first seed where several are as bad."""
    together = []
    for checks in zip(*by_seed, strict=True):
        worst = max(checks, key=lambda check: check.severity)
        if worst.severity > 0 and any(check != checks[0] for check in checks):
            worst = worst._replace(seed=seeds[checks.index(worst)])
        together.append(worst)
    return together


def check_windows(found: Mapping[int, Connectivity], iterations: int, *, coins: bool) -> list[Check]:
    """`assump:conn` and `proposition:conn` with the largest windows of all seeds, or else of the seed that is worst."""
    each = list(found.values())
    largest = Connectivity(*(max(windows, key=lambda window: window.length) for windows in zip(*each, strict=True)))
    of_largest = check_connectivity(largest, iterations, max(one.promised for one in each), coins)
    by_seed = [check_connectivity(one, iterations, coins=coins) for one in each]
    together = []
    for worst, over_all, of_seeds_ in zip(
        worst_checks(list(found), by_seed), of_largest, zip(*by_seed, strict=True), strict=True
    ):
        differ = len({tuple(check.values.items()) for check in of_seeds_}) > 1
        at_most = over_all._replace(values={**over_all.values, "at_most": differ})
        together.append(at_most if worst.verdict in ("held", "held where looked") else worst)
    return together


# Contraction


def check_contraction(seeds: Mapping[int, SeedCheck], chosen: ChosenWindow | None) -> Check:
    """`lemma:harnessing:spectral`: whether every window of B iterations contracts."""
    subject: Subject = "contraction"
    label, found = "lemma:harnessing:spectral", [seed.contractions for seed in seeds.values() if seed.contractions]
    if chosen is None or not found:
        return Check(subject, label, "not checkable", "no-window")
    worst = max(found, key=lambda contractions: contractions.largest)
    looked, of = sum(len(each.starts) for each in found), sum(each.of for each in found)
    values: dict[str, Value] = {
        "rho": worst.largest,
        "B": chosen.length,
        "kind": chosen.kind,
        "looked": looked,
        "of": of,
        "observed": _observed(seeds),
    }
    if chosen.length < _observed(seeds):
        return Check(subject, label, "not checkable", "short", values)
    if worst.largest >= 1:
        return Check(subject, label, "broken", "does-not", values, worst.largest_at)
    # Where used links are cut when the run ends, nobody knows whether a later window of B iterations would contract.
    iterations = found[0].of + chosen.length - 1
    cut = any(seed.connectivity.observed.is_censored(iterations) for seed in seeds.values())
    return Check(subject, label, "held" if looked == of and not cut else "held where looked", "contracts", values)


def _observed(seeds: Mapping[int, SeedCheck]) -> float:
    return max(seed.connectivity.observed.length for seed in seeds.values())


# The learning problem


def check_problem(
    curvature: Curvature, diversity: Floats, noise: Floats, noise_error: Floats, *, total_iterations: int
) -> list[Check]:
    """L, mu, delta and sigma^2; the last three arrays, (seeds, points), are NaN where nothing was measured."""
    return [
        _smoothness_check(curvature),
        _convexity_check(curvature),
        _diversity_check(curvature, diversity, total_iterations),
        _noise_check(noise, noise_error, total_iterations),
    ]


def _smoothness_check(curvature: Curvature) -> Check:
    subject: Subject = "smoothness"
    label, values = "assump:smooth_convex_graddiv-(a)", {"L": curvature.L}
    if not math.isfinite(curvature.L):
        return Check(subject, label, "broken", "kinks")
    verdict: Literal["held", "not checkable"] = "not checkable" if curvature.known == "estimate" else "held"
    return Check(subject, label, verdict, curvature.known, values)


def _convexity_check(curvature: Curvature) -> Check:
    subject: Subject = "convexity"
    label, values = "assump:smooth_convex_graddiv-(b)", {"mu": curvature.mu}
    if curvature.known == "estimate":
        return Check(subject, label, "not checkable", "estimate", values)
    if curvature.mu > 0:
        return Check(subject, label, "held", curvature.known, values)
    flat: Flags = curvature.convexity <= 0
    to_blame = None if flat.all() else int(curvature.convexity.argmin())
    return Check(subject, label, "broken", "flat" if to_blame is None else "flat-device", values, None, to_blame)


def _diversity_check(curvature: Curvature, diversity: Floats, total_iterations: int) -> Check:
    subject: Subject = "diversity"
    label = "assump:smooth_convex_graddiv-(c)"
    if np.isnan(diversity).all():
        return Check(subject, label, "not checkable", "not-looked")
    values = {"delta": float(diversity.max()), "points": diversity.shape[1], "iterations": total_iterations}
    # The gradients of quadratics whose Hessians differ are arbitrarily far apart: no delta is good for all w.
    quadratic = curvature.known == "exact" and math.isfinite(curvature.L)
    unbounded = quadratic and not (np.ptp(curvature.smoothness) == np.ptp(curvature.convexity) == 0)
    return Check(subject, label, "held where looked", "unbounded" if unbounded else "visited", values)


def _noise_check(noise: Floats, noise_error: Floats, total_iterations: int) -> Check:
    subject: Subject = "noise"
    label = "assump:graderror"
    if np.isnan(noise).all():
        return Check(subject, label, "not checkable", "not-looked")
    error = float(noise_error.ravel()[noise.argmax()])
    values = {
        "sigma2": float(noise.max()),
        "error": error,
        "points": noise.shape[1],
        "iterations": total_iterations,
    }
    return Check(subject, label, "held where looked", "estimate" if error else "exact", values)


# Step sizes


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


# Promises


def constants_of(
    curvature: Curvature,
    window: int,
    contraction: float,
    *,
    diversity: float = 0.0,
    noise: float = 0.0,
    dependent: bool,
) -> Constants:
    """What the bounds are made of. `dependent` says that P(k) may depend on the noise of earlier gradients."""
    devices = len(curvature.smoothness)
    return Constants(devices, curvature.L, curvature.mu, diversity, noise, window, contraction, dependent)


def _promises(
    seeds: Mapping[int, SeedCheck],
    curvature: Curvature,
    chosen: ChosenWindow | None,
    schedule: Schedule,
    step_sizes: Floats,
    iterations: Ints,
    firing: Firing,
) -> Promises | None:
    contractions = [seed.contractions.largest for seed in seeds.values() if seed.contractions]
    if chosen is None or not math.isfinite(curvature.L):
        return None
    constants = constants_of(
        curvature,
        chosen.length,
        max(contractions),
        diversity=float(of_seeds(seeds, "diversity").max()),
        noise=float(of_seeds(seeds, "noise").max()),
        dependent=firing == "drift",
    )
    starts = np.stack([of_seeds(seeds, name)[:, 0] for _, _, name in BOUNDS], axis=1)
    least_losses = [seed.optimum.loss if seed.optimum else 0.0 for seed in seeds.values()]  # no loss is negative
    loss_gaps = of_seeds(seeds, "loss")[:, 0] - least_losses
    one_more = np.append(step_sizes, schedule(len(step_sizes)))  # the mean up to k has k + 1 terms
    curves = np.stack([error_bound(constants, step_sizes, start) for start in starts])
    gradient_curves = np.stack(
        [
            nonconvex.running_mean_bound(constants, one_more, float(gap), float(start[1]))
            for gap, start in zip(loss_gaps, starts, strict=True)
        ]
    )
    every = [*mean_over_seeds(curves).T, mean_over_seeds(gradient_curves)]
    subjects = [*(subject for subject, _, _ in BOUNDS), "gradient-bound"]
    strongly_convex = constants.convexity > 0 and not np.isnan(starts[:, 0]).any()
    return Promises(
        constants,
        limits(constants),
        bounds=curves[:, iterations],
        gap=asymptotic_gap(constants, schedule(0)) if strongly_convex and isinstance(schedule, Constant) else None,
        gradient_bounds=gradient_curves[:, iterations],
        growing=frozenset(
            subject for subject, curve in zip(subjects, every, strict=True) if only_grows(curve, chosen.length)
        ),
        printed_weights=nonconvex.printed_weights(constants, schedule(0)),
    )


def only_grows(curve: Floats, window: int) -> bool:
    """Whether a bound is never lower at the end of a block of B iterations than it was at the end of one before.

    Within a block it may rise in any case. A bound that rises first and falls later says something.
    """
    ends = curve[::window] if len(curve) > window else curve[[0, -1]]
    highest_before = np.maximum.accumulate(ends)
    return bool(ends[-1] > ends[0] and not (ends < highest_before * (1 - ROUNDING)).any())


def _promise_checks(
    promises: Promises | None,
    curvature: Curvature,
    schedule: Schedule,
    seeds: Mapping[int, SeedCheck],
    iterations: Ints,
    *,
    optimum_sought: bool,
) -> list[Check]:
    """Step sizes against their limit, errors and gradients against their bounds."""
    if promises is None:
        reason = "no-smoothness" if not math.isfinite(curvature.L) else "no-window"
        return [Check("step-size-limit", "proposition:nonIncreasing", "not checkable", reason)]
    limit = check_step_size(schedule, promises.constants)
    if promises.constants.window < (observed := _observed(seeds)):
        limit = limit._replace(verdict="not checkable", reason="short", values={"observed": observed}, iteration=None)
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


# Rates


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
