"""The words for verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite

import polars as pl

from efhc.report.claims.intervals import FEWEST_SEEDS, bounds_words
from efhc.report.claims.judging import Finding, Judgement, Verdict
from efhc.report.numbers import signed

VERDICTS = {
    Verdict.HOLDS: "holds",
    Verdict.FAILS: "does not hold",
    Verdict.UNDECIDED: "undecided at this size",
}
TOTALS = {
    Verdict.HOLDS: "hold",
    Verdict.FAILS: "do not hold",
    Verdict.MIXED: "depend on the budget",
    Verdict.UNDECIDED: "undecided",
}
"""What follows the number of claims with a verdict."""
AT_BUDGETS = {
    Verdict.HOLDS: "holds at budgets",
    Verdict.FAILS: "does not hold at",
    Verdict.UNDECIDED: "undecided at",
}


def figures_words(judgement: Judgement) -> str:
    """Return the figures that a claim was judged by: `3(a) against 2(a)`."""
    return " against ".join(judgement.figures)


def verdict_parts(judgement: Judgement) -> list[tuple[Verdict, str]]:
    """Return the verdict, or if budgets differ each verdict with its budgets: `does not hold at 20, 50 %`."""
    budgets: dict[Verdict, list[float | None]] = {}
    for budget, verdict in judgement.verdicts.items():
        budgets.setdefault(verdict, []).append(budget)
    if len(budgets) == 1:
        return [(verdict, VERDICTS[verdict]) for verdict in budgets]
    parts = []
    for verdict, start in AT_BUDGETS.items():
        shares = [f"{100 * share:g}" for share in budgets.get(verdict, []) if share is not None]
        if shares:
            words = start if len(shares) > 1 else start.removesuffix("s")
            parts.append((verdict, f"{words} {', '.join(shares)} %"))
    return parts


def verdict_words(judgement: Judgement) -> str:
    """Return the whole verdict: `holds at budgets 2, 5 %; does not hold at 20, 50 %; undecided at 10 %`."""
    words = "; ".join(words for _, words in verdict_parts(judgement))
    if judgement.claim is not None:
        return words
    weakest = min(judgement.findings, key=lambda finding: finding.seeds_above - finding.seeds)
    where = "at its weakest budget it " if len(judgement.findings) > 1 else ""
    return f"{words} ({where}wins on {weakest.seeds_above} of {weakest.seeds} seeds)"


def bought_words(leads: Mapping[str, Finding]) -> str:
    """Return what a strategy gains by using each device's own bandwidth: its leads over controls that do not."""
    starts = {
        Verdict.HOLDS: "a gain of {0:.3f} in accuracy over {1}",
        Verdict.FAILS: "a loss of {0:.3f} in accuracy against {1}",
        Verdict.UNDECIDED: "undecided against {1}",
    }
    parts = []
    for control, finding in leads.items():
        start = starts[finding.verdict]
        if finding.seeds < FEWEST_SEEDS:
            start = f"undecided against {{1}}, too few seeds ({finding.seeds})"
        words = start.format(abs(finding.mean), control)
        numbers = [signed(finding.mean)] if finding.verdict is Verdict.UNDECIDED else []
        if isfinite(finding.low):
            numbers.append(f"{bounds_words([finding.seeds])}: {signed(finding.low)} to {signed(finding.high)}")
        parts.append(f"{words} ({'; '.join(numbers)})")
    return f"Using each device's own bandwidth: {'; '.join(parts)}." if parts else ""


def findings_table(judgements: Iterable[Judgement]) -> pl.DataFrame:
    """Return the table of claims.csv, with one row per finding."""
    rows = [
        {
            "claim": judgement.claim,
            "figures": figures_words(judgement),
            "words": judgement.statement,
            "quantity": finding.quantity,
            **{name: getattr(finding, name) for name in ("budget", "mean", "low", "high", "seeds", "seeds_above")},
            "finding": VERDICTS[finding.verdict],
            "verdict": verdict_words(judgement),
        }
        for judgement in judgements
        for finding in judgement.findings
    ]
    numbers = dict.fromkeys(("budget", "mean", "low", "high"), pl.Float64)
    schema = {"claim": pl.Int64, "figures": pl.String, "words": pl.String, "quantity": pl.String, **numbers}
    counts = {"seeds": pl.Int64, "seeds_above": pl.Int64}
    return pl.DataFrame(rows, schema=schema | counts | {"finding": pl.String, "verdict": pl.String})
