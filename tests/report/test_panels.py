"""Panels against frames that can be worked out by hand."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from efhc.report.claims.intervals import interval, of_other_seeds
from efhc.report.claims.panels import (
    at_share,
    by_radius,
    panels,
    per_time,
    time_per_iteration,
    within_budgets,
)
from efhc.report.figure_data import BUDGETS, FigureData


def run(strategy: str, seed: int, totals: list[float], accuracies: list[float], iterations=(0, 4, 9)) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "strategy": strategy,
            "seed": seed,
            "iteration": list(iterations),
            "transmission_time_total": totals,
            "accuracy": accuracies,
        }
    )


CURVES = pl.concat(
    [
        run("ZT", 3, [2.0, 10.0, 20.0], [0.1, 0.5, 0.7]),
        run("ZT", 1, [4.0, 20.0, 40.0], [0.2, 0.6, 0.8]),
        run("EF-HC", 3, [0.0, 4.0, 4.0], [0.1, 0.3, 0.5]),
        run("EF-HC", 1, [1.0, 2.0, 6.0], [0.2, 0.4, 0.6]),
    ]
)


def of(table: pl.DataFrame, strategy: str) -> pl.DataFrame:
    return table.filter(strategy=strategy)


def test_time_per_iteration_is_the_mean_since_the_evaluation_before():
    table = time_per_iteration(CURVES)
    assert table.columns == ["strategy", "iteration", "mean", "low", "high", "seed 3", "seed 1"]
    assert table["strategy"].unique(maintain_order=True).to_list() == ["ZT", "EF-HC"]
    assert of(table, "ZT")["iteration"].to_list() == [0, 4, 9]
    assert of(table, "ZT")["seed 3"].to_list() == [2.0, 2.0, 2.0]
    assert of(table, "EF-HC")["seed 3"].to_list() == [0.0, 1.0, 0.0]
    assert of(table, "EF-HC")["seed 1"].to_list() == [1.0, 0.25, 0.8]
    assert of(table, "EF-HC")["mean"].to_list() == pytest.approx([0.5, 0.625, 0.4])
    # Weighted by how many iterations they stand for, they add up to the total.
    assert np.dot(of(table, "EF-HC")["seed 1"], [1, 4, 5]) == pytest.approx(6.0)


def test_a_run_whose_first_evaluation_is_late_is_averaged_from_the_start():
    table = time_per_iteration(run("ZT", 0, [10.0, 12.0], [0.1, 0.2], iterations=(4, 5)))
    assert table["seed 0"].to_list() == [2.0, 2.0]


def test_accuracy_per_iteration_is_the_curves_themselves():
    table = panels(FigureData("fig2a", "2(a)", "", CURVES))["ii"]
    assert of(table, "EF-HC")["seed 1"].to_list() == [0.2, 0.4, 0.6]
    assert of(table, "ZT")["mean"].to_list() == pytest.approx([0.15, 0.55, 0.75])


@pytest.mark.parametrize("table", panels(FigureData("fig2a", "2(a)", "", CURVES)).values())
def test_every_panel_has_the_interval_of_its_seeds(table: pl.DataFrame):
    for _, rows in table.group_by("strategy"):
        expected = of_other_seeds(interval(rows.select("seed 3", "seed 1").to_numpy().T))
        expected = expected._replace(low=np.maximum(expected.low, 0))
        np.testing.assert_allclose(rows.select("mean", "low", "high").to_numpy().T, expected, rtol=1e-12)


def test_accuracy_per_time_is_read_off_as_far_as_all_seeds_got():
    table = per_time(CURVES, "accuracy", points=5)
    zero = of(table, "ZT")
    assert zero["transmission_time"].to_list() == [0.0, 5.0, 10.0, 15.0, 20.0]
    assert zero["seed 3"].to_list() == pytest.approx([0.1, 0.25, 0.5, 0.6, 0.7])
    assert zero["seed 1"].to_list() == pytest.approx([0.2, 0.225, 0.35, 0.475, 0.6])
    event = of(table, "EF-HC")
    assert event["transmission_time"].to_list() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert event["seed 3"].to_list() == pytest.approx([0.1, 0.15, 0.2, 0.25, 0.5])  # it learns on without sending
    assert len(per_time(CURVES, "accuracy")) == 400


def test_a_strategy_that_never_sends_has_one_point():
    silent = run("Never", 0, [0.0, 0.0, 0.0], [0.1, 0.2, 0.3])
    table = per_time(pl.concat([silent, run("ZT", 0, [1.0, 2.0, 3.0], [0.1, 0.2, 0.3])]), "accuracy")
    assert of(table, "Never").select("transmission_time", "mean").rows() == [(0.0, 0.3)]
    assert np.isnan(table["low"].to_numpy()).all()
    assert len(of(table, "ZT")) == 200


def at_budget(curves: pl.DataFrame, budget: float) -> pl.DataFrame:
    return within_budgets(curves, "accuracy", dict.fromkeys(curves["seed"].unique(), budget))


def test_accuracy_at_a_budget_is_linear_between_evaluations_and_the_last_where_it_is_never_spent():
    table = at_budget(CURVES, 5.0)
    assert table.columns == ["strategy", "seed", "accuracy"]
    assert table.select("strategy", "seed").rows() == [("ZT", 3), ("ZT", 1), ("EF-HC", 3), ("EF-HC", 1)]
    assert table["accuracy"].to_list() == pytest.approx([0.25, 0.225, 0.5, 0.55])
    assert at_budget(CURVES, 1e9)["accuracy"].to_list() == [0.7, 0.8, 0.5, 0.6]
    assert at_budget(CURVES, 2.0)["accuracy"].to_list() == [0.1, None, pytest.approx(0.2), pytest.approx(0.4)]
    assert at_budget(CURVES, 0.0)["accuracy"].to_list() == [None, None, 0.1, None]


def test_iterations_without_an_evaluation_are_passed_over():
    with_gap = run("ZT", 0, [1.0, 2.0, 4.0], [0.1, 0.0, 0.7]).with_columns(
        accuracy=pl.when(pl.col("iteration") == 4).then(None).otherwise(pl.col("accuracy"))
    )
    assert at_budget(with_gap, 2.5)["accuracy"].to_list() == pytest.approx([0.4])


def test_a_share_is_of_zero_thresholds_time_with_the_same_seed():
    table = at_share(CURVES, "accuracy", 0.1)  # 2 for seed 3, 4 for seed 1
    assert table["accuracy"].to_list() == pytest.approx([0.1, 0.2, 0.2, 0.5])
    without = at_share(CURVES.filter(~((pl.col("strategy") == "ZT") & (pl.col("seed") == 1))), "accuracy", 0.1)
    assert without.select("strategy", "seed").rows() == [("ZT", 3), ("EF-HC", 3)]


def test_accuracy_by_radius_takes_the_budget_of_its_own_radius():
    near = CURVES.with_columns(radius=pl.lit(0.5))
    far = CURVES.with_columns(pl.col("transmission_time_total") * 10, pl.col("accuracy") / 2, radius=pl.lit(0.3))
    table = by_radius(pl.concat([near, far]), "accuracy")
    assert table.columns == ["budget", "strategy", "radius", "mean", "low", "high", "seed 3", "seed 1"]
    assert table["budget"].unique(maintain_order=True).to_list() == list(BUDGETS)
    assert len(table) == len(BUDGETS) * 2 * 2
    least = of(table.filter(budget=0.02), "EF-HC")  # less than seed 1 had spent when it was first evaluated
    assert (least["seed 3"].null_count(), least["seed 1"].null_count()) == (0, 2)
    assert least["mean"].is_nan().all()
    tenth = of(table.filter(budget=0.1), "EF-HC")
    assert tenth["radius"].to_list() == [0.3, 0.5]
    assert tenth["seed 3"].to_list() == pytest.approx([0.1, 0.2])
    assert tenth["seed 1"].to_list() == pytest.approx([0.25, 0.5])
    assert tenth["mean"].to_list() == pytest.approx([0.175, 0.35])


def test_panel_four_is_there_where_connectivity_is():
    assert list(panels(FigureData("fig3b", "3(b)", "", CURVES))) == ["i", "ii", "iii"]
    varied = FigureData("fig2a", "2(a)", "", CURVES, CURVES.with_columns(radius=pl.lit(0.4)))
    assert list(panels(varied)) == ["i", "ii", "iii", "iv"]
