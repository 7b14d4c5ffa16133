"""A figure of the paper in the paper's layout: means over seeds, with the range expected of other seeds shaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
import polars as pl
from matplotlib.colors import to_hex
from matplotlib.ticker import MaxNLocator

from efhc.report.claims.panels import panels
from efhc.report.figure_data import FigureData
from efhc.report.figures.lines import Line, draw_mean, label, shade_band
from efhc.report.figures.style import LAYOUT, Picture
from efhc.report.looks import strategy_styles
from efhc.report.numbers import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BUDGET = 0.1
"""The share of ZT's total transmission time at which panel (iv) is drawn."""


@dataclass(frozen=True)
class Panel:
    """The axes of one panel."""

    title: str
    column: str
    """The column of the panel's table on the horizontal axis."""
    x: str
    y: str


PANELS = {
    "i": Panel("(i) transmission time per iteration", "iteration", "iteration", "transmission time"),
    "ii": Panel("(ii) accuracy per iteration", "iteration", "iteration", "accuracy"),
    "iii": Panel("(iii) accuracy per transmission time", "transmission_time", "total transmission time", "accuracy"),
    "iv": Panel("(iv) accuracy at {budget} of ZT's time", "radius", "connectivity (radius)", "accuracy"),
}


def line_styles(data: FigureData) -> dict[str, Line]:
    """Return the look of each strategy, in the order of the legend.

    In an ablation the strategies go from dark to light with their value, and a strategy without a value is a thin grey
    reference line.
    """
    names: list[str] = data.curves["strategy"].unique(maintain_order=True).to_list()
    if data.varied:
        ordered = sorted((name for name in names if name in data.varied), key=lambda name: data.varied[name])
        # The lightest end of the map would vanish on white.
        shades = mpl.colormaps["viridis"](np.linspace(0.0, 0.88, len(ordered)))
        varied = {name: Line(to_hex(shade)) for name, shade in zip(ordered, shades, strict=True)}
        return varied | {name: Line("#8a8a8a", width=0.9, reference=True) for name in names if name not in varied}
    return {name: Line(*style) for name, style in strategy_styles(names).items()}


def paper_figure(data: FigureData) -> Picture:
    """Draw panels (i)-(iv) in two rows if connectivity was varied, and panels (i)-(iii) in one row otherwise.

    (i) transmission time per iteration, (ii) accuracy per iteration, (iii) accuracy per transmission time,
    (iv) accuracy at 10 % of ZT's total transmission time against connectivity.
    """
    frames = panels(data)
    lines = line_styles(data)
    square = "iv" in frames
    with mpl.rc_context(LAYOUT):
        figure = Picture((7.2, 6.0) if square else (10.0, 3.5))
        grid = figure.subplots(2, 2) if square else figure.subplots(1, 3)
        for axes, key in zip(grid.flat, PANELS, strict=False):
            _draw_panel(axes, key, frames[key], lines)
        grid.flat[0].set_ylim(bottom=0)
        if square:
            grid.flat[3].set_xticks(sorted(frames["iv"]["radius"].unique()))
        drawn = {str(line.get_label()): line for line in grid.flat[1].lines}
        title = f"Fig. {data.number}: {data.title}"
        figure.finish(list(drawn.values()), list(drawn), title, figure.columns_for(drawn))
        return figure


def nearest_budget(frame: pl.DataFrame, budget: float = BUDGET) -> float:
    """Return the budget of the table that is closest to `budget`."""
    budgets: list[float] = frame["budget"].unique().sort().to_list()
    return min(budgets, key=lambda given: abs(given - budget))


def strategy_rows(frame: pl.DataFrame, lines: Mapping[str, Line]) -> Iterator[tuple[str, Line, pl.DataFrame]]:
    """Yield the rows of each strategy that the table contains, in the order of the legend."""
    for name, line in lines.items():
        rows = frame.filter(pl.col("strategy") == name)
        if len(rows):
            yield name, line, rows


def _draw_panel(axes: Axes, key: str, frame: pl.DataFrame, lines: Mapping[str, Line]) -> None:
    panel, title = PANELS[key], PANELS[key].title
    if key == "iv":
        budget = nearest_budget(frame)
        frame = frame.filter(pl.col("budget") == budget)
        title = title.format(budget=percent(budget))
    for name, line, rows in strategy_rows(frame, lines):
        draw_mean(axes, rows, panel.column, line, label=name, marker="o" if key == "iv" else None, markersize=4)
        shade_band(axes, rows, panel.column, line)
    label(axes, title, panel.x, panel.y)
    axes.margins(x=0.02)
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
