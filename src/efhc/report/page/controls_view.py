"""What the page shows of a strategy and its controls: a plot, a table and a sentence per setting."""

from __future__ import annotations

from typing import Any

from efhc.report.claims.controls import end_means, ends, leads, seconds_curves
from efhc.report.claims.intervals import bounds_words
from efhc.report.claims.wording import bought_words
from efhc.report.controls_data import ControlsData, ControlsSection, TimedSetting
from efhc.report.figures.frontier_figure import FrontierLine, frontier_lines
from efhc.report.figures.paper_figure import Line
from efhc.report.numbers import MEGABYTE, number_words
from efhc.report.page.claims_view import finding_view, reach_of
from efhc.report.page.plots import Plot, Spec, line_traces, plot_layout


def controls_view(section: ControlsSection) -> dict[str, Any]:
    """What the template controls.html shows of a section."""
    data = section.data
    return {
        "data": data,
        "facts": section.facts,
        "curves": controls_plots(data),
        "tables": [_table(setting, data) for setting in data.settings],
        "bounds": bounds_words([data.seeds]),
        "tuned": section.tuned,
        "configs": section.configs,
    }


def controls_plots(data: ControlsData) -> list[Plot]:
    """Return a plot per setting."""
    lines = frontier_lines(data)
    return [_plot(setting, lines, tuple(data.in_front)) for setting in data.settings]


def _plot(setting: TimedSetting, lines: dict[str, FrontierLine], in_front: tuple[str, ...]) -> Plot:
    x = {"title": {"text": "virtual seconds"}, "range": [0, setting.seconds]}
    layout = plot_layout(380, x, {"title": {"text": "accuracy"}}, hovermode="closest")
    table = seconds_curves(setting, in_front)
    traces: list[Spec] = []
    for name, line in reversed(lines.items()):  # the leader comes last, on top
        if len(rows := table.filter(strategy=name)):
            look = Line(line.color, line.dash, line.width, reference=not line.in_front)
            traces += line_traces(name, look, rows, "seconds", {}, visible=True)
    return Plot(setting.name, setting.title, {"data": traces, "layout": layout})


def _table(setting: TimedSetting, data: ControlsData) -> dict[str, Any]:
    found = leads(setting, data.leader)
    means = {row["strategy"]: row for row in end_means(ends(setting.curves)).iter_rows(named=True)}
    order = [name for name in dict.fromkeys((data.leader, *data.controls, *means)) if name in means]
    reach = reach_of(found.values())
    return {
        "title": setting.title,
        "rows": [
            {
                "name": name,
                "is_control": name in data.controls,
                "mean": f"{means[name]['mean']:.3f}",
                "least": f"{means[name]['least']:.3f}",
                "megabytes": number_words(means[name]["bytes"] / MEGABYTE),
                "lead": None if name == data.leader else finding_view(found[name], reach),
            }
            for name in order
        ],
        "sentence": bought_words([found[name] for name in data.of_bandwidth if name in found]),
    }
