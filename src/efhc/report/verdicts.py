"""What is found of a claim, and how findings become a verdict. Every claim reads "a quantity is above 0"."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from math import nan

import polars as pl

from efhc.base.arrays import Floats
from efhc.report.intervals import FEWEST_SEEDS, interval

ROUNDING = 1e-12
"""Less than this is no difference: equal accuracies, added in another order, differ in the last digits."""


class Verdict(StrEnum):
    """What the interval over seeds says."""

    HOLDS = "holds"
    FAILS = "does not hold"
    UNDECIDED = "undecided at this size"


AT_BUDGETS = {
    Verdict.HOLDS: "holds at budgets",
    Verdict.FAILS: "does not hold at",
    Verdict.UNDECIDED: "undecided at",
}


@dataclass(frozen=True)
class Finding:
    """One quantity, measured: its mean over seeds, with the 95 % interval."""

    quantity: str
    """accuracy of EF-HC minus GT"""
    budget: float | None
    """The share of ZT's transmission time that is spent; None where the quantity has no budget."""
    mean: float
    low: float
    high: float
    seeds: int
    verdict: Verdict


@dataclass(frozen=True)
class Judgement:
    """A claim against one figure, or against a pair of them."""

    claim: int
    figures: str
    """2(a), or 3(a) against 2(a)"""
    words: str
    """The paper's, in short."""
    findings: tuple[Finding, ...]
    verdict: str
    """A `Verdict`, or at which budgets there is which."""


def find(quantity: str, budget: float | None, per_seed: Floats) -> Finding:
    """The quantity holds if its interval is above 0, does not if it is below, and is undecided with too few seeds."""
    if len(per_seed) == 0:
        return Finding(quantity, budget, nan, nan, nan, 0, Verdict.UNDECIDED)
    mean, low, high = map(float, interval(per_seed))
    if len(per_seed) < FEWEST_SEEDS:
        verdict = Verdict.UNDECIDED
    elif low > ROUNDING:
        verdict = Verdict.HOLDS
    else:
        verdict = Verdict.FAILS if high < -ROUNDING else Verdict.UNDECIDED
    return Finding(quantity, budget, mean, low, high, len(per_seed), verdict)


def judge_findings(findings: Sequence[Finding]) -> str:
    """Together: all must hold, and one that fails is enough. Where budgets differ, which verdict is at which.

    "holds at budgets 2, 5 %; does not hold at 20, 50 %; undecided at 10 %"
    """
    by_budget: dict[float | None, set[Verdict]] = {}
    for finding in findings:
        by_budget.setdefault(finding.budget, set()).add(finding.verdict)
    budgets: dict[Verdict, list[float | None]] = {}
    for budget, found in by_budget.items():
        budgets.setdefault(_together(found), []).append(budget)
    if len(budgets) == 1:
        return str(*budgets)
    parts = []
    for verdict, start in AT_BUDGETS.items():
        shares = [f"{100 * share:g}" for share in budgets.get(verdict, []) if share is not None]
        if shares:
            parts.append(f"{start if len(shares) > 1 else start.removesuffix('s')} {', '.join(shares)} %")
    return "; ".join(parts)


def findings_table(judgements: Iterable[Judgement]) -> pl.DataFrame:
    """One row per finding, for claims.csv."""
    rows = [
        {"claim": judgement.claim, "figures": judgement.figures, "words": judgement.words}
        | {name: value for name, value in asdict(finding).items() if name != "verdict"}
        | {"finding": str(finding.verdict), "verdict": judgement.verdict}
        for judgement in judgements
        for finding in judgement.findings
    ]
    numbers = dict.fromkeys(("budget", "mean", "low", "high"), pl.Float64)
    schema = {"claim": pl.Int64, "figures": pl.String, "words": pl.String, "quantity": pl.String, **numbers}
    return pl.DataFrame(rows, schema=schema | {"seeds": pl.Int64, "finding": pl.String, "verdict": pl.String})


def _together(verdicts: set[Verdict]) -> Verdict:
    if Verdict.FAILS in verdicts:
        return Verdict.FAILS
    return Verdict.UNDECIDED if Verdict.UNDECIDED in verdicts else Verdict.HOLDS
