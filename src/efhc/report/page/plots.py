"""The curves of the page in the format of plotly.js: dicts of `data` and `layout` made of lists, strings and numbers.

Nothing here draws. The `meta` of each trace names its strategy and its budget, if it has one; by these the page's own
legend shows and hides traces in all panels at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import polars as pl

from efhc.report.claims.panels import panels
from efhc.report.figure_data import FigureData
from efhc.report.figures.paper_figure import (
    PANELS,
    Line,
    line_styles,
    nearest_budget,
    strategy_rows,
    with_interval,
)
from efhc.report.numbers import percent

Spec = dict[str, Any]

DASHES = {"-": "solid", "--": "dash", "-.": "dashdot", ":": "dot"}

GRID = "#e4e7ec"
AXIS: Spec = {"gridcolor": GRID, "linecolor": "#98a1ae", "zeroline": False, "ticks": "outside", "tickcolor": "#98a1ae"}


@dataclass(frozen=True, eq=False)
class Plot:
    """A plot and what stands around it."""

    key: str
    """Unique within the figure, and valid in an HTML id."""
    title: str
    """Plain text."""
    spec: Spec
    note: str = ""
    """What a reader needs to know, as plain text."""
    budgets: tuple[float, ...] = ()
    """The budgets that a reader can choose from; the traces of one of them are shown."""
    budget: float | None = None
    """The budget that is shown first."""
    log_range: tuple[float, float] | None = None
    """The powers of ten that the horizontal axis spans if a reader makes it logarithmic, to see its left end."""


def curve_plots(data: FigureData) -> list[Plot]:
    """Return the panels of a figure: mean and interval of every strategy, and panel (iv) for every budget."""
    frames, lines = panels(data), line_styles(data)
    return [_curves(key, frames[key], lines) for key in PANELS if key in frames]


def _curves(key: str, frame: pl.DataFrame, lines: dict[str, Line]) -> Plot:
    panel = PANELS[key]
    layout = plot_layout(
        320,
        {"title": {"text": panel.x}},
        {"title": {"text": panel.y}, "rangemode": "tozero" if key == "i" else "normal"},
        # In (iii) each strategy has times of its own: there is no common vertical line to read along.
        hovermode="closest" if key == "iii" else "x unified",
    )
    if key != "iv":
        traces = [
            trace
            for part in strategy_rows(frame, lines)
            for trace in line_traces(*part, panel.column, {}, visible=True)
        ]
        log_range = _log_range(frame, panel.column) if key == "iii" else None
        return Plot(key, panel.title, {"data": traces, "layout": layout}, log_range=log_range)
    layout["xaxis"]["tickvals"] = _numbers(frame["radius"].unique().sort())
    first, budgets = nearest_budget(frame), frame["budget"].unique().sort().to_list()
    traces = [
        trace
        for budget in budgets
        for part in strategy_rows(frame.filter(pl.col("budget") == budget), lines)
        for trace in line_traces(*part, panel.column, {"budget": budget}, visible=budget == first)
    ]
    title = panel.title.format(budget=percent(first))
    return Plot(key, title, {"data": traces, "layout": layout}, budgets=tuple(budgets), budget=first)


def _log_range(frame: pl.DataFrame, column: str) -> tuple[float, float] | None:
    """Start where every strategy has a point: left of its first point, plotly would draw a line out of nowhere."""
    positive = frame.filter(pl.col(column) > 0)
    if not len(positive):
        return None
    first = positive.group_by("strategy").agg(pl.col(column).min())[column].to_numpy().max()
    low, high = np.log10([first, positive[column].to_numpy().max()]).round(4).tolist()
    return low, high


def line_traces(
    name: str, line: Line, rows: pl.DataFrame, column: str, meta: dict[str, Any], *, visible: bool
) -> list[Spec]:
    """Return the trace of the mean, preceded by the band of the interval if there is one."""
    band = with_interval(rows)
    common: Spec = {
        "type": "scatter",
        "name": escape(name, quote=False),  # plotly reads tags in names
        "legendgroup": escape(name, quote=False),
        "showlegend": False,
        "visible": visible,
        "meta": {"strategy": name, **meta},
    }
    mean: Spec = common | {
        "mode": "lines+markers" if "budget" in meta else "lines",
        "x": _numbers(rows[column]),
        "y": _numbers(rows["mean"]),
        "line": {"color": line.color, "dash": DASHES[line.dash], "width": 1.2 * line.width},
        "marker": {"size": 7},
        "hovertemplate": "at %{x:.4~g}: %{y:.4~g}" if column == "transmission_time" else "%{y:.4~g}",
    }
    if line.reference or not len(band):
        return [mean]
    if len(band) == len(rows):
        mean["customdata"] = [list(pair) for pair in zip(_numbers(rows["low"]), _numbers(rows["high"]), strict=True)]
        mean["hovertemplate"] += "  (%{customdata[0]:.4~g} to %{customdata[1]:.4~g})"
    x = _numbers(band[column])
    outline: Spec = common | {
        "mode": "lines",
        "x": x + x[::-1],
        "y": _numbers(band["high"]) + _numbers(band["low"])[::-1],
        "fill": "toself",
        "fillcolor": _transparent(line.color, 0.12),
        "line": {"color": _transparent(line.color, 0.4), "width": 0.6},
        "hoverinfo": "skip",
    }
    return [outline, mean]


def plot_layout(height: int, x: Spec, y: Spec, *, hovermode: str) -> Spec:
    """Return the look of a plot of this height; `x` and `y` are what its axes have of their own."""
    return {
        "height": height,
        "autosize": True,
        "margin": {"l": 62, "r": 12, "t": 10, "b": 48},
        "font": {
            "family": "system-ui, 'Segoe UI', 'Liberation Sans', Arial, sans-serif",
            "size": 12,
            "color": "#39434f",
        },
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "modebar": {"bgcolor": "rgba(255,255,255,0.8)", "color": "#8a94a3", "activecolor": "#0a5c96"},
        "hovermode": hovermode,
        "hoverlabel": {"namelength": -1, "bgcolor": "#ffffff", "bordercolor": "#98a1ae", "font": {"color": "#1d2733"}},
        "showlegend": False,
        "xaxis": AXIS | x,
        "yaxis": AXIS | y,
    }


def _transparent(color: str, opacity: float) -> str:
    red, green, blue = bytes.fromhex(color.removeprefix("#"))
    return f"rgba({red},{green},{blue},{opacity})"


def _number(value: float | None) -> float | None:
    """Round to six digits, more than a screen can show, and replace NaN, which JSON lacks, by None."""
    return None if value is None or not np.isfinite(value) else float(f"{value:.6g}")


def _numbers(values: Iterable[float | None]) -> list[float | None]:
    return [_number(value) for value in values]
