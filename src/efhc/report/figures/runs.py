"""Pictures of the runs of one experiment, and of the simulator's predictions beside what nodes did."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import matplotlib as mpl
import numpy as np
import polars as pl
from matplotlib.lines import Line2D

from efhc.base.arrays import Floats
from efhc.base.errors import InputError
from efhc.learning.measures import Measure, evaluated, measure_of
from efhc.report.figure_data import ACCURACY
from efhc.report.figures.style import (
    LAYOUT,
    POINTS,
    WIDTHS,
    Line,
    Picture,
    Width,
    band_words,
    best_at_end,
    by_strategy,
    draw_against,
    draw_seeds,
    grid_of,
    label,
    plain_numbers,
    strategy_lines,
)
from efhc.report.looks import strategy_colours
from efhc.report.numbers import MEGABYTE

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    Draw = Callable[[Axes], None]

FAR_APART = 20.0
TIME = "transmission time (parameters / bandwidth)"
SENT = "MB sent by all devices"
CONSENSUS = r"consensus error $\sum_i\|w_i-\bar w\|^2$"
HEIGHT = {"column": 2.0, "page": 2.5}
"""Of one of several panels, in inches."""
ALONE = {"column": 1.8, "page": 3.6}
"""Of a panel that is the whole figure."""
LEGEND = 0.6
TARGET: dict[str, Any] = {"color": "#8a8a8a", "linewidth": 0.9, "zorder": 1}
"""The look of a target accuracy."""


def comparison_figure(
    metrics: pl.DataFrame,
    connectivity: pl.DataFrame | None = None,
    title: str = "",
    *,
    measure: str | None = None,
    width: Width = "page",
    against: str | None = None,
) -> Picture:
    """Draw four panels of an experiment's metrics.

    (i) transmission time per iteration, (ii) the measure (default: accuracy) against iterations, (iii) against
    transmission time, and (iv) the measure at a fixed budget against connectivity. Without `connectivity`, which has
    the columns strategy, seed, radius and that of the measure, the fourth panel shows the consensus error. `against` is
    "iterations" or "transmission_time" for that panel alone. Where one run spends `FAR_APART` times as much as another,
    the axis of total transmission time is logarithmic: else the curve of the other would be a stroke. Of runs that have
    not finished, curves go as far as all seeds of their strategy have come; where rows are missing, each row stands for
    the iterations since the one before it.
    """
    scores = evaluated(metrics)
    chosen = measure_of(scores, measure)
    lines = strategy_lines(list(by_strategy(metrics)), best_at_end(scores, chosen.name, chosen.better))

    def time(axes: Axes) -> None:
        _draw_means(axes, metrics, "transmission_time_total", lines)
        label(axes, "(i) transmission time per iteration", "iteration", "time (parameters / bandwidth)")

    def iterations(axes: Axes) -> None:
        draw_against(axes, scores, "iteration", chosen.name, lines)
        label(axes, f"(ii) {chosen.metric} per iteration", "iteration", chosen.label)

    def transmission_time(axes: Axes) -> None:
        log = _totals_lie_far_apart(scores)
        draw_against(axes, scores, "transmission_time_total", chosen.name, lines, log=log)
        label(axes, f"(iii) {chosen.metric} per transmission time", f"total {TIME}", chosen.label)

    def last(axes: Axes) -> None:
        if connectivity is not None:
            draw_against(axes, connectivity, "radius", chosen.name, lines)
            label(axes, f"(iv) {chosen.metric} at a fixed budget", "connectivity (radius)", chosen.label)
            return
        _draw_means(axes, metrics, "consensus_error", lines)
        if (metrics["consensus_error"] > 0).any():
            axes.set_yscale("log")
        label(axes, "(iv) consensus error per iteration", "iteration", CONSENSUS)

    panels = {"time": time, "iterations": iterations, "transmission_time": transmission_time, "consensus": last}
    return _figure(panels, lines, metrics, title, width, against)


def _figure(
    panels: Mapping[str, Draw],
    lines: Mapping[str, Line],
    table: pl.DataFrame,
    title: str,
    width: Width,
    against: str | None,
    entries: Mapping[str, Artist] | None = None,
) -> Picture:
    """Draw all panels, in two columns or below each other, or the one that `against` names, without a title."""
    if against is not None and against not in panels:
        raise InputError("against", f"'{against}'", ", ".join(panels))
    shown = panels if against is None else {against: panels[against]}
    columns = 2 if width == "page" and len(shown) > 1 else 1
    with mpl.rc_context(LAYOUT):
        height = HEIGHT[width] * -(-len(shown) // columns) if len(shown) > 1 else ALONE[width]
        figure = Picture((WIDTHS[width], LEGEND + height))
        for axes, draw in zip(grid_of(figure, len(shown), columns), shown.values(), strict=True):
            draw(axes)
            if len(shown) == 1:
                axes.set_title("")
            if axes.get_xscale() == "linear":
                plain_numbers(axes.xaxis)
        seeds = table.group_by("strategy").agg(pl.col("seed").n_unique())["seed"]
        figure.finish_lines(lines, band_words(seeds), title, more=entries)
    return figure


def _totals_lie_far_apart(evaluations: pl.DataFrame) -> bool:
    totals = evaluations.group_by("strategy", "seed").agg(pl.col("transmission_time_total").max())
    spent = totals["transmission_time_total"].to_numpy()
    return bool(len(spent) and 0 < spent.min() * FAR_APART <= spent.max())


def _draw_means(axes: Axes, metrics: pl.DataFrame, total: str, lines: Mapping[str, Line]) -> None:
    """Draw the mean of a column over the latest twentieth of the iterations: single iterations jump too much to see.

    `total` is the column's sum over all iterations so far, or "consensus_error", which is summed here.
    """
    window = max(1, (int(metrics["iteration"].to_numpy().max(initial=0)) + 1) // 20)
    for name, rows in by_strategy(metrics).items():
        seeds = [one.select("iteration", total).to_numpy().T for one in rows.partition_by("seed", maintain_order=True)]
        first, last = max(one[0, 0] for one in seeds), min(one[0, -1] for one in seeds)
        places = np.unique(np.linspace(min(first, last), last, POINTS).round())
        means = np.stack([_running_means(k, values, total, places, window) for k, values in seeds])
        draw_seeds(axes, places, means, name, lines[name])


def _running_means(iterations: Floats, column: Floats, total: str, places: Floats, window: int) -> Floats:
    """Return the means over the last `window` iterations at each of the places, given a column of one seed."""
    sums = np.cumsum(column * np.diff(iterations, prepend=-1)) if total == "consensus_error" else column
    ends = places + 1
    starts = np.maximum(ends - window, 0)
    at_end, before = (np.interp(one, [0, *(iterations + 1)], [0.0, *sums]) for one in (ends, starts))
    means: Floats = (at_end - before) / (ends - starts)
    return means


def seconds_figure(
    timeline: pl.DataFrame,
    target: float | None = None,
    title: str = "",
    *,
    measure: str | None = None,
    width: Width = "page",
    against: str | None = None,
) -> Picture:
    """Draw four panels of an experiment's timeline.

    (i) the measure (default: accuracy) against seconds, (ii) against megabytes sent, (iii) consensus error against
    seconds, and (iv) committed exchanges against seconds. A `target` of the measure is a thin line across (i) and (ii).
    `against` is "seconds" or "bytes" for that panel alone.
    """
    scores = evaluated(timeline).with_columns(pl.col("bytes") / MEGABYTE)
    chosen = measure_of(scores, measure)
    lines = strategy_lines(list(by_strategy(timeline)), best_at_end(scores, chosen.name, chosen.better))

    def across(axes: Axes) -> None:
        if target is not None:
            axes.axhline(target, **TARGET)

    def seconds(axes: Axes) -> None:
        draw_against(axes, scores, "seconds", chosen.name, lines)
        across(axes)
        label(axes, f"(i) {chosen.metric} against seconds", "virtual seconds", chosen.label)

    def megabytes(axes: Axes) -> None:
        draw_against(axes, scores, "bytes", chosen.name, lines)
        across(axes)
        label(axes, f"(ii) {chosen.metric} against megabytes", SENT, chosen.label)

    def consensus(axes: Axes) -> None:
        draw_against(axes, timeline, "seconds", "consensus_error", lines)
        if (timeline["consensus_error"] > 0).any():
            axes.set_yscale("log")
        label(axes, "(iii) consensus error against seconds", "virtual seconds", CONSENSUS)

    def exchanges(axes: Axes) -> None:
        draw_against(axes, timeline, "seconds", "exchanges", lines)
        plain_numbers(axes.yaxis)
        label(axes, "(iv) exchanges against seconds", "virtual seconds", "committed exchanges")

    panels = {"seconds": seconds, "bytes": megabytes, "consensus": consensus, "exchanges": exchanges}
    entries = {} if target is None else {f"target {target:g}": Line2D([], [], **TARGET)}
    return _figure(panels, lines, timeline, title, width, against, entries)


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
        figure = Picture((WIDTHS["page"], 0.5 + 2.5 * len(experiments)))
        rows = figure.subplots(len(experiments), 2, squeeze=False)
        for (left, right), (title, curves) in zip(rows, experiments.items(), strict=True):
            for timeline, dashes in ((curves.measured, MEASURED), (curves.predicted, PREDICTED)):
                scored = evaluated(timeline).drop_nulls(curves.measure.name)
                in_megabytes = scored.with_columns(pl.col("bytes") / MEGABYTE)
                _draw_timeline(left, scored, "seconds", curves.measure, dashes, colours)
                _draw_timeline(right, in_megabytes, "bytes", curves.measure, dashes, colours)
            for axes, x in ((left, "seconds"), (right, SENT)):
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
