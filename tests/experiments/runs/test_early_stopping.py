"""A run with early stopping ends where its measure has not got better for a while, and is the same up to there."""

from __future__ import annotations

from contextlib import suppress
from threading import Event

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from pydantic import ValidationError

import efhc
from efhc.base.errors import InputError
from efhc.experiments.runs.draw import draw_scenario
from efhc.experiments.runs.engines.local import make_run
from efhc.experiments.runs.folder import RunFolder
from efhc.experiments.runs.keeping import RunOptions, Stopped
from efhc.experiments.runs.run import Runs
from efhc.experiments.runs.store import RunStore
from efhc.learning.measures import evaluated

FIELDS = {
    "devices": 5, "iterations": 400, "seeds": (1,), "evaluate_every": 5, "network": efhc.Complete(),
    "step_size": {"kind": "constant", "value": 0.2}, "strategies": {"ZT": efhc.ZeroThreshold()},
}  # fmt: skip
STOPPING = {"measure": "accuracy", "patience": 4, "least_gain": 0.002}
EVENT_DRIVEN = {"driver": efhc.EventDriven(), "bandwidths": {"kind": "constant", "value": 1e6}}


def end_by_hand(values: list[float]) -> int:
    """The number of evaluations up to the end, by the rule in plain words."""
    best, waited = values[0], 0
    for number, value in enumerate(values[1:], 2):
        waited += 1
        if value > best + STOPPING["least_gain"]:
            best, waited = value, 0
        if waited == STOPPING["patience"]:
            return number
    return len(values)


@pytest.mark.parametrize("driver", [{}, EVENT_DRIVEN], ids=["lockstep", "event-driven"])
def test_it_ends_after_so_many_evaluations_without_a_gain(driver):
    whole = efhc.simulate(**FIELDS, **driver)
    early = efhc.simulate(**FIELDS, **driver, early_stopping=STOPPING)
    curve = "timeline" if driver else "metrics"
    tables = [evaluated(getattr(result, curve)) for result in (whole, early)]
    count = end_by_hand(tables[0]["accuracy"].to_list())
    assert 6 < count < len(tables[0])
    assert_frame_equal(tables[1][: count - 1], tables[0][: count - 1], check_exact=True)
    assert len(tables[1]) == count
    assert early.states == {("ZT", 1): "done"}
    assert early.summary()["accuracy"].item() == tables[1]["accuracy"][-1]
    if not driver:
        assert len(early.metrics) == tables[0]["iteration"][count - 1] + 1
        assert_frame_equal(early.metrics, whole.metrics[: len(early.metrics)], check_exact=True)


def test_patience_that_is_never_used_up_changes_nothing():
    whole = efhc.simulate(**FIELDS)
    patient = efhc.simulate(**FIELDS, early_stopping={"patience": 1000})
    assert_frame_equal(patient.metrics, whole.metrics, check_exact=True)


@pytest.mark.parametrize("driver", [{}, EVENT_DRIVEN], ids=["lockstep", "event-driven"])
def test_stopped_and_resumed_it_ends_at_the_same_place(tmp_path, driver):
    (run,) = Runs().of(efhc.Experiment(**FIELDS, **driver, early_stopping=STOPPING))
    memory, store = RunStore(None), RunStore(tmp_path)
    with memory.keeper(run) as keeper:
        make_run(draw_scenario(run.whole, run.data, run.seed), keeper, RunOptions(threads=1))
    for at in (0.02, 0.05, 0.08, 0.1, 0.15, 2.0):
        stop = Event()

        def progress(share: float, at: float = at, stop: Event = stop) -> None:
            if share >= at:
                stop.set()

        with store.keeper(run) as keeper, suppress(Stopped):
            options = RunOptions(threads=1, stop=stop, progress=progress, checkpoint_seconds=0.0)
            make_run(draw_scenario(run.whole, run.data, run.seed), keeper, options)
    for name, table in memory.made[run.key].tables.items():
        assert_frame_equal(RunFolder(store.directory(run)).table(name), table, check_exact=True)


def test_a_periodic_strategy_ends_after_an_evaluation_over_one_period(tmp_path):
    every_8 = {"P": efhc.Composed(trigger=efhc.PeriodTrigger(every=8))}
    fields = {**FIELDS, "strategies": every_8, "early_stopping": {"patience": 3, "least_gain": 0.01}}
    result = efhc.simulate(**fields)
    end = len(result.metrics)
    assert end < 400
    last = result.metrics.filter(pl.col("evaluation") == end - 8)
    assert last["iteration"].to_list() == list(range(end - 8, end))
    always = efhc.simulate(**FIELDS | {"strategies": every_8, "iterations": end, "evaluate_every": 1}).metrics
    assert result.summary()["accuracy"].item() == pytest.approx(always["accuracy"].tail(8).mean(), abs=1e-12)


def test_models_of_the_end_are_kept():
    result = efhc.simulate(**FIELDS, early_stopping=STOPPING, keep_models_every=100)
    last = len(result.metrics)
    snapshots = result.snapshots("ZT", 1)
    assert max(snapshots) == last
    assert (snapshots[last] == result.models["ZT", 1]).all()
    assert result.metrics["iteration"].to_list() == list(range(last))
    assert result.metrics.select(pl.col("accuracy").last()).item() is not None


def test_runs_that_end_early_are_named_and_have_no_budgets():
    result = efhc.simulate(**FIELDS, early_stopping=STOPPING)
    assert f"ZT: 1 of 1 runs ended after {len(result.metrics)} of 400 iterations" in str(result.words())
    for budgets in (result.at_budget, result.frontier):
        with pytest.raises(InputError, match="early_stopping"):
            budgets()
    with pytest.raises(ValidationError, match="evaluate_at"):
        efhc.Experiment(early_stopping=STOPPING, evaluate_at="budgets")


def test_a_measure_that_there_is_not_is_refused_before_the_run():
    with pytest.raises(InputError, match=r"^early_stopping.measure: .*acuracy.*accuracy"):
        efhc.simulate(**FIELDS, early_stopping={"measure": "acuracy"})
