"""How measurements become verdicts. Every claim reads "each of these quantities is above 0".

A finding and a judgement hold codes and numbers only; wording.py turns them into sentences.
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


class Statement(StrEnum):
    """A statement of the paper, of a frontier, or of a strategy and its controls."""

    LESS_TIME = "less time"
    RG_LEAST_TIME = "RG least time"
    ZT_HIGHEST = "ZT highest accuracy"
    CLOSE_TO_ZT = "close to ZT"
    BEST_PER_TIME = "best per time"
    RISES_WITH_RADIUS = "rises with radius"
    GAINS_MOST = "gains most"
    LARGER_MARGIN_WITH_BETA = "larger margin with beta"
    LARGER_MARGIN_WITH_CNN = "larger margin with CNN"
    LARGER_R_BETTER = "larger r better"
    LARGER_R_WORSE = "larger r worse"
    SMALLER_P_BETTER = "smaller p better"
    LARGER_P_BETTER = "larger p better"
    ABOVE_GT = "above GT"
    LEADS = "leads"
    """Of a frontier: a strategy is above the best of its rivals at every budget."""
    BEATS_CONTROL = "beats control"
    """Of event-driven runs: a strategy is above a control at the end."""


class Setting(StrEnum):
    """Where the paper makes a statement, if it makes the same one elsewhere too."""

    ANY = ""
    INTERNET = "Internet AS graph"
    CNN = "CNN"
    RESNET = "ResNet18"
    IID = "IID"
    NON_IID = "non-IID"


class Measure(StrEnum):
    """The kinds of quantities that claims are about."""

    TIME_SAVED = "time saved"
    """Of a strategy against another one."""
    TIME_SAVED_ON_LOWEST = "time saved on lowest"
    """Of a strategy against the lowest of all others."""
    ACCURACY_LEAD = "accuracy lead"
    """Of a strategy over another one, at a budget, or at the end of event-driven runs."""
    LATE_ACCURACY_LEAD = "late accuracy lead"
    """Of a strategy over another one, in the last tenth of the iterations."""
    LESS_LOSS_THAN_RG = "less loss than RG"
    """Half of RG's loss of late accuracy against ZT, minus the loss of a strategy."""
    RADIUS_SLOPE = "radius slope"
    """Of a strategy's accuracy at a budget."""
    RADIUS_SLOPE_LEAD = "radius slope lead"
    """Of a strategy over another one."""
    MARGIN_LEAD = "margin lead"
    """EF-HC's margin over the best baseline in one setting minus that in another."""
    RISE = "rise"
    """Slope of accuracy over log10 of a parameter."""
    FALL = "fall"
    """Minus that slope."""
    LEAD_OVER_BEST = "lead over best"
    """Accuracy of a strategy at a budget, minus that of the best of its rivals at that budget with the same seed."""


@dataclass(frozen=True)
class Quantity:
    """A number that a claim says is above 0: a code and the names that belong to it."""

    measure: Measure
    names: tuple[str, ...]
    """Strategies, settings or parameters, in the order of the measure's description."""


@dataclass(frozen=True)
class Finding:
    """A quantity as measured: its mean over seeds, with the 95 % interval of that mean."""

    quantity: Quantity
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
    statement: Statement
    setting: Setting
    figures: tuple[str, ...]
    """The paper's numbers of the figures: `2(a)`. Of others the setting: `frontier-beta`."""
    findings: tuple[Finding, ...]
    names: tuple[str, ...] = ()
    """The names that the statement's words contain, if they are not always the same."""

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


def find(quantity: Quantity, budget: float | None, per_seed: Floats, least: float = 0.0) -> Finding:
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
