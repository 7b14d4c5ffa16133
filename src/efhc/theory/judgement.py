"""Assumption by assumption, promise by promise: what the runs of one strategy, over its seeds, say of the theory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from efhc.core.arrays import Floats, Ints
from efhc.core.schedules import Constant, Diminishing, Schedule
from efhc.theory import nonconvex, rates
from efhc.theory.bounds import Constants, asymptotic_gap, error_bound
from efhc.theory.findings import Finding
from efhc.theory.measured import Measured, running_mean
from efhc.theory.network import Connectivity, check_connectivity
from efhc.theory.problem import Curvature, Optimum
from efhc.theory.spectral import Contractions
from efhc.theory.step_sizes import Limits, check_schedule, check_step_size, limits

FEW_SEEDS = 5
"""With fewer, a mean above its bound proves nothing."""
ROUNDING = 1e-6
"""How far above its bound, relative to it, a measured error may be: single precision."""


@dataclass(frozen=True, eq=False)
class SeedCheck:
    """What one run showed."""

    findings: list[Finding]
    """Of its transition weights and links."""
    connectivity: Connectivity
    contractions: Contractions | None
    curvature: Curvature
    optimum: Optimum | None
    measured: Measured


@dataclass(frozen=True, eq=False)
class Promises:
    """What the theorems say of a strategy."""

    constants: Constants
    """The worst of all seeds."""
    limits: Limits
    bound: Floats
    """On Xi(k) at the k looked at, (points, 2); the first column infinite where there is no w*."""
    gap: Floats | None
    """limsup Xi of `theorem:constant`, for a constant step size."""
    gradient_bound: Floats
    """On the running mean of ||grad F(w_bar)||^2 at the k looked at."""
    printed_weights: nonconvex.Weights
    """w_1 .. w_4 of `theorem:nonconvex`, which is not a bound."""


@dataclass(frozen=True, eq=False)
class StrategyCheck:
    """One strategy."""

    strategy: str
    seeds: Mapping[int, SeedCheck]
    iterations: Ints
    """The k looked at."""
    findings: list[Finding]
    curvature: Curvature
    window: int | None
    """The B that rho and all bounds are computed with; None if used links are never connected."""
    promises: Promises | None
    """None where the theorems promise nothing: used links are not connected, or the loss is not smooth."""
    slope: rates.Slope | None
    """Of log ||w_bar - w*||^2 against log k, for a diminishing step size."""
    promised_slope: float | None

    def of_seeds(self, name: str) -> Floats:
        """Something measured, (seeds, points)."""
        return _of_seeds(self.seeds, name)

    @property
    def running_gradient_norm(self) -> Floats:
        """The running mean of ||grad F(w_bar)||^2, over seeds."""
        return running_mean(self.iterations, self.of_seeds("gradient_norm").mean(axis=0))


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
    slope, promised_slope = _slopes(schedule, iterations, _of_seeds(seeds, "optimisation_error"))
    findings = [
        *_worst_findings(seeds, [seed.findings for seed in seeds.values()]),
        *_connectivity_findings(seeds, total_iterations),
        _contraction_finding(seeds, window),
        *_problem_findings(seeds, curvature),
        check_schedule(schedule, total_iterations),
        *_promise_findings(promises, curvature, schedule, seeds, iterations),
        *_slope_findings(slope, promised_slope, schedule),
    ]
    return StrategyCheck(strategy, seeds, iterations, findings, curvature, window, promises, slope, promised_slope)


def _of_seeds(seeds: Mapping[int, SeedCheck], name: str) -> Floats:
    return np.stack([getattr(seed.measured, name) for seed in seeds.values()])


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
        diversity=float(_of_seeds(seeds, "diversity").max()),
        noise=float(_of_seeds(seeds, "noise").max()),
        window=window,
        contraction=max(contractions),
    )
    start = np.array([_of_seeds(seeds, name)[:, 0].mean() for name in ("optimisation_error", "consensus_error")])
    strongly_convex = constants.convexity > 0 and not np.isnan(start[0])
    least_losses = [seed.optimum.loss if seed.optimum else 0.0 for seed in seeds.values()]  # no loss is negative
    loss_gap = float(_of_seeds(seeds, "loss")[:, 0].mean() - np.mean(least_losses))
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


# Findings


def _worst_findings(seeds: Mapping[int, SeedCheck], of_seeds: Sequence[Sequence[Finding]]) -> list[Finding]:
    """For each assumption what the first seed found that broke it, or else the first that could not check it."""
    together = []
    for findings in zip(*of_seeds, strict=True):
        worst = max(findings, key=lambda finding: ("held", "not checkable", "broken").index(finding.verdict))
        if worst.verdict != "held" and len(seeds) > 1:
            worst = worst._replace(detail=f"seed {list(seeds)[findings.index(worst)]}: {worst.detail}")
        together.append(worst)
    return together


def _connectivity_findings(seeds: Mapping[int, SeedCheck], iterations: int) -> list[Finding]:
    """With the largest windows of all seeds, if there are any."""
    found = [seed.connectivity for seed in seeds.values()]
    largest = Connectivity(*(max(windows, key=lambda window: window.length) for windows in zip(*found, strict=True)))
    of_largest = check_connectivity(largest, iterations, max(each.promised for each in found))
    of_seeds = [check_connectivity(each, iterations) for each in found]
    together = []
    for worst, over_all, each in zip(
        _worst_findings(seeds, of_seeds), of_largest, zip(*of_seeds, strict=True), strict=True
    ):
        differ = len({finding.detail for finding in each}) > 1
        largest_of_each = over_all._replace(detail=f"at most {over_all.detail}") if differ else over_all
        together.append(largest_of_each if worst.verdict == "held" else worst)
    return together


def _contraction_finding(seeds: Mapping[int, SeedCheck], window: int | None) -> Finding:
    label, what = "lemma:harnessing:spectral", "contraction"
    found = [seed.contractions for seed in seeds.values() if seed.contractions]
    if window is None or not found:
        return Finding(label, what, "not checkable", "no window of used links is connected")
    worst = max(found, key=lambda contractions: contractions.largest)
    looked, of = sum(len(c.starts) for c in found), sum(c.of for c in found)
    promised = max(seed.connectivity.promised for seed in seeds.values())
    which = "" if window == promised else ", not the promised one" if math.isfinite(promised) else ", the observed one"
    rho = f"rho = {worst.largest:.6g}" if looked == of else f"rho at least {worst.largest:.6g}"
    detail = f"{rho} over {looked} of {of} windows of B = {window}{which}"
    if window < (observed := _observed(seeds)):
        return Finding(label, what, "not checkable", f"{detail}: B must be at least the observed {observed:.0f}")
    if worst.largest < 1:
        return Finding(label, what, "held", detail)
    return Finding(label, what, "broken", detail, worst.largest_at)


def _observed(seeds: Mapping[int, SeedCheck]) -> float:
    return max(seed.connectivity.observed.length for seed in seeds.values())


def _problem_findings(seeds: Mapping[int, SeedCheck], curvature: Curvature) -> list[Finding]:
    label = "assump:smooth_convex_graddiv"
    delta, sigma2 = _of_seeds(seeds, "diversity"), _of_seeds(seeds, "noise")
    error = float(_of_seeds(seeds, "noise_error").ravel()[sigma2.argmax()])
    accuracy = f" +- {error:.1g} (standard error)" if error else ", exactly"
    points = delta.shape[1]
    diversity = f"delta = {delta.max():.4g} at the {points} mean models visited; elsewhere unknown"
    noise = f"sigma^2 = {sigma2.max():.4g}{accuracy}, at the models of {points} iterations; elsewhere unknown"
    return [
        _smoothness_finding(f"{label}-(a)", curvature),
        _convexity_finding(f"{label}-(b)", curvature),
        Finding(f"{label}-(c)", "gradient diversity", "held", diversity),
        Finding("assump:graderror", "gradient noise", "held", noise),
    ]


def _smoothness_finding(label: str, curvature: Curvature) -> Finding:
    what = "smoothness"
    if not math.isfinite(curvature.L):
        return Finding(label, what, "broken", "the loss has kinks: no L is large enough")
    if curvature.known == "estimate":
        return Finding(label, what, "not checkable", f"L = {curvature.L:.4g}, estimated, if there is one")
    return Finding(label, what, "held", f"L = {curvature.L:.4g}" + (" at most" if curvature.known == "bound" else ""))


def _convexity_finding(label: str, curvature: Curvature) -> Finding:
    what, least = "strong convexity", int(curvature.convexity.argmin())
    if curvature.known == "estimate":
        return Finding(label, what, "not checkable", f"mu = {curvature.mu:.3g}, estimated")
    if curvature.mu > 0:
        at_least = " at least" if curvature.known == "bound" else ""
        return Finding(label, what, "held", f"mu = {curvature.mu:.4g}{at_least}")
    return Finding(label, what, "broken", "mu = 0", None, least)


def _promise_findings(
    promises: Promises | None,
    curvature: Curvature,
    schedule: Schedule,
    seeds: Mapping[int, SeedCheck],
    iterations: Ints,
) -> list[Finding]:
    if promises is None:
        lacking = "L is infinite" if not math.isfinite(curvature.L) else "no B: used links are not connected"
        return [
            Finding("proposition:nonIncreasing", "step-size limit", "not checkable", f"no theorem applies: {lacking}")
        ]
    findings = [check_step_size(schedule, promises.constants)]
    if promises.constants.window < (observed := _observed(seeds)):
        too_short = f"B must be at least the observed {observed:.0f}"
        findings = [findings[0]._replace(verdict="not checkable", detail=too_short, iteration=None)]
    for column, (name, what) in enumerate(
        (("optimisation_error", "optimisation error"), ("consensus_error", "consensus error"))
    ):
        measured, bound = _of_seeds(seeds, name).mean(axis=0), promises.bound[:, column]
        findings.append(_under("eqn:PhikPsikRecursive", what, measured, bound, iterations, promises, len(seeds)))
    if len(iterations) > 2:  # else the mean over all of them is not known
        running = running_mean(iterations, _of_seeds(seeds, "gradient_norm").mean(axis=0))
        bound = promises.gradient_bound
        under = _under("lemma:nonconvex_lossdec", "gradient norms", running, bound, iterations, promises, len(seeds))
        findings.append(under)
    if curvature.known == "estimate":
        return [_unproven(finding) for finding in findings]
    return findings


def _unproven(finding: Finding) -> Finding:
    """What follows from constants that are estimates."""
    return finding._replace(verdict="not checkable", detail=f"{finding.detail} (L is an estimate)", iteration=None)


def _under(
    label: str, what: str, measured: Floats, bound: Floats, iterations: Ints, promises: Promises, seeds: int
) -> Finding:
    """Whether what was measured, a mean over seeds, is below its bound."""
    what = f"{what} under bound"
    if len(iterations) < 2:
        return Finding(label, what, "not checkable", "only the first models could be looked at")
    if np.isnan(measured).any():
        return Finding(label, what, "not checkable", "no w*: not the only minimiser, or not found to 1e-10")
    if not np.isfinite(bound[-1]):
        why = "rho is 1" if promises.constants.contraction >= 1 else "the step size is too large"
        return Finding(label, what, "not checkable", f"the bound is infinite: {why}")
    if (above := measured > bound * (1 + ROUNDING)).any():
        k = int(iterations[np.argmax(above)])
        detail = f"{measured[above][0]:.3g} measured, {bound[above][0]:.3g} promised"
        if seeds < FEW_SEEDS:
            return Finding(label, what, "not checkable", f"{detail} at k = {k}; of a mean, and {seeds} seeds are few")
        return Finding(label, what, "broken", detail, k)
    detail = f"in the end {measured[-1]:.2g} under {bound[-1]:.2g}"
    if bound[-1] > bound[0]:
        return Finding(label, what, "not checkable", f"{detail}: a bound that grows says nothing")
    return Finding(label, what, "held", detail)


def _slope_findings(slope: rates.Slope | None, promised: float | None, schedule: Schedule) -> list[Finding]:
    if slope is None:
        return []
    theta = schedule.power if isinstance(schedule, Diminishing) else math.nan
    label, what = "theorem:diminishing" if theta == 0.5 else "appendix:generalTheta", "rate"
    measured = f"slope {slope.value:.3f} [{slope.low:.3f}, {slope.high:.3f}]"
    if promised is None:
        return [Finding(label, what, "not checkable", f"{measured}; the paper has no rate for theta < 0.5")]
    # A rate is a promise for k -> infinity: a run that is too short to show it does not break it.
    shown = slope.high <= promised and slope.seeds > 1
    why = "" if shown else "; one seed is too few" if slope.seeds == 1 else "; not reached yet"
    detail = f"{measured}, that of the paper's rate over these k {promised:.3f}{why}"
    return [Finding(label, what, "held" if shown else "not checkable", detail)]
