"""What the page shows of the claims: the paper's statement, a verdict per figure, and the numbers behind it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from efhc.report.claims.judging import Finding, Judgement, Quantity, Verdict, everywhere
from efhc.report.claims.wording import (
    TOTALS,
    VERDICTS,
    finding_words,
    quantity_words,
    statement_words,
    verdict_parts,
)
from efhc.report.figure_data import Section
from efhc.report.numbers import signed

# Each verdict has a class in page.css, and a sign for readers who do not see its colour.
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


def totals(judgements: Sequence[Judgement]) -> list[Badge]:
    """Return the number of judgements of each verdict."""
    counts = Counter(judgement.verdict for judgement in judgements)
    return [Badge(*LOOKS[one], f"{counts[one]} {words}") for one, words in TOTALS.items() if counts[one]]


def claim_views(judgements: Sequence[Judgement], sections: Sequence[Section]) -> list[dict[str, Any]]:
    """Return the paper's claims by number, each with its statements, and these with a row per figure."""
    homes = {section.data.number: section.data.name for section in sections}
    claims: dict[int, list[Judgement]] = {}
    for judgement in judgements:
        if judgement.claim is not None:
            claims.setdefault(judgement.claim, []).append(judgement)
    return [{"number": number, "statements": statement_views(same, homes)} for number, same in claims.items()]


def statement_views(judgements: Sequence[Judgement], homes: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the different statements of the judgements, each with a row per figure; `homes` has links to figures."""
    statements: dict[str, list[Judgement]] = {}
    for judgement in judgements:
        words = statement_words(judgement.statement, judgement.setting, judgement.names)
        statements.setdefault(words, []).append(judgement)
    return [
        {"words": words, "rows": [_row(judgement, homes) for judgement in same], "overall": _overall(same)}
        for words, same in statements.items()
    ]


def _overall(judgements: Sequence[Judgement]) -> Badge:
    verdict = everywhere(judgements)
    return Badge(*LOOKS[verdict], VERDICTS[verdict])


def claim_numbers(section: Section, judgements: Sequence[Judgement]) -> list[int]:
    """Return the numbers of the claims that are judged by this figure."""
    of_figure = (one.claim for one in judgements if section.data.number in one.figures)
    return sorted({claim for claim in of_figure if claim is not None})


def _row(judgement: Judgement, homes: Mapping[str, str]) -> dict[str, Any]:
    return {
        # Numbers of figures, with a link to those that this report contains.
        "figures": [(number, homes.get(number)) for number in judgement.figures],
        "badges": [Badge(*LOOKS[verdict], words) for verdict, words in verdict_parts(judgement)],
        "findings": _finding_views(judgement.findings),
    }


def _finding_views(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Return the findings by quantity. Drawings of one quantity share a scale, so that budgets can be compared."""
    quantities: dict[Quantity, list[Finding]] = {}
    for finding in findings:
        quantities.setdefault(finding.quantity, []).append(finding)
    views = []
    for same in quantities.values():
        views += [finding_view(finding, reach_of(same)) for finding in same]
    return views


def reach_of(findings: Iterable[Finding]) -> float:
    """Return the number at the right end of drawings that share a scale."""
    numbers = (abs(x) for finding in findings for x in (finding.mean, finding.low, finding.high))
    return max(filter(math.isfinite, numbers), default=0.0) or 1.0


def finding_view(finding: Finding, reach: float) -> dict[str, Any]:
    """Return a finding; `reach` is the number at the right end of its drawing."""
    has_interval = math.isfinite(finding.low) and math.isfinite(finding.high)
    low, mean, high = (
        f"{60 + 54 * value / reach:.1f}" if math.isfinite(value) else None
        for value in (finding.low, finding.mean, finding.high)
    )
    return {
        "quantity": quantity_words(finding.quantity),
        "budget": finding.budget,
        "mean": signed(finding.mean),
        "interval": f"{signed(finding.low)} to {signed(finding.high)}" if has_interval else "none",
        "seeds": finding.seeds,
        "seeds_above": finding.seeds_above,
        "badge": Badge(*LOOKS[finding.verdict], finding_words(finding)),
        # Horizontal places in a drawing that is 120 wide, with zero in the middle.
        "dot": mean,
        "line": (low, high) if has_interval else None,
    }
