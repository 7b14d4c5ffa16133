"""Measured errors under the bounds that the theorems promise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from efhc.base.arrays import Floats
from efhc.theory.checks import StrategyCheck

LARGEST = 1e100
"""Bounds above are not drawn: no axis would have room for anything else."""
PANELS = (
    ("optimisation_error", r"$\|\bar w - w^\star\|^2$"),
    ("consensus_error", r"$\|W - \mathbf{1}\bar w\|^2$"),
)


def theory_figure(checks: Sequence[StrategyCheck]) -> Figure:
    """A row per strategy: both errors and the gradients, each with its bound, and how much each window contracts."""
    figure = Figure(figsize=(15, 3.1 * len(checks)), layout="constrained")
    for row, check in zip(figure.subplots(len(checks), 4, squeeze=False), checks, strict=True):
        promises = check.promises
        for column, (axes, (name, label)) in enumerate(zip(row, PANELS, strict=False)):
            bound = None if promises is None else promises.bound[:, column]
            _under(axes, check, check.of_seeds(name), bound, label)
        running = check.running_gradient_norm[None]
        label = r"running mean of $\|\nabla F(\bar w)\|^2$"
        _under(row[2], check, running, promises.gradient_bound if promises else None, label)
        _contractions(row[3], check)
        row[0].set_title(check.strategy, loc="left", fontweight="bold")
    return figure


def _under(axes: Axes, check: StrategyCheck, measured: Floats, bound: Floats | None, label: str) -> None:
    k = check.iterations + 1  # so that k = 0 has a place
    axes.set(xlabel="k + 1", ylabel=label, xscale="log")
    if np.isnan(measured).all():
        axes.text(0.5, 0.5, "no $w^\\star$", ha="center", transform=axes.transAxes)
        return
    axes.plot(k, measured.mean(axis=0), label="measured")
    axes.fill_between(k, measured.min(axis=0), measured.max(axis=0), alpha=0.2, linewidth=0)
    if bound is not None and (finite := bound < LARGEST).any():
        axes.plot(k[finite], bound[finite], color="black", linestyle="--", label="bound")
    if (measured > 0).any():
        axes.set_yscale("log")
    axes.legend()


def _contractions(axes: Axes, check: StrategyCheck) -> None:
    axes.set(xlabel="first iteration of the window", ylabel=r"$\rho$ of the window", ylim=(0, 1.05))
    for seed, found in check.seeds.items():
        if found.contractions:
            axes.plot(found.contractions.starts, found.contractions.values, linewidth=0.8, label=f"seed {seed}")
    if check.window:
        axes.set_title(f"B = {check.window}", fontsize=10)
    axes.axhline(1, color="black", linestyle=":", linewidth=0.8)
