"""The page's part on claims: what the paper says, a verdict per figure, and the numbers behind it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape as _text
from typing import TYPE_CHECKING

from efhc.report.figure_data import Section
from efhc.report.paper_figures import percent

if TYPE_CHECKING:
    from efhc.report.verdicts import Finding, Judgement

# How a verdict begins, and what kind it is then; each kind has a sign for those who do not see its colour.
STARTS = (("holds", "good"), ("does not hold", "bad"), ("", "open"))
SIGNS = {"good": "✓", "bad": "✗", "mixed": "±", "open": "?"}
TOTALS = {"good": "hold", "bad": "do not hold", "mixed": "depend on the budget", "open": "undecided"}


def totals(judgements: Sequence[Judgement]) -> str:
    """How many there are of each kind."""
    counts = Counter(_kind(judgement.verdict) for judgement in judgements)
    return " ".join(_badge(f"{counts[kind]} {words}", kind) for kind, words in TOTALS.items() if counts[kind])


def claims(judgements: Sequence[Judgement], sections: Sequence[Section]) -> str:
    """The section."""
    heading = '<section id="claims"><h2>What the paper claims, and what was measured</h2>\n'
    if not judgements:
        return f"{heading}<p>No claims were judged in this report.</p></section>\n"
    by_number: dict[int, dict[str, list[Judgement]]] = {}
    for judgement in judgements:
        by_number.setdefault(judgement.claim, {}).setdefault(judgement.words, []).append(judgement)
    return "".join(
        [
            heading,
            "<p>Every claim is put as a quantity that the paper says is greater than zero. It holds where the whole "
            "interval over seeds is above zero, and does not hold where all of it is below. A row opens to its "
            'numbers.</p>\n<div class="claims">\n',
            *(_claim(number, statements, sections) for number, statements in by_number.items()),
            "</div></section>\n",
        ]
    )


def claims_of(section: Section, judgements: Sequence[Judgement]) -> str:
    """Links to the claims that are judged by this figure."""
    numbers = sorted({one.claim for one in judgements if section.data.number in one.figures.split()})
    return ", ".join(f'<a href="#claim-{number}">{number}</a>' for number in numbers)


def _claim(number: int, statements: Mapping[str, Sequence[Judgement]], sections: Sequence[Section]) -> str:
    """What the paper says, and below it a row for each figure that it says so of."""
    parts = []
    for words, judgements in statements.items():
        parts.append(f'<h3><span class="number">Claim {number}</span> <span>{_text(words)}</span></h3>\n')
        parts += [
            f"<details><summary><span>Fig. {_linked(judgement.figures, sections)}</span>"
            f"<span>{_badges(judgement.verdict)}</span></summary>{_findings(judgement.findings)}</details>\n"
            for judgement in judgements
        ]
    return f'<div class="claim" id="claim-{number}">{"".join(parts)}</div>\n'


def _linked(figures: str, sections: Sequence[Section]) -> str:
    """The figures of a judgement, as links to those that this report has."""
    homes = {section.data.number: section.data.name for section in sections}
    return " ".join(
        f'<a href="#{_text(homes[word])}">{_text(word)}</a>' if word in homes else _text(word)
        for word in figures.split()
    )


def _kind(verdict: str) -> str:
    """Of the whole; one that says different things of different budgets is mixed."""
    kinds = {next(kind for start, kind in STARTS if part.startswith(start)) for part in verdict.split("; ")}
    return kinds.pop() if len(kinds) == 1 else "mixed"


def _badge(words: str, kind: str) -> str:
    return f'<span class="badge {kind}"><span aria-hidden="true">{SIGNS[kind]}</span> {_text(words)}</span>'


def _badges(verdict: str) -> str:
    return " ".join(_badge(part, _kind(part)) for part in verdict.split("; "))


def _findings(findings: Iterable[Finding]) -> str:
    """A table, by quantity: the drawings of a quantity share a scale, so that budgets can be compared."""
    quantities: dict[str, list[Finding]] = {}
    for finding in findings:
        quantities.setdefault(finding.quantity, []).append(finding)
    rows = []
    for same in quantities.values():
        numbers = (abs(x) for finding in same for x in (finding.mean, finding.low, finding.high))
        reach = max(filter(math.isfinite, numbers), default=0.0) or 1.0
        rows += [_finding(finding, reach) for finding in same]
    return (
        '<div class="scroll"><table><thead><tr><th>Quantity</th><th class="right">Budget</th>'
        '<th class="right">Mean</th><th class="right">95 % interval</th><th class="middle">0</th>'
        f'<th class="right">Seeds</th><th>Verdict</th></tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    )


def _finding(finding: Finding, reach: float) -> str:
    between = f"{_signed(finding.low)} to {_signed(finding.high)}" if _has_interval(finding) else "none"
    return (
        f"<tr><td>{_text(finding.quantity)}</td>"
        f'<td class="right">{"" if finding.budget is None else percent(finding.budget)}</td>'
        f'<td class="right">{_signed(finding.mean)}</td><td class="right">{between}</td>'
        f'<td>{_drawing(finding, reach)}</td><td class="right">{finding.seeds}</td>'
        f"<td>{_badges(finding.verdict)}</td></tr>"
    )


def _signed(value: float) -> str:
    return f"{value:+.3g}".replace("-", "\N{MINUS SIGN}") if math.isfinite(value) else "none"


def _has_interval(finding: Finding) -> bool:
    return math.isfinite(finding.low) and math.isfinite(finding.high)


def _drawing(finding: Finding, reach: float) -> str:
    """The interval as a line, the mean as a dot, zero in the middle."""
    if not math.isfinite(finding.mean):
        return ""
    low, mean, high = (f"{60 + 54 * value / reach:.1f}" for value in (finding.low, finding.mean, finding.high))
    line = f'<line x1="{low}" y1="9" x2="{high}" y2="9"/>' if _has_interval(finding) else ""
    return (
        f'<svg class="interval {_kind(finding.verdict)}" width="120" height="18" aria-hidden="true">'
        f'<path d="M60 1V17"/>{line}<circle cx="{mean}" cy="9" r="3.5"/></svg>'
    )
