"""The sentences for claims, quantities and verdicts: the only place where they are worded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite

import polars as pl

from efhc.report.claims.intervals import FEWEST_SEEDS, bounds_words
from efhc.report.claims.judging import Finding, Judgement, Measure, Quantity, Setting, Statement, Verdict
from efhc.report.numbers import signed

STATEMENTS = {
    Statement.LESS_TIME: "EF-HC takes less transmission time per iteration than ZT and GT",
    Statement.RG_LEAST_TIME: "RG's transmission time per iteration is the lowest in most cases",
    Statement.ZT_HIGHEST: "ZT has the highest accuracy per iteration",
    Statement.CLOSE_TO_ZT: "EF-HC and GT stay close to ZT in accuracy per iteration, RG is well below",
    Statement.BEST_PER_TIME: "EF-HC has the highest accuracy per transmission time",
    Statement.RISES_WITH_RADIUS: "EF-HC's accuracy at a fixed transmission time rises with connectivity",
    Statement.GAINS_MOST: "EF-HC gains the most from connectivity",
    Statement.LARGER_MARGIN_WITH_BETA: (
        "EF-HC's margin over the baselines is larger under beta bandwidths than under uniform ones"
    ),
    Statement.LARGER_MARGIN_WITH_CNN: "EF-HC's margin over the baselines is larger with the CNN than with the SVM",
    Statement.LARGER_R_BETTER: "a larger r is better per transmission time",
    Statement.LARGER_R_WORSE: "a larger r is worse per transmission time",
    Statement.SMALLER_P_BETTER: "a smaller p of RG is better per transmission time",
    Statement.LARGER_P_BETTER: "a larger p of RG is better per transmission time",
    Statement.ABOVE_GT: "EF-HC is above GT in accuracy per iteration",
    Statement.LEADS: (
        "{0} leads at every budget from {1} of ZT's time: "
        "its mean margin over the best of {2} with the same seed is above 0"
    ),
    Statement.BEATS_CONTROL: (
        "{0} is above {1}: on these seeds of the setting, after {2} virtual seconds, "
        "at bandwidths of {3} to {4} parameters per second"
    ),
}
QUANTITIES = {
    Measure.TIME_SAVED: "share of {1}'s time that {0} saves",
    Measure.TIME_SAVED_ON_LOWEST: "share of the lowest other time that {0} saves",
    Measure.ACCURACY_LEAD: "accuracy of {0} minus {1}",
    Measure.LATE_ACCURACY_LEAD: "accuracy of {0} minus {1}, last tenth of iterations",
    Measure.LESS_LOSS_THAN_RG: "half of RG's loss of accuracy against ZT minus {0}'s, last tenth of iterations",
    Measure.RADIUS_SLOPE: "slope of {0}'s accuracy over the radius",
    Measure.RADIUS_SLOPE_LEAD: "slope over the radius of {0} minus {1}",
    Measure.MARGIN_LEAD: "margin over the best baseline, {0} minus {1}",
    Measure.RISE: "slope of accuracy over log10({0})",
    Measure.FALL: "minus slope of accuracy over log10({0})",
    Measure.LEAD_OVER_BEST: "accuracy of {0} minus the best of {1}",
}
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


def statement_words(statement: Statement, setting: Setting = Setting.ANY, names: Sequence[str] = ()) -> str:
    """Return what is claimed, in short."""
    words = STATEMENTS[statement].format(*names)
    return f"{setting}: {words}" if setting else words


def quantity_words(quantity: Quantity) -> str:
    """Return what was measured: `accuracy of EF-HC minus GT`."""
    return QUANTITIES[quantity.measure].format(*quantity.names)


def figures_words(judgement: Judgement) -> str:
    """Return the figures that a claim was judged by: `3(a) against 2(a)`."""
    return " against ".join(judgement.figures)


def finding_words(finding: Finding) -> str:
    """Return the verdict on one quantity."""
    return VERDICTS[finding.verdict]


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
    if judgement.statement not in (Statement.LEADS, Statement.BEATS_CONTROL):
        return words
    least = min(judgement.findings, key=lambda finding: finding.seeds_above - finding.seeds)
    where = " at the budget where it is on the fewest" if judgement.statement is Statement.LEADS else ""
    return f"{words} (above on {least.seeds_above} of {least.seeds} seeds{where})"


def bought_words(findings: Sequence[Finding]) -> str:
    """Return the lead of a strategy whose devices go by their own bandwidths, over each of these controls."""
    starts = {
        Verdict.HOLDS: "{0:.3f} of accuracy against {1}",
        Verdict.FAILS: "a loss of {0:.3f} of accuracy against {1}",
        Verdict.UNDECIDED: "undecided against {1}",
    }
    too_few = "{2} too few to say against {1}"
    parts = []
    for finding in findings:
        start = too_few if finding.seeds < FEWEST_SEEDS else starts[finding.verdict]
        seeds = f"{finding.seeds} seed{'s are' if finding.seeds != 1 else ' is'}"
        words = start.format(abs(finding.mean), finding.quantity.names[1], seeds)
        numbers = [signed(finding.mean)] if finding.verdict is Verdict.UNDECIDED else []
        if isfinite(finding.low):
            numbers.append(f"{bounds_words([finding.seeds])}: {signed(finding.low)} to {signed(finding.high)}")
        parts.append(f"{words} ({'; '.join(numbers)})")
    return f"Lead over those that do not go by their own bandwidth: {', and '.join(parts)}." if parts else ""


def findings_table(judgements: Iterable[Judgement]) -> pl.DataFrame:
    """Return the table of claims.csv, with one row per finding."""
    rows = [
        {
            "claim": judgement.claim,
            "figures": figures_words(judgement),
            "words": statement_words(judgement.statement, judgement.setting, judgement.names),
            "quantity": quantity_words(finding.quantity),
            **{name: getattr(finding, name) for name in ("budget", "mean", "low", "high", "seeds", "seeds_above")},
            "finding": finding_words(finding),
            "verdict": verdict_words(judgement),
        }
        for judgement in judgements
        for finding in judgement.findings
    ]
    numbers = dict.fromkeys(("budget", "mean", "low", "high"), pl.Float64)
    schema = {"claim": pl.Int64, "figures": pl.String, "words": pl.String, "quantity": pl.String, **numbers}
    counts = {"seeds": pl.Int64, "seeds_above": pl.Int64}
    return pl.DataFrame(rows, schema=schema | counts | {"finding": pl.String, "verdict": pl.String})
