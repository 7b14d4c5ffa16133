"""Accuracy against each tuned parameter: the trials of a tuning, complete ones and those that were stopped early."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
import polars as pl

from efhc.report.figures.style import LAYOUT, Picture, grid_of
from efhc.report.looks import STYLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COMPLETE, BEST = STYLES[0][0], STYLES[1][0]
PRUNED = "#8a8a8a"


def tuning_figure(
    trials: pl.DataFrame, best_values: Mapping[str, float], title: str = "", bounds: str = "95 %"
) -> Picture:
    """Draw a panel per parameter of `best_values`.

    `trials` has a column per parameter, and accuracy, low and high (its `bounds` over seeds, or null), state. The
    trials of a single parameter are joined by a line; with several, neighbours in one of them differ in the others.
    """
    with mpl.rc_context(LAYOUT):
        panels = len(best_values)
        figure = Picture((6 if panels == 1 else 4 * min(panels, 3), 4 * -(-panels // 3)))
        grid = grid_of(figure, panels, 3, sharey=True)
        for axes, parameter in zip(grid, best_values, strict=True):
            _draw(axes, trials, parameter, best_values, bounds)
        for axes in grid[::3]:
            axes.set_ylabel("accuracy")
        handles, labels = grid[0].get_legend_handles_labels()
        figure.finish(handles, labels, title, columns=2)
        return figure


def _draw(axes: Axes, trials: pl.DataFrame, parameter: str, best_values: Mapping[str, float], bounds: str) -> None:
    complete = trials.filter(state="complete").sort(parameter)
    pruned = trials.filter(state="pruned").sort(parameter)
    is_best = [pl.col(name) == value for name, value in best_values.items()]
    best = complete.filter(*is_best).sort("accuracy").row(-1, named=True)
    sure = complete.drop_nulls(["low", "high"])
    # The mean lies within its interval but for rounding.
    below, above = (sure["accuracy"] - sure["low"]).clip(0), (sure["high"] - sure["accuracy"]).clip(0)
    bars = f"{bounds} over seeds" if len(sure) else None
    reach = np.stack([below, above])
    axes.errorbar(sure[parameter], sure["accuracy"], reach, fmt="none", color=COMPLETE, alpha=0.5, label=bars)
    joined = "o-" if len(best_values) == 1 else "o"
    axes.plot(
        complete[parameter], complete["accuracy"], joined, color=COMPLETE, markersize=5, linewidth=1, label="complete"
    )
    if len(pruned):
        axes.plot(
            pruned[parameter],
            pruned["accuracy"],
            "o",
            color=PRUNED,
            markerfacecolor="none",
            markersize=5,
            label="stopped early, so after fewer iterations",
        )
    words = ", ".join(f"{name} = {value:.4g}" for name, value in best_values.items())
    label = f"best: {words}, accuracy {best['accuracy']:.3f}"
    axes.plot([best[parameter]], [best["accuracy"]], "*", color=BEST, markersize=14, zorder=3, label=label)
    axes.set_xscale("log")
    axes.set_xlabel("threshold scale r" if parameter == "r" else parameter, parse_math=False)
