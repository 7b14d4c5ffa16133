"""Runs of the event-driven driver in run directories, stores and results: kept, resumed, summed up, drawn, refused."""

from __future__ import annotations

import sys
from threading import Event
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from simulator_stand_in import StandIn

import efhc
from efhc.base.errors import InputError
from efhc.drivers.event_driven.record import EXCHANGES, NETWORK, STEPS, TIMELINE
from efhc.drivers.observers import Observer
from efhc.experiments.runs import make, make_event_driven, resources
from efhc.experiments.runs.directory import RunDirectory
from efhc.experiments.runs.draw import draw_scenario
from efhc.experiments.runs.keeping import Stopped
from efhc.experiments.runs.run import Runs
from efhc.experiments.runs.store import RunStore
from efhc.experiments.runs.tables import EVENT_DRIVEN

FIELDS = {
    "devices": 4,
    "iterations": 12,
    "partition": efhc.IID(),
    "seeds": (0, 1),
    "strategies": {"EF-HC": efhc.EventTriggered(), "ZT": efhc.ZeroThreshold()},
    "driver": {"kind": "event-driven", "target_accuracy": 0.2},
}


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    monkeypatch.setitem(sys.modules, "efhc.drivers.event_driven.simulator", SimpleNamespace(Simulator=StandIn))
    monkeypatch.setattr(make_event_driven, "Simulator", StandIn, raising=False)


def quiet(text: str) -> None:
    pass


def assert_same(one: efhc.Result, other: efhc.Result) -> None:
    assert one.tables.keys() == other.tables.keys() == set(EVENT_DRIVEN.names)
    for name in one.tables:
        assert_frame_equal(one.tables[name], other.tables[name], check_exact=True)
    assert one.models.keys() == other.models.keys()
    for pair, models in one.models.items():
        assert np.array_equal(models, other.models[pair])


def test_a_result_is_the_same_from_memory_a_directory_and_a_copy(tmp_path):
    made = efhc.simulate(**FIELDS, warn=quiet)
    kept = efhc.simulate(**FIELDS, out=tmp_path / "run", warn=quiet)
    assert_same(made, kept)
    assert_same(kept, efhc.Result.load(tmp_path / "run"))
    made.save(tmp_path / "saved")
    assert_same(made, efhc.Result.load(tmp_path / "saved"))
    assert set(RunDirectory(tmp_path / "run").meta["table_sha256"]) == {*EVENT_DRIVEN.names, "models"}
    assert made.timeline.columns == ["strategy", "seed", *TIMELINE]
    assert made.exchanges.columns == ["strategy", "seed", *EXCHANGES]
    assert made.steps.columns == ["strategy", "seed", *STEPS]
    assert made.network.columns == ["seed", *NETWORK]
    assert len(made.timeline) == 2 * 2 * 12
    assert len(made.network) == 2  # shared by the strategies of a seed
    made.to_csv(tmp_path / "csv")
    assert {path.stem for path in (tmp_path / "csv").iterdir()} == set(EVENT_DRIVEN.names)


def test_tables_of_the_other_driver_are_refused(tmp_path):
    made = efhc.simulate(**FIELDS, warn=quiet)
    for name in ("metrics", "events"):
        with pytest.raises(
            InputError, match=f"{name}: got a run of the event-driven driver; allowed: its tables: time"
        ):
            getattr(made, name)
    lockstep = efhc.simulate(**FIELDS | {"driver": "lockstep", "iterations": 2})
    for name in ("timeline", "exchanges", "steps"):
        with pytest.raises(InputError, match=f"{name}: got a run of the lockstep driver; allowed: its tables: metrics"):
            getattr(lockstep, name)


@pytest.mark.parametrize("seconds", [0.0, 30.0])
def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path, seconds):
    whole = efhc.simulate(**FIELDS, warn=quiet)
    done: list[int] = []

    def stop(strategy: str, seed: int, iterations: int) -> None:
        done.append(iterations)
        if (strategy, seed) == ("ZT", 1) and iterations >= 7:
            raise KeyboardInterrupt

    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        efhc.simulate(**FIELDS, out=out, jobs=1, progress=stop, checkpoint_seconds=seconds, warn=quiet)
    assert max(done) == 12
    assert done.count(12) == 3
    assert list(out.glob("runs/*/checkpoint.safetensors"))
    went_on: list[tuple[str, int, int]] = []
    resumed = efhc.simulate(**FIELDS, out=out, resume=True, progress=lambda *one: went_on.append(one), warn=quiet)
    assert min(iterations for strategy, seed, iterations in went_on if (strategy, seed) == ("ZT", 1)) >= 6
    assert_same(resumed, whole)


def test_a_run_saves_a_checkpoint_when_it_is_stopped(tmp_path):
    (run,) = Runs().of(efhc.Experiment(**FIELDS | {"seeds": (0,), "strategies": {"ZT": efhc.ZeroThreshold()}}))
    scenario, store, stop = draw_scenario(run.whole, run.data, 0), RunStore(tmp_path, with_models=True), Event()

    def tell(share: float) -> None:
        if share >= 0.5:
            stop.set()

    with store.keeper(run) as keeper, pytest.raises(Stopped):
        make.make_run(run, scenario, keeper, progress=tell, stop=stop)
    assert (store.directory(run) / "checkpoint.safetensors").exists()
    shares: list[float] = []
    with store.keeper(run) as keeper:
        make.make_run(run, scenario, keeper, progress=shares.append)
    assert shares[0] == 0.5
    assert store.table(run, "timeline")["seconds"].to_list() == [k + 1.0 for k in range(12)]


def test_a_checkpoint_that_does_not_fit_is_moved_aside(tmp_path, monkeypatch):
    def stop(strategy: str, seed: int, iterations: int) -> None:
        if iterations >= 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        efhc.simulate(**FIELDS, out=tmp_path / "run", jobs=1, progress=stop, warn=quiet)
    monkeypatch.setattr(StandIn, "restore", lambda self, tensors, facts: (_ for _ in ()).throw(ValueError("odd")))
    said: list[str] = []
    resumed = efhc.simulate(**FIELDS, out=tmp_path / "run", resume=True, warn=said.append)
    assert "is damaged, and that run is made again from its start: odd" in said[0]
    assert_same(resumed, efhc.simulate(**FIELDS, warn=quiet))


def test_what_the_simulator_warns_of_is_reported(tmp_path):
    for out in (None, tmp_path / "run"):
        said: list[str] = []
        efhc.simulate(**FIELDS, out=out, warn=said.append)
        assert sorted(said) == [f"ZT, seed {seed}: the link 0-1 carried nothing" for seed in (0, 1)]
    assert sorted(RunDirectory(tmp_path / "run").meta["warnings"]) == sorted(said)


def test_the_summary_has_what_it_takes_to_reach_the_target():
    made = efhc.simulate(**FIELDS, warn=quiet)
    found = made.summary()
    assert found["strategy"].to_list() == ["EF-HC", "ZT"]
    assert found["seconds"].to_list() == [12.0, 12.0]
    assert found["bytes"].to_list() == [1200.0, 1200.0]
    assert found["reached"].to_list() == found["seeds"].to_list() == [2, 2]
    for row in found.iter_rows(named=True):
        of_strategy = made.timeline.filter(strategy=row["strategy"], seed=0)
        reached = of_strategy.filter(pl.col("accuracy") >= 0.2)["seconds"][0]
        assert row["seconds_to_target_low"] <= reached <= row["seconds_to_target_high"]
    plain = efhc.simulate(**FIELDS | {"driver": "event-driven"}, warn=quiet).summary()
    assert "reached" not in plain.columns
    assert_frame_equal(plain, found.select(plain.columns))


def test_the_figure_is_over_seconds(tmp_path):
    made = efhc.simulate(**FIELDS, warn=quiet)
    assert made.figure_name == "seconds.png"
    figure = made.plot(tmp_path / "seconds.png")
    assert [axes.get_xlabel() for axes in figure.axes] == ["seconds", "bytes sent by all devices", "seconds", "seconds"]
    assert (tmp_path / "seconds.png").stat().st_size > 10_000


def test_an_observer_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(InputError, match="driver: got event-driven; allowed: lockstep; an observer needs"):
        efhc.simulate(**FIELDS, out=tmp_path / "run", observers=lambda strategy, seed, scenario: Observer())
    assert not (tmp_path / "run").exists()


def test_a_run_counts_the_models_under_way_when_it_asks_for_memory(monkeypatch):
    lockstep = efhc.Experiment(**FIELDS | {"driver": "lockstep", "network": efhc.Ring()})
    event_driven = efhc.Experiment(**FIELDS | {"network": efhc.Ring()})
    data = Runs().inputs(lockstep).data
    one_array, batch = resources.array_bytes(lockstep, data)
    in_flight = 2 * 4 * one_array // 4  # both ends of four links, of four devices' models
    assert resources.in_flight_bytes(event_driven, one_array) == in_flight
    assert resources.in_flight_bytes(lockstep, one_array) == 0
    needs = (lockstep, 3 * one_array + batch), (event_driven, 4 * one_array + batch + in_flight)
    for experiment, needed in needs:
        for spare, at_once in ((0, 2), (-1, 1)):
            free = resources.LEFT_FREE + 2 * needed + spare
            monkeypatch.setattr(resources, "available_bytes", lambda free=free: free)
            assert resources.plan(experiment, data, 4, 4).runs_at_once == at_once
