"""Each claim in worlds where it holds, fails, and cannot be told; how findings become verdicts; and one real run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product

import numpy as np
import polars as pl
import pytest

import efhc
from efhc.report.claims.intervals import interval
from efhc.report.claims.paper_claims import CLAIMS, judge, time_per_iteration
from efhc.report.claims.verdicts import (
    Finding,
    Judgement,
    Verdict,
    find,
    findings_table,
    verdict_words,
)
from efhc.report.figure_data import BUDGETS, FigureData

NUMBERS = {
    f"fig{number}{letter}": f"{number}({letter})" if letter else str(number)
    for number, letter in [*product("23467", "ab"), ("8", "")]
}
BEST_PER_TIME = "highest accuracy per transmission time"
STRATEGIES = ("EF-HC", "GT", "ZT", "RG")
RADII = (0.3, 0.5, 0.7)
ITERATIONS = np.array([0, *range(9, 100, 10)])

Numbers = Mapping[str, object]
"""Of each strategy, a number per seed."""


def curves(accuracy: Numbers, rates: Numbers | None = None, seeds: int = 5) -> pl.DataFrame:
    """Runs of constant accuracy and constant transmission time per iteration (1, where it is not given)."""
    runs = []
    for strategy, level in accuracy.items():
        levels = np.broadcast_to(level, seeds)
        per_iteration = np.broadcast_to((rates or {}).get(strategy, 1.0), seeds)
        for seed in range(seeds):
            columns = {"strategy": strategy, "seed": seed, "iteration": ITERATIONS}
            totals = per_iteration[seed] * (ITERATIONS + 1.0)
            runs.append(pl.DataFrame(columns | {"transmission_time_total": totals, "accuracy": levels[seed]}))
    return pl.concat(runs)


def figure(name: str, accuracy: Numbers | None = None, rates: Numbers | None = None, **others) -> FigureData:
    """Accuracies that are not given are 0.5."""
    return FigureData(
        name, NUMBERS[name], "", curves(dict.fromkeys(STRATEGIES, 0.5) | (accuracy or {}), rates), **others
    )


def by_radius(name: str, gain: Numbers) -> FigureData:
    """Accuracy rises by `gain` per unit of radius (by 0.2 where it is not given)."""
    gains = dict.fromkeys(STRATEGIES, 0.2) | gain
    tables = [
        curves({strategy: 0.4 + np.multiply(gain, radius) for strategy, gain in gains.items()}).with_columns(
            radius=pl.lit(radius)
        )
        for radius in RADII
    ]
    return figure(name, connectivity=pl.concat(tables))


def ablation(name: str, slope: object) -> FigureData:
    """Accuracy rises by `slope` when the value grows tenfold. ZT, if it counted, would turn the slope round."""
    powers = {"c": 1.0, "a": -2.0, "b": -1.0}
    accuracy = {strategy: 0.5 + np.multiply(slope, power) for strategy, power in powers.items()}
    rows = curves(accuracy | {"ZT": 0.5 - np.multiply(slope, 9.0)})
    return FigureData(
        name, NUMBERS[name], "", rows, varied={key: 10**power for key, power in powers.items()} | {"ZT": 1e3}
    )


# How strongly a claim is true, seed by seed.
HOLDS = np.array([1.0, 0.8, 1.2, 0.9, 1.1])
MIXED = np.array([1.0, -1.0, 0.8, -0.9, 0.1])
TIED = np.zeros(5)

World = Callable[..., list[FigureData]]
"""Of the strengths and the names of its figures."""
WORLDS: dict[str, World] = {
    "efhc saves": lambda s, name: [figure(name, rates={"EF-HC": 1 - 0.3 * s, "RG": 0.1})],
    "rg saves": lambda s, name: [figure(name, rates={"EF-HC": 2.0, "GT": 3.0, "RG": 1 - 0.3 * s})],
    "zt highest": lambda s, name: [figure(name, {"ZT": 0.5 + 0.1 * s, "RG": 0.5 - 0.3 * np.abs(s)})],
    "close to zt": lambda s, name: [figure(name, {"ZT": 0.9, "RG": 0.5, "EF-HC": 0.7 + 0.1 * s, "GT": 0.7 + 0.1 * s})],
    "efhc best": lambda s, name: [figure(name, {"EF-HC": 0.5 + 0.1 * s})],
    "rises": lambda s, name: [by_radius(name, {"EF-HC": s})],
    "gains most": lambda s, name: [by_radius(name, {"EF-HC": 0.2 + s})],
    # GT is the best baseline here and RG there: it is the best of each that counts.
    "larger margin": lambda s, name, other: [
        figure(name, {"EF-HC": 0.7 + 0.1 * s, "GT": 0.6}),
        figure(other, {"EF-HC": 0.9, "RG": 0.8}),
    ],
    "more is better": lambda s, name: [ablation(name, 0.1 * s)],
    "more is worse": lambda s, name: [ablation(name, -0.1 * s)],
}

CLAIMED: list[tuple[int, str, str, str]] = [
    # claim, its figures (or pairs of them), the statement, a world for it
    (1, "fig2a fig2b fig3a fig3b", "less transmission time", "efhc saves"),
    (1, "fig2a fig2b fig3a fig3b", "the lowest in most cases", "rg saves"),
    (2, "fig2a fig2b fig3a fig3b", "ZT has the highest accuracy", "zt highest"),
    (2, "fig2a fig2b fig3b", "close to ZT", "close to zt"),
    (3, "fig2a fig2b fig3a", BEST_PER_TIME, "efhc best"),
    (4, "fig2a fig2b fig3a", "rises with connectivity", "rises"),
    (4, "fig2a fig2b fig3a", "gains the most", "gains most"),
    (5, "fig3a/fig2a fig4b/fig4a", "larger under beta", "larger margin"),
    (6, "fig3b", BEST_PER_TIME, "efhc best"),
    (7, "fig4a fig4b", "less transmission time", "efhc saves"),
    (7, "fig4a fig4b", "the lowest in most cases", "rg saves"),
    (7, "fig4a fig4b", "ZT has the highest accuracy", "zt highest"),
    (7, "fig4a fig4b", "close to ZT", "close to zt"),
    (7, "fig4a fig4b", BEST_PER_TIME, "efhc best"),
    (7, "fig4a fig4b", "rises with connectivity", "rises"),
    (7, "fig4a fig4b", "gains the most", "gains most"),
    (7, "fig4a/fig2a fig4b/fig3a", "larger with the CNN", "larger margin"),
    (8, "fig6a", "a larger r is better", "more is better"),
    (8, "fig6b", "a larger r is worse", "more is worse"),
    (9, "fig7a", "a smaller p", "more is worse"),
    (9, "fig7b", "a larger p", "more is better"),
    (10, "fig8", BEST_PER_TIME, "efhc best"),
    (10, "fig8", "above GT", "efhc best"),
]


def numbers(names: str) -> tuple[str, ...]:
    """The numbers 3(a), 2(a) of fig3a/fig2a."""
    return tuple(NUMBERS[name] for name in names.split("/"))


def the(judgements: list[Judgement], claim: int, figures: tuple[str, ...], statement: str) -> Judgement:
    same = (one for one in judgements if (one.claim, one.figures) == (claim, figures))
    (found,) = (one for one in same if statement in one.statement)
    return found


def named(figures: list[FigureData]) -> dict[str, FigureData]:
    return {one.name: one for one in figures}


@pytest.mark.parametrize(
    ("strength", "verdict"),
    [(HOLDS, Verdict.HOLDS), (-HOLDS, Verdict.FAILS), (MIXED, Verdict.UNDECIDED), (TIED, Verdict.UNDECIDED)],
    ids=["holds", "fails", "mixed", "tied"],
)
@pytest.mark.parametrize(("claim", "figures", "statement", "world"), CLAIMED, ids=[f"{c[0]} {c[2]}" for c in CLAIMED])
def test_a_claim_is_as_true_as_its_world(claim, figures, statement, world, strength, verdict):
    claims = [one for one in CLAIMS if one.number == claim and statement in one.statement]
    names = figures.split()[-1]
    judgement = the(judge(named(WORLDS[world](strength, *names.split("/"))), claims), claim, numbers(names), statement)
    assert judgement.verdict == verdict
    assert all(finding.seeds == 5 for finding in judgement.findings)


def test_all_figures_give_every_judgement_and_no_other():
    figures = [by_radius(name, {}) for name in NUMBERS if name[3] in "2348"]
    figures += [ablation(name, 0.1) for name in NUMBERS if name[3] in "67"]
    judgements = judge(named(figures))
    expected = [
        (claim, numbers(names), statement) for claim, all_names, statement, _ in CLAIMED for names in all_names.split()
    ]
    for claim, names, statement in expected:
        the(judgements, claim, names, statement)
    assert len(judgements) == len(expected)
    assert [one.claim for one in judgements] == sorted(one.claim for one in judgements)
    with_budgets = [one for one in judgements if one.findings[0].budget is not None]
    assert {tuple(dict.fromkeys(f.budget for f in one.findings)) for one in with_budgets} == {BUDGETS}
    assert {one.claim for one in judgements if one not in with_budgets} == {1, 2, 7, 10}


def test_what_was_not_run_is_left_out():
    assert judge({}) == []
    assert {(one.claim, one.figures) for one in judge({"fig4b": figure("fig4b")})} == {(7, ("4(b)",))}
    assert {one.claim for one in judge({"fig2a": figure("fig2a")})} == {1, 2, 3}
    assert {one.claim for one in judge({"fig2a": by_radius("fig2a", {})})} == {1, 2, 3, 4}
    assert {one.claim for one in judge(named([figure("fig2a"), figure("fig3a")]))} == {1, 2, 3, 5}


def test_a_figure_of_the_users_own_is_judged_only_by_what_it_has():
    data = by_radius("fig2a", {})
    without = FigureData("fig2a", "2(a)", "", data.curves.filter(pl.col("strategy") != "RG"), data.connectivity)
    assert judge({"fig2a": without}) == []
    assert judge({"fig6a": figure("fig6a")}) == []
    zero = ablation("fig6a", 0.1)
    zero = FigureData("fig6a", "6(a)", "", zero.curves, varied={"a": 0.0, "b": 1.0, "c": 100.0})
    (judgement,) = judge({"fig6a": zero})
    assert judgement.findings[0].mean == pytest.approx(0.1)  # from b to c, by 0.2 over two powers of ten


def test_rg_does_not_decide_whether_efhc_saves_time():
    judgements = judge({"fig2a": figure("fig2a", rates={"EF-HC": 0.5, "RG": 0.9})})
    assert the(judgements, 1, ("2(a)",), "less transmission time").verdict is Verdict.HOLDS
    assert the(judgements, 1, ("2(a)",), "the lowest in most cases").verdict is Verdict.FAILS


@pytest.mark.parametrize(
    ("efhc_rate", "gt_rate", "saved"), [(0.5, 2.0, 0.75), (2.0, 0.5, -0.75), (1.0, 0.0, -1.0), (0.0, 0.0, 0.0)]
)
def test_what_is_saved_is_a_share_even_where_nothing_is_sent(efhc_rate: float, gt_rate: float, saved: float):
    judgements = judge({"fig2a": figure("fig2a", rates={"EF-HC": efhc_rate, "GT": gt_rate})})
    finding = the(judgements, 1, ("2(a)",), "less transmission time").findings[1]
    assert (finding.quantity, finding.mean) == ("share of GT's time that EF-HC saves", pytest.approx(saved))


def test_one_baseline_above_is_enough_to_fail():
    judgements = judge({"fig2a": figure("fig2a", {"EF-HC": 0.6, "GT": 0.7})})
    assert the(judgements, 3, ("2(a)",), BEST_PER_TIME).verdict is Verdict.FAILS
    findings = the(judgements, 3, ("2(a)",), BEST_PER_TIME).findings
    verdicts = {finding.quantity: finding.verdict for finding in findings}
    assert verdicts == {
        "accuracy of EF-HC minus GT": Verdict.FAILS,
        "accuracy of EF-HC minus ZT": Verdict.HOLDS,
        "accuracy of EF-HC minus RG": Verdict.HOLDS,
    }


def test_close_is_less_than_half_of_what_rg_loses():
    data = figure("fig2a", {"ZT": 0.9, "EF-HC": 0.8, "GT": 0.65, "RG": 0.5})
    judgement = the(judge({"fig2a": data}), 2, ("2(a)",), "close to ZT")
    assert [finding.mean for finding in judgement.findings] == pytest.approx([0.1, -0.05])
    assert judgement.verdict is Verdict.FAILS


def test_time_per_iteration_is_that_of_the_whole_run():
    table = time_per_iteration(figure("fig2a", rates={"EF-HC": [0.1, 0.2, 0.3, 0.4, 0.5]}))
    assert table["EF-HC"].to_list() == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert table["ZT"].to_list() == pytest.approx([1.0] * 5)


def test_budgets_have_their_own_verdicts():
    """ZT starts low and is best from 15 % of its time on."""
    data = figure("fig2a", {"EF-HC": 0.6})
    late = (pl.col("strategy") == "ZT") & (pl.col("iteration") >= 19)
    steep = data.curves.with_columns(accuracy=pl.when(late).then(0.9).otherwise(pl.col("accuracy")))
    judgement = the(judge({"fig2a": FigureData("fig2a", "2(a)", "", steep)}), 3, ("2(a)",), BEST_PER_TIME)
    assert judgement.verdicts == dict.fromkeys((0.02, 0.05, 0.1), Verdict.HOLDS) | dict.fromkeys(
        (0.2, 0.5), Verdict.FAILS
    )
    assert judgement.verdict is Verdict.MIXED


def test_late_is_the_last_tenth_or_the_last_evaluation():
    def with_last(accuracy: float, *, until: int) -> dict[str, FigureData]:
        """EF-HC is 0.1 above at k = 89 (of 100), and by `accuracy` - 0.5 at the last."""
        rows = figure("fig8", {"EF-HC": 0.6}).curves.filter(pl.col("iteration") <= until)
        last = (pl.col("strategy") == "EF-HC") & (pl.col("iteration") == until)
        changed = rows.with_columns(accuracy=pl.when(last).then(accuracy).otherwise(pl.col("accuracy")))
        return {"fig8": FigureData("fig8", "8", "", changed)}

    def margin(figures: dict[str, FigureData]) -> float:
        return the(judge(figures), 10, ("8",), "above GT").findings[0].mean

    assert margin(with_last(0.7, until=99)) == pytest.approx(0.2)  # 89 is before the last ten iterations
    assert margin(with_last(0.7, until=9)) == pytest.approx(0.2)
    assert margin(with_last(0.7, until=0)) == pytest.approx(0.2)
    denser = with_last(0.7, until=99)["fig8"].curves.with_columns(
        iteration=pl.when(pl.col("iteration") == 89).then(90).otherwise(pl.col("iteration"))
    )
    assert margin({"fig8": FigureData("fig8", "8", "", denser)}) == pytest.approx(0.15)


def test_four_seeds_decide_nothing():
    clear = figure("fig2a", {"EF-HC": 0.9}, rates={"EF-HC": 0.1, "RG": 0.05})
    four = FigureData("fig2a", "2(a)", "", clear.curves.filter(pl.col("seed") < 4))
    assert the(judge({"fig2a": clear}), 3, ("2(a)",), BEST_PER_TIME).verdict is Verdict.HOLDS
    judgements = judge({"fig2a": four})
    assert {one.verdict for one in judgements} == {Verdict.UNDECIDED}
    findings = [finding for one in judgements for finding in one.findings]
    assert {finding.seeds for finding in findings} == {4}
    assert all(finding.low == finding.mean for finding in findings)  # measured all the same


def test_only_seeds_that_all_runs_have_are_compared():
    data = figure("fig2a", {"EF-HC": 0.5 + np.array([0.1, 0.2, 0.3, 0.4, 0.5])})
    partial = data.curves.filter(~((pl.col("strategy") == "GT") & (pl.col("seed") == 4)))
    judgements = judge({"fig2a": FigureData("fig2a", "2(a)", "", partial)})
    minus_gt, minus_zt, _ = the(judgements, 3, ("2(a)",), BEST_PER_TIME).findings[:3]
    assert (minus_gt.seeds, minus_gt.mean) == (4, pytest.approx(0.25))
    assert (minus_zt.seeds, minus_zt.mean) == (5, pytest.approx(0.3))
    # RG against the lowest of three: a seed without GT has no such lowest.
    assert the(judgements, 1, ("2(a)",), "the lowest in most cases").findings[0].seeds == 4
    one_less = FigureData("fig3a", "3(a)", "", data.curves.filter(pl.col("seed") != 2))
    for other, seeds in ((data, 4), (FigureData("fig2a", "2(a)", "", partial), 3)):
        margin = the(judge(named([other, one_less])), 5, ("3(a)", "2(a)"), "larger under beta").findings[0]
        assert (margin.seeds, margin.mean) == (seeds, 0.0)


def test_a_seed_that_lacks_a_radius_has_no_slope():
    whole = by_radius("fig2a", {"EF-HC": [1, 2, 3, 4, 5]})
    gone = (pl.col("seed") == 4) & (pl.col("radius") == RADII[1]) & (pl.col("strategy") == "EF-HC")
    partial = FigureData("fig2a", "2(a)", "", whole.curves, whole.connectivity.filter(~gone))
    rises = the(judge({"fig2a": partial}), 4, ("2(a)",), "rises with connectivity").findings[0]
    assert (rises.seeds, rises.mean) == (4, pytest.approx(2.5))
    one_radius = FigureData("fig2a", "2(a)", "", whole.curves, whole.connectivity.filter(radius=RADII[0]))
    alone = the(judge({"fig2a": one_radius}), 4, ("2(a)",), "rises with connectivity")
    assert (alone.verdict, alone.findings[0].seeds) == (Verdict.UNDECIDED, 0)
    assert np.isnan(alone.findings[0].mean)
    assert verdict_words(alone) == "not measured: needs at least two radii"


def test_slopes_are_those_of_least_squares():
    accuracy = np.random.default_rng(0).uniform(0.2, 0.8, (3, 5))
    tables = [
        curves(dict.fromkeys(STRATEGIES, 0.5) | {"EF-HC": row}).with_columns(radius=pl.lit(radius))
        for radius, row in zip(RADII, accuracy, strict=True)
    ]
    data = figure("fig2a", connectivity=pl.concat(tables[::-1]))
    finding = the(judge({"fig2a": data}), 4, ("2(a)",), "rises with connectivity").findings[0]
    expected = interval(np.polyfit(RADII, accuracy, 1)[0])
    np.testing.assert_allclose((finding.mean, finding.low, finding.high), expected, rtol=1e-9)
    # log10 of 0.01, 0.1, 10; the finding is of minus the slope.
    points = curves(dict(zip("abc", accuracy, strict=True)) | {"ZT": 0.5})
    varied = FigureData("fig6b", "6(b)", "", points, varied={"a": 0.01, "b": 0.1, "c": 10.0})
    finding = the(judge({"fig6b": varied}), 8, ("6(b)",), "a larger r is worse").findings[0]
    assert finding.quantity == "minus slope of accuracy over log10(r)"
    assert finding.mean == pytest.approx(-np.polyfit([-2, -1, 1], accuracy, 1)[0].mean())


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([0.1, 0.2, 0.3, 0.2, 0.1], Verdict.HOLDS),
        ([-0.1, -0.2, -0.3, -0.2, -0.1], Verdict.FAILS),
        ([0.1, 0.2, 0.3, 0.2, -0.3], Verdict.UNDECIDED),
        ([0.1, 0.2, 0.3, 0.2], Verdict.UNDECIDED),
        ([0.4], Verdict.UNDECIDED),
        ([], Verdict.UNDECIDED),
        ([0.0] * 5, Verdict.UNDECIDED),
        ([1e-17, 2e-17, 1e-17, 1e-17, 3e-17], Verdict.UNDECIDED),
        ([-1e-17, -2e-17, -1e-17, -1e-17, -3e-17], Verdict.UNDECIDED),
    ],
)
def test_a_finding_holds_if_its_interval_is_above_zero(values: list[float], verdict: Verdict):
    finding = find(SOME, None, np.array(values))
    assert (finding.verdict, finding.seeds) == (verdict, len(values))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([0.1], "undecided: 1 seed, a verdict needs 5"),
        ([0.1, 0.2], "undecided: 2 seeds, a verdict needs 5"),
        ([0.1, -0.1, 0.1, -0.1, 0.1], "undecided: the interval contains 0"),
        ([0.001, 0.001, 0.001, 0.001, 0.002], "undecided: the mean is less than one test sample"),
    ],
)
def test_what_is_undecided_has_its_reason(values: list[float], words: str):
    finding = find("a lead", None, np.array(values), 0.01)
    assert verdict_words(Judgement(1, "something", ("2(a)",), (finding,))) == words


SOME = "slope of accuracy over log10(x)"
H, F, U = Verdict.HOLDS, Verdict.FAILS, Verdict.UNDECIDED


@pytest.mark.parametrize(
    ("found", "verdicts", "words"),
    [
        ({None: [H, H]}, {None: H}, "holds"),
        ({None: [H, U]}, {None: U}, "undecided: the interval contains 0"),
        ({None: [H, U, F]}, {None: F}, "does not hold"),
        ({0.02: [H, H], 0.05: [H]}, {0.02: H, 0.05: H}, "holds"),
        ({0.02: [H, F], 0.05: [U, F]}, {0.02: F, 0.05: F}, "does not hold"),
        ({0.02: [H, U], 0.05: [U]}, {0.02: U, 0.05: U}, "undecided: the interval contains 0"),
        ({0.02: [H], 0.05: [H], 0.1: [U]}, {0.02: H, 0.05: H, 0.1: U}, "holds at budgets 2, 5 %; undecided at 10 %"),
        (
            {0.02: [H], 0.1: [U], 0.2: [F], 0.5: [F]},
            {0.02: H, 0.1: U, 0.2: F, 0.5: F},
            "holds at budget 2 %; does not hold at 20, 50 %; undecided at 10 %",
        ),
        (
            {0.02: [U], 0.05: [U, H], 0.2: [F, H], 0.5: [F]},
            {0.02: U, 0.05: U, 0.2: F, 0.5: F},
            "does not hold at 20, 50 %; undecided at 2, 5 %",
        ),
        ({0.02: [H], 0.5: [H, F]}, {0.02: H, 0.5: F}, "holds at budget 2 %; does not hold at 50 %"),
    ],
)
def test_findings_become_a_verdict_and_its_words(
    found: dict[float | None, list[Verdict]], verdicts: dict[float | None, Verdict], words: str
):
    findings = [Finding(SOME, budget, 0.0, 0.0, 0.0, 5, one) for budget, several in found.items() for one in several]
    judgement = Judgement(1, "something", ("2(a)",), tuple(findings))
    assert judgement.verdicts == verdicts
    assert judgement.verdict is (next(iter(verdicts.values())) if len({*verdicts.values()}) == 1 else Verdict.MIXED)
    assert verdict_words(judgement) == words


def test_the_table_has_a_row_per_finding():
    judgements = judge(named([figure("fig2a", {"EF-HC": 0.6}), ablation("fig6a", 0.1)]))
    table = findings_table(judgements)
    assert table.columns == [
        "claim", "figures", "words", "quantity", "budget", "mean", "low", "high", "seeds", "seeds_above", "finding",
        "verdict",
    ]  # fmt: skip
    assert len(table) == sum(len(one.findings) for one in judgements)
    row = table.filter(claim=3, budget=0.05, quantity="accuracy of EF-HC minus RG").row(0, named=True)
    assert row["mean"] == pytest.approx(0.1)
    assert (row["figures"], row["seeds"], row["finding"], row["verdict"]) == ("2(a)", 5, "holds", "holds")
    assert pl.read_csv(table.write_csv().encode()).columns == table.columns
    assert findings_table([]).schema == table.schema


def test_names_of_quantities_and_words_tell_claims_apart():
    words = [(claim.number, claim.setting + claim.statement) for claim in CLAIMS]
    assert len(set(words)) == len(words)


@pytest.fixture(scope="module")
def measured() -> pl.DataFrame:
    return efhc.simulate(iterations=60, seeds=range(5), evaluate_every=5).metrics.drop_nulls("accuracy")


def test_a_real_run_is_judged_by_its_own_numbers(measured: pl.DataFrame):
    judgements = judge({"fig2a": FigureData("fig2a", "2(a)", "", measured)})
    assert [one.claim for one in judgements] == [1, 1, 2, 2, 3]
    runs = {
        key: run.to_dict(as_series=False)
        for key, run in measured.partition_by("strategy", "seed", as_dict=True).items()
    }

    def last_total(strategy: str, seed: int) -> float:
        return runs[strategy, seed]["transmission_time_total"][-1]

    def late(strategy: str, seed: int) -> float:
        run = runs[strategy, seed]
        return np.mean([a for a, k in zip(run["accuracy"], run["iteration"], strict=True) if k in {54, 59}])

    def at(strategy: str, seed: int, share: float) -> float:
        run = runs[strategy, seed]
        return np.interp(share * last_total("ZT", seed), run["transmission_time_total"], run["accuracy"])

    saved = [1 - last_total("EF-HC", seed) / last_total("ZT", seed) for seed in range(5)]
    finding = judgements[0].findings[0]
    assert (finding.mean, finding.seeds) == (pytest.approx(np.mean(saved)), 5)
    assert finding.verdict is Verdict.HOLDS  # ZT sends whenever it can
    assert min(saved) - 1e-12 <= finding.low < finding.mean < finding.high <= max(saved) + 1e-12
    gaps = {f"accuracy of ZT minus {other}, last tenth of iterations": other for other in ("EF-HC", "GT", "RG")}
    for finding in judgements[2].findings:
        other = gaps.pop(finding.quantity)
        assert finding.mean == pytest.approx(np.mean([late("ZT", seed) - late(other, seed) for seed in range(5)]))
    assert not gaps
    for finding in judgements[4].findings:
        other = finding.quantity.removeprefix("accuracy of EF-HC minus ")
        gap = [at("EF-HC", seed, finding.budget) - at(other, seed, finding.budget) for seed in range(5)]
        assert finding.mean == pytest.approx(np.mean(gap))
