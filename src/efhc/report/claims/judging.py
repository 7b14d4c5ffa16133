"""How measurements become verdicts. Every claim reads "each of these quantities is above 0".

wording.py turns verdicts into words.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import nan

from efhc.base.arrays import Floats
from efhc.report.claims.intervals import FEWEST_SEEDS, interval

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
