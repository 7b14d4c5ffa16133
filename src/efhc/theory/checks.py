"""Was each assumption met, and was each promise kept? From what runs showed to a verdict per subject."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.special import stdtrit

from efhc.base.arrays import Floats, Ints
from efhc.core.schedules import Constant, Diminishing, Schedule
from efhc.theory.bounds import (
    CONFIDENCE,
    LIMIT_LABELS,
    Constants,
    Slope,
    envelope_slope,
    fit_slope,
    rate,
    step_size_limits,
)
from efhc.theory.connectivity import (
    ChosenWindow,
    Connectivity,
    Flow,
    Length,
    Window,
    observed_is_known,
)
from efhc.theory.findings import Certainty, Check, Value, finding, worst_checks
from efhc.theory.problem import Curvature, NoiseSource, running_mean
from efhc.theory.promises import (
    BOUNDS,
    ROUNDING,
    Firing,
    Promises,
    SeedCheck,
    mean_over_seeds,
    observed_window,
    of_seeds,
    promises_of,
)

WEIGHT_ROUNDING = 1e-9
"""The largest difference between a sum of weights and 1, and between p_ij and p_ji, that counts as rounding."""
FEW_SEEDS = 5
"""The number of seeds below which a mean proves nothing about an expected value."""
HUGE = 1e100
"""Larger distances below a bound are cut to this one: their squares would not be finite."""


# Weights and links


def broken_weights(matrix: csr_array, used_links: Ints, iteration: int) -> Check | None:
    """Return the check of the first condition of `assump:weights` that P = `matrix` does not meet, or None.

    (a) p_ii > 0 and p_ij >= 0; p_ij > 0 exactly where a link is used (i != j)
    (b) sum_j p_ij = 1 and sum_i p_ij = 1
    (c) p_ij = p_ji

    The columns of each row of `matrix` ascend. `used_links` is (links, 2).
    """
    for condition, reason, devices, off in _weight_conditions(matrix, used_links):
        if len(devices):
            label = f"assump:weights-{condition}"
            return finding("weights", reason, {"off": off}, iteration, int(devices[0]), label=label)
    return None


def _weight_conditions(matrix: csr_array, used_links: Ints) -> Iterator[tuple[str, str, Ints, float]]:
    """Yield each condition in turn, with the devices that break it and how far a sum of weights is from 1."""
    devices, weights, columns = matrix.shape[0], matrix.data, matrix.indices
    rows = np.repeat(np.arange(devices), np.diff(matrix.indptr))
    yield "(a)", "negative", rows[~(weights >= 0)], 0.0
    yield "(a)", "diagonal", np.flatnonzero(~(matrix.diagonal() > 0)), 0.0
    i, j = used_links.T
    received = np.concatenate([i * devices + j, j * devices + i])
    weighted = (rows * devices + columns)[(weights > 0) & (rows != columns)]
    yield "(a)", "not-received", np.setdiff1d(weighted, received) // devices, 0.0
    yield "(a)", "ignored", received[~np.isin(received, weighted)] // devices, 0.0
    for reason, places in (("row-sum", rows), ("column-sum", columns)):
        off = np.abs(np.bincount(places, weights, devices) - 1)
        worst = float(off.max())
        yield "(b)", reason, np.flatnonzero(off == worst) if worst > WEIGHT_ROUNDING else rows[:0], worst
    # By (a), an entry above the diagonal has one below: column by column, the entries are those of the rows.
    yield "(c)", "asymmetric", rows[np.abs(matrix.tocsc().data - weights) > WEIGHT_ROUNDING], 0.0


def check_flow(flow: Flow) -> list[Check]:
    """Check `assump:weights` for every P(k) of a run, and that the links used are those of Alg. 1."""
    return [_weights_check(flow), _rule_check(flow)]


def _weights_check(flow: Flow) -> Check:
    sound: object = None
    sound_links: Ints = np.zeros(0, np.int64)
    for k in range(flow.iterations):
        matrix, links = flow.matrix(k), flow.used_links(k)
        if matrix is sound and np.array_equal(links, sound_links):
            continue
        if broken := broken_weights(matrix, links, k):
            return broken
        sound, sound_links = matrix, links
    return finding("weights", "sound", {"iterations": flow.iterations})


def _rule_check(flow: Flow) -> Check:
    for k in range(flow.iterations):
        if len(stray := flow.stray_links(k)):
            i, j = stray[0].tolist()
            return finding("links-used", "stray", {"i": i, "j": j}, k, i)
    return finding("links-used", "by-rule")


def check_connectivity(
    found: Connectivity, iterations: int, certainty: Certainty, promised: Length | None = None
) -> list[Check]:
    """Check `assump:conn` and `proposition:conn` over the `iterations` of a run.

    `promised` is the promised B if `found` holds the largest windows of several runs. Default: the B of `found`.
    """
    promised = found.promised if promised is None else promised
    return [
        _physical_check(found.physical, iterations, certainty),
        _broadcast_check(found.broadcast, iterations, certainty),
        _promise_check(found, iterations, certainty, promised),
    ]


def _physical_check(physical: Window, iterations: int, certainty: Certainty) -> Check:
    values = {"B1": physical.length, "iterations": iterations}
    if math.isinf(physical.length):
        return finding("physical-graph", "never-connected", device=physical.device)
    if physical.is_censored(iterations):
        return finding("physical-graph", "censored", values | {"since": physical.witness})
    return finding("physical-graph", "window" if certainty.links else "chance", values)


def _broadcast_check(broadcast: Window, iterations: int, certainty: Certainty) -> Check:
    values: dict[str, Value] = {"B2": broadcast.length, "iterations": iterations}
    if math.isinf(broadcast.length):
        return finding("broadcasts", "never-fires", device=broadcast.device)
    if broadcast.is_censored(iterations):
        return finding("broadcasts", "censored", values | {"since": broadcast.witness, "silent": broadcast.device})
    return finding("broadcasts", "window" if certainty.firing else "coins", values)


def _promise_check(found: Connectivity, iterations: int, certainty: Certainty, promised: Length) -> Check:
    observed = found.observed
    values: dict[str, Value] = {"promised": promised, "observed": observed.length, "iterations": iterations}
    values["observed_censored"] = observed.is_censored(iterations)
    if not certainty.flow:
        values["expected"] = True
    if math.isinf(promised):
        return finding("information-flow", "no-windows", values)
    if found.physical.is_censored(iterations) or found.broadcast.is_censored(iterations):
        return finding("information-flow", "censored", values)
    if promised > iterations:
        return finding("information-flow", "vacuous", values)
    if observed.length <= promised:
        return finding("information-flow", "window", values, certain=certainty.flow)
    return finding("information-flow", "longer", values, observed.witness)


def check_windows(found: Mapping[int, Connectivity], iterations: int, certainty: Certainty) -> list[Check]:
    """Check `assump:conn` and `proposition:conn` over all seeds; see `check_connectivity`.

    Where all seeds hold, the windows shown are the largest of all seeds; else those of the worst seed.
    """
    runs = list(found.values())
    largest = Connectivity(*(max(windows, key=lambda window: window.length) for windows in zip(*runs, strict=True)))
    of_largest = check_connectivity(largest, iterations, certainty, max(run.promised for run in runs))
    by_seed = [check_connectivity(run, iterations, certainty) for run in runs]
    together = []
    for worst, over_all, *each in zip(worst_checks(list(found), by_seed), of_largest, *by_seed, strict=True):
        differ = any(check.values != each[0].values for check in each)
        at_most = over_all._replace(values={**over_all.values, "at_most": differ})
        together.append(at_most if worst.verdict in ("held", "held where looked") else worst)
    return together


def check_contraction(seeds: Mapping[int, SeedCheck], chosen: ChosenWindow | None, certainty: Certainty) -> Check:
    """Check `lemma:harnessing:spectral`: every window of B iterations contracts."""
    found = [seed.contractions for seed in seeds.values() if seed.contractions]
    observed = observed_window(seeds)
    if chosen is None or not found:
        return finding("contraction", "no-window", {"observed": observed})
    worst = max(found, key=lambda contractions: contractions.largest)
    looked, of = sum(len(each.starts) for each in found), sum(each.of for each in found)
    values: dict[str, Value] = {"rho": worst.largest, "B": chosen.length, "kind": chosen.kind}
    values |= {"looked": looked, "of": of, "observed": observed}
    if chosen.length < observed:
        return finding("contraction", "short", values)
    # If used links are cut when the run ends, a later window of B iterations may not contract, unless B1 and B2 say so.
    iterations = found[0].of + chosen.length - 1
    known = observed_is_known([seed.connectivity for seed in seeds.values()], iterations)
    if not known and chosen.kind in ("observed", "given"):
        return finding("contraction", "no-window", values)
    if worst.largest >= 1:
        return finding("contraction", "does-not", values, worst.largest_at)
    return finding("contraction", "contracts", values, certain=looked == of and known and certainty.flow)


# The problem


def check_problem(
    curvature: Curvature,
    diversity: Floats,
    noise: Floats,
    noise_error: Floats,
    *,
    total_iterations: int,
    noise_source: NoiseSource | None = None,
) -> list[Check]:
    """Check L, mu, delta and sigma^2. The three arrays, (seeds, points), are NaN where nothing was measured."""
    smooth = math.isfinite(curvature.L)
    return [
        finding("smoothness", curvature.known, {"L": curvature.L}) if smooth else finding("smoothness", "kinks"),
        _convexity_check(curvature),
        _diversity_check(curvature, diversity, total_iterations),
        _noise_check(noise, noise_error, total_iterations, noise_source),
    ]


def _convexity_check(curvature: Curvature) -> Check:
    values = {"mu": curvature.mu}
    if curvature.known == "estimate" or curvature.mu > 0:
        return finding("convexity", curvature.known, values)
    if (curvature.convexity <= 0).all():
        return finding("convexity", "flat", values)
    return finding("convexity", "flat-device", values, device=int(curvature.convexity.argmin()))


def _diversity_check(curvature: Curvature, diversity: Floats, total_iterations: int) -> Check:
    if np.isnan(diversity).all():
        return finding("diversity", "not-looked")
    values = {"delta": float(diversity.max()), "points": diversity.shape[1], "iterations": total_iterations}
    # The gradients of quadratics whose Hessians differ are arbitrarily far apart: no delta is good for all w.
    quadratic = curvature.known == "exact" and math.isfinite(curvature.L)
    unbounded = quadratic and not (np.ptp(curvature.smoothness) == np.ptp(curvature.convexity) == 0)
    return finding("diversity", "unbounded" if unbounded else "visited", values)


def _noise_check(noise: Floats, noise_error: Floats, total_iterations: int, source: NoiseSource | None) -> Check:
    if np.isnan(noise).all():
        return finding("noise", "not-looked")
    error = float(noise_error.ravel()[noise.argmax()])
    values: dict[str, Value] = {"sigma2": float(noise.max()), "error": error}
    values |= {"points": noise.shape[1], "iterations": total_iterations}
    if error and source:
        values |= source._asdict()
    return finding("noise", "estimate" if error else "exact", values)


# Step sizes and bounds


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
    """Check alpha(0) against the limit of the theorem that speaks of this schedule.

    `certain` says that the B of `constants` holds for ever. Where it was only seen, the limit is that of the run.
    """
    name = theorem_for(schedule, constants.convexity)
    limit, label, alpha = getattr(step_size_limits(constants), name), LIMIT_LABELS[name], schedule(0)
    values = {"alpha": alpha, "limit": limit, "times": alpha / limit if limit else math.inf}
    if alpha <= limit:
        return finding("step-size-limit", "within", values, label=label, certain=certain)
    return finding("step-size-limit", "above" if limit else "none", values, 0, label=label)


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


def slopes_of(schedule: Schedule, iterations: Ints, errors: Floats) -> tuple[Slope | None, float | None]:
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
    promised = rate(schedule.power) and envelope_slope(schedule.power, iterations[usable])
    return fit_slope(iterations[usable], errors[:, usable]), promised


def check_rate(slope: Slope | None, promised: float | None, schedule: Schedule) -> list[Check]:
    """How fast the error falls, next to the paper's rate.

    A rate is a promise for k -> infinity: a run that does not show it does not break it, nor does one that shows it
    prove it.
    """
    if slope is None or not isinstance(schedule, Diminishing):
        return []
    label = "theorem:diminishing" if schedule.power == 0.5 else None
    values: dict[str, Value] = {"slope": slope.value, "low": slope.low, "high": slope.high, "theta": schedule.power}
    known = rate(schedule.power)
    if promised is None or known is None:
        return [finding("rate", "no-rate", values)]
    values |= {"promised": promised, "text": known.text, "proved": known.proved}
    reason = "one-seed" if slope.seeds == 1 else "as-fast" if slope.high <= promised else "slower"
    return [finding("rate", reason, values, label=label)]


# A whole strategy


@dataclass(frozen=True, eq=False)
class StrategyCheck:
    """One strategy."""

    strategy: str
    seeds: Mapping[int, SeedCheck]
    iterations: Ints
    """The iterations k at which models were measured."""
    checks: list[Check]
    curvature: Curvature
    chosen: ChosenWindow | None
    """None if used links are cut off when the run ends, so that no B is known."""
    promises: Promises | None
    """None where the theorems promise nothing: no B is known, or the loss is not smooth."""
    slope: Slope | None
    """Of log ||w_bar - w*||^2 against log k, for a diminishing step size."""
    promised_slope: float | None
    total_iterations: int
    """K, the iterations of the run."""

    @property
    def window(self) -> int | None:
        """The B of `chosen`."""
        return self.chosen and self.chosen.length

    def of_seeds(self, name: str) -> Floats:
        """Something measured, (seeds, points)."""
        return of_seeds(self.seeds, name)

    @property
    def running_gradient_norm(self) -> Floats:
        """The running mean of ||grad F(w_bar)||^2, over seeds."""
        return running_mean(self.iterations, self.of_seeds("gradient_norm").mean(axis=0))


def assess(
    strategy: str,
    seeds: Mapping[int, SeedCheck],
    schedule: Schedule,
    total_iterations: int,
    iterations: Ints,
    chosen: ChosenWindow | None,
    firing: Firing = "drift",
    *,
    links_by_chance: bool = False,
    optimum_sought: bool = True,
) -> StrategyCheck:
    """Put together what all seeds showed.

    `iterations` are the k at which models were looked at, of 0 .. `total_iterations`. `optimum_sought` is False where
    no w* was looked for. `links_by_chance` says that nothing is known of the physical links after the run.
    """
    certainty = Certainty(links=not links_by_chance, firing=firing != "coins")
    windows = {seed: each.connectivity for seed, each in seeds.items()}
    curvature = Curvature.worst([seed.curvature for seed in seeds.values()])
    step_sizes = np.array([schedule(k) for k in range(total_iterations)])
    promises = None
    # A B of the user's is as little known as an observed one if the end of the run cuts used links off.
    if chosen and (chosen.kind != "given" or observed_is_known(list(windows.values()), total_iterations)):
        promises = promises_of(seeds, curvature, chosen, schedule, step_sizes, iterations, firing)
    slope, promised_slope = slopes_of(schedule, iterations, of_seeds(seeds, "optimisation_error"))
    checks = [
        *worst_checks(list(seeds), [seed.checks for seed in seeds.values()]),
        *check_windows(windows, total_iterations, certainty),
        check_contraction(seeds, chosen, certainty),
        *check_problem(
            curvature,
            *(of_seeds(seeds, name) for name in ("diversity", "noise", "noise_error")),
            total_iterations=total_iterations,
            noise_source=next((seed.noise_source for seed in seeds.values() if seed.noise_source), None),
        ),
        check_schedule(schedule, total_iterations),
        *check_promises(promises, curvature, schedule, seeds, iterations, certainty, optimum_sought=optimum_sought),
        *check_rate(slope, promised_slope, schedule),
    ]
    return StrategyCheck(
        strategy, seeds, iterations, checks, curvature, chosen, promises, slope, promised_slope, total_iterations
    )
