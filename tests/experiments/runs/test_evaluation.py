"""Models that are evaluated while the run goes on leave the same record, checkpoints and errors as in line."""

from __future__ import annotations

import time
from dataclasses import replace
from threading import Event, current_thread

import numpy as np
import pytest
from polars.testing import assert_frame_equal

import efhc
from efhc.drivers.observers import Observer
from efhc.experiments.runs.draw import draw_scenario
from efhc.experiments.runs.engines.local import make_run
from efhc.experiments.runs.folder import RunFolder
from efhc.experiments.runs.keeping import RunOptions, Stopped
from efhc.experiments.runs.run import Runs
from efhc.experiments.runs.store import RunStore
from efhc.learning.backends.backend import ScoresNotFinite

FIELDS = {
    "iterations": 60,
    "seeds": (0,),
    "evaluate_every": 7,
    "evaluate_at": "multiples",
    "devices": 5,
    "network": efhc.RandomLinks(),
}


class Watched:
    """A learner that notes by which thread it evaluates, takes its time, and may fail at one of its evaluations."""

    def __init__(self, learner, fails_at=None):
        self._learner, self._fails_at, self.threads = learner, fails_at, []

    def __getattr__(self, name):
        return getattr(self._learner, name)

    def evaluate(self, models, local):
        self.threads.append(current_thread())
        time.sleep(0.01)
        if len(self.threads) == self._fails_at:
            raise ScoresNotFinite(3)
        return self._learner.evaluate(models, local)


@pytest.fixture
def run():
    (run,) = Runs().of(efhc.Experiment(**FIELDS, strategies={"EF-HC": efhc.EventTriggered()}))
    return run


def watched(run, fails_at=None):
    scenario = draw_scenario(run.whole, run.data, run.seed)
    return replace(scenario, learner=Watched(scenario.learner, fails_at))


def made(run, threads):
    """The tables of the run, its models, and the threads that evaluated it."""
    store, scenario = RunStore(None), watched(run)
    with store.keeper(run) as keeper:
        make_run(scenario, keeper, RunOptions(threads=threads))
    return store.made[run.key], scenario.learner.threads


def test_the_record_is_that_of_a_run_in_line(run):
    in_line, here = made(run, 1)
    beside, elsewhere = made(run, 2)
    assert set(here) == {current_thread()}
    assert len(elsewhere) == len(here) == 10
    assert current_thread() not in elsewhere
    for name, table in in_line.tables.items():
        assert_frame_equal(beside.tables[name], table, check_exact=True)
    assert np.array_equal(beside.models, in_line.models)
    evaluated = in_line.tables["metrics"].drop_nulls("accuracy")["iteration"].to_list()
    assert evaluated == [0, *range(6, 60, 7), 59]


@pytest.mark.parametrize("seconds", [0.0, 30.0])
def test_stopped_and_resumed_it_is_the_same(run, tmp_path, seconds):
    whole, _ = made(run, 1)
    store, stops = RunStore(tmp_path, with_models=True), [0.2, 0.5, 0.7, 2.0]
    for at in stops:
        stop = Event()

        def tell(share, at=at, stop=stop):
            if share >= at:
                stop.set()

        with store.keeper(run) as keeper:
            try:
                make_run(
                    watched(run),
                    keeper,
                    RunOptions(threads=2, progress=tell, stop=stop, checkpoint_seconds=seconds),
                )
            except Stopped:
                assert at < 1
    for name, table in whole.tables.items():
        assert_frame_equal(RunFolder(store.directory(run)).table(name), table, check_exact=True)


@pytest.mark.parametrize("seconds", [0.0, 30.0])
@pytest.mark.parametrize("fails_at", [1, 4, 10])
def test_an_evaluation_that_fails_ends_the_run_as_in_line(run, tmp_path, seconds, fails_at):
    whole, _ = made(run, 1)
    said, kept = [], []
    for threads in (1, 2):
        store = RunStore(tmp_path / str(threads), with_models=True)
        with store.keeper(run) as keeper, pytest.raises(ScoresNotFinite) as error:
            make_run(watched(run, fails_at), keeper, RunOptions(threads=threads, checkpoint_seconds=seconds))
        said.append(str(error.value))
        kept.append((store.directory(run) / "checkpoint.safetensors").exists())
        with store.keeper(run) as keeper:  # what is kept is good to go on from
            make_run(watched(run), keeper, RunOptions(threads=threads))
        for name, table in whole.tables.items():
            assert_frame_equal(RunFolder(store.directory(run)).table(name), table, check_exact=True)
    assert said[0] == said[1]
    assert said[0].startswith(f"after iteration {[0, *range(6, 60, 7), 59][fails_at - 1]}: evaluation: ")
    assert kept[0] == kept[1]


def test_the_first_error_counts_also_if_it_comes_last(run):
    """The run is stopped while the models are evaluated that turn out to be bad."""
    scenario, stop = watched(run, 3), Event()

    def tell(share):
        if share * 60 >= 16:  # the third evaluation is after iteration 13
            stop.set()

    with RunStore(None).keeper(run) as keeper, pytest.raises(ScoresNotFinite, match=r"^after iteration 13: "):
        make_run(scenario, keeper, RunOptions(threads=2, progress=tell, stop=stop))


def test_with_observers_evaluation_is_in_line(run):
    scenario = watched(run)
    with RunStore(None).keeper(run) as keeper:
        make_run(scenario, keeper, RunOptions(threads=2, observers=[Observer()]))
    assert set(scenario.learner.threads) == {current_thread()}
