"""Event-driven runs over time: a line per strategy, the mean over seeds, with the range between seeds shaded."""

from __future__ import annotations

import matplotlib as mpl
import polars as pl
from matplotlib.patches import Patch

from efhc.report.figures.lines import draw_against, label, plain_numbers
from efhc.report.figures.style import LAYOUT, Picture
from efhc.report.numbers import MEGABYTE

BAND = "min to max over seeds"
"""What the shaded bands show."""


def seconds_figure(timeline: pl.DataFrame, target: float | None = None, title: str = "") -> Picture:
    """Draw four panels of an experiment's timeline.

    (i) accuracy against seconds, (ii) accuracy against megabytes sent, (iii) consensus error against seconds, and (iv)
    committed exchanges against seconds. A `target` accuracy is a thin line across (i) and (ii). With more than one
    seed, the legend says what is shaded.
    """
    with mpl.rc_context(LAYOUT):
        figure = Picture((10, 7))
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
