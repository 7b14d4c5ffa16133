"""One word, the name of a column, chooses the measure that everything goes by."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import efhc
from efhc.base.errors import InputError
from efhc.experiments.config.files import first_difference, to_tables
from efhc.experiments.runs.run import Runs
from efhc.learning.measures import measure_of

SMALL = efhc.Experiment(iterations=20, evaluate_every=10, seeds=(0, 1), devices=4)


@pytest.fixture(scope="module")
def small():
    return efhc.simulate(SMALL)


def test_the_measure_does_not_determine_results(tmp_path):
    by_own = SMALL.model_copy(update={"measure": "own_accuracy"})
    assert [run.key for run in Runs().of(by_own)] == [run.key for run in Runs().of(SMALL)]
    assert first_difference(to_tables(SMALL), to_tables(by_own)) is None
    efhc.simulate(by_own, out=tmp_path / "runs")
    assert efhc.Result.load(tmp_path / "runs").experiment.measure == "own_accuracy"


def test_the_default_is_accuracy_or_else_the_first_metric_with_values(small):
    assert measure_of(small.metrics).name == "accuracy"
    regression = small.metrics.with_columns(pl.lit(None, pl.Float64).alias(name) for name in ("accuracy",))
    assert measure_of(regression).name == "loss"
    assert measure_of(small.metrics.select("strategy", "seed", "accuracy")).name == "accuracy"  # of efhc 0.2


def test_a_measure_that_a_table_lacks_is_refused(small):
    with pytest.raises(InputError, match="own_accuracy_min"):
        measure_of(small.metrics, "own_acuracy")
    without = small.metrics.with_columns(own_accuracy=pl.when(pl.col("seed") == 0).then("own_accuracy"))
    with pytest.raises(InputError, match="seed 1"):
        measure_of(without, "own_accuracy")


def test_a_measure_that_runs_cannot_give_is_refused_before_they_begin():
    digits = efhc.Digits().load("float32")
    tested = np.flatnonzero(digits.y_test != 2)
    data = efhc.Dataset(digits.x_train, digits.y_train, digits.x_test[tested], digits.y_test[tested])
    for name, given in (("own_acuracy", efhc.Digits()), ("own_accuracy", data)):
        with pytest.raises(InputError) as error:
            efhc.simulate(SMALL, devices=10, data=given, measure=name)
        assert error.value.field == "measure"
        assert name in str(error.value.given)
