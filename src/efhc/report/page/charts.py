"""What the drawings of a report show, as plain data for scripts/report.js. Nothing here draws."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from efhc.base.arrays import Floats
from efhc.report.claims.leads import frontier_curves, seconds_curves
from efhc.report.claims.panels import panels
from efhc.report.figure_data import ControlsData, FigureData, FrontierData, Illustration, TimedSetting
from efhc.report.figures.paper import PANELS, line_styles, nearest_budget, settings_lines, strategy_rows
from efhc.report.figures.style import Line

Drawing = dict[str, Any]

MAX_BINS = 200
"""Largest number of columns of a raster; more would be thinner than a pixel or two."""


def drawings(data: FigureData | FrontierData | ControlsData, illustration: Illustration | None) -> Drawing:
    """Return everything that is drawn of a figure."""
    match data:
        case FigureData():
            lines, charts = line_styles(data), paper_charts(data)
        case _:
            lines, charts = settings_lines(data), settings_charts(data)
    drawn: Drawing = {"name": data.name, "strategies": legend(lines), "charts": charts}
    if illustration:
        drawn |= {"network": network_drawing(illustration), "rasters": raster_drawings(illustration)}
    return drawn


def legend(lines: Mapping[str, Line]) -> list[Drawing]:
    """Return the look of each strategy."""
    return [
        {"name": name, "color": line.color, "width": round(1.2 * line.width, 2), "dash": line.dash}
        for name, line in lines.items()
    ]


def paper_charts(data: FigureData) -> list[Drawing]:
    """Return the panels of a figure: mean and interval of every strategy, and panel (iv) for every budget."""
    frames, lines = panels(data), line_styles(data)
    charts = []
    for key, panel in PANELS.items():
        if key not in frames:
            continue
        chart: Drawing = {"key": key, "title": panel.title, "x": {"label": panel.x}, "y": {"label": panel.y}}
        budgets = frames[key]["budget"].unique().sort().to_list() if key == "iv" else [None]
        chart["lines"] = [
            chart_line(name, rows, panel.column, has_band=not line.reference) | ({"budget": budget} if budget else {})
            for budget in budgets
            for name, line, rows in strategy_rows(frames[key].filter(budget=budget) if budget else frames[key], lines)
        ]
        if key == "i":
            chart["y"]["fromZero"] = True
        elif key == "iii":
            chart["maySwitchToLog"] = True
        elif key == "iv":
            chart |= {"budgets": budgets, "budget": nearest_budget(frames[key])}
            radii = frames[key]["radius"].unique().sort().to_list()
            margin = 0.02 * (radii[-1] - radii[0])
            chart["x"] |= {"ticks": _numbers(radii), "range": _numbers([radii[0] - margin, radii[-1] + margin])}
            chart["lines"] = [line | {"hasDots": True} for line in chart["lines"]]
        charts.append(chart)
    return charts


def settings_charts(data: FrontierData | ControlsData) -> list[Drawing]:
    """Return a chart per setting: its measure against the share of ZT's transmission time, or over virtual seconds."""
    charts = []
    for setting in data.settings:
        x: Drawing
        if isinstance(setting, TimedSetting):
            table, column = seconds_curves(setting, tuple(data.in_front)), "seconds"
            x = {"label": "virtual seconds", "range": [0, setting.seconds]}
        else:
            curves, column = frontier_curves(setting, tuple(data.in_front)), "percent"
            table = curves.with_columns(percent=100 * pl.col("share"))
            x = {"label": "transmission time, in % of ZT's", "unit": " %", "isLog": True, "range": [0.1, 100]}
        lines = []
        for name, line in reversed(settings_lines(data).items()):  # the first leader comes last, on top
            if len(rows := table.filter(strategy=name)):
                drawn = chart_line(name, rows, column, has_band=not line.reference)
                if "spends" in rows.columns and not line.is_ceiling:
                    drawn["spentAt"] = _number(100 * rows["spends"][0])
                lines.append(drawn)
        charts.append(
            {"key": setting.name, "title": setting.title, "x": x, "y": {"label": data.measure.label}, "lines": lines}
        )
    return charts


def chart_line(name: str, rows: pl.DataFrame, column: str, *, has_band: bool) -> Drawing:
    """Return the mean of a strategy against a column, with its band if it has one."""
    line: Drawing = {"name": name, "x": _numbers(rows[column]), "y": _numbers(rows["mean"])}
    low, high = _numbers(rows["low"]), _numbers(rows["high"])
    if has_band and any(value is not None for value in low):
        line |= {"low": low, "high": high}
    return line


def network_drawing(illustration: Illustration) -> Drawing:
    """Return the network at the start of the run."""
    devices = illustration.devices.sort("device").select("device", "bandwidth", "samples", "labels")
    first = illustration.network.sort("iteration").row(0, named=True)
    links = list(zip(first["link_from"], first["link_to"], strict=True))
    changes = len(illustration.network) - 1
    note = f"{len(devices)} devices, {len(links)} links"
    note += f" at the start; they change at {changes:,} iterations" if changes > 0 else ""
    return {"seed": illustration.seed, "note": note, "devices": devices.to_dicts(), "links": links}


def raster_drawings(illustration: Illustration) -> list[Drawing]:
    """Return one map of firings per strategy: a row per device, by bandwidth, and a column per bin of iterations."""
    devices = illustration.devices.sort("bandwidth", "device", descending=[True, False])
    rows = devices.select("device", "bandwidth").to_dicts()
    drawings = []
    for strategy, events in illustration.events.items():
        shares, width = fired_shares(events, [row["device"] for row in rows])
        ever = sum(map(len, events["fired"].to_list())) / max(1, len(events) * len(rows))
        drawings.append(
            {
                "strategy": strategy,
                "note": f"a device fires in {100 * ever:.3g} % of iterations",
                "rows": rows,
                "shares": shares.round(4).tolist(),
                "end": width * shares.shape[1],
                "last": int(events["iteration"].to_numpy().max()),
            }
        )
    return drawings


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


def _number(value: float | None) -> float | None:
    """Round to six digits, more than a screen can show, and replace NaN, which JSON lacks, by None."""
    return None if value is None or not np.isfinite(value) else float(f"{value:.6g}")


def _numbers(values: Iterable[float | None]) -> list[float | None]:
    return [_number(value) for value in values]
