"""The figure of `efhc theory`: measured errors under the bounds that the theorems promise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes

from efhc.base.arrays import Floats
from efhc.report.figures import LAYOUT, Picture
from efhc.report.looks import strategy_colours
from efhc.theory.check.assess import StrategyCheck
from efhc.theory.check.sentences import printed_name

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


def theory_figure(checks: Sequence[StrategyCheck], colours: Mapping[str, str] | None = None) -> Picture:
    """Draw one row per strategy: both errors and the gradients, each with its bound, and the contraction of windows.

    A panel without anything to show is not drawn, and a column without any panel takes no room.
    `colours` is the colour of each strategy. Default: the colours that the strategies have in all figures.
    """
    colours = colours or strategy_colours(check.strategy for check in checks)
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
    bounds, gradient_bound = None, None
    if check.promises:
        bounds, gradient_bound = check.promises.bound, check.promises.gradient_bound
    return (
        Curve(
            r"$\|\bar w - w^\star\|^2$",
            check.of_seeds("optimisation_error"),
            None if bounds is None else bounds[:, 0],
            "eqn:PhikPsikRecursive",
        ),
        Curve(
            r"$\|W - \mathbf{1}\bar w\|^2$",
            check.of_seeds("consensus_error"),
            None if bounds is None else bounds[:, 1],
            "eqn:PhikPsikRecursive",
        ),
        Curve(
            r"running mean of $\|\nabla F(\bar w)\|^2$",
            check.running_gradient_norm[None],
            gradient_bound,
            "lemma:nonconvex_lossdec",
        ),
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
