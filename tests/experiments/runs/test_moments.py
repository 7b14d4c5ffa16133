"""When models are evaluated: once per window at a drawn moment, at budgets, and over one period of a strategy."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from threading import Event

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from pydantic import ValidationError

import efhc
from efhc.experiments.runs.draw import draw_scenario
from efhc.experiments.runs.engines.local import make_run
from efhc.experiments.runs.folder import RunFolder
from efhc.experiments.runs.keeping import RunOptions, Stopped
from efhc.experiments.runs.moments import MOST_OF_PERIOD, Moments
from efhc.experiments.runs.run import Runs
from efhc.experiments.runs.store import RunStore
from efhc.learning.measures import EVALUATION, evaluated

SMALL = {"seeds": (3,), "devices": 6, "network": efhc.Ring(), "data": efhc.Digits()}


def every(period: int) -> efhc.Composed:
    return efhc.Composed(trigger=efhc.PeriodTrigger(every=period))


def rows(metrics: pl.DataFrame) -> list[tuple[int, int]]:
    """The evaluated iterations, each with that in which its evaluation begins."""
    return metrics.filter(pl.col(EVALUATION).is_not_null()).select("iteration", EVALUATION).rows()


@given(st.integers(1, 300), st.integers(1, 60), st.integers(1, 70), st.integers(0, 10**6))
def test_there_is_one_evaluation_per_window_and_one_period_at_the_end(
    iterations: int, window: int, period: int, seed: int
):
    strategies = {"S": every(period)}
    fields = {**SMALL, "seeds": (seed,), "iterations": iterations, "evaluate_every": window, "strategies": strategies}
    planned = list(Moments(efhc.Experiment(**fields), scenario=None).planned)
    assert planned == sorted(set(planned))
    assert planned[0] == 1
    length = min(period, iterations)
    of_end = {
        iterations - place * length // min(length, MOST_OF_PERIOD) for place in range(min(length, MOST_OF_PERIOD))
    }
    assert of_end <= set(planned)
    assert max(planned) == iterations
    drawn = [k for k in planned if k not in of_end | {1}]
    assert max(drawn, default=0) < min(of_end)
    windows = [(k - 1) // window for k in drawn]
    assert len(set(windows)) == len(windows)
    full = (min(of_end) - 1) // window  # those after it have the end
    assert set(range(full)) <= set(windows) | {0}


def test_moments_are_spread_over_the_window_and_differ_by_seed():
    places = []
    for seed in range(40):
        experiment = efhc.Experiment(**{**SMALL, "seeds": (seed,)}, iterations=501, strategies={"S": every(1)})
        places += [(k - 1) % 50 for k in list(Moments(experiment, scenario=None).planned)[1:-1]]
    counts = np.bincount(np.array(places) // 10, minlength=5)
    assert len(places) in range(395, 401)
    assert (abs(counts - 80) < 5 * np.sqrt(80)).all()


@pytest.mark.parametrize("period", [3, 8])
def test_what_is_printed_of_a_periodic_strategy_is_the_mean_over_its_last_period(period: int):
    fields = {**SMALL, "iterations": 200, "strategies": {"S": every(period)}}
    always = efhc.simulate(**fields, evaluate_every=1).metrics
    last = always.tail(period)["accuracy"]
    assert last.max() - last.min() > 0.005  # where in its period it is looked at does matter
    result = efhc.simulate(**fields)
    printed = evaluated(result.metrics).tail(1)
    assert printed["accuracy"].item() == pytest.approx(last.mean(), abs=1e-12)
    assert printed["iteration"].item() == 199
    assert rows(result.metrics)[-period:] == [(k, 200 - period) for k in range(200 - period, 200)]
    at_multiples = efhc.simulate(**fields, evaluate_at="multiples").metrics
    assert [k for k, _ in rows(at_multiples)] == [0, 49, 99, 149, 199]


@pytest.mark.parametrize("network", [efhc.Ring(), efhc.RandomLinks()], ids=["static", "changing"])
def test_evaluations_at_budgets_begin_where_these_are_spent(network):
    strategies = {
        "ZT": efhc.ZeroThreshold(),
        "EF-HC": efhc.EventTriggered(),
        "period": every(5),
        "GT2": efhc.GradientTracking(),
    }
    if not isinstance(network, efhc.Ring):
        del strategies["GT2"]
    fields = {**SMALL, "network": network, "iterations": 150, "strategies": strategies, "evaluate_every": 60}
    budgets = (0.01, 0.1, 0.3)
    metrics = efhc.simulate(**fields, evaluate_at="budgets", budgets=budgets).metrics
    assert_frame_equal(
        metrics.select("transmission_time_total"), efhc.simulate(**fields).metrics.select("transmission_time_total")
    )
    total = metrics.filter(strategy="ZT")["transmission_time_total"].max()
    for (strategy,), of_run in metrics.group_by("strategy", maintain_order=True):
        begun = {first for _, first in rows(of_run)}
        for share in budgets:
            reached = of_run.filter(pl.col("transmission_time_total") >= share * total * (1 - 1e-12))["iteration"]
            if len(reached):
                assert reached[0] in begun or reached[0] > 150 - 5, (strategy, share)
    sizes = Counter(first for _, first in rows(metrics.filter(strategy="period")))
    assert sorted(sizes.values())[-3:] == [5, 5, 5]  # of budgets, and the end


def test_a_resumed_run_is_evaluated_at_the_same_budgets(tmp_path):
    fields = {**SMALL, "iterations": 120, "strategies": {"S": every(6)}, "evaluate_at": "budgets"}
    (run,) = Runs().of(efhc.Experiment(**fields))
    whole, store = RunStore(None), RunStore(tmp_path)
    with whole.keeper(run) as keeper:
        make_run(draw_scenario(run.whole, run.data, run.seed), keeper, RunOptions(threads=1))
    stopped = 0
    for at in (*range(1, 30), 1000):
        stop = Event()

        def progress(share: float, at: int = at, stop: Event = stop) -> None:
            if share >= at / 30:
                stop.set()

        with store.keeper(run) as keeper, suppress(Stopped):
            stopped += 1
            make_run(
                draw_scenario(run.whole, run.data, run.seed),
                keeper,
                RunOptions(threads=1, stop=stop, progress=progress),
            )
            stopped -= 1
    expected = whole.made[run.key].tables["metrics"]
    assert_frame_equal(RunFolder(store.directory(run)).table("metrics"), expected, check_exact=True)
    assert len(rows(expected)) > 30
    assert stopped > 20


def test_budgets_need_a_transmission_time():
    with pytest.raises(ValidationError, match="evaluate_at"):
        efhc.Experiment(driver=efhc.EventDriven(), evaluate_at="budgets")
