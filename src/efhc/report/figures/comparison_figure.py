"""The panels of one experiment: a line per strategy, the mean over seeds, with the range between seeds shaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
import polars as pl

from efhc.base.arrays import Floats
from efhc.report.figures.lines import by_strategy, draw_against, draw_seeds, label, plain_numbers
from efhc.report.figures.style import LAYOUT, Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FAR_APART = 20.0


def comparison_figure(metrics: pl.DataFrame, connectivity: pl.DataFrame | None = None, title: str = "") -> Picture:
    """Draw four panels of an experiment's metrics.

    (i) transmission time per iteration, (ii) accuracy per iteration, (iii) accuracy per transmission time, and (iv)
    accuracy at a fixed budget against connectivity. Without `connectivity`, which has the columns strategy, seed,
    radius and accuracy, the fourth panel shows the consensus error. Where one run spends `FAR_APART` times as much as
    another, the axis of total transmission time is logarithmic: else the curve of the other would be a stroke.
    Of runs that have not finished, curves go as far as all seeds of their strategy have come; where rows are missing,
    each row stands for the iterations since the one before it.
    """
    with mpl.rc_context(LAYOUT):
        figure = Picture((10, 7))
        first, second, third, fourth = figure.subplots(2, 2).flat
        _means_of_time(first, metrics)
        label(first, "(i) transmission time per iteration", "iteration", "transmission time (running mean)")
        _lines(second, metrics, "accuracy")
        label(second, "(ii) accuracy per iteration", "iteration", "accuracy")
        draw_against(third, metrics, "transmission_time_total", "accuracy", log=_totals_lie_far_apart(metrics))
        x = "transmission time (cut where the cheapest seed ends)"
        label(third, "(iii) accuracy per transmission time", x, "accuracy")
        if connectivity is not None:
            _accuracy_by_radius(fourth, connectivity)
            label(fourth, "(iv) accuracy at a fixed budget", "connectivity (radius)", "accuracy")
        else:
            _means_of_consensus_error(fourth, metrics)
            if (metrics["consensus_error"] > 0).any():
                fourth.set_yscale("log")
            label(fourth, "consensus error per iteration", "iteration", r"$\sum_i\|w_i-\bar w\|^2$ (running mean)")
        for axes in (first, second, third, fourth):
            if axes.get_xscale() == "linear":
                plain_numbers(axes.xaxis)
        handles, names = second.get_legend_handles_labels()
        figure.finish(handles, names, title, columns=len(names))
        return figure


def _totals_lie_far_apart(metrics: pl.DataFrame) -> bool:
    evaluated = metrics.drop_nulls("accuracy")
    totals = evaluated.group_by("strategy", "seed").agg(pl.col("transmission_time_total").max())
    spent = totals["transmission_time_total"].to_numpy()
    return bool(len(spent) and 0 < spent.min() * FAR_APART <= spent.max())


def _per_seed(rows: pl.DataFrame, x: str, column: str) -> tuple[Floats, Floats]:
    """Return the places x that all seeds have a value at, and the values (seeds, places)."""
    wide = rows.pivot(on="seed", index=x, values=column).drop_nulls().sort(x)
    return wide[x].to_numpy(), wide.drop(x).to_numpy().T


def _lines(axes: Axes, metrics: pl.DataFrame, column: str) -> None:
    for name, rows, style in by_strategy(metrics.drop_nulls(column)):
        draw_seeds(axes, *_per_seed(rows, "iteration", column), name, style)


# Single iterations jump between 0 and the maximum; a mean over a twentieth of them shows the level.


def _means_of_time(axes: Axes, metrics: pl.DataFrame) -> None:
    for name, rows, style in by_strategy(metrics):
        iterations, totals = _per_seed(rows, "iteration", "transmission_time_total")
        draw_seeds(axes, iterations, _running_means(iterations, totals, _window(metrics)), name, style)


def _means_of_consensus_error(axes: Axes, metrics: pl.DataFrame) -> None:
    for name, rows, style in by_strategy(metrics):
        iterations, errors = _per_seed(rows, "iteration", "consensus_error")
        sums = np.cumsum(errors * np.diff(iterations, prepend=-1), axis=1)
        draw_seeds(axes, iterations, _running_means(iterations, sums, _window(metrics)), name, style)


def _window(metrics: pl.DataFrame) -> int:
    """Return the number of iterations over which means are taken."""
    return max(1, (int(metrics["iteration"].to_numpy().max()) + 1) // 20)


def _running_means(iterations: Floats, sums: Floats, window: int) -> Floats:
    """Return the means over the last `window` iterations, given the sums over all up to each one (seeds, places)."""
    ends = iterations + 1
    starts = np.maximum(ends - window, 0)
    before = [np.interp(starts, [0, *ends], [0.0, *of_seed]) for of_seed in sums]
    means: Floats = (sums - np.reshape(before, sums.shape)) / (ends - starts)
    return means


def _accuracy_by_radius(axes: Axes, connectivity: pl.DataFrame) -> None:
    for name, rows, style in by_strategy(connectivity):
        draw_seeds(axes, *_per_seed(rows, "radius", "accuracy"), name, style)
