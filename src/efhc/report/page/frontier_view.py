"""What the page shows of a frontier: a plot and a table per setting, and the verdicts on its leaders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from efhc.report.claims.frontier import frontier_curves, mean_table
from efhc.report.claims.judging import Judgement
from efhc.report.figures.frontier_figure import FrontierLine, frontier_lines
from efhc.report.figures.paper_figure import Line
from efhc.report.frontier_data import FrontierData, FrontierSection, SettingData
from efhc.report.page.claims_view import statement_views
from efhc.report.page.plots import Plot, Spec, line_traces, plot_layout


def frontier_view(section: FrontierSection, judgements: Sequence[Judgement]) -> dict[str, Any]:
    """What the template frontier.html shows of a section."""
    data = section.data
    titles = {data.label(setting): setting.title for setting in data.settings}
    ours = [one for one in judgements if one.claim is None and one.figures[0] in titles]
    return {
        "data": data,
        "facts": section.facts,
        "curves": frontier_plots(data),
        "tables": [_table(setting, data) for setting in data.settings],
        "titles": titles,
        "statements": statement_views(ours, {}),
        "comparisons": f"{sum(len(one.findings) for one in ours):,}",
        "tuned": section.tuned,
        "configs": section.configs,
    }


def frontier_plots(data: FrontierData) -> list[Plot]:
    """Return a plot per setting."""
    lines = frontier_lines(data)
    return [_plot(setting, lines, tuple(data.in_front)) for setting in data.settings]


def _plot(setting: SettingData, lines: dict[str, FrontierLine], in_front: tuple[str, ...]) -> Plot:
    layout = plot_layout(
        380,
        {
            "title": {"text": "transmission time, in % of ZT's"},
            "type": "log",
            "range": [-1, 2],
            "tickvals": [0.1, 1, 10, 100],
            "ticktext": ["0.1 %", "1 %", "10 %", "100 %"],
        },
        {"title": {"text": "accuracy"}},
        hovermode="closest",
    )
    table = frontier_curves(setting, in_front).with_columns(percent=100 * pl.col("share"))
    traces: list[Spec] = []
    for name, line in reversed(lines.items()):  # the first leader comes last, on top
        if len(rows := table.filter(strategy=name)):
            traces += _strategy_traces(name, line, rows)
    return Plot(f"frontier-{setting.name}", setting.title, {"data": traces, "layout": layout})


def _strategy_traces(name: str, line: FrontierLine, rows: pl.DataFrame) -> list[Spec]:
    """Return the band and the mean as far as the strategy spends, its end as a dot, and its accuracy beyond."""
    look = Line(line.color, line.dash, line.width, reference=not line.in_front)
    if line.is_ceiling:
        return line_traces(name, look, rows, "percent", {}, visible=True)
    spent = pl.col("share") <= pl.col("spends")
    traces = (
        line_traces(name, look, rows.filter(spent), "percent", {}, visible=True) if rows.filter(spent).height else []
    )
    if len(beyond := rows.filter(pl.col("share") >= pl.col("spends"))):
        dotted = Line(line.color, ":", 0.6 * line.width, reference=True)
        (after,) = line_traces(name, dotted, beyond, "percent", {}, visible=True)
        traces.append(after)
        if traces[0] is not after:
            end = {"x": after["x"][:1], "y": after["y"][:1], "mode": "markers"}
            traces.append(after | end | {"marker": {"size": 4 + 2 * line.width, "color": line.color}})
    return traces


def _table(setting: SettingData, data: FrontierData) -> dict[str, Any]:
    means = mean_table(setting.curves)
    budgets = [column for column in means.columns if column.startswith("at ")]
    competing = means.filter(~pl.col("strategy").is_in(list(data.ceilings)))
    best = {column: competing[column].max() for column in budgets}
    order = [name for name in frontier_lines(data) if name in set(means["strategy"])]
    rows = {row["strategy"]: row for row in means.iter_rows(named=True)}
    return {
        "title": setting.title,
        "columns": [*(column.removeprefix("at ") for column in budgets), "spends"],
        "rows": [
            {
                "name": name,
                "is_ceiling": name in data.ceilings,
                "cells": [
                    *({"words": _accuracy(rows[name][one]), "best": rows[name][one] == best[one]} for one in budgets),
                    {"words": _share(rows[name]["spends"]), "best": False},
                ],
            }
            for name in order
        ],
    }


def _accuracy(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _share(value: float) -> str:
    return f"{100 * value:.0f} %" if value >= 0.1 else f"{100 * value:.2g} %"
