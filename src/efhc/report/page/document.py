"""The report: one HTML file that works offline, without a server and without other files.

The templates escape whatever they are given (Jinja2's autoescape); only our own style sheet and scripts are inserted
as they are. The same input gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from efhc.report.claims.intervals import FEWEST_SEEDS, RESAMPLES
from efhc.report.claims.judging import Judgement
from efhc.report.controls_data import ControlsSection
from efhc.report.figure_data import Section
from efhc.report.figures.frontier_figure import FrontierLine, frontier_lines
from efhc.report.figures.paper_figure import Line, line_styles
from efhc.report.frontier_data import FrontierSection, SettingsSection
from efhc.report.numbers import percent
from efhc.report.page.claims_view import claim_numbers, claim_views, totals
from efhc.report.page.controls_view import controls_view
from efhc.report.page.drawings import network_drawing, raster_drawings
from efhc.report.page.frontier_view import frontier_view
from efhc.report.page.live.bundle import bundle, inside_an_element
from efhc.report.page.plots import curve_plots

# The browser itself refuses whatever is not in the file; images are what plotly's camera button makes.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
PLOTLY = "plotly/plotly-cartesian.min.js"
"""plotly.js with the plots of an x and a y axis; plotly/README.md says which version and how to renew it."""

SWATCH_DASHES = {"-": "none", "--": "7 3", "-.": "8 2.5 2 2.5", ":": "2 2.5"}


def page(
    sections: Sequence[Section | SettingsSection],
    judgements: Sequence[Judgement],
    title: str,
    provenance: Mapping[str, Any],
) -> str:
    """Return the HTML of the report; `provenance` describes how the report itself was made."""
    of_paper = [section for section in sections if isinstance(section, Section)]
    return (
        _templates()
        .get_template("report.html")
        .render(
            title=title,
            policy=POLICY,
            style=_own_file("page.css") + _own_file("live/drawings.css"),
            scripts=[_own_file(PLOTLY), _own_file("page.js"), Markup(inside_an_element(bundle("report")))],
            lead=_lead(sections),
            totals=totals(judgements),
            shows_claims=bool(of_paper) or not sections,
            claims=claim_views(judgements, of_paper),
            figures=[_view(section, judgements) for section in sections],
            provenance=list(_flat(provenance)),
            resamples=f"{RESAMPLES:,}",
            fewest_seeds=FEWEST_SEEDS,
        )
    )


@cache
def _templates() -> Environment:
    templates = Environment(
        loader=PackageLoader("efhc.report.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters["percent"] = percent
    templates.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}
    return templates


@cache
def _own_file(name: str) -> Markup:
    """A style sheet or script of the package, in which nothing ends the element that it is put into."""
    return Markup(inside_an_element(files("efhc.report.page").joinpath(name).read_text("utf-8")))


def _lead(sections: Sequence[Section | SettingsSection]) -> str:
    seeds = sorted({section.data.seeds for section in sections})
    many = " to ".join(map(str, dict.fromkeys([*seeds[:1], *seeds[-1:]])))
    told = f"{len(sections)} figure{'s' if len(sections) != 1 else ''}"
    return told + (f", {many} seed{'s' if many != '1' else ''} each" if sections else "")


def _view(section: Section | SettingsSection, judgements: Sequence[Judgement]) -> dict[str, Any]:
    """What the page shows of a section, and the template that shows it."""
    if isinstance(section, Section):
        view, template, label = _figure_view(section, judgements), "figure.html", f"Fig. {section.data.number}"
    else:
        label = section.data.title
        if isinstance(section, ControlsSection):
            view, template = controls_view(section), "controls.html"
        else:
            assert isinstance(section, FrontierSection)
            view, template = frontier_view(section, judgements), "frontier.html"
        view["legend"] = _legend(frontier_lines(section.data))
    return view | {"template": template, "label": label, "provenance": list(_flat(section.provenance))}


def _legend(lines: Mapping[str, Line | FrontierLine]) -> list[dict[str, str]]:
    return [
        {"name": name, "color": line.color, "width": f"{1.4 * line.width:.3g}", "dash": SWATCH_DASHES[line.dash]}
        for name, line in lines.items()
    ]


def _figure_view(section: Section, judgements: Sequence[Judgement]) -> dict[str, Any]:
    """What the template figure.html shows of a section."""
    data, illustration = section.data, section.illustration
    return {
        "data": data,
        "facts": section.facts,
        "claims": claim_numbers(section, judgements),
        "legend": _legend(line_styles(data)),
        "curves": curve_plots(data),
        "seed": illustration.seed,
        "network": network_drawing(illustration),
        "rasters": raster_drawings(illustration),
        "config": section.config,
    }


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Yield the values of nested tables, each with its path."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name} · ")
        else:
            yield f"{before}{name}", value if isinstance(value, str) else json.dumps(value, default=str)
