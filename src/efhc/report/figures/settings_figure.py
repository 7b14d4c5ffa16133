"""Figures of several settings, one panel each: a frontier, or a strategy and its controls.

The strategies that the figure is about are drawn in front, with bands. All others are thin and pale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import matplotlib as mpl
import polars as pl
from matplotlib.colors import to_hex, to_rgb
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from efhc.report.claims.controls import seconds_curves
from efhc.report.claims.frontier import SHARES, frontier_curves
from efhc.report.figure_data import ControlsData, FrontierData, SettingsData
from efhc.report.figures.lines import Line, draw_mean, label, shade_band
from efhc.report.figures.style import LAYOUT, Picture, grid_of
from efhc.report.looks import strategy_styles
from efhc.report.numbers import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PALENESS = 0.35
"""How far the colours of the strategies behind are mixed with white."""
MOST_COLUMNS = 3


def settings_lines(data: SettingsData) -> dict[str, Line]:
    """Return the look of each strategy, in the order of the legend: those in front, the others, ceilings."""
    styles = strategy_styles(data.strategies)
    behind = [name for name in data.strategies if name not in {*data.in_front, *data.behind_all}]
    lines = {name: Line(*styles[name], width=2.0) for name in data.in_front}
    lines |= {name: Line(_pale(styles[name][0]), styles[name][1], 1.0, reference=True) for name in behind}
    ceiling = Line("#5b6675", ":", 1.2, reference=True, is_ceiling=True)
    return lines | dict.fromkeys(data.behind_all, ceiling)


def frontier_figure(data: FrontierData) -> Picture:
    """Draw accuracy against the share of ZT's transmission time that was spent, on an axis from 0.1 to 100 %.

    A dot ends what a strategy spends; the dotted line after it is its accuracy at larger budgets.
    """

    def draw(axes: Axes, rows: pl.DataFrame, line: Line) -> None:
        if line.is_ceiling:
            axes.axhline(rows["mean"][-1], **line.look, zorder=1.5)
            return
        spends, share = pl.col("spends"), pl.col("share")
        until, beyond = rows.filter(share <= spends), rows.filter(share >= spends)
        draw_mean(axes, until, "share", line)
        axes.plot(beyond["share"], beyond["mean"], ":", color=line.color, linewidth=0.6 * line.width)
        if len(until) and len(beyond):
            axes.plot(until["share"][-1], until["mean"][-1], "o", color=line.color, markersize=2.5 * line.width**0.7)
        shade_band(axes, rows, "share", line)

    tables = [frontier_curves(setting, tuple(data.in_front)) for setting in data.settings]
    figure, panels = _panels(data, tables, draw, "transmission time, as a share of ZT's")
    for axes in panels:
        axes.set_xscale("log")
        axes.set_xlim(SHARES[0], SHARES[-1])
        axes.xaxis.set_major_formatter(FuncFormatter(lambda share, _: percent(share)))
    return figure


def controls_figure(data: ControlsData) -> Picture:
    """Draw accuracy over virtual seconds, of a strategy and its controls."""

    def draw(axes: Axes, rows: pl.DataFrame, line: Line) -> None:
        draw_mean(axes, rows, "seconds", line)
        shade_band(axes, rows, "seconds", line)

    tables = [seconds_curves(setting, tuple(data.in_front)) for setting in data.settings]
    figure, panels = _panels(data, tables, draw, "virtual seconds")
    for axes, setting in zip(panels, data.settings, strict=True):
        axes.set_xlim(0, setting.seconds)
    return figure


def _panels(
    data: SettingsData, tables: Sequence[pl.DataFrame], draw: Callable[[Axes, pl.DataFrame, Line], None], x: str
) -> tuple[Picture, list[Axes]]:
    """Draw one panel per setting with a common legend; `draw` draws the rows of a strategy."""
    lines = settings_lines(data)
    columns = min(MOST_COLUMNS, len(data.settings))
    rows = -(-len(data.settings) // columns)
    with mpl.rc_context(LAYOUT):
        figure = Picture((max(6.0, 4.2 * columns), 3.4 * rows + 1.4))
        panels = grid_of(figure, len(tables), columns)
        for axes, setting, table in zip(panels, data.settings, tables, strict=True):
            for name, line in reversed(lines.items()):  # the first leader comes last, on top
                if len(of_strategy := table.filter(strategy=name)):
                    draw(axes, of_strategy, line)
            label(axes, "", x, "accuracy")
            axes.set_title(setting.title, fontsize=10, parse_math=False)
        names = [f"{name} (ceiling)" if line.is_ceiling else name for name, line in lines.items()]
        handles = [Line2D([], [], **line.look) for line in lines.values()]
        figure.finish(handles, names, data.title, figure.columns_for(names))
    return figure, panels


def _pale(color: str) -> str:
    red, green, blue = (1 - (1 - PALENESS) * (1 - part) for part in to_rgb(color))
    return to_hex((red, green, blue))
