"""A frontier: accuracy against the share of ZT's transmission time that was spent, one panel per setting.

The leaders, EF-HC and ZT are drawn in front, with bands. All others are thin and pale. A dot ends what a strategy
spends; the dotted line after it is its accuracy at larger budgets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import polars as pl
from matplotlib.colors import to_hex, to_rgb
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from efhc.report.claims.frontier import SHARES, frontier_curves
from efhc.report.figures.paper_figure import with_interval
from efhc.report.figures.style import LAYOUT, Picture
from efhc.report.frontier_data import FrontierData, SettingData, SettingsData
from efhc.report.looks import strategy_styles
from efhc.report.numbers import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PALENESS = 0.35
"""How far the colours of the strategies behind are mixed with white."""
MOST_COLUMNS = 3


@dataclass(frozen=True)
class FrontierLine:
    """How a strategy is drawn."""

    color: str
    dash: str
    width: float
    in_front: bool
    is_ceiling: bool = False


def frontier_lines(data: SettingsData) -> dict[str, FrontierLine]:
    """Return the look of each strategy, in the order of the legend: those in front, the others, ceilings."""
    styles = strategy_styles(data.strategies)
    behind = [name for name in data.strategies if name not in {*data.in_front, *data.behind_all}]
    lines = {name: FrontierLine(styles[name][0], styles[name][1], 2.0, True) for name in data.in_front}
    lines |= {name: FrontierLine(_pale(styles[name][0]), styles[name][1], 1.0, False) for name in behind}
    return lines | {name: FrontierLine("#5b6675", ":", 1.2, False, True) for name in data.behind_all}


def frontier_figure(data: FrontierData) -> Picture:
    """Draw one panel per setting, with a logarithmic horizontal axis from 0.1 to 100 %."""
    lines = frontier_lines(data)
    return settings_figure(data, lines, partial(_draw, lines=lines, in_front=tuple(data.in_front)))


def settings_figure(data: SettingsData, lines: dict[str, FrontierLine], draw: Callable[[Axes, Any], None]) -> Picture:
    """Draw one panel per setting with a common legend; `draw` draws the lines of a setting and names its x axis."""
    columns = min(MOST_COLUMNS, len(data.settings))
    rows = -(-len(data.settings) // columns)
    with mpl.rc_context(LAYOUT):
        figure = Picture((max(6.0, 4.2 * columns), 3.4 * rows + 1.4))
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes, setting in zip(grid.flat, data.settings, strict=False):
            draw(axes, setting)
            axes.set_ylabel("accuracy")
            axes.set_title(setting.title, fontsize=10, parse_math=False)
        for axes in grid.flat[len(data.settings) :]:
            axes.set_visible(False)
        handles = [Line2D([], [], **_look(line)) for line in lines.values()]
        names = [f"{name} (ceiling)" if line.is_ceiling else name for name, line in lines.items()]
        width = int(figure.get_figwidth() * 11 / (6 + max(map(len, names))))
        legend = figure.legend(
            handles, names, loc="outside lower center", ncols=max(1, min(len(names), width)), frameon=False
        )
        for text in legend.get_texts():
            text.set_parse_math(False)
        figure.suptitle(data.title, parse_math=False, fontsize=11)
        return figure


def _draw(axes: Axes, setting: SettingData, lines: dict[str, FrontierLine], in_front: tuple[str, ...]) -> None:
    table = frontier_curves(setting, in_front)
    for name, line in reversed(lines.items()):  # the first leader comes last, on top
        rows = table.filter(strategy=name)
        if not len(rows):
            continue
        order = 3 if line.in_front else 2
        if line.is_ceiling:
            axes.axhline(rows["mean"][-1], **_look(line), zorder=1.5)
            continue
        until, beyond = (
            rows.filter(pl.col("share") <= pl.col("spends")),
            rows.filter(pl.col("share") >= pl.col("spends")),
        )
        draw_mean(axes, until, "share", line)
        axes.plot(beyond["share"], beyond["mean"], ":", color=line.color, linewidth=0.6 * line.width, zorder=order)
        if len(until) and len(beyond):
            axes.plot(until["share"][-1], until["mean"][-1], "o", color=line.color, markersize=2.5 * line.width**0.7)
        shade_band(axes, rows, "share", line)
    axes.set_xscale("log")
    axes.set_xlim(SHARES[0], SHARES[-1])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda share, _: percent(share)))
    axes.set_xlabel("transmission time, as a share of ZT's")


def draw_mean(axes: Axes, rows: pl.DataFrame, x: str, line: FrontierLine) -> None:
    """Draw the mean of a strategy against column `x`."""
    axes.plot(rows[x], rows["mean"], **_look(line), zorder=3 if line.in_front else 2)


def shade_band(axes: Axes, rows: pl.DataFrame, x: str, line: FrontierLine) -> None:
    """Shade the band of a strategy, if it has one."""
    shaded = with_interval(rows)
    axes.fill_between(shaded[x], shaded["low"], shaded["high"], color=line.color, alpha=0.15, linewidth=0)


def _look(line: FrontierLine) -> dict[str, Any]:
    return {"color": line.color, "linestyle": line.dash, "linewidth": line.width}


def _pale(color: str) -> str:
    red, green, blue = (1 - (1 - PALENESS) * (1 - part) for part in to_rgb(color))
    return to_hex((red, green, blue))
