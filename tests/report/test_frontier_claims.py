"""Who leads: shares of ZT's time, margins seed by seed, and verdicts, by hand and as laws."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from efhc.report.claims.leads import (
    SHARES,
    at_shares,
    budget_table,
    frontier_curves,
    judge_frontier,
    mean_table,
)
from efhc.report.claims.verdicts import Verdict, everywhere, findings_table
from efhc.report.figure_data import FrontierData, SettingData
from efhc.report.figures import WIDTHS
from efhc.report.figures.paper import frontier_figure, settings_lines
from efhc.report.figures.style import BEHIND, MOST_LINES
from efhc.report.page.charts import settings_charts


def run(strategy: str, seed: int, times: list[float], accuracies: list[float]) -> pl.DataFrame:
    columns = {"strategy": strategy, "seed": seed, "transmission_time_total": times, "accuracy": accuracies}
    return pl.DataFrame(columns)


def curves(seeds: int = 5, **ends: float) -> pl.DataFrame:
    """Runs that rise to their end; each spends half of ZT's time, which differs from seed to seed."""
    tables = []
    for seed in range(seeds):
        total, luck = 100.0 * (seed + 1), 0.01 * seed
        tables.append(run("ZT", seed, [0.001 * total, 0.5 * total, total], [0.1 + luck, 0.3 + luck, 0.5 + luck]))
        for name, end in ends.items():
            tables.append(run(name, seed, [0.0, 0.5 * total], [0.1 + luck, end + luck]))
    return pl.concat(tables)


def frontier(*tables: pl.DataFrame, leaders=("A",), judged_from=0.005, **options) -> FrontierData:
    settings = tuple(SettingData(f"s{n}", f"setting {n}", table, judged_from) for n, table in enumerate(tables))
    return FrontierData("mine", "Mine", settings, leaders, **options)


def test_accuracy_at_a_share_is_read_off_between_evaluations_at_the_end_and_not_before_the_first():
    table = pl.concat([run("ZT", 3, [1.0, 10.0], [0.1, 0.7]), run("A", 3, [0.5, 1.5, 2.0], [0.2, 0.4, 0.9])])
    found = at_shares(table, "accuracy", [0.01, 0.1, 0.15, 1.0])
    expected = [None, pytest.approx(0.1), pytest.approx(0.1 + 0.5 * 0.6 / 9), 0.7, None, pytest.approx(0.3), 0.4, 0.9]
    assert found["accuracy"].to_list() == expected
    assert found["spends"].to_list() == [1.0] * 4 + [0.2] * 4


def test_a_seed_without_zt_has_no_budgets():
    table = pl.concat([run("ZT", 0, [1.0], [0.5]), run("A", 0, [1.0], [0.6]), run("A", 1, [1.0], [0.9])])
    assert budget_table(table, "accuracy")["seed"].to_list() == [0, 0]
    (judgement, *_) = judge_frontier(frontier(table))
    assert {finding.seeds for finding in judgement.findings} == {0, 1}


def test_the_table_has_every_budget_and_the_means_are_those_of_the_seeds():
    table = budget_table(curves(A=0.8), "accuracy")
    assert table.columns == ["strategy", "seed", "spends", *(f"at {100 * share:g} %" for share in SHARES)]
    means = mean_table(curves(A=0.8), "accuracy").filter(strategy="A").row(0, named=True)
    assert means["at 100 %"] == pytest.approx(0.82)
    assert means["spends"] == pytest.approx(0.5)


def test_a_budget_that_not_every_seed_resolves_has_no_mean():
    late = curves(A=0.8).filter(
        (pl.col("strategy") != "A") | (pl.col("seed") > 0) | (pl.col("transmission_time_total") > 0)
    )
    means = mean_table(late, "accuracy").filter(strategy="A").row(0, named=True)
    assert means["at 2 %"] is None
    assert means["at 100 %"] == pytest.approx(0.82)


def test_who_is_above_the_best_of_all_others_on_every_seed_leads_and_the_next_leads_all_but_the_first():
    data = frontier(curves(A=0.9, B=0.85, C=0.2), leaders=("A", "B"))
    over_all, over_paper, b_over_rest, b_over_paper = judge_frontier(data)
    rivals = ("all other strategies", "ZT", "all other strategies but A")
    for one, words in zip((over_all, over_paper, b_over_rest), rivals, strict=True):
        assert f"the best of {words} with the same seed" in one.statement
    # At 0.5 % all but ZT are ahead by little; A and B start with one accuracy and rise with different slopes.
    assert {one.verdict for one in (over_all, over_paper, b_over_rest, b_over_paper)} == {Verdict.HOLDS}
    assert over_all.findings[-1].mean == pytest.approx(0.05)
    assert over_paper.findings[-1].mean == pytest.approx(0.4)
    assert "A leads at every budget from 0.5 to 100 % of ZT's time" in over_all.statement


def test_a_ceiling_competes_with_nobody():
    table = curves(A=0.9, central=0.99)
    (against, *_) = judge_frontier(frontier(table))
    (without, *_) = judge_frontier(frontier(table, ceilings=("central",)))
    assert against.verdict is Verdict.FAILS
    assert without.verdict is Verdict.HOLDS


def test_the_best_rival_is_chosen_seed_by_seed():
    """Each of two rivals is above the leader on some seeds, though the leader's mean is above both of their means."""
    rows = [run("ZT", seed, [0.0, 1.0], [0.0, 0.0]) for seed in range(5)]
    rows += [run("A", seed, [0.0], [0.5]) for seed in range(5)]
    rows += [run("B", seed, [0.0], [0.6 if seed % 2 else 0.1]) for seed in range(5)]
    rows += [run("C", seed, [0.0], [0.1 if seed % 2 else 0.6]) for seed in range(5)]
    (judgement, over_zt) = judge_frontier(frontier(pl.concat(rows)))
    assert judgement.verdict is Verdict.FAILS
    assert judgement.findings[0].mean == pytest.approx(-0.1)
    assert over_zt.verdict is Verdict.HOLDS


def test_few_seeds_decide_nothing_and_settings_are_judged_one_by_one():
    data = frontier(curves(A=0.9), curves(A=0.2), curves(4, A=0.9))
    over_all = judge_frontier(data)[:3]
    assert [one.figures for one in over_all] == [("mine-s0",), ("mine-s1",), ("mine-s2",)]
    assert [one.verdict for one in over_all] == [Verdict.HOLDS, Verdict.FAILS, Verdict.UNDECIDED]
    assert everywhere(over_all) is Verdict.FAILS
    assert everywhere([over_all[0], over_all[2]]) is Verdict.UNDECIDED
    assert everywhere(over_all[:1]) is Verdict.HOLDS
    assert findings_table(over_all)["claim"].null_count() == 3 * 8


def test_budgets_below_the_first_judged_one_are_shown_only():
    (judgement, *_) = judge_frontier(frontier(curves(A=0.9), judged_from=0.2))
    assert [finding.budget for finding in judgement.findings] == [0.2, 0.5, 1.0]


@settings(max_examples=8)  # each judges 24 margins
@given(st.floats(0.2, 1.0), st.floats(0.2, 1.0), st.floats(1e-3, 1e3))
def test_margins_are_antisymmetric_and_no_unit_of_time_matters(a: float, b: float, unit: float):
    table = curves(A=a, B=b).filter(pl.col("strategy") != "C")
    scaled = table.with_columns(pl.col("transmission_time_total") * unit)
    pair = [("A", "B"), ("B", "A")]
    found = []
    for leader, other in pair:
        alone = frontier(scaled, leaders=(leader,), ceilings=("ZT",))
        (judgement,) = judge_frontier(alone)
        assert {name for name in alone.strategies if name not in (leader, "ZT")} == {other}
        found.append([finding.mean for finding in judgement.findings])
    assert np.allclose(found[0], [-mean for mean in found[1]], atol=1e-9)
    (unscaled,) = judge_frontier(frontier(table, leaders=("A",), ceilings=("ZT",)))
    assert np.allclose(found[0], [finding.mean for finding in unscaled.findings], atol=1e-6)


def test_curves_end_where_the_strategy_does_and_only_those_in_front_have_bands():
    (setting,) = frontier(curves(A=0.9, B=0.5)).settings
    table = frontier_curves(setting, ("A",))
    of_a = table.filter(strategy="A")
    assert of_a["spends"].unique().to_list() == pytest.approx([0.5])
    assert of_a.filter(pl.col("share") >= 0.5)["mean"].to_list() == pytest.approx([0.92] * (of_a["share"] >= 0.5).sum())
    assert of_a["low"].null_count() == 0
    assert table.filter(strategy="B")["low"].null_count() == len(table.filter(strategy="B"))
    assert table["share"].min() >= 0.001
    assert table["share"].max() == 1.0


def test_the_leaders_are_drawn_in_strong_colours_and_the_rest_behind_them():
    names = {f"other {n}": 0.4 for n in range(12)}
    data = frontier(curves(A=0.9, **names), curves(A=0.8, **names), ceilings=("other 11",))
    lines = settings_lines(data)
    assert list(lines)[:2] == ["A", "ZT"]
    assert list(lines)[-1] == "other 11"
    assert lines["A"].width > lines["other 3"].width
    assert len({(line.color, line.dash) for line in lines.values()}) == len(lines)
    figure = frontier_figure(data)
    assert [axes.get_title() for axes in figure.axes] == ["setting 0", "setting 1"]
    assert {axes.get_xscale() for axes in figure.axes} == {"log"}
    (legend,) = figure.legends
    words = [text.get_text() for text in legend.get_texts()]
    assert words[:-1] == ["A", "ZT", "other 11 (ceiling)", "11 others (mine.csv)"]
    assert "dotted" in words[-1]
    assert "5 other seeds" in legend.get_title().get_text()
    with_bands = {tuple(band.get_edgecolor()[0]) for axes in figure.axes for band in axes.collections}
    assert len(with_bands) == 2
    for chart in settings_charts(data):
        assert {line["name"] for line in chart["lines"]} == set(data.strategies)
        assert chart["lines"][-1]["name"] == "A"
        assert chart["lines"][-1]["spentAt"] == pytest.approx(50)


def test_as_many_strategies_as_can_be_told_apart_in_print_all_have_bands_and_marks():
    names = {f"other {n}": 0.4 for n in range(MOST_LINES - 2)}
    figure = frontier_figure(frontier(curves(A=0.9, **names)), "column")
    assert figure.get_figwidth() == WIDTHS["column"]
    (axes,) = figure.axes
    assert len(axes.collections) == MOST_LINES
    marked = [line for line in axes.lines if line.get_marker() not in ("None", "|", "")]
    assert len({line.get_marker() for line in marked}) == MOST_LINES
    assert len({(line.get_color(), line.get_linestyle()) for line in marked}) == MOST_LINES
    assert axes.get_xlabel() == "transmission time (share of ZT's)"


def test_the_printed_frontier_without_the_leaders_is_thin_and_grey():
    names = {f"other {n}": 0.4 for n in range(12)}
    figure = frontier_figure(frontier(curves(A=0.9, **names)))
    others = [line for line in figure.axes[0].lines if line.get_color() == BEHIND.color and line.get_marker() != "|"]
    assert others
    assert all(line.get_linewidth() < 1 for line in others)
    page = settings_lines(frontier(curves(A=0.9, **names)))
    assert len({line.color for line in page.values()}) > 5  # on the page, each can be picked
