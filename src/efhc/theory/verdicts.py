"""What the runs of one strategy, over its seeds, say of each assumption and promise, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from efhc.base.arrays import Floats, Ints
from efhc.core.schedules import Diminishing, Schedule
from efhc.theory import rates
from efhc.theory.checks import Promises, SeedCheck, of_seeds
from efhc.theory.findings import Finding
from efhc.theory.measured import running_mean
from efhc.theory.network import Connectivity, check_connectivity
from efhc.theory.problem import Curvature
from efhc.theory.step_sizes import check_step_size

FEW_SEEDS = 5
"""With fewer, a mean above its bound proves nothing."""
ROUNDING = 1e-6
"""How far above its bound, relative to it, a measured error may be: single precision."""


def worst_findings(seeds: Mapping[int, SeedCheck], by_seed: Sequence[Sequence[Finding]]) -> list[Finding]:
    """For each assumption what the first seed found that broke it, or else the first that could not check it."""
    together = []
    for findings in zip(*by_seed, strict=True):
        worst = max(findings, key=lambda finding: ("held", "not checkable", "broken").index(finding.verdict))
        if worst.verdict != "held" and len(seeds) > 1:
            worst = worst._replace(detail=f"seed {list(seeds)[findings.index(worst)]}: {worst.detail}")
        together.append(worst)
    return together


def connectivity_findings(seeds: Mapping[int, SeedCheck], iterations: int) -> list[Finding]:
    """With the largest windows of all seeds, if there are any."""
    found = [seed.connectivity for seed in seeds.values()]
    largest = Connectivity(*(max(windows, key=lambda window: window.length) for windows in zip(*found, strict=True)))
    of_largest = check_connectivity(largest, iterations, max(each.promised for each in found))
    by_seed = [check_connectivity(each, iterations) for each in found]
    together = []
    for worst, over_all, each in zip(
        worst_findings(seeds, by_seed), of_largest, zip(*by_seed, strict=True), strict=True
    ):
        differ = len({finding.detail for finding in each}) > 1
        largest_of_each = over_all._replace(detail=f"at most {over_all.detail}") if differ else over_all
        together.append(largest_of_each if worst.verdict == "held" else worst)
    return together


def contraction_finding(seeds: Mapping[int, SeedCheck], window: int | None) -> Finding:
    """Whether every window contracts."""
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


def problem_findings(seeds: Mapping[int, SeedCheck], curvature: Curvature) -> list[Finding]:
    """L, mu, delta and sigma^2."""
    label = "assump:smooth_convex_graddiv"
    delta, sigma2 = of_seeds(seeds, "diversity"), of_seeds(seeds, "noise")
    error = float(of_seeds(seeds, "noise_error").ravel()[sigma2.argmax()])
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


def promise_findings(
    promises: Promises | None,
    curvature: Curvature,
    schedule: Schedule,
    seeds: Mapping[int, SeedCheck],
    iterations: Ints,
) -> list[Finding]:
    """Step sizes against their limit, errors and gradients against their bounds."""
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
        measured, bound = of_seeds(seeds, name).mean(axis=0), promises.bound[:, column]
        findings.append(_under("eqn:PhikPsikRecursive", what, measured, bound, iterations, promises, len(seeds)))
    if len(iterations) > 2:  # else the mean over all of them is not known
        running = running_mean(iterations, of_seeds(seeds, "gradient_norm").mean(axis=0))
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
    if why := _nothing_to_compare(measured, bound, promises):
        return Finding(label, what, "not checkable", why)
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


def _nothing_to_compare(measured: Floats, bound: Floats, promises: Promises) -> str | None:
    if len(measured) < 2:
        return "only the first models could be looked at"
    if np.isnan(measured).any():
        return "no w*: not the only minimiser, or not found to 1e-10"
    if not np.isfinite(bound[-1]):
        why = "rho is 1" if promises.constants.contraction >= 1 else "the step size is too large"
        return f"the bound is infinite: {why}"
    return None


def slope_findings(slope: rates.Slope | None, promised: float | None, schedule: Schedule) -> list[Finding]:
    """How fast the error falls, next to the paper's rate."""
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
