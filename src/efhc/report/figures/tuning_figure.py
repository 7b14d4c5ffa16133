"""Accuracy against the tuned parameter: the trials of a tuning, complete ones and those that were stopped early."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import polars as pl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from efhc.report.figures.style import LAYOUT, STYLES

COMPLETE, BEST = STYLES[0][0], STYLES[1][0]
PRUNED = "#8a8a8a"


def tuning_figure(
    trials: pl.DataFrame, best_value: float, title: str = "", parameter: str = "r", bounds: str = "95 %"
) -> Figure:
    """Draw `trials`: columns `parameter`, accuracy, low and high (its `bounds` over seeds, or null), state."""
    complete = trials.filter(state="complete").sort(parameter)
    pruned = trials.filter(state="pruned").sort(parameter)
    best = complete.filter(pl.col(parameter) == best_value).sort("accuracy").row(-1, named=True)
    with mpl.rc_context(LAYOUT):
        figure = Figure(figsize=(6, 4), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        sure = complete.drop_nulls(["low", "high"])
        # The mean lies within its interval but for rounding.
        below, above = (sure["accuracy"] - sure["low"]).clip(0), (sure["high"] - sure["accuracy"]).clip(0)
        reach = np.stack([below, above])
        bars = f"{bounds} over seeds" if len(sure) else None
        axes.errorbar(sure[parameter], sure["accuracy"], reach, fmt="none", color=COMPLETE, alpha=0.5, label=bars)
        axes.plot(
            complete[parameter], complete["accuracy"], "o-", color=COMPLETE, markersize=5, linewidth=1, label="complete"
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
        label = f"best: {parameter} = {best_value:.4g}, accuracy {best['accuracy']:.3f}"
        axes.plot([best_value], [best["accuracy"]], "*", color=BEST, markersize=14, zorder=3, label=label)
        axes.set_xscale("log")
        axes.set_xlabel("threshold scale r" if parameter == "r" else parameter)
        axes.set_ylabel("accuracy")
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
        if title:
            axes.set_title(title, fontsize=10, parse_math=False)
        return figure
