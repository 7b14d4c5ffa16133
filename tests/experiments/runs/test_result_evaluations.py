"""Result.evaluations: a row per evaluation, whichever table the runs leave."""

from __future__ import annotations

import polars as pl
import pytest

import efhc


def test_an_evaluation_of_a_period_is_one_row_with_its_means():
    periodic = efhc.Composed(trigger=efhc.PeriodTrigger(every=4))
    result = efhc.simulate(
        devices=4, iterations=30, evaluate_every=10, seeds=[0, 1], strategies={"S": periodic, "ZT": "zt"}
    )
    last = result.evaluations.group_by("strategy", "seed").last()
    assert last["iteration"].to_list() == [29] * 4
    for row in last.iter_rows(named=True):
        rows = result.metrics.filter(strategy=row["strategy"], seed=row["seed"]).tail(
            4 if row["strategy"] == "S" else 1
        )
        assert row["accuracy"] == pytest.approx(rows["accuracy"].mean())
        assert row["transmission_time_total"] == rows["transmission_time_total"][-1]


def test_of_event_driven_runs_it_is_a_row_per_sample():
    driver = efhc.EventDriven(seconds=5.0, sample_seconds=1.0)
    result = efhc.simulate(devices=4, seeds=[0], driver=driver, strategies={"ZT": "zt"})
    assert result.evaluations.equals(result.timeline.filter(pl.col("accuracy").is_not_null()))
    assert len(result.evaluations) >= 6
