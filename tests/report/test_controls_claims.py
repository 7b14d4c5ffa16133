"""A strategy against its controls: leads seed by seed, verdicts and sentences, by hand."""

from __future__ import annotations

import polars as pl
import pytest

from efhc.report.claims.leads import all_ends, end_means, ends, judge_controls, seconds_curves
from efhc.report.claims.verdicts import Verdict, bought_words, findings_table
from efhc.report.figure_data import ACCURACY, ControlsData, TimedSetting
from efhc.report.figures.paper import controls_figure
from efhc.report.page.charts import settings_charts


def curves(seeds: int = 5, **at_end: float) -> pl.DataFrame:
    """Runs that rise to their end; seeds differ more than strategies do."""
    return pl.concat(
        pl.DataFrame(
            {
                "strategy": name,
                "seed": seed,
                "seconds": [0.0, 5.0, 10.0],
                "bytes": [0, 500_000, 1_000_000 + seed],
                "accuracy": [0.1, 0.2, end + 0.02 * seed],
            }
        )
        for name, end in at_end.items()
        for seed in range(seeds)
    )


def controls(*tables: pl.DataFrame, **marks: str) -> ControlsData:
    settings = tuple(
        TimedSetting(f"s{n}", f"setting {n}", table, seconds=10.0, bandwidths=(200.0, 4000.0))
        for n, table in enumerate(tables)
    )
    return ControlsData("mine", "Mine", settings, "A", {"B": "b", "C": "c"}, **marks)


def test_who_is_above_on_every_seed_holds_however_much_seeds_differ():
    data = controls(curves(A=0.51, B=0.5, C=0.51, D=0.1))
    over_b, over_c = judge_controls(data)  # D is shown, and is no control
    assert (over_b.verdict, over_c.verdict) == (Verdict.HOLDS, Verdict.UNDECIDED)
    (lead,) = over_b.findings
    assert (lead.mean, lead.seeds, lead.seeds_above) == (pytest.approx(0.01), 5, 5)
    table = findings_table([over_b, over_c])
    assert table["verdict"].to_list() == [
        "holds (wins on 5 of 5 seeds)",
        "undecided: the interval contains 0 (wins on 0 of 5 seeds)",
    ]


def test_settings_are_judged_one_by_one_and_few_seeds_decide_nothing():
    data = controls(curves(A=0.5, B=0.4), curves(A=0.4, B=0.5), curves(4, A=0.5, B=0.4))
    found = judge_controls(data)
    assert [one.figures for one in found] == [("mine-s0",), ("mine-s1",), ("mine-s2",)]
    assert [one.verdict for one in found] == [Verdict.HOLDS, Verdict.FAILS, Verdict.UNDECIDED]
    words = [bought_words({"B": one.findings[0]}) for one in found]
    for part, said in zip(("a gain of 0.100", "a loss of 0.100", "too few seeds (4)"), words, strict=True):
        assert part in said
    assert bought_words({}) == ""


def test_a_seed_that_only_one_of_the_two_has_is_left_out_and_so_is_a_run_that_ends_without_devices():
    table = pl.concat([curves(6, A=0.5, B=0.4).filter((pl.col("strategy") == "A") | (pl.col("seed") > 0))])
    gone = (pl.col("seed") == 5) & (pl.col("seconds") == 10.0)
    table = table.with_columns(accuracy=pl.when(gone).then(None).otherwise("accuracy"))
    ((judgement),) = judge_controls(controls(table))
    assert judgement.findings[0].seeds == 4
    assert len(ends(table, "accuracy")) == 4 + 5


def test_means_and_curves_are_those_of_the_seeds():
    data = controls(curves(A=0.5, B=0.4), common="B")
    assert all_ends(data)["setting"].unique().to_list() == ["s0"]
    first = end_means(ends(data.settings[0].curves, "accuracy"), ACCURACY).row(0, named=True)
    assert first == {"strategy": "A", "mean": pytest.approx(0.54), "worst": 0.5, "bytes": 1_000_002, "seeds": 5}
    table = seconds_curves(data.settings[0], ("A",))
    assert table.filter(strategy="A")["mean"].to_list() == pytest.approx([0.1, 0.2, 0.54])
    assert table.filter(strategy="A")["low"].null_count() == 0
    assert table.filter(strategy="B")["low"].null_count() == 3


def test_every_setting_is_a_panel_with_the_leader_on_top():
    data = controls(curves(A=0.5, B=0.4, D=0.3), curves(1, A=0.5, B=0.4), common="B")
    assert data.in_front == ["A", "B"]
    figure = controls_figure(data)
    assert [axes.get_title() for axes in figure.axes] == ["setting 0", "setting 1"]
    charts = settings_charts(data)
    assert [[line["name"] for line in chart["lines"]] for chart in charts] == [["D", "B", "A"], ["B", "A"]]
