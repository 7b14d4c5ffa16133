"""The figures that `efhc reproduce` draws: those of the paper, frontiers, and a strategy beside its controls.

Means over seeds are lines, and the range expected of other seeds is shaded. In figures of several settings with more
strategies than can be told apart in print, those that the figure is about are in front, with bands; all others are thin
and grey, and a CSV file has their numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
import polars as pl
from matplotlib.colors import to_hex, to_rgb
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from efhc.report.claims.intervals import FEWEST_SEEDS
from efhc.report.claims.leads import SHARES, frontier_curves, seconds_curves
from efhc.report.claims.panels import panels
from efhc.report.figure_data import ACCURACY, ControlsData, FigureData, FrontierData, SettingsData
from efhc.report.figures.style import (
    BEHIND,
    LAYOUT,
    MOST_LINES,
    WIDTHS,
    Line,
    Picture,
    Width,
    draw_mean,
    grid_of,
    label,
    shade_band,
    strategy_lines,
)
from efhc.report.looks import strategy_styles
from efhc.report.numbers import percent

if TYPE_CHECKING:
    from matplotlib.artist import Artist
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


TOTAL = "total transmission time (parameters / bandwidth)"
PANELS = {
    "i": Panel("(i) transmission time per iteration", "iteration", "iteration", "time (parameters / bandwidth)"),
    "ii": Panel("(ii) accuracy per iteration", "iteration", "iteration", "accuracy"),
    "iii": Panel("(iii) accuracy per transmission time", "transmission_time", TOTAL, "accuracy"),
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
    lines = strategy_lines(names)
    return {name: lines[name] for name in names}


def paper_figure(data: FigureData) -> Picture:
    """Draw panels (i)-(iv) in two rows if connectivity was varied, and panels (i)-(iii) in one row otherwise.

    (i) transmission time per iteration, (ii) accuracy per iteration, (iii) accuracy per transmission time,
    (iv) accuracy at 10 % of ZT's total transmission time against connectivity.
    """
    frames = panels(data)
    lines = line_styles(data)
    square = "iv" in frames
    with mpl.rc_context(LAYOUT):
        figure = Picture((WIDTHS["page"], 5.6 if square else 2.9))
        grid = figure.subplots(2, 2) if square else figure.subplots(1, 3)
        for axes, key in zip(grid.flat, PANELS, strict=False):
            _draw_panel(axes, panel_of(data, key), frames[key], lines)
        grid.flat[0].set_ylim(bottom=0)
        if square:
            grid.flat[3].set_xticks(sorted(frames["iv"]["radius"].unique()))
        figure.finish_lines(lines, other_seeds_words(data.seeds), f"Fig. {data.number}: {data.title}")
        return figure


def other_seeds_words(seeds: int) -> str | None:
    """Return what bands are that say where the mean of equally many other seeds is expected."""
    if seeds < FEWEST_SEEDS:
        return None if seeds < 2 else f"range over {seeds} seeds, \N{MULTIPLICATION SIGN} \N{SQUARE ROOT}2"
    return f"95 % range of the mean of {seeds} other seeds"


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


def panel_of(data: FigureData, key: str) -> Panel:
    """Return a panel in the words of the figure's measure."""
    panel, words = PANELS[key], data.measure.label
    return replace(panel, title=panel.title.replace(ACCURACY.name, words), y=panel.y.replace(ACCURACY.name, words))


def _draw_panel(axes: Axes, panel: Panel, frame: pl.DataFrame, lines: Mapping[str, Line]) -> None:
    title, over_radii = panel.title, panel.column == "radius"
    if over_radii:
        budget = nearest_budget(frame)
        frame = frame.filter(pl.col("budget") == budget)
        title = title.format(budget=percent(budget))
    for name, line, rows in strategy_rows(frame, lines):
        draw_mean(axes, rows, panel.column, line, label=name, **({"markevery": 1} if over_radii else {}))
        shade_band(axes, rows, panel.column, line)
    label(axes, title, panel.x, panel.y)
    axes.margins(x=0.02)
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))


PALENESS = 0.35
"""How far the colours of the strategies behind are mixed with white."""
MOST_COLUMNS: Mapping[Width, int] = {"column": 1, "page": 3}


def settings_lines(data: SettingsData) -> dict[str, Line]:
    """Return the look of each strategy on a page, in the order of the legend: those in front, the others, ceilings."""
    styles = strategy_styles(data.strategies)
    behind = [name for name in data.strategies if name not in {*data.in_front, *data.behind_all}]
    lines = {name: Line(*styles[name], width=2.0) for name in data.in_front}
    lines |= {name: Line(_pale(styles[name][0]), styles[name][1], 1.0, reference=True) for name in behind}
    return lines | dict.fromkeys(data.behind_all, CEILING)


CEILING = Line("#5b6675", ":", 1.2, reference=True, is_ceiling=True)


def printed_lines(data: SettingsData) -> dict[str, Line]:
    """Return the look of each strategy in print: those in front, and all others too if few enough to be told apart."""
    competing = [name for name in data.strategies if name not in data.behind_all]
    few = len(competing) <= MOST_LINES - min(1, len(data.behind_all))
    front = dict.fromkeys([*data.in_front, *(competing if few else [])])
    return strategy_lines(competing, list(front)) | dict.fromkeys(data.behind_all, CEILING)


def frontier_figure(data: FrontierData, width: Width = "page") -> Picture:
    """Draw accuracy against the share of ZT's transmission time that was spent, on an axis from 0.1 to 100 %.

    A stroke ends what a strategy spends; the dotted line after it is its accuracy at larger budgets.
    """

    def draw(axes: Axes, rows: pl.DataFrame, line: Line) -> None:
        if line.is_ceiling:
            axes.axhline(rows["mean"][-1], **line.look, zorder=1.5)
            return
        spends, share = pl.col("spends"), pl.col("share")
        until, beyond = rows.filter(share <= spends), rows.filter(share >= spends)
        draw_mean(axes, until, "share", line)
        axes.plot(beyond["share"], beyond["mean"], ":", color=line.color, linewidth=0.5 * line.width)
        if len(until) and len(beyond):
            axes.plot(until["share"][-1], until["mean"][-1], "|", color=line.color, markersize=5 * line.width)
        shade_band(axes, rows, "share", line)

    tables = [frontier_curves(setting, _with_bands(data)) for setting in data.settings]
    ended = {"dotted: a strategy after its end": Line2D([], [], color=BEHIND.color, linestyle=":", linewidth=1.0)}
    figure, panels = _panels(data, tables, draw, "transmission time (share of ZT's)", width, ended)
    for axes in panels:
        axes.set_xscale("log")
        axes.set_xlim(SHARES[0], SHARES[-1])
        axes.xaxis.set_major_formatter(FuncFormatter(lambda share, _: percent(share)))
    return figure


def _with_bands(data: SettingsData) -> tuple[str, ...]:
    return tuple(name for name, line in printed_lines(data).items() if not line.reference)


def controls_figure(data: ControlsData, width: Width = "page") -> Picture:
    """Draw accuracy over virtual seconds, of a strategy and its controls."""

    def draw(axes: Axes, rows: pl.DataFrame, line: Line) -> None:
        draw_mean(axes, rows, "seconds", line)
        shade_band(axes, rows, "seconds", line)

    tables = [seconds_curves(setting, _with_bands(data)) for setting in data.settings]
    figure, panels = _panels(data, tables, draw, "virtual seconds", width)
    for axes, setting in zip(panels, data.settings, strict=True):
        axes.set_xlim(0, setting.seconds)
    return figure


def _panels(
    data: SettingsData,
    tables: Sequence[pl.DataFrame],
    draw: Callable[[Axes, pl.DataFrame, Line], None],
    x: str,
    width: Width,
    more: Mapping[str, Artist] | None = None,
) -> tuple[Picture, list[Axes]]:
    """Draw one panel per setting with a common legend, which also has `more`; `draw` draws the rows of a strategy."""
    lines = printed_lines(data)
    columns = min(MOST_COLUMNS[width], len(data.settings))
    rows = -(-len(data.settings) // columns)
    with mpl.rc_context(LAYOUT):
        height = 3.6 if columns == 1 and width == "page" else 2.1
        figure = Picture((WIDTHS[width], height * rows + 0.8), data.title)
        panels = grid_of(figure, len(tables), columns)
        for place, (axes, setting, table) in enumerate(zip(panels, data.settings, tables, strict=True)):
            for name, line in reversed(lines.items()):  # the first leader comes last, on top
                if len(of_strategy := table.filter(strategy=name)):
                    draw(axes, of_strategy, line)
            is_lowest, is_left = place + columns >= len(tables), place % columns == 0
            label(axes, "", x if is_lowest else "", data.measure.label if is_left else "")
            if len(tables) > 1:
                axes.set_title(setting.title, fontsize=7.5, parse_math=False, wrap=True)
        figure.finish_lines(lines, other_seeds_words(data.seeds), table=data.name and f"{data.name}.csv", more=more)
    return figure, panels


def _pale(color: str) -> str:
    red, green, blue = (1 - (1 - PALENESS) * (1 - part) for part in to_rgb(color))
    return to_hex((red, green, blue))
