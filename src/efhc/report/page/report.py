"""The report of reproduced figures: claims and verdicts, and a section with drawings and tables per figure.

Nothing here is HTML: it returns what the templates show, as texts, badges and intervals.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import polars as pl
from markupsafe import Markup

from efhc.learning.measures import WORDS, Measure
from efhc.report.claims.intervals import FEWEST_SEEDS, RESAMPLES, bounds_words
from efhc.report.claims.leads import end_means, ends, leads, mean_table
from efhc.report.claims.verdicts import (
    TOTALS,
    Finding,
    Judgement,
    Verdict,
    bought_words,
    everywhere,
    figures_words,
    finding_words,
    verdict_parts,
)
from efhc.report.figure_data import ControlsData, FigureData, FrontierData, Section, SettingData, TimedSetting
from efhc.report.figures.paper import settings_lines
from efhc.report.numbers import MEGABYTE, number_words, percent, signed
from efhc.report.page.charts import drawings
from efhc.report.page.document import embedded, report_html

# Each verdict has a class in report.css, and a sign for readers who do not see its colour.
LOOKS = {
    Verdict.HOLDS: ("good", "✓"),
    Verdict.FAILS: ("bad", "✗"),
    Verdict.MIXED: ("mixed", "±"),
    Verdict.UNDECIDED: ("open", "?"),
}


class Badge(NamedTuple):
    """A verdict as the page shows it."""

    look: str
    sign: str
    words: str


class Best(NamedTuple):
    """The best text of a column."""

    best: str


class Whisker(NamedTuple):
    """An interval over seeds, drawn 120 wide with zero in the middle. Without seeds nothing is drawn."""

    look: str
    dot: str | None
    line: tuple[str | None, str | None] | None


class PageTable(NamedTuple):
    """A table of texts, badges and whiskers; all columns after the first are aligned to the right unless named."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    caption: str = ""
    left: Sequence[str] = ()
    """The columns that are aligned to the left, besides the first one."""


def report(
    sections: Sequence[Section],
    judgements: Sequence[Judgement],
    title: str,
    provenance: Mapping[str, Any],
) -> str:
    """Return the HTML of the report; `provenance` describes how the report itself was made."""
    homes = {one.data.number: one.data.name for one in sections if isinstance(one.data, FigureData)}
    seeds = sorted({section.data.seeds for section in sections})
    many = " to ".join(map(str, dict.fromkeys([*seeds[:1], *seeds[-1:]])))
    lead = f"{len(sections)} figure{'s' if len(sections) != 1 else ''}"
    counts = Counter(judgement.verdict for judgement in judgements)
    return report_html(
        title,
        lead=lead + (f", {many} seed{'s' if many != '1' else ''} each" if sections else ""),
        totals=[Badge(*LOOKS[one], f"{counts[one]} {words}") for one, words in TOTALS.items() if counts[one]],
        shows_claims=bool(homes) or not sections,
        claims=_claims(judgements, homes),
        sections=[_section(section, judgements) for section in sections],
        provenance=list(_flat(provenance)),
        resamples=f"{RESAMPLES:,}",
        fewest_seeds=FEWEST_SEEDS,
    )


# Claims.


def _claims(judgements: Sequence[Judgement], homes: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the paper's claims by number, each with its statements; `homes` are the sections of figures by number."""
    labels = {judgement: f"Fig. {figures_words(judgement)}" for judgement in judgements}
    claims: dict[int, list[Judgement]] = {}
    for judgement in judgements:
        if judgement.claim is not None:
            claims.setdefault(judgement.claim, []).append(judgement)
    return [{"number": number, "statements": _statements(same, labels, homes)} for number, same in claims.items()]


def _statements(
    judgements: Sequence[Judgement], labels: Mapping[Judgement, str], homes: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return the statements, each with a row per judgement; `homes` are the sections of figures by number."""
    statements: dict[str, list[Judgement]] = {}
    for judgement in judgements:
        statements.setdefault(judgement.statement, []).append(judgement)
    return [
        {
            "words": words,
            "overall": _overall(same),
            "rows": [
                {
                    "label": labels[judgement],
                    "homes": [(number, homes[number]) for number in judgement.figures if number in homes],
                    "badges": [Badge(*LOOKS[verdict], part) for verdict, part in verdict_parts(judgement)],
                    "table": _findings_table(judgement),
                }
                for judgement in same
            ],
        }
        for words, same in statements.items()
    ]


def _findings_table(judgement: Judgement) -> PageTable:
    """Return the findings by quantity. Whiskers of one quantity share a scale, so that budgets can be compared."""
    quantities: dict[str, list[Finding]] = {}
    for finding in judgement.findings:
        quantities.setdefault(finding.quantity, []).append(finding)
    rows = [
        (
            quantity,
            "" if one.budget is None else percent(one.budget),
            signed(one.mean),
            _interval_words(one),
            _whisker(one, same),
            str(one.seeds),
            _badge(one, judgement.needs),
        )
        for quantity, same in quantities.items()
        for one in same
    ]
    columns = ("Quantity", "Budget", "Mean", "95 % interval", "0", "Seeds", "Verdict")
    return PageTable(columns, rows, left=("Verdict",))


def _badge(finding: Finding, needs: str = "") -> Badge:
    return Badge(*LOOKS[finding.verdict], finding_words(finding.verdict, [finding], needs))


def _overall(judgements: Sequence[Judgement]) -> Badge:
    """Return the verdict on a statement, which several figures may judge."""
    verdict, findings = everywhere(judgements), [finding for one in judgements for finding in one.findings]
    return Badge(*LOOKS[verdict], finding_words(verdict, findings, judgements[0].needs))


def _interval_words(finding: Finding) -> str:
    return f"{signed(finding.low)} to {signed(finding.high)}" if math.isfinite(finding.low) else "none"


def _whisker(finding: Finding, same_scale: Iterable[Finding]) -> Whisker:
    """Return the drawing of a finding; it has the scale of all of these findings."""
    numbers = (abs(x) for one in same_scale for x in (one.mean, one.low, one.high))
    reach = max(filter(math.isfinite, numbers), default=0.0) or 1.0
    low, dot, high = (
        f"{60 + 54 * value / reach:.1f}" if math.isfinite(value) else None
        for value in (finding.low, finding.mean, finding.high)
    )
    return Whisker(LOOKS[finding.verdict][0], dot, (low, high) if low and high else None)


# Sections.


def _section(section: Section, judgements: Sequence[Judgement]) -> dict[str, Any]:
    """Return what the template section.html shows."""
    data = section.data
    view: dict[str, Any] = {
        "name": data.name,
        "label": data.title,
        "heading": data.title,
        "facts": section.facts,
        "measure": data.measure.label,
        "measure_title": _sentence(data.measure.label),
        "measured": measured_words(data.measure),
        "claims": [],
        "tuned": section.tuned,
        "configs": section.configs,
        "provenance": list(_flat(section.provenance)),
        "drawings": Markup(embedded(drawings(data, section.illustration))),  # it escapes what ends its element
    }
    match data:
        case FigureData(number=number):
            claims = {one.claim for one in judgements if number in one.figures and one.claim is not None}
            view |= {"label": f"Fig. {number}", "heading": f"Fig. {number}: {data.title}"}
            return view | {"kind": "figure", "claims": sorted(claims)}
        case ControlsData():
            return view | {"kind": "controls", **_controls(data)}
        case FrontierData():
            return view | {"kind": "frontier", **_frontier(data, judgements)}


def measured_words(measure: Measure) -> str:
    """Return a sentence that says of which models a measure is, on which samples, and which of all devices."""
    whose = "of the mean of all devices' models" if measure.of_mean_model else "of each device's model"
    where = "on the global test set"
    if measure.is_own:
        where = "on its own data: test samples weighted by the shares of labels or groups that the device has"
    over = WORDS.get(measure.statistic, "mean over devices")
    devices = "" if measure.of_mean_model and not measure.is_own else f"; {over}"
    return f"{_sentence(measure.metric)} is that {whose} {where}{devices}."


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}"


def _controls(data: ControlsData) -> dict[str, Any]:
    tables = [(_controls_table(setting, data), _bought(setting, data)) for setting in data.settings]
    controls = list(data.controls.items())
    return {"leader": data.leader, "in_front": ", ".join(data.in_front), "controls": controls, "tables": tables}


def _bought(setting: TimedSetting, data: ControlsData) -> str:
    found = leads(setting, data.leader)
    return bought_words({name: found[name] for name in data.of_bandwidth if name in found}, setting.measure.label)


def _controls_table(setting: TimedSetting, data: ControlsData) -> PageTable:
    found = leads(setting, data.leader)
    ended = end_means(ends(setting.curves, setting.measure.name), setting.measure)
    means = {row["strategy"]: row for row in ended.iter_rows(named=True)}
    rows: list[Sequence[object]] = []
    for name in dict.fromkeys((data.leader, *data.controls, *means)):
        if name not in means:
            continue
        mean = means[name]
        cells = [name, f"{mean['mean']:.3f}", f"{mean['worst']:.3f}", number_words(mean["bytes"] / MEGABYTE)]
        if name == data.leader:
            rows.append([*cells, "", "", "", "", ""])
            continue
        lead = found[name]
        wins = f"{lead.seeds_above} of {lead.seeds}"
        verdict = _badge(lead) if name in data.controls else ""
        drawn = _whisker(lead, found.values())
        rows.append([*cells, signed(lead.mean), _interval_words(lead), drawn, wins, verdict])
    columns = (
        "Strategy",
        _sentence(setting.measure.label),
        "Worst seed",
        "MB sent",
        f"Lead of {data.leader}",
        bounds_words([data.seeds]),
    )
    return PageTable((*columns, "0", "Wins on", "Verdict"), rows, setting.title, left=("Verdict",))


def _frontier(data: FrontierData, judgements: Sequence[Judgement]) -> dict[str, Any]:
    titles = {data.label(setting): setting.title for setting in data.settings}
    ours = [one for one in judgements if one.claim is None and one.figures[0] in titles]
    return {
        "tables": [_budgets_table(setting, data) for setting in data.settings],
        "statements": _statements(ours, {one: titles[one.figures[0]] for one in ours}, {}),
        "comparisons": f"{sum(len(one.findings) for one in ours):,}",
        "ceilings": ", ".join(data.ceilings),
    }


def _budgets_table(setting: SettingData, data: FrontierData) -> PageTable:
    means = mean_table(setting.curves, setting.measure.name)
    budgets = [column for column in means.columns if column.startswith("at ")]
    competing = means.filter(~pl.col("strategy").is_in(list(data.ceilings)))
    is_higher = setting.measure.better == "higher"
    best = {column: competing[column].max() if is_higher else competing[column].min() for column in budgets}
    rows_of = {row["strategy"]: row for row in means.iter_rows(named=True)}
    rows = []
    for name in settings_lines(data):
        if (row := rows_of.get(name)) is None:
            continue
        cells: list[object] = [f"{name} (ceiling)" if name in data.ceilings else name]
        for column in budgets:
            words = "" if row[column] is None else f"{row[column]:.3f}"
            cells.append(Best(words) if row[column] == best[column] and words else words)
        spends = row["spends"]
        rows.append([*cells, f"{100 * spends:.0f} %" if spends >= 0.1 else f"{100 * spends:.2g} %"])
    return PageTable(("Strategy", *(column.removeprefix("at ") for column in budgets), "spends"), rows, setting.title)


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Yield the values of nested tables, each with its path."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name} · ")
        else:
            yield f"{before}{name}", value if isinstance(value, str) else json.dumps(value, default=str)
