"""A strategy and its controls: accuracy over virtual seconds, one panel per setting.

The strategy itself and the controls of its bandwidths are drawn in front, with bands. All others are thin and pale.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from efhc.report.claims.controls import seconds_curves
from efhc.report.controls_data import ControlsData, TimedSetting
from efhc.report.figures.frontier_figure import FrontierLine, draw_mean, frontier_lines, settings_figure, shade_band
from efhc.report.figures.style import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def controls_figure(data: ControlsData) -> Picture:
    """Draw one panel per setting."""
    lines = frontier_lines(data)
    return settings_figure(data, lines, partial(_draw, lines=lines, in_front=tuple(data.in_front)))


def _draw(axes: Axes, setting: TimedSetting, lines: dict[str, FrontierLine], in_front: tuple[str, ...]) -> None:
    table = seconds_curves(setting, in_front)
    for name, line in reversed(lines.items()):  # the leader comes last, on top
        rows = table.filter(strategy=name)
        draw_mean(axes, rows, "seconds", line)
        shade_band(axes, rows, "seconds", line)
    axes.set_xlim(0, setting.seconds)
    axes.set_xlabel("virtual seconds")
