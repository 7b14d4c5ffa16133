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
    bound: Floats | None
    """On Xi(k) at the k looked at, (points, 2); None where the problem is not strongly convex."""
    gap: Floats | None
    """limsup Xi of `theorem:constant`, for a constant step size."""
    gradient_bound: Floats
    """On the running mean of ||grad F(w_bar)||^2 at the k looked at."""


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
        *_promise_findings(promises, schedule, seeds, iterations),
        *_slope_findings(slope, promised_slope),
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
    gradient_bound = nonconvex.running_mean_bound(constants, step_sizes, loss_gap, float(start[1]))
    constant = isinstance(schedule, Constant)
    return Promises(
        constants,
        limits(constants),
        bound=error_bound(constants, step_sizes, start)[iterations] if strongly_convex else None,
        gap=asymptotic_gap(constants, schedule(0)) if strongly_convex and constant else None,
        gradient_bound=gradient_bound[np.minimum(iterations, len(step_sizes) - 1)],
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
    of_largest = check_connectivity(largest, iterations)
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
    detail = f"rho = {worst.largest:.6g} over {looked} of {of} windows of B = {window}"
    if worst.largest < 1:
        return Finding(label, what, "held", detail)
    return Finding(label, what, "broken", detail, worst.largest_at)


def _problem_findings(seeds: Mapping[int, SeedCheck], curvature: Curvature) -> list[Finding]:
    label = "assump:smooth_convex_graddiv"
    how = {"exact": "exactly", "bound": "at most", "estimate": "estimated"}[curvature.known]
    smooth, convex = math.isfinite(curvature.L), curvature.mu > 0
    delta, sigma2 = _of_seeds(seeds, "diversity"), _of_seeds(seeds, "noise")
    error = float(_of_seeds(seeds, "noise_error").ravel()[sigma2.argmax()])
    sampled = f" +- {error:.1g} (standard error)" if error else ", exactly"
    estimated = curvature.known == "estimate"
    return [
        Finding(f"{label}-(a)", "smoothness", "not checkable" if estimated else "held", f"L = {curvature.L:.4g}, {how}")
        if smooth
        else Finding(f"{label}-(a)", "smoothness", "broken", "the loss has kinks: no L is large enough"),
        _convexity_finding(f"{label}-(b)", curvature, convex=convex),
        Finding(
            f"{label}-(c)",
            "gradient diversity",
            "held",
            f"delta = {delta.max():.4g} at the mean models visited",
        ),
        Finding(
            "assump:graderror", "gradient noise", "held", f"sigma^2 = {sigma2.max():.4g}{sampled}, at models visited"
        ),
    ]


def _convexity_finding(label: str, curvature: Curvature, *, convex: bool) -> Finding:
    device = int(curvature.convexity.argmin())
    if curvature.known == "estimate":
        return Finding(label, "strong convexity", "not checkable", f"mu = {curvature.mu:.3g}, estimated")
    if convex:
        how = "exactly" if curvature.known == "exact" else "at least"
        return Finding(label, "strong convexity", "held", f"mu = {curvature.mu:.4g}, {how}")
    return Finding(label, "strong convexity", "broken", "mu = 0", None, device)


def _promise_findings(
    promises: Promises | None, schedule: Schedule, seeds: Mapping[int, SeedCheck], iterations: Ints
) -> list[Finding]:
    if promises is None:
        return [Finding("proposition:nonIncreasing", "step-size limit", "not checkable", "needs L, B and rho")]
    findings = [check_step_size(schedule, promises.constants)]
    if promises.bound is not None:
        for column, (name, what) in enumerate(
            (("optimisation_error", "optimisation error"), ("consensus_error", "consensus error"))
        ):
            measured = _of_seeds(seeds, name).mean(axis=0)
            findings.append(_under("eqn:PhikPsikRecursive", what, measured, promises.bound[:, column], iterations))
    if len(iterations) > 2:  # else the mean over all of them is not known
        running = running_mean(iterations, _of_seeds(seeds, "gradient_norm").mean(axis=0))
        findings.append(_under("theorem:nonconvex", "gradients", running, promises.gradient_bound, iterations))
    return findings


def _under(label: str, what: str, measured: Floats, bound: Floats, iterations: Ints) -> Finding:
    """Whether what was measured is below its bound."""
    if not np.isfinite(bound[-1]):
        return Finding(
            label, f"{what} under its bound", "not checkable", "the bound is infinite: the step size is too large"
        )
    if (above := measured > bound * (1 + ROUNDING)).any():
        k = int(iterations[np.argmax(above)])
        detail = f"{measured[above][0]:.3g} measured, {bound[above][0]:.3g} promised"
        return Finding(label, f"{what} under its bound", "broken", detail, k)
    some = bound[1:] > 0  # a bound of 0 is kept by 0 alone
    share = float(np.max(measured[1:][some] / bound[1:][some], initial=0.0))
    detail = f"at most {share:.2g} times it after k = 0, {measured[-1]:.2g} under {bound[-1]:.2g} in the end"
    return Finding(label, f"{what} under its bound", "held", detail)


def _slope_findings(slope: rates.Slope | None, promised: float | None) -> list[Finding]:
    label, what = "appendix:generalTheta", "rate"
    if slope is None:
        return []
    measured = f"slope {slope.value:.3f} [{slope.low:.3f}, {slope.high:.3f}]"
    if promised is None:
        return [Finding(label, what, "not checkable", f"{measured}; the paper has no rate for theta < 0.5")]
    # A rate is a promise for k -> infinity: a run that is too short to show it does not break it.
    shown = slope.value <= promised
    detail = f"{measured}, promised {promised:.3f}" + ("" if shown else ": not reached yet")
    return [Finding(label, what, "held" if shown else "not checkable", detail)]
