"""The panels of one experiment: a line per strategy, the mean over seeds, with the range between seeds shaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
import polars as pl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from efhc.base.arrays import Floats
from efhc.report.figures.style import LAYOUT, strategy_styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def comparison_figure(metrics: pl.DataFrame, connectivity: pl.DataFrame | None = None, title: str = "") -> Figure:
    """Draw four panels of an experiment's metrics.

    (i) transmission time per iteration, (ii) accuracy per iteration, (iii) accuracy per transmission time, and (iv)
    accuracy at a fixed budget against connectivity. Without `connectivity`, which has the columns strategy, seed,
    radius and accuracy, the fourth panel shows the consensus error.
    """
    with mpl.rc_context(LAYOUT):
        figure = Figure(figsize=(10, 7), layout="constrained")
        FigureCanvasAgg(figure)
        first, second, third, fourth = figure.subplots(2, 2).flat
        _lines(first, metrics, "transmission_time", smooth=True)
        _label(first, "(i) transmission time per iteration", "iteration", "transmission time (running mean)")
        _lines(second, metrics, "accuracy")
        _label(second, "(ii) accuracy per iteration", "iteration", "accuracy")
        _accuracy_by_time(third, metrics)
        _label(third, "(iii) accuracy per transmission time", "total transmission time", "accuracy")
        if connectivity is not None:
            _accuracy_by_radius(fourth, connectivity)
            _label(fourth, "(iv) accuracy at a fixed budget", "connectivity (radius)", "accuracy")
        else:
            _lines(fourth, metrics, "consensus_error", smooth=True)
            if (metrics["consensus_error"] > 0).any():
                fourth.set_yscale("log")
            _label(fourth, "consensus error per iteration", "iteration", r"$\sum_i\|w_i-\bar w\|^2$ (running mean)")
        handles, names = second.get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
        if title:
            figure.suptitle(title, parse_math=False)
        return figure


def _label(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def _strategies(table: pl.DataFrame) -> list[tuple[str, pl.DataFrame, dict[str, Any]]]:
    named = table.partition_by("strategy", as_dict=True, maintain_order=True).items()
    styles = strategy_styles(str(name) for (name,), _ in named)
    return [
        (str(name), rows, dict(zip(("color", "linestyle"), styles[str(name)], strict=True))) for (name,), rows in named
    ]


def _draw(axes: Axes, x: Floats, per_seed: Floats, name: str, style: dict[str, Any]) -> None:
    axes.plot(x, per_seed.mean(axis=0), label=name, **style)
    axes.fill_between(x, per_seed.min(axis=0), per_seed.max(axis=0), color=style["color"], alpha=0.15, linewidth=0)


def _per_seed(rows: pl.DataFrame, column: str) -> Floats:
    return np.stack([seed[column].to_numpy() for seed in rows.partition_by("seed", maintain_order=True)])


def _lines(axes: Axes, metrics: pl.DataFrame, column: str, *, smooth: bool = False) -> None:
    for name, rows, style in _strategies(metrics.drop_nulls(column)):
        values = _per_seed(rows, column)
        iterations = rows.filter(pl.col("seed") == rows["seed"][0])["iteration"].to_numpy()
        if smooth:  # Single iterations jump between 0 and the maximum; a mean over a twentieth of them shows the level.
            window = max(1, len(iterations) // 20)
            values = np.apply_along_axis(_running_mean(window), 1, values)
        _draw(axes, iterations, values, name, style)


def _running_mean(window: int) -> Callable[[Floats], Floats]:
    def mean_of_last(values: Floats) -> Floats:
        sums = np.cumsum(np.concatenate([[0.0], values]))
        ends = np.arange(1, len(values) + 1)
        starts = np.maximum(ends - window, 0)
        means: Floats = (sums[ends] - sums[starts]) / (ends - starts)
        return means

    return mean_of_last


def _accuracy_by_time(axes: Axes, metrics: pl.DataFrame) -> None:
    """Interpolate each seed's curve at the same times, up to the last time that all seeds of the strategy reached."""
    evaluated = metrics.drop_nulls("accuracy")
    for name, rows, style in _strategies(evaluated):
        seeds = rows.partition_by("seed", maintain_order=True)
        furthest = min(seed["transmission_time_total"].max() for seed in seeds)  # type: ignore[type-var]
        times = np.linspace(0, float(furthest), 200)  # type: ignore[arg-type]
        curves = [np.interp(times, seed["transmission_time_total"], seed["accuracy"]) for seed in seeds]
        _draw(axes, times, np.stack(curves), name, style)


def _accuracy_by_radius(axes: Axes, connectivity: pl.DataFrame) -> None:
    for name, rows, style in _strategies(connectivity.sort("seed", "radius", maintain_order=True)):
        radii = np.unique(rows["radius"].to_numpy())
        _draw(axes, radii, _per_seed(rows, "accuracy"), name, style)
