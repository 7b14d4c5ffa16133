"""What the timeline says of a target accuracy: the first sample that has it, and how many seeds get there."""

from __future__ import annotations

import polars as pl
import pytest

from efhc.report.figure_data import ACCURACY
from efhc.report.timelines import cost_to_target, nobody_left, timeline_summary


def timeline(accuracies: dict[tuple[str, int], list[float | None]]) -> pl.DataFrame:
    rows = [
        {
            "strategy": strategy,
            "seed": seed,
            "seconds": 0.5 * sample,
            "steps": 4 * sample,
            "broadcasts": 2 * sample,
            "exchanges": sample,
            "bytes": 100 * sample * (1 + seed),
            "accuracy": accuracy,
            "mean_model_accuracy": accuracy,
            "consensus_error": None if accuracy is None else 1.0,
            "devices": 0 if accuracy is None else 4,
        }
        for (strategy, seed), of_run in accuracies.items()
        for sample, accuracy in enumerate(of_run)
    ]
    return pl.DataFrame(rows)


RUNS = {
    ("A", 0): [0.1, 0.7, 0.6, 0.9],
    ("A", 1): [0.1, None, 0.7, 0.8, None],  # no device was there at samples 1 and 4
    ("B", 0): [0.1, 0.2, 0.8],
    ("B", 1): [0.1, 0.2, 0.3],
}


def test_the_first_sample_that_has_the_target_counts():
    found = cost_to_target(timeline(RUNS), ACCURACY, 0.7)
    assert found["seconds_to_target"].to_list() == [0.5, 1.0, 1.0, None]
    assert found["bytes_to_target"].to_list() == [100.0, 400.0, 200.0, None]


def test_a_mean_is_of_the_seeds_that_reach_the_target_and_has_an_interval_only_if_all_do():
    a, b = timeline_summary(timeline(RUNS), ACCURACY, 0.7).iter_rows(named=True)
    assert (a["reached"], a["seeds"]) == (2, 2)
    assert (a["seconds_to_target_low"], a["seconds_to_target"], a["seconds_to_target_high"]) == (0.5, 0.75, 1.0)
    assert (a["bytes_to_target_low"], a["bytes_to_target"], a["bytes_to_target_high"]) == (100.0, 250.0, 400.0)
    assert (a["seconds_without_target"], a["bytes_without_target"]) == (None, None)
    assert (b["reached"], b["seeds"]) == (1, 2)
    assert (b["seconds_to_target"], b["bytes_to_target"]) == (1.0, 200.0)
    assert [b[name] for name in b if name.endswith(("_low", "_high"))] == [None] * 4
    assert (b["seconds_without_target"], b["bytes_without_target"]) == (1.0, 400.0)


def test_what_was_spent_in_vain_is_the_least_of_the_seeds_that_do_not_reach_the_target():
    _, b = timeline_summary(timeline(RUNS | {("B", 0): [0.1] * 5}), ACCURACY, 0.7).iter_rows(named=True)
    assert (b["reached"], b["seconds_to_target"], b["seconds_without_target"]) == (0, None, 1.0)


def test_the_summary_is_of_the_last_sample_of_each_run():
    a, b = timeline_summary(timeline(RUNS), ACCURACY).iter_rows(named=True)
    assert "reached" not in a
    assert a["seconds"] == (1.5 + 2.0) / 2
    assert (b["accuracy"], b["worst_seed_accuracy"]) == (pytest.approx(0.55), 0.3)
    assert (b["seconds"], b["steps"], b["exchanges"], b["bytes"], b["devices"]) == (1.0, 8.0, 2.0, 300.0, 4.0)


def test_a_run_at_whose_end_no_device_is_there_has_no_accuracy():
    both = timeline(RUNS | {("C", 0): [0.9, None]})
    a, _, c = timeline_summary(both, ACCURACY).iter_rows(named=True)
    assert (a["accuracy"], a["worst_seed_accuracy"], a["devices"]) == (0.9, 0.9, 2.0)  # of seed 0 alone
    assert (c["accuracy"], c["worst_seed_accuracy"], c["consensus_error"], c["devices"]) == (None, None, None, 0.0)
    assert nobody_left(both) == {"A": [1], "C": [0]}


def test_one_seed_has_a_mean_without_an_interval():
    (row,) = timeline_summary(timeline({("A", 0): [0.1, 0.9]}), ACCURACY, 0.5).iter_rows(named=True)
    assert (row["seconds_to_target"], row["seconds_to_target_low"], row["reached"]) == (0.5, None, 1)
