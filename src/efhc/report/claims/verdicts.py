"""How measurements become verdicts, and the words for them. Every claim reads "each of these quantities is above 0"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite, nan

import polars as pl

from efhc.base.arrays import Floats
from efhc.report.claims.intervals import FEWEST_SEEDS, bounds_words, interval
from efhc.report.numbers import signed

ROUNDING = 1e-12
"""Smaller differences count as none: equal accuracies that are summed in another order differ in the last digits."""


class Verdict(StrEnum):
    """What the intervals over seeds say of a quantity or of a claim."""

    HOLDS = "holds"
    """The whole interval is above 0."""
    FAILS = "fails"
    """The whole interval is below 0."""
    UNDECIDED = "undecided"
    """The interval contains 0, or there are fewer than `FEWEST_SEEDS` seeds."""
    MIXED = "mixed"
    """The verdicts at different budgets differ. Only a judgement has this verdict."""


@dataclass(frozen=True)
class Finding:
    """A quantity as measured: its mean over seeds, with the 95 % interval of that mean."""

    quantity: str
    """What a claim says is above 0: `accuracy of EF-HC minus GT`."""
    budget: float | None
    """The share of ZT's transmission time that is spent. None if the quantity is not taken at a budget."""
    mean: float
    low: float
    high: float
    seeds: int
    verdict: Verdict
    seeds_above: int = 0
    """On how many seeds the quantity is above 0."""


@dataclass(frozen=True)
class Judgement:
    """A claim, judged by one figure or by one figure against another."""

    claim: int | None
    """The number of the claim in docs/reproduction.md. None for statements that are not the paper's."""
    statement: str
    """What is claimed, as a sentence: `CNN: EF-HC has the highest accuracy per transmission time`."""
    figures: tuple[str, ...]
    """The paper's numbers of the figures: `2(a)`. Of others the setting: `frontier-beta`."""
    findings: tuple[Finding, ...]
    control: str | None = None
    """The control that a strategy is compared with, if the claim is about one."""
    needs: str = ""
    """What the figures must have for the claim to be measured, if there is more to it than runs that succeed."""

    @property
    def verdicts(self) -> dict[float | None, Verdict]:
        """The verdict at each budget: all quantities must hold, and one that fails is enough to fail."""
        found: dict[float | None, set[Verdict]] = {}
        for finding in self.findings:
            found.setdefault(finding.budget, set()).add(finding.verdict)
        return {budget: _together(verdicts) for budget, verdicts in found.items()}

    @property
    def verdict(self) -> Verdict:
        """The verdict at all budgets, or `MIXED`."""
        different = set(self.verdicts.values())
        return different.pop() if len(different) == 1 else Verdict.MIXED


def find(quantity: str, budget: float | None, per_seed: Floats, least: float = 0.0) -> Finding:
    """Judge one quantity by its values, one per seed. A mean that is smaller than `least` decides nothing."""
    if len(per_seed) == 0:
        return Finding(quantity, budget, nan, nan, nan, 0, Verdict.UNDECIDED)
    mean, low, high = map(float, interval(per_seed))
    if len(per_seed) < FEWEST_SEEDS or abs(mean) < least:
        verdict = Verdict.UNDECIDED
    elif low > ROUNDING:
        verdict = Verdict.HOLDS
    else:
        verdict = Verdict.FAILS if high < -ROUNDING else Verdict.UNDECIDED
    above = int((per_seed > ROUNDING).sum())
    return Finding(quantity, budget, mean, low, high, len(per_seed), verdict, above)


def everywhere(judgements: Iterable[Judgement]) -> Verdict:
    """Return the verdict on a statement that is about all of these at once."""
    return _together(verdict for judgement in judgements for verdict in judgement.verdicts.values())


def _together(verdicts: Iterable[Verdict]) -> Verdict:
    found = set(verdicts)
    if Verdict.FAILS in found:
        return Verdict.FAILS
    return Verdict.UNDECIDED if Verdict.UNDECIDED in found else Verdict.HOLDS


VERDICTS = {
    Verdict.HOLDS: "holds",
    Verdict.FAILS: "does not hold",
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


def finding_words(verdict: Verdict, findings: Iterable[Finding], needs: str = "") -> str:
    """Return the verdict on all of these findings in words; if it is undecided, with the reason."""
    if verdict is not Verdict.UNDECIDED:
        return VERDICTS[verdict]
    undecided = [finding for finding in findings if finding.verdict is Verdict.UNDECIDED]
    seeds = max(finding.seeds for finding in undecided)
    if seeds == 0:
        return f"not measured: needs {needs}" if needs else "not measured"
    if seeds < FEWEST_SEEDS:
        return f"undecided: {seeds} seed{'s'[: seeds != 1]}, a verdict needs {FEWEST_SEEDS}"
    if any(finding.low <= ROUNDING and finding.high >= -ROUNDING for finding in undecided):
        return "undecided: the interval contains 0"
    return "undecided: the mean is less than one test sample"


def too_few_seeds(seeds: int) -> str:
    """Return a sentence if these are too few seeds for a verdict, else an empty string."""
    many = f"{seeds} seeds are" if seeds != 1 else "1 seed is"
    return f"{many} too few for a verdict (it takes {FEWEST_SEEDS})" if seeds < FEWEST_SEEDS else ""


def figures_words(judgement: Judgement) -> str:
    """Return the figures that a claim was judged by: `3(a) against 2(a)`."""
    return " against ".join(judgement.figures)


def verdict_parts(judgement: Judgement) -> list[tuple[Verdict, str]]:
    """Return the verdict, or if budgets differ each verdict with its budgets: `does not hold at 20, 50 %`."""
    budgets: dict[Verdict, list[float | None]] = {}
    for budget, verdict in judgement.verdicts.items():
        budgets.setdefault(verdict, []).append(budget)
    if len(budgets) == 1:
        return [(verdict, finding_words(verdict, judgement.findings, judgement.needs)) for verdict in budgets]
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


def bought_words(leads: Mapping[str, Finding], measure: str = "accuracy") -> str:
    """Return what a strategy gains by using each device's own bandwidth: its leads over controls in a measure."""
    starts = {
        Verdict.HOLDS: "a gain of {0:.3f} in {2} over {1}",
        Verdict.FAILS: "a loss of {0:.3f} in {2} against {1}",
        Verdict.UNDECIDED: "undecided against {1}",
    }
    parts = []
    for control, finding in leads.items():
        start = starts[finding.verdict]
        if finding.seeds < FEWEST_SEEDS:
            start = f"undecided against {{1}}, too few seeds ({finding.seeds})"
        words = start.format(abs(finding.mean), control, measure)
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
            "finding": finding_words(finding.verdict, [finding], judgement.needs),
            "verdict": verdict_words(judgement),
        }
        for judgement in judgements
        for finding in judgement.findings
    ]
    numbers = dict.fromkeys(("budget", "mean", "low", "high"), pl.Float64)
    schema = {"claim": pl.Int64, "figures": pl.String, "words": pl.String, "quantity": pl.String, **numbers}
    counts = {"seeds": pl.Int64, "seeds_above": pl.Int64}
    return pl.DataFrame(rows, schema=schema | counts | {"finding": pl.String, "verdict": pl.String})
