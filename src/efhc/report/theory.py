"""A theory check as plain numbers for JSON, and as a figure: measured errors under the bounds that theorems promise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes

from efhc.base.arrays import Floats
from efhc.report.figures import LAYOUT, Picture
from efhc.report.looks import strategy_colours
from efhc.theory.checks import StrategyCheck
from efhc.theory.connectivity import Connectivity
from efhc.theory.findings import Check, printed_name
from efhc.theory.problem import Measured
from efhc.theory.promises import SeedCheck

LARGEST = 1e100
"""Larger bounds are not drawn: no axis would have room for anything else."""
SMALL_CONTRACTION = 0.05
"""If no contraction is larger, their axis is logarithmic: on a linear one they would lie on its edge."""
LEAST_CONTRACTION = 1e-16
"""Smaller contractions, which are rounding errors, are drawn here."""
FEW_POINTS = 20
"""Lines of fewer points show each point, so that a single one is visible."""
SIZE = (3.9, 3.1)
"""Width and height of a panel, in inches."""


def as_dict(check: StrategyCheck) -> dict[str, Any]:
    """Return everything that was found of one strategy."""
    promises = check.promises
    whole = {
        "strategy": check.strategy,
        "findings": [check_as_dict(each) for each in check.checks],
        "window": check.window,
        "window_is": check.chosen and check.chosen.kind,
        "curvature": {"L": check.curvature.L, "mu": check.curvature.mu, "known": check.curvature.known},
        "constants": promises and promises.constants._asdict(),
        "step_size_limits": promises and promises.limits._asdict(),
        "asymptotic_gap": promises and promises.gap,
        "iterations": check.iterations,
        "measured": {field.name: check.of_seeds(field.name).mean(axis=0) for field in fields(Measured)},
        "running_gradient_norm": check.running_gradient_norm,
        "error_bound": promises and promises.bound,
        "gradient_bound": promises and promises.gradient_bound,
        "theorem_nonconvex_weights": promises and promises.printed_weights._asdict(),
        "slope": check.slope and check.slope._asdict(),
        "promised_slope": check.promised_slope,
        "seeds": {str(seed): _of_seed(found, check.total_iterations) for seed, found in check.seeds.items()},
    }
    numbers: dict[str, Any] = plain(whole)
    return numbers


def check_as_dict(check: Check) -> dict[str, Any]:
    """One check: its codes and values, its names, and its sentence."""
    return {
        "label": check.label,
        "paper": check.printed_label,
        "what": check.title,
        "verdict": check.verdict,
        "detail": check.sentence,
        "iteration": check.iteration,
        "device": check.device,
        "seed": check.seed,
        "subject": check.subject,
        "reason": check.reason,
        "values": dict(check.values),
    }


def windows_as_dict(found: Connectivity, iterations: int) -> dict[str, Any]:
    """The windows of one run of `iterations`, and the names of those that may be longer than it shows."""
    windows = {"B1": found.physical, "B2": found.broadcast, "B_observed": found.observed}
    lower_limits = [name for name, window in windows.items() if window.is_censored(iterations)]
    if {"B1", "B2"} & {*lower_limits} and math.isfinite(found.promised):
        lower_limits.append("B_promised")
    lengths = {name: window.length for name, window in windows.items()}
    return {**lengths, "B_promised": found.promised, "lower_limits": lower_limits}


def _of_seed(check: SeedCheck, iterations: int) -> dict[str, Any]:
    contractions = check.contractions
    return {
        **windows_as_dict(check.connectivity, iterations),
        "B_sufficient": check.connectivity.sufficient,
        "rho": contractions and contractions.largest,
        "rho_per_window": contractions and dict(zip(contractions.starts.tolist(), contractions.values, strict=True)),
        "windows": contractions and contractions.of,
        "optimum_within": check.optimum and check.optimum.distance,
        "measured": {field.name: getattr(check.measured, field.name) for field in fields(Measured)},
    }


def plain(value: Any) -> Any:
    """Only what JSON knows."""
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "infinite" if value > 0 else "-infinite"
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


class Curve(NamedTuple):
    """What one panel of errors shows."""

    quantity: str
    measured: Floats
    """(seeds, points)"""
    bound: Floats | None
    label: str
    """The statement of the paper that the bound rests on, as a label of its LaTeX source."""

    @property
    def empty(self) -> bool:
        """Whether nothing can be drawn on a logarithmic axis: all is zero, or there is no w*."""
        return not (self.measured > 0).any()


def theory_figure(checks: Sequence[StrategyCheck]) -> Picture:
    """Draw one row per strategy: both errors and the gradients, each with its bound, and the contraction of windows.

    A panel without anything to show is not drawn, and a column without any panel takes no room.
    """
    colours = strategy_colours(check.strategy for check in checks)
    curves = [_curves(check) for check in checks]
    columns = [column for column in range(3) if any(not row[column].empty for row in curves)]
    contracting = any(_has_contractions(check) for check in checks)
    shape = len(checks), len(columns) + contracting
    with mpl.rc_context(LAYOUT):
        figure = Picture((SIZE[0] * max(1, shape[1]), SIZE[1] * max(1, shape[0])))
        if 0 in shape:
            return figure
        for row, check, all_curves in zip(figure.subplots(*shape, squeeze=False), checks, curves, strict=True):
            _draw_row(row, check, [all_curves[column] for column in columns], colours[check.strategy])
    return figure


def _draw_row(row: Sequence[Axes], check: StrategyCheck, curves: Sequence[Curve], colour: str) -> None:
    """The panels of one strategy, one for each of `curves` and perhaps one for its contractions."""
    drawn = []
    for axes, curve in zip(row, curves, strict=False):
        if not curve.empty:
            _draw_curve(axes, check, curve, colour)
            drawn.append(axes)
    if len(row) > len(curves) and _has_contractions(check):
        _draw_contractions(row[-1], check, colour)
        drawn.append(row[-1])
    for axes in row:
        if axes not in drawn:
            axes.remove()
    if drawn:
        drawn[0].set_title(check.strategy, loc="left", fontweight="bold")


def _curves(check: StrategyCheck) -> tuple[Curve, Curve, Curve]:
    optimisation, consensus, gradients = None, None, None
    if check.promises:
        (optimisation, consensus), gradients = check.promises.bound.T, check.promises.gradient_bound
    recursion, running = "eqn:PhikPsikRecursive", r"running mean of $\|\nabla F(\bar w)\|^2$"
    return (
        Curve(r"$\|\bar w - w^\star\|^2$", check.of_seeds("optimisation_error"), optimisation, recursion),
        Curve(r"$\|W - \mathbf{1}\bar w\|^2$", check.of_seeds("consensus_error"), consensus, recursion),
        Curve(running, check.running_gradient_norm[None], gradients, "lemma:nonconvex_lossdec"),
    )


def _draw_curve(axes: Axes, check: StrategyCheck, curve: Curve, colour: str) -> None:
    k = check.iterations + 1  # so that k = 0 has a place
    axes.set(xlabel="k + 1", ylabel=curve.quantity, xscale="log", yscale="log")
    least, most = curve.measured.min(axis=0), curve.measured.max(axis=0)
    axes.plot(k, _positive(curve.measured.mean(axis=0)), color=colour, label="measured", marker=_marker(len(k)))
    if len(curve.measured) > 1:
        axes.fill_between(k, _positive(least), _positive(most), where=least > 0, color=colour, alpha=0.2, linewidth=0)
    if curve.bound is not None and ((curve.bound > 0) & (curve.bound < LARGEST)).any():
        drawn = np.where(curve.bound < LARGEST, _positive(curve.bound), np.nan)
        constants = check.promises and check.promises.constants
        mended = ", P dependent" if constants and constants.dependent and constants.window > 1 else ""
        label = f"bound, {printed_name(curve.label)}{mended}"
        axes.plot(k, drawn, color="black", linestyle="--", label=label, marker=_marker(len(k)))
    axes.legend(fontsize="small")


def _has_contractions(check: StrategyCheck) -> bool:
    return any(seed.contractions is not None and len(seed.contractions.starts) for seed in check.seeds.values())


def _draw_contractions(axes: Axes, check: StrategyCheck, colour: str) -> None:
    axes.set(xlabel="first iteration of the window", ylabel=r"$\rho$ of the window")
    found = [seed.contractions for seed in check.seeds.values() if seed.contractions]
    for contractions in found:
        values = np.maximum(contractions.values, LEAST_CONTRACTION)
        axes.plot(contractions.starts, values, color=colour, alpha=0.6, linewidth=0.8, marker=_marker(len(values)))
    least = max(LEAST_CONTRACTION, min(float(each.values.min()) for each in found))
    if max(each.largest for each in found) <= SMALL_CONTRACTION:
        axes.set(yscale="log", ylim=(least / 3, 3))
    else:
        axes.set(ylim=(0, 1.05))
    if check.window:
        axes.set_title(f"B = {check.window}", fontsize=10)
    axes.axhline(1, color="black", linestyle=":", linewidth=0.8)


def _positive(values: Floats) -> Floats:
    """The values that a logarithmic axis can show; the others leave a gap in their line."""
    return np.where(values > 0, values, np.nan)


def _marker(points: int) -> str:
    return "." if points < FEW_POINTS else ""
