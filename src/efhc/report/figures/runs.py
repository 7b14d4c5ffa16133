"""Pictures of the runs of one experiment, and of the simulator's predictions beside what nodes did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

import matplotlib as mpl
import numpy as np
import polars as pl
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from efhc.base.arrays import Floats
from efhc.learning.measures import Measure, evaluated, measure_of
from efhc.report.figure_data import ACCURACY
from efhc.report.figures.style import LAYOUT, Picture, by_strategy, draw_against, draw_seeds, label, plain_numbers
from efhc.report.looks import strategy_colours
from efhc.report.numbers import MEGABYTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FAR_APART = 20.0


def comparison_figure(
    metrics: pl.DataFrame, connectivity: pl.DataFrame | None = None, title: str = "", *, measure: str | None = None
) -> Picture:
    """Draw four panels of an experiment's metrics.

    (i) transmission time per iteration, (ii) the measure per iteration, (iii) the measure per transmission time, and
    (iv) the measure at a fixed budget against connectivity. Without `connectivity`, which has the columns strategy,
    seed, radius and that of the measure, the fourth panel shows the consensus error. Where one run spends `FAR_APART`
    times as much as another, the axis of total transmission time is logarithmic: else the curve of the other would be a
    stroke. Of runs that have not finished, curves go as far as all seeds of their strategy have come; where rows are
    missing, each row stands for the iterations since the one before it.
    """
    scored = evaluated(metrics)
    chosen = measure_of(scored, measure)
    name, words = chosen.name, chosen.label
    with mpl.rc_context(LAYOUT):
        figure = Picture((10, 7))
        first, second, third, fourth = figure.subplots(2, 2).flat
        _draw_means(first, metrics, "transmission_time_total")
        label(first, "(i) transmission time per iteration", "iteration", "transmission time (running mean)")
        draw_against(second, scored, "iteration", name)
        label(second, f"(ii) {words} per iteration", "iteration", words)
        draw_against(third, scored, "transmission_time_total", name, log=_totals_lie_far_apart(scored))
        x = "transmission time (each curve ends where its cheapest seed does)"
        label(third, f"(iii) {words} per transmission time", x, words)
        if connectivity is not None:
            _draw_columns(fourth, connectivity, "radius", name)
            label(fourth, f"(iv) {words} at a fixed budget", "connectivity (radius)", words)
        else:
            _draw_means(fourth, metrics, "consensus_error")
            if (metrics["consensus_error"] > 0).any():
                fourth.set_yscale("log")
            label(fourth, "consensus error per iteration", "iteration", r"$\sum_i\|w_i-\bar w\|^2$ (running mean)")
        for axes in (first, second, third, fourth):
            if axes.get_xscale() == "linear":
                plain_numbers(axes.xaxis)
        handles, names = second.get_legend_handles_labels()
        figure.finish(handles, names, title, columns=len(names))
        return figure


def _totals_lie_far_apart(evaluations: pl.DataFrame) -> bool:
    totals = evaluations.group_by("strategy", "seed").agg(pl.col("transmission_time_total").max())
    spent = totals["transmission_time_total"].to_numpy()
    return bool(len(spent) and 0 < spent.min() * FAR_APART <= spent.max())


def _per_seed(rows: pl.DataFrame, x: str, column: str) -> tuple[Floats, Floats]:
    """Return the places x that all seeds have a value at, and the values (seeds, places)."""
    wide = rows.pivot(on="seed", index=x, values=column).drop_nulls().sort(x)
    return wide[x].to_numpy(), wide.drop(x).to_numpy().T


def _draw_means(axes: Axes, metrics: pl.DataFrame, total: str) -> None:
    """Draw the mean of a column over the latest twentieth of the iterations: single iterations jump too much to see.

    `total` is the column's sum over all iterations so far, or "consensus_error", which is summed here.
    """
    window = max(1, (int(metrics["iteration"].to_numpy().max(initial=0)) + 1) // 20)
    for name, rows, style in by_strategy(metrics):
        iterations, values = _per_seed(rows, "iteration", total)
        if total == "consensus_error":
            values = np.cumsum(values * np.diff(iterations, prepend=-1), axis=1)
        draw_seeds(axes, iterations, _running_means(iterations, values, window), name, style)


def _draw_columns(axes: Axes, table: pl.DataFrame, x: str, column: str) -> None:
    for name, rows, style in by_strategy(table.drop_nulls(column)):
        draw_seeds(axes, *_per_seed(rows, x, column), name, style)


def _running_means(iterations: Floats, sums: Floats, window: int) -> Floats:
    """Return the means over the last `window` iterations, given the sums over all up to each one (seeds, places)."""
    ends = iterations + 1
    starts = np.maximum(ends - window, 0)
    before = [np.interp(starts, [0, *ends], [0.0, *of_seed]) for of_seed in sums]
    means: Floats = (sums - np.reshape(before, sums.shape)) / (ends - starts)
    return means


BAND = "min to max over seeds"
"""What the shaded bands show."""


def seconds_figure(
    timeline: pl.DataFrame, target: float | None = None, title: str = "", *, measure: str | None = None
) -> Picture:
    """Draw four panels of an experiment's timeline.

    (i) the measure against seconds, (ii) the measure against megabytes sent, (iii) consensus error against seconds, and
    (iv) committed exchanges against seconds. A `target` of the measure is a thin line across (i) and (ii). With more
    than one seed, the legend says what is shaded.
    """
    scored = evaluated(timeline)
    chosen = measure_of(scored, measure)
    name, words = chosen.name, chosen.label
    with mpl.rc_context(LAYOUT):
        figure = Picture((10, 7))
        first, second, third, fourth = figure.subplots(2, 2).flat
        draw_against(first, scored, "seconds", name)
        label(first, f"(i) {words} against seconds", "seconds", words)
        draw_against(second, scored.with_columns(pl.col("bytes") / MEGABYTE), "bytes", name)
        label(second, f"(ii) {words} against megabytes", "MB sent by all devices", words)
        draw_against(third, timeline, "seconds", "consensus_error")
        if (timeline["consensus_error"] > 0).any():
            third.set_yscale("log")
        label(third, "(iii) consensus error against seconds", "seconds", r"$\sum_i\|w_i-\bar w\|^2$")
        draw_against(fourth, timeline, "seconds", "exchanges")
        label(fourth, "(iv) exchanges against seconds", "seconds", "committed exchanges")
        for axes in (first, second, third, fourth):
            plain_numbers(axes.xaxis)
        plain_numbers(fourth.yaxis)
        handles, names = first.get_legend_handles_labels()
        if target is not None:
            for axes in (first, second):
                line = axes.axhline(target, color="#8a8a8a", linewidth=0.9, zorder=1)
            handles, names = [*handles, line], [*names, f"target {target:g}"]
        if timeline["seed"].n_unique() > 1:
            handles, names = [*handles, Patch(color="#8a8a8a", alpha=0.3, linewidth=0)], [*names, BAND]
        figure.finish(handles, names, title)
        return figure


MEASURED: Literal["-"] = "-"
PREDICTED: Literal["--"] = "--"


class Curves(NamedTuple):
    """One experiment: the timelines of nodes and of the simulator, and the value of the measure to reach."""

    measured: pl.DataFrame
    predicted: pl.DataFrame
    target: float
    measure: Measure = ACCURACY


def prediction_figure(experiments: Mapping[str, Curves]) -> Picture:
    """Draw the measure against seconds and against megabytes, a row of panels per experiment, a line per run.

    Strategies have their colours; what nodes did is solid, what the simulator said is dashed. The target is a
    thin line.
    """
    names = list(dict.fromkeys(name for curves in experiments.values() for name in curves.measured["strategy"]))
    colours = strategy_colours(names)
    with mpl.rc_context(LAYOUT):
        figure = Picture((10, 0.6 + 3.4 * len(experiments)))
        rows = figure.subplots(len(experiments), 2, squeeze=False)
        for (left, right), (title, curves) in zip(rows, experiments.items(), strict=True):
            for timeline, dashes in ((curves.measured, MEASURED), (curves.predicted, PREDICTED)):
                scored = evaluated(timeline).drop_nulls(curves.measure.name)
                in_megabytes = scored.with_columns(pl.col("bytes") / MEGABYTE)
                _draw_timeline(left, scored, "seconds", curves.measure, dashes, colours)
                _draw_timeline(right, in_megabytes, "bytes", curves.measure, dashes, colours)
            for axes, x in ((left, "seconds"), (right, "MB of models sent by all devices")):
                axes.axhline(curves.target, color="#8a8a8a", linewidth=0.9, zorder=1)
                label(axes, title, x, curves.measure.label)
        entries = {name: Line2D([], [], color=colours[name]) for name in names}
        entries["measured: nodes"] = Line2D([], [], color="#444444", linestyle=MEASURED)
        entries["predicted: simulator"] = Line2D([], [], color="#444444", linestyle=PREDICTED)
        entries["target"] = Line2D([], [], color="#8a8a8a", linewidth=0.9)
        figure.finish(list(entries.values()), list(entries), columns=7)
        return figure


def _draw_timeline(
    axes: Axes, scored: pl.DataFrame, x: str, measure: Measure, dashes: str, colours: Mapping[str, str]
) -> None:
    for (strategy, _), rows in scored.group_by("strategy", "seed", maintain_order=True):
        axes.plot(rows[x], rows[measure.name], linestyle=dashes, color=colours[str(strategy)], linewidth=1.3)
