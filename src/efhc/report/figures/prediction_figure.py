"""What nodes did beside what the simulator said: a line for each, per strategy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

import matplotlib as mpl
import polars as pl
from matplotlib.lines import Line2D

from efhc.report.figures.lines import label
from efhc.report.figures.style import LAYOUT, Picture
from efhc.report.looks import strategy_colours
from efhc.report.numbers import MEGABYTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEASURED: Literal["-"] = "-"
PREDICTED: Literal["--"] = "--"


class Curves(NamedTuple):
    """One experiment: the timelines of nodes and of the simulator, and the accuracy to reach."""

    measured: pl.DataFrame
    predicted: pl.DataFrame
    target: float


def prediction_figure(experiments: Mapping[str, Curves]) -> Picture:
    """Draw accuracy against seconds and against megabytes, a row of panels per experiment, a line per run.

    Strategies have their colours; what nodes did is solid, what the simulator said is dashed. The target accuracy is a
    thin line.
    """
    names = list(dict.fromkeys(name for curves in experiments.values() for name in curves.measured["strategy"]))
    colours = strategy_colours(names)
    with mpl.rc_context(LAYOUT):
        figure = Picture((10, 0.6 + 3.4 * len(experiments)))
        rows = figure.subplots(len(experiments), 2, squeeze=False)
        for (left, right), (title, curves) in zip(rows, experiments.items(), strict=True):
            for timeline, dashes in ((curves.measured, MEASURED), (curves.predicted, PREDICTED)):
                in_megabytes = timeline.with_columns(pl.col("bytes") / MEGABYTE)
                _draw(left, timeline, "seconds", dashes, colours)
                _draw(right, in_megabytes, "bytes", dashes, colours)
            for axes, x in ((left, "seconds"), (right, "MB of models sent by all devices")):
                axes.axhline(curves.target, color="#8a8a8a", linewidth=0.9, zorder=1)
                label(axes, title, x, "accuracy")
        entries = {name: Line2D([], [], color=colours[name]) for name in names}
        entries["measured: nodes"] = Line2D([], [], color="#444444", linestyle=MEASURED)
        entries["predicted: simulator"] = Line2D([], [], color="#444444", linestyle=PREDICTED)
        entries["target"] = Line2D([], [], color="#8a8a8a", linewidth=0.9)
        figure.finish(list(entries.values()), list(entries), columns=7)
        return figure


def _draw(axes: Axes, timeline: pl.DataFrame, x: str, dashes: str, colours: Mapping[str, str]) -> None:
    for (strategy, _), rows in timeline.group_by("strategy", "seed", maintain_order=True):
        known = rows.drop_nulls("accuracy")
        axes.plot(known[x], known["accuracy"], linestyle=dashes, color=colours[str(strategy)], linewidth=1.3)
