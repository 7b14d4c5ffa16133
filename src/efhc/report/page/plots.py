"""The plots of the page in the format of plotly.js: dicts of `data` and `layout` made of lists, strings and numbers.

Nothing here draws. The `meta` of each trace names its strategy and its budget, if it has one; by these the page's own
legend shows and hides traces in all panels at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import polars as pl

from efhc.base.arrays import Floats
from efhc.report.claims.panels import panels
from efhc.report.figure_data import FigureData, Illustration
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

MAX_BINS = 200
"""Largest number of columns of a raster; more would be thinner than a pixel or two."""
FEW = 200
"""Largest number of devices for which a layout by distances is quick; it shows the shape better than springs."""
SHOWN_LABELS = 12
"""Largest number of labels of a device that are listed; some devices have dozens."""

# Pale to dark, each step darker: a share can be read without colour too.
SHARES = [(0.0, "#f4f6f9"), (0.25, "#c3d7ea"), (0.5, "#7fb0d6"), (0.75, "#2f7fb8"), (1.0, "#0b3c6f")]
BANDWIDTHS = [(0.0, "#fde0a6"), (0.5, "#e07b39"), (1.0, "#6b1d2a")]
DASHES = {"-": "solid", "--": "dash", "-.": "dashdot", ":": "dot"}

GRID = "#e4e7ec"
AXIS: Spec = {"gridcolor": GRID, "linecolor": "#98a1ae", "zeroline": False, "ticks": "outside", "tickcolor": "#98a1ae"}
BARE: Spec = {"visible": False, "fixedrange": True}


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


def network_plot(illustration: Illustration) -> Plot:
    """Return the network at the start of the run. Devices with more bandwidth are larger and darker."""
    devices = illustration.devices.sort("device")
    bandwidths = devices["bandwidth"].to_numpy()
    links = _first_links(illustration.network)
    x, y = _places(devices["device"].to_list(), links)
    at = {device: n for n, device in enumerate(devices["device"].to_list())}
    degrees = np.bincount([at[end] for link in links for end in link], minlength=len(devices))
    lines: Spec = {
        "type": "scatter",
        "mode": "lines",
        # One trace for all: a gap between two links.
        "x": [value for i, j in links for value in (x[at[i]], x[at[j]], None)],
        "y": [value for i, j in links for value in (y[at[i]], y[at[j]], None)],
        "line": {"color": "#9aa4b1", "width": 1 if len(links) < 500 else 0.4},
        "hoverinfo": "skip",
    }
    largest = max(float(bandwidths.max()), 1e-300)
    legible = len(devices) <= 40
    scale = 34 if len(devices) <= 15 else 27 if legible else 14
    nodes: Spec = {
        "type": "scatter",
        "mode": "markers+text" if legible else "markers",
        "x": x,
        "y": y,
        "text": [str(device) for device in devices["device"]],
        "textposition": "middle center",
        "textfont": {
            "size": 11 if scale > 30 else 9,
            "color": ["#ffffff" if b > 0.45 * largest else "#1d2733" for b in bandwidths],
        },
        "customdata": [
            [_number(bandwidth), _labels(labels), int(degree), samples]
            for bandwidth, labels, degree, samples in zip(
                bandwidths, devices["labels"], degrees, devices["samples"].to_list(), strict=True
            )
        ],
        "hovertemplate": (
            "device %{text}<br>bandwidth %{customdata[0]:,.5~g}<br>labels %{customdata[1]}"
            "<br>samples %{customdata[3]}<br>degree %{customdata[2]}<extra></extra>"
        ),
        "marker": {
            # The area goes with the bandwidth, down to what still holds its number.
            "size": [round(max(scale * float(np.sqrt(b / largest)), 0.5 * scale), 1) for b in bandwidths],
            "color": _numbers(bandwidths),
            "colorscale": BANDWIDTHS,
            "cmin": 0,
            "cmax": _number(largest),
            "opacity": 1,
            "line": {"color": "#ffffff", "width": 1.5},
            "colorbar": {
                "title": {"text": "bandwidth", "side": "right"},
                "thickness": 12,
                "outlinewidth": 0,
                "len": 0.8,
            },
        },
    }
    layout = plot_layout(400, BARE, {**BARE, "scaleanchor": "x"}, hovermode="closest")
    layout["margin"] = {"l": 10, "r": 10, "t": 10, "b": 10}
    changes = len(illustration.network) - 1
    note = f"{len(devices)} devices, {len(links)} links"
    note += f" at the start; they change at {changes:,} iterations" if changes > 0 else ""
    return Plot("network", "Network", {"data": [lines, nodes], "layout": layout}, note)


def raster_plots(illustration: Illustration) -> list[Plot]:
    """Return one map of firings per strategy: a row per device, by bandwidth, and a column per bin of iterations."""
    devices = illustration.devices.sort("bandwidth", "device")
    names = [f"{device} · {b:,.4g}" for device, b in devices.select("device", "bandwidth").iter_rows()]
    return [
        _raster(f"raster-{n}", strategy, events, devices["device"].to_list(), names)
        for n, (strategy, events) in enumerate(illustration.events.items())
    ]


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


def _raster(key: str, strategy: str, events: pl.DataFrame, devices: Sequence[int], names: Sequence[str]) -> Plot:
    shares, width = fired_shares(events, devices)
    layout = plot_layout(
        max(190, min(70 + 12 * len(devices), 520)),
        {"title": {"text": "iteration"}, "showgrid": False},
        {"title": {"text": "device · bandwidth", "standoff": 6}, "showgrid": False, "tickfont": {"size": 10}},
        hovermode="closest",
    )
    layout["yaxis"]["automargin"] = True
    layout["margin"]["l"] = 10
    when = "iteration %{x}" if width == 1 else f"{width} iterations around %{{x:.0f}}"
    cells: Spec = {
        "type": "heatmap",
        "z": [_numbers(row) for row in 100 * shares],
        "x0": (width - 1) / 2,
        "dx": width,
        "y": list(names),
        "zmin": 0,
        "zmax": 100,
        "colorscale": SHARES,
        "showscale": False,
        "hovertemplate": f"device %{{y}}<br>{when}: fired in %{{z:.3~g}} %<extra></extra>",
        "meta": {"strategy": strategy},
    }
    ever = sum(map(len, events["fired"].to_list())) / max(1, len(events) * len(devices))
    return Plot(
        key, strategy, {"data": [cells], "layout": layout}, f"a device fires in {100 * ever:.3g} % of iterations"
    )


def fired_shares(events: pl.DataFrame, devices: Sequence[int], bins: int = MAX_BINS) -> tuple[Floats, int]:
    """Return the share of each bin's iterations in which each of the `devices` (rows) fired, and the width of a bin.

    Bins are equally wide, except that the last one may be shorter; its share is taken of the iterations that it has.
    """
    iterations = events["iteration"].to_numpy()
    width = -(-(int(iterations.max()) + 1) // bins)
    per_bin = np.bincount(iterations // width)
    row_of = np.empty(max(devices) + 1, int)
    row_of[list(devices)] = np.arange(len(devices))
    fired = events.select("iteration", "fired").explode("fired").drop_nulls()
    counts = np.zeros((len(devices), len(per_bin)))
    np.add.at(counts, (row_of[fired["fired"].to_numpy()], fired["iteration"].to_numpy() // width), 1)
    return counts / per_bin, width


def _first_links(network: pl.DataFrame) -> list[tuple[int, int]]:
    row = network.sort("iteration").row(0, named=True)
    return list(zip(row["link_from"], row["link_to"], strict=True))


def _places(devices: list[int], links: list[tuple[int, int]]) -> tuple[list[float], list[float]]:
    import networkx as nx

    graph = nx.Graph()
    graph.add_nodes_from(devices)
    graph.add_edges_from(links)
    near = len(devices) <= FEW and nx.is_connected(graph)
    places = nx.kamada_kawai_layout(graph) if near else nx.spring_layout(graph, seed=0)
    # Three digits are a pixel or less, and are the same on every machine.
    x, y = np.round([places[device] for device in devices], 3).T + 0.0
    return x.tolist(), y.tolist()


def _labels(labels: Iterable[int]) -> str:
    listed = [str(label) for label in labels]
    shown = ", ".join(listed[:SHOWN_LABELS])
    return shown if len(listed) <= SHOWN_LABELS else f"{shown}, ... ({len(listed)} in all)"


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
