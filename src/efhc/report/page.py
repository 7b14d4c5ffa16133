"""The report: one HTML file that needs nothing else, no server and no network.

Everything that comes from data goes through `_text` (HTML) or `_json` (scripts). The same input gives the same bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape as _text
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from efhc.report.figure_data import Section
from efhc.report.interactive import SHARES, Plot, curve_plots, network_plot, raster_plots
from efhc.report.intervals import FEWEST_SEEDS, RESAMPLES
from efhc.report.page_claims import claims, claims_of, totals
from efhc.report.paper_figures import Line, line_styles, percent

if TYPE_CHECKING:
    from efhc.report.verdicts import Judgement

# The browser itself refuses whatever is not in the file; images are what plotly's camera button makes.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"

SWATCH_DASHES = {"-": "none", "--": "7 3", "-.": "8 2.5 2 2.5", ":": "2 2.5"}


def page(
    sections: Sequence[Section], judgements: Sequence[Judgement], title: str, provenance: Mapping[str, Any]
) -> str:
    """The whole report; `provenance` is of the report, beside that of each section's runs."""
    links = [("#claims", "Claims"), *((f"#{s.data.name}", f"Fig. {s.data.number}") for s in sections)]
    return "".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{_text(POLICY)}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            f"<title>{_text(title)}</title>\n<style>\n{_file('page.css')}</style>\n</head>\n<body>\n",
            f'<header id="top"><h1>{_text(title)}</h1>\n{_lead(sections, judgements)}</header>\n',
            '<nav aria-label="Figures"><ul>',
            *(f'<li><a href="{_text(to)}">{_text(name)}</a></li>' for to, name in links),
            "</ul></nav>\n<main>\n",
            "<noscript><p>The plots need JavaScript; the rest can be read without.</p></noscript>\n",
            claims(judgements, sections),
            *(_figure(section, judgements) for section in sections),
            f"</main>\n{_footer(provenance)}",
            f"<script>{_script(_plotly())}</script>\n<script>\n{_script(_file('page.js'))}</script>\n</body>\n</html>\n",
        ]
    )


def _file(name: str) -> str:
    return files("efhc.report").joinpath(name).read_text("utf-8")


def _plotly() -> str:
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

    library: str = get_plotlyjs()
    return library


def _script(code: str) -> str:
    """JavaScript in which nothing ends the script element, or opens a comment that hides its end.

    In strings and patterns, where alone these can stand, a backslash before / or ! changes nothing.
    """
    return re.sub(r"<(?=/script|!--)", r"<\\", code, flags=re.IGNORECASE)


def _json(value: object) -> str:
    """For a script element, which knows no entities."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _lead(sections: Sequence[Section], judgements: Sequence[Judgement]) -> str:
    seeds = sorted({section.data.curves["seed"].n_unique() for section in sections})
    many = " to ".join(map(str, dict.fromkeys([*seeds[:1], *seeds[-1:]])))
    told = f"{len(sections)} figure{'s' if len(sections) != 1 else ''}"
    told += f", {many} seed{'s' if many != '1' else ''} each" if sections else ""
    badges = f" Claims by figure: {totals(judgements)}" if judgements else ""
    return f'<p class="lead">{told}.{badges}</p>'


def _figure(section: Section, judgements: Sequence[Judgement]) -> str:
    data, illustration = section.data, section.illustration
    curves = curve_plots(data)
    facts = [*map(_fact, section.facts.items())]
    if links := claims_of(section, judgements):
        facts.append(f"<div><dt>claims</dt><dd>{links}</dd></div>")
    shades = ", ".join(f"{color} {100 * at:g}%" for at, color in SHARES)
    return "".join(
        [
            f'<section id="{_text(data.name)}" class="figure">',
            f"<h2>Fig. {_text(data.number)}: {_text(data.title)}</h2>\n",
            f'<dl class="facts">{"".join(facts)}</dl>\n',
            f'<div class="legend" role="group" aria-label="Strategies">{_legend(line_styles(data))}</div>\n',
            f'<div class="plots {"two" if len(curves) == 4 else "three"}">\n',
            *(_plot(data.name, plot) for plot in curves),
            f"</div>\n<h3>Seed {illustration.seed}: who can reach whom, and who fired when</h3>\n",
            f'<div class="closer">\n{_plot(data.name, network_plot(illustration))}',
            '<div class="rasters"><p class="key">Share of iterations in which a device fired, 0 ',
            f'<span class="ramp" style="background:linear-gradient(to right, {shades})"></span> 100 %. ',
            'Devices from the least bandwidth (below) to the most (above).</p><div class="plots two">\n',
            *(_plot(data.name, plot) for plot in raster_plots(illustration)),
            "</div></div></div>\n",
            f"<details><summary>Complete config</summary><pre>{_text(section.config)}</pre></details>\n",
            f"<details><summary>Versions, machine, git</summary>{_table(section.provenance)}</details>\n</section>\n",
        ]
    )


def _fact(fact: tuple[str, str]) -> str:
    name, value = fact
    shown = f"<code>{_text(value)}</code>" if "command" in name.lower() else _text(value)
    return f"<div><dt>{_text(name)}</dt><dd>{shown}</dd></div>"


def _legend(lines: Mapping[str, Line]) -> str:
    buttons = (
        f'<button type="button" aria-pressed="true" data-strategy="{_text(name)}">'
        '<svg viewBox="0 0 30 10" width="30" height="10" aria-hidden="true">'
        f'<path d="M1 5H29" stroke="{line.color}" stroke-width="{1.4 * line.width:.3g}" '
        f'stroke-dasharray="{SWATCH_DASHES[line.dash]}"/></svg>{_text(name)}</button>'
        for name, line in lines.items()
    )
    return "".join(buttons) + '<span class="hint">click hides, double-click shows one alone</span>'


def _plot(figure: str, plot: Plot) -> str:
    name = _text(f"{figure}-{plot.key}")
    note = f' <span class="note">{_text(plot.note)}</span>' if plot.note else ""
    return (
        f'<figure><figcaption>{_caption(plot)}{note}</figcaption><div class="plot" id="{name}" role="img" '
        f'aria-label="{_text(plot.title)}" style="height:{plot.spec["layout"]["height"]}px"></div>'
        f'<script type="application/json" id="{name}-spec">{_json(plot.spec)}</script></figure>\n'
    )


def _caption(plot: Plot) -> str:
    if plot.log_range:  # browsers would keep the tick over a reload, while the plot starts anew
        box = f'<input type="checkbox" class="log" autocomplete="off" data-range="{json.dumps(plot.log_range)}">'
        return f'<b>{_text(plot.title)}</b> <label class="note">{box}log</label>'
    if plot.budget is None:
        return f"<b>{_text(plot.title)}</b>"
    options = "".join(
        f'<option value="{json.dumps(budget)}"{" selected" * (budget == plot.budget)}>{percent(budget)}</option>'
        for budget in plot.budgets
    )
    before, after = map(_text, plot.title.split(percent(plot.budget), 1))
    return f'<b>{before}<select class="budget" aria-label="budget">{options}</select>{after}</b>'


def _footer(provenance: Mapping[str, Any]) -> str:
    return (
        "<footer><h2>How to read it</h2>\n"
        "<p>Lines are means over seeds; bands show where the mean of as many other seeds is to be expected, in 95 of "
        "100 cases. Intervals of claims are 95 % bootstrap intervals of the mean over these seeds: percentiles of "
        f"{RESAMPLES:,} resamples, always the same ones, expanded as few seeds call for. One seed has no interval, and "
        f"fewer than {FEWEST_SEEDS} have no verdict. Strategies are compared seed by seed: of one seed, all have the "
        "same network, bandwidths and data. A budget is a share of the transmission time that ZT spends in all.</p>\n"
        f"<h2>What made this report</h2>\n{_table(provenance)}</footer>\n"
    )


def _table(values: Mapping[str, Any]) -> str:
    rows = (f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>" for name, value in _flat(values))
    return f'<div class="scroll"><table class="plain"><tbody>{"".join(rows)}</tbody></table></div>'


def _flat(values: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name} · ")
        else:
            yield f"{before}{name}", value if isinstance(value, str) else json.dumps(value, default=str)
