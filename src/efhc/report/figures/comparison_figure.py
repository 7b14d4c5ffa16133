"""The panels of one experiment: a line per strategy, the mean over seeds, with the range between seeds shaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
import polars as pl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from efhc.base.arrays import Floats
from efhc.report.figures.lines import by_strategy, draw_against, draw_seeds, label
from efhc.report.figures.style import LAYOUT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FAR_APART = 20.0


def comparison_figure(metrics: pl.DataFrame, connectivity: pl.DataFrame | None = None, title: str = "") -> Figure:
    """Draw four panels of an experiment's metrics.

    (i) transmission time per iteration, (ii) accuracy per iteration, (iii) accuracy per transmission time, and (iv)
    accuracy at a fixed budget against connectivity. Without `connectivity`, which has the columns strategy, seed,
    radius and accuracy, the fourth panel shows the consensus error. Where one run spends `FAR_APART` times as much as
    another, the axis of total transmission time is logarithmic: else the curve of the other would be a stroke.
    """
    with mpl.rc_context(LAYOUT):
        figure = Figure(figsize=(10, 7), layout="constrained")
        FigureCanvasAgg(figure)
        first, second, third, fourth = figure.subplots(2, 2).flat
        _lines(first, metrics, "transmission_time", smooth=True)
        label(first, "(i) transmission time per iteration", "iteration", "transmission time (running mean)")
        _lines(second, metrics, "accuracy")
        label(second, "(ii) accuracy per iteration", "iteration", "accuracy")
        draw_against(third, metrics, "transmission_time_total", "accuracy", log=_totals_lie_far_apart(metrics))
        label(third, "(iii) accuracy per transmission time", "total transmission time", "accuracy")
        if connectivity is not None:
            _accuracy_by_radius(fourth, connectivity)
            label(fourth, "(iv) accuracy at a fixed budget", "connectivity (radius)", "accuracy")
        else:
            _lines(fourth, metrics, "consensus_error", smooth=True)
            if (metrics["consensus_error"] > 0).any():
                fourth.set_yscale("log")
            label(fourth, "consensus error per iteration", "iteration", r"$\sum_i\|w_i-\bar w\|^2$ (running mean)")
        handles, names = second.get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
        if title:
            figure.suptitle(title, parse_math=False)
        return figure


def _totals_lie_far_apart(metrics: pl.DataFrame) -> bool:
    totals = metrics.group_by("strategy", "seed").agg(pl.col("transmission_time_total").max())
    spent = totals["transmission_time_total"].to_numpy()
    return bool(0 < spent.min() * FAR_APART <= spent.max())


def _per_seed(rows: pl.DataFrame, column: str) -> Floats:
    return np.stack([seed[column].to_numpy() for seed in rows.partition_by("seed", maintain_order=True)])


def _lines(axes: Axes, metrics: pl.DataFrame, column: str, *, smooth: bool = False) -> None:
    for name, rows, style in by_strategy(metrics.drop_nulls(column)):
        values = _per_seed(rows, column)
        iterations = rows.filter(pl.col("seed") == rows["seed"][0])["iteration"].to_numpy()
        if smooth:  # Single iterations jump between 0 and the maximum; a mean over a twentieth of them shows the level.
            window = max(1, len(iterations) // 20)
            values = np.apply_along_axis(_running_mean(window), 1, values)
        draw_seeds(axes, iterations, values, name, style)


def _running_mean(window: int) -> Callable[[Floats], Floats]:
    def mean_of_last(values: Floats) -> Floats:
        sums = np.cumsum(np.concatenate([[0.0], values]))
        ends = np.arange(1, len(values) + 1)
        starts = np.maximum(ends - window, 0)
        means: Floats = (sums[ends] - sums[starts]) / (ends - starts)
        return means

    return mean_of_last


def _accuracy_by_radius(axes: Axes, connectivity: pl.DataFrame) -> None:
    for name, rows, style in by_strategy(connectivity.sort("seed", "radius", maintain_order=True)):
        radii = np.unique(rows["radius"].to_numpy())
        draw_seeds(axes, radii, _per_seed(rows, "accuracy"), name, style)
