"""Names of measures, which tables have which, and the statistics over devices."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from efhc.base.errors import InputError
from efhc.learning.measures import (
    CLASSIFICATION,
    Evaluation,
    Scores,
    evaluated,
    measure_in,
    measure_of,
    measures_of,
    metrics_in,
)

METRICS = {**CLASSIFICATION, "f1": "higher", "mean_squared_error": "lower"}
VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30)


@given(values=VALUES, own=st.floats(0, 1))
def test_statistics_are_numpys_own(values: list[float], own: float):
    scores = {name: Scores(np.array(values), np.full(len(values), own), 0.25, 0.5) for name in METRICS}
    columns = Evaluation(METRICS, scores, np.arange(len(values))).columns
    assert list(columns) == list(measures_of(METRICS))
    for metric, better in METRICS.items():
        decile = "p10" if better == "higher" else "p90"
        share = 0.1 if better == "higher" else 0.9
        assert columns[f"{metric}_{decile}"] == pytest.approx(np.quantile(values, share), rel=1e-9, abs=1e-9)
        assert columns[f"{metric}_std"] == pytest.approx(np.std(values), rel=1e-9, abs=1e-9)
        assert (columns[f"{metric}_min"], columns[f"{metric}_max"]) == (min(values), max(values))
        assert columns[f"own_{metric}_{decile}"] == own
        assert columns[f"own_{metric}"] == pytest.approx(own)
        assert (columns[f"mean_model_{metric}"], columns[f"mean_model_own_{metric}"]) == (0.25, 0.5)


def test_what_is_not_finite_is_not_known():
    infinite = Scores(np.array([np.inf, 1.0, np.inf]), np.array([np.nan, 1.0, 1.0]), np.inf, 1.0)
    columns = Evaluation({"loss": "lower"}, {"loss": infinite}, np.arange(3)).columns
    assert columns["loss"] is columns["loss_max"] is columns["own_loss"] is columns["own_loss_min"] is None
    assert columns["loss_min"] == columns["mean_model_own_loss"] == 1.0


def test_the_metrics_of_a_table_follow_from_its_columns():
    assert metrics_in(list(measures_of(METRICS))) == METRICS
    assert metrics_in(["strategy", "accuracy", "mean_model_accuracy"]) == {"accuracy": "higher"}  # of efhc 0.2
    assert metrics_in(["strategy", "train_loss"]) == {}


def test_every_measure_says_what_it_is():
    known = measures_of(METRICS)
    for name, measure in known.items():
        assert measure_in(name, known) == measure
        assert (measure.is_own, measure.of_mean_model) == ("own_" in name, name.startswith("mean_model_"))
        assert measure.better == ("lower" if name.endswith("_std") else METRICS[measure.metric])
        assert measure.beside is None or known[measure.beside].of_mean_model
    assert len({measure.label for measure in known.values()}) == len(known)
    assert known["own_accuracy"].beside == "mean_model_own_accuracy"
    table = pl.DataFrame({"f1_min": [0.2, 0.1], "mean_squared_error": [1.0, 3.0]})
    for name, worst in (("f1_min", 0.1), ("mean_squared_error", 3.0)):
        assert table.select(known[name].worst).to_dict(as_series=False) == {f"worst_seed_{name}": [worst]}


def test_a_table_without_the_measure_is_refused_with_what_it_has():
    columns = ["strategy", "seed", *measures_of({"mean_squared_error": "lower"})]
    assert measure_in(None, columns).name == "mean_squared_error"
    for wrong in ("accuracy", "mean_squared", "strategy"):
        with pytest.raises(InputError) as caught:
            measure_in(wrong, columns, "--measure")
        assert caught.value.field == "--measure"
        assert "own_mean_squared_error_p90" in caught.value.allowed


def test_evaluations_are_those_rows_that_have_any_metric():
    rows = {"seed": [0] * 4, "mse": [None, 2.0, None, 1.0], "mse_p90": [None, 3.0, None, None]}
    table = pl.DataFrame(rows)
    assert evaluated(table)["mse"].to_list() == [2.0, 1.0]
    assert measure_of(table).name == "mse"
