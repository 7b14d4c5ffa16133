"""Event-driven runs over time: a line per strategy, the mean over seeds, with the range between seeds shaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl
import polars as pl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from efhc.report.figures.lines import draw_against, label
from efhc.report.figures.style import LAYOUT
from efhc.report.numbers import MEGABYTE

if TYPE_CHECKING:
    from matplotlib.axis import Axis

BAND = "min to max over seeds"
"""What the shaded bands show."""


def seconds_figure(timeline: pl.DataFrame, target: float | None = None, title: str = "") -> Figure:
    """Draw four panels of an experiment's timeline.

    (i) accuracy against seconds, (ii) accuracy against megabytes sent, (iii) consensus error against seconds, and (iv)
    committed exchanges against seconds. A `target` accuracy is a thin line across (i) and (ii). With more than one
    seed, the legend says what is shaded.
    """
    with mpl.rc_context(LAYOUT):
        figure = Figure(figsize=(10, 7), layout="constrained")
        FigureCanvasAgg(figure)
        first, second, third, fourth = figure.subplots(2, 2).flat
        draw_against(first, timeline, "seconds", "accuracy")
        label(first, "(i) accuracy against seconds", "seconds", "accuracy")
        draw_against(second, timeline.with_columns(pl.col("bytes") / MEGABYTE), "bytes", "accuracy")
        label(second, "(ii) accuracy against megabytes", "MB sent by all devices", "accuracy")
        draw_against(third, timeline, "seconds", "consensus_error")
        if (timeline["consensus_error"] > 0).any():
            third.set_yscale("log")
        label(third, "(iii) consensus error against seconds", "seconds", r"$\sum_i\|w_i-\bar w\|^2$")
        draw_against(fourth, timeline, "seconds", "exchanges")
        label(fourth, "(iv) exchanges against seconds", "seconds", "committed exchanges")
        for axes in (first, second, third, fourth):
            _plain_numbers(axes.xaxis)
        _plain_numbers(fourth.yaxis)
        handles, names = first.get_legend_handles_labels()
        if target is not None:
            for axes in (first, second):
                line = axes.axhline(target, color="#8a8a8a", linewidth=0.9, zorder=1)
            handles, names = [*handles, line], [*names, f"target {target:g}"]
        if timeline["seed"].n_unique() > 1:
            handles, names = [*handles, Patch(color="#8a8a8a", alpha=0.3, linewidth=0)], [*names, BAND]
        legend = figure.legend(handles, names, loc="outside lower center", ncols=min(6, len(names)), frameon=False)
        for text in legend.get_texts():
            text.set_parse_math(False)
        if title:
            figure.suptitle(title, parse_math=False)
        return figure


def _plain_numbers(axis: Axis) -> None:
    """Write large numbers as 20,000 rather than in powers of ten, and few of them, so that they do not overlap."""
    axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    if axis.get_view_interval()[1] >= 1000:
        axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
