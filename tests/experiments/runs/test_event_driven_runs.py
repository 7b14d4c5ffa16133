"""Runs of the event-driven driver in run directories, stores and results: kept, resumed, summed up, drawn, refused."""

from __future__ import annotations

from threading import Event

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from stopped_runs import assert_same, interrupt_at

import efhc
from efhc.base.errors import InputError
from efhc.base.saving import read_tensors, write_tensors
from efhc.drivers.event_driven.record import EXCHANGES, NETWORK, STEPS, TIMELINE
from efhc.drivers.observers import Observer
from efhc.experiments.runs.draw import draw_scenario
from efhc.experiments.runs.engines.local import make_run
from efhc.experiments.runs.experiment_folder import ExperimentFolder
from efhc.experiments.runs.folder import RunFolder
from efhc.experiments.runs.keeping import RunOptions, Stopped
from efhc.experiments.runs.run import Runs
from efhc.experiments.runs.store import RunStore
from efhc.experiments.runs.tables import EVENT_DRIVEN

FIELDS = {
    "devices": 4,
    "iterations": 12,
    "partition": efhc.IID(),
    "seeds": (0, 1),
    "strategies": {"EF-HC": efhc.EventTriggered(), "ZT": efhc.ZeroThreshold()},
    "driver": {
        "kind": "event-driven",
        "compute": {"kind": "lognormal"},
        "sample_seconds": 1.0,
        "target": 0.2,
    },
}
ONE = FIELDS | {"seeds": (0,), "strategies": {"ZT": efhc.ZeroThreshold()}}


def test_a_result_is_the_same_from_memory_a_directory_and_a_copy(tmp_path):
    made = efhc.simulate(**FIELDS)
    kept = efhc.simulate(**FIELDS, out=tmp_path / "run")
    assert_same(made, kept)
    assert_same(kept, efhc.Result.load(tmp_path / "run"))
    made.save(tmp_path / "saved")
    assert_same(made, efhc.Result.load(tmp_path / "saved"))
    assert made.timeline.columns == ["strategy", "seed", *TIMELINE]
    assert made.exchanges.columns == ["strategy", "seed", *EXCHANGES]
    assert made.steps.columns == ["strategy", "seed", *STEPS]
    assert made.network.columns == ["seed", *NETWORK]
    assert len(made.steps) == 2 * 2 * 4 * 12
    assert len(made.network) == 2  # shared by the strategies of a seed
    made.to_csv(tmp_path / "csv")
    assert {path.stem for path in (tmp_path / "csv").iterdir()} == set(EVENT_DRIVEN.names)


def test_the_network_reaches_as_far_as_the_longest_run_of_a_seed(tmp_path):
    strategies = {"quiet": efhc.EventTriggered(r=1e9), "ZT": efhc.ZeroThreshold()}
    fields = FIELDS | {
        "network": efhc.RandomLinks(),
        "bandwidths": {"kind": "list", "values": [300.0] * 4},  # ZT has models under way after the last step
        "driver": {"kind": "event-driven", "network_seconds": 5.0, "sample_seconds": 5.0},
        "iterations": 14,
    }
    alone = {name: efhc.simulate(**fields | {"strategies": {name: one}}) for name, one in strategies.items()}
    short, long = alone["quiet"].network, alone["ZT"].network
    assert len(short) < len(long)
    assert_frame_equal(short, long.join(short, on=["seed", "iteration"], how="semi"))
    for order in (["quiet", "ZT"], ["ZT", "quiet"]):
        both = fields | {"strategies": {name: strategies[name] for name in order}}
        made, kept = efhc.simulate(**both), efhc.simulate(**both, out=tmp_path / order[0])
        assert_same(made, kept)
        assert_frame_equal(made.network, long)


def test_tables_of_the_other_driver_are_refused(tmp_path):
    made = efhc.simulate(**FIELDS)
    for name in ("metrics", "events"):
        with pytest.raises(InputError, match=f"{name}: .*event-driven has no such table; it has time"):
            getattr(made, name)
    for accuracies in (made.at_budget, made.frontier):
        with pytest.raises(efhc.EfhcError, match="at_budget and frontier need runs in lockstep"):
            accuracies()
    lockstep = efhc.simulate(**FIELDS | {"driver": "lockstep", "iterations": 2})
    for name in ("timeline", "exchanges", "steps"):
        with pytest.raises(InputError, match=f"{name}: .*lockstep has no such table; it has metrics"):
            getattr(lockstep, name)


@pytest.mark.parametrize("seconds", [0.0, 30.0])
def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path, seconds):
    whole = efhc.simulate(**FIELDS)

    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        efhc.simulate(**FIELDS, out=out, jobs=1, progress=interrupt_at(5, "ZT", 1), checkpoint_seconds=seconds)
    assert list(out.glob("runs/*/checkpoint.safetensors"))
    went_on: list[tuple[str, int, int]] = []
    resumed = efhc.simulate(**FIELDS, out=out, resume=True, progress=lambda *one: went_on.append(one))
    assert min(iterations for strategy, seed, iterations in went_on if (strategy, seed) == ("ZT", 1)) >= 4
    assert_same(resumed, whole)


def test_a_run_saves_a_checkpoint_when_it_is_stopped(tmp_path):
    (run,) = Runs().of(efhc.Experiment(**ONE))
    scenario, store, stop = draw_scenario(run.whole, run.data, 0), RunStore(tmp_path, with_models=True), Event()
    told: list[float] = []

    def tell(share: float) -> None:
        told.append(share)
        if share >= 0.4:
            stop.set()

    with store.keeper(run) as keeper, pytest.raises(Stopped):
        make_run(scenario, keeper, RunOptions(progress=tell, stop=stop))
    assert (store.directory(run) / "checkpoint.safetensors").exists()
    shares: list[float] = []
    with store.keeper(run) as keeper:
        make_run(scenario, keeper, RunOptions(progress=shares.append))
    assert shares[0] == told[-1]
    assert sorted(shares) == shares
    assert 0 <= told[0] <= shares[-1] <= 1


def test_a_checkpoint_that_does_not_fit_is_moved_aside(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        efhc.simulate(**ONE, out=tmp_path / "run", jobs=1, progress=interrupt_at(5))
    (checkpoint,) = (tmp_path / "run").glob("runs/*/checkpoint.safetensors")
    tensors, facts = read_tensors(checkpoint)
    write_tensors(checkpoint, tensors | {"arrays": tensors["arrays"][:, 1:]}, facts)  # with a checksum that is right
    said: list[str] = []
    resumed = efhc.simulate(**ONE, out=tmp_path / "run", resume=True, warn=said.append)
    assert "is damaged; the run starts again from its beginning: its models are not those of this run" in said[0]
    assert_same(resumed, efhc.simulate(**ONE))


def test_a_run_that_was_killed_when_it_was_over_does_not_end_twice(tmp_path, monkeypatch):
    slow = {"bandwidths": {"kind": "list", "values": [1000.0] * 4}}  # models are under way when the time is up
    (run,) = Runs().of(efhc.Experiment(**ONE | slow | {"driver": FIELDS["driver"] | {"seconds": 5.5}}))
    scenario, memory = draw_scenario(run.whole, run.data, 0), RunStore(None)
    with memory.keeper(run) as keeper:
        make_run(scenario, keeper)
    store = RunStore(tmp_path, with_models=True)

    def killed(*given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, store.keeper(run) as keeper:
        patched.setattr(keeper, "finish", killed)
        with pytest.raises(KeyboardInterrupt):
            make_run(scenario, keeper, RunOptions(checkpoint_seconds=0.0))
    assert (store.directory(run) / "checkpoint.safetensors").exists()
    with store.keeper(run) as keeper:
        make_run(scenario, keeper)
    whole = memory.made[run.key].tables
    assert "unfinished" in whole["exchanges"]["outcome"]
    for name, table in whole.items():
        assert_frame_equal(RunFolder(store.directory(run)).table(name), table, check_exact=True)


class OwnLinks(efhc.drivers.event_driven.links.LinkPolicy):
    """Links that carry nothing."""

    def transfers(self, bandwidths, randomness):
        return object()


class OwnCompute(efhc.drivers.event_driven.compute.ComputeTimes):
    """Gradients that device 2 never begins."""

    def over_time(self, devices, randomness):
        return self

    def seconds(self, device, k):
        return 0.0 if device == 2 else 1.0


class OwnChurn(efhc.drivers.event_driven.churn.ChurnPolicy):
    """A device that is there joins."""

    def events(self, devices, randomness):
        return self

    def next_event(self, device, count):
        return (1.0, device, "join") if device == 3 else None


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"compute": {"kind": "constant", "seconds": [1.0, 2.0]}},
            "driver.compute.seconds: cannot use 2 compute times.",
        ),
        ({"compute": {"kind": "csv", "path": "odd.csv"}}, "driver.compute.path: cannot use "),
        ({"churn": {"kind": "csv", "path": "odd.csv"}}, "driver.churn.path: cannot use "),
        (
            {"links": {"kind": "shared", "rates": {"kind": "csv", "path": "odd.csv"}}},
            "driver.links.rates.path: cannot use ",
        ),
        ({"links": OwnLinks()}, "driver.links.kind: cannot use a object without send from transfers."),
        ({"compute": OwnCompute()}, "driver.compute: cannot use 0.0 for device 2 at k = 0."),
        ({"churn": OwnChurn(), "seconds": 9.0}, "driver.churn: cannot use join of device 3 at 1 s, which"),
    ],
    ids=["list", "compute", "churn", "rates", "own links", "own compute", "own churn"],
)
def test_what_the_driver_cannot_use_is_refused_before_anything_is_written(tmp_path, settings, line):
    (tmp_path / "odd.csv").write_text("a,b\n1,2\n")
    for part in settings.values():
        for table in (part, part.get("rates", {})) if isinstance(part, dict) else ():
            if "path" in table:
                table["path"] = str(tmp_path / "odd.csv")
    driver = FIELDS["driver"] | settings
    for out in (None, tmp_path / "run"):
        with pytest.raises(InputError) as refused:
            efhc.simulate(**FIELDS | {"driver": driver}, out=out)
        assert str(refused.value).startswith(line)
    assert {path.name for path in tmp_path.iterdir()} == {"odd.csv"}


def test_what_the_simulator_warns_of_is_reported_and_kept(tmp_path):
    (tmp_path / "rates.csv").write_text("seconds,device,rate\n0,1,0\n")
    links = {"kind": "per-link", "rates": {"kind": "csv", "path": str(tmp_path / "rates.csv")}}
    fields = FIELDS | {"driver": FIELDS["driver"] | {"links": links}, "seeds": (0,)}
    for out in (None, tmp_path / "run"):
        said: list[str] = []
        efhc.simulate(**fields, out=out, warn=said.append)
        assert any(text.startswith("ZT, seed 0: device 1 could send nothing from second 0 on") for text in said)
    assert sorted(ExperimentFolder(tmp_path / "run").meta["warnings"]) == sorted(said)


def test_the_summary_has_what_it_takes_to_reach_the_target():
    made = efhc.simulate(**FIELDS)
    found = made.summary()
    assert found["strategy"].to_list() == ["EF-HC", "ZT"]
    assert found["steps"].to_list() == [48.0, 48.0]
    assert found["reached"].to_list() == found["seeds"].to_list() == [2, 2]
    for row in found.iter_rows(named=True):
        of_strategy = made.timeline.filter(strategy=row["strategy"], seed=0)
        reached = of_strategy.filter(pl.col("accuracy") >= 0.2)["seconds"][0]
        assert row["seconds_to_target_low"] <= reached <= row["seconds_to_target_high"]
        committed = made.exchanges.filter(strategy=row["strategy"], outcome="committed")
        assert row["exchanges"] == len(committed) / 2
    plain = efhc.simulate(**FIELDS | {"driver": FIELDS["driver"] | {"target": None}}).summary()
    assert "reached" not in plain.columns
    assert_frame_equal(plain, found.select(plain.columns))


def test_the_figure_is_over_seconds(tmp_path):
    made = efhc.simulate(**FIELDS)
    assert made.figure_name == "seconds.png"
    figure = made.plot(tmp_path / "seconds.png")
    seconds = "virtual seconds"
    assert [axes.get_xlabel() for axes in figure.axes] == [seconds, "MB sent by all devices", seconds, seconds]
    assert (tmp_path / "seconds.png").stat().st_size > 10_000


def test_an_observer_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(InputError, match=r"driver: cannot use event-driven. Use lockstep; an observer needs"):
        efhc.simulate(**FIELDS, out=tmp_path / "run", observers=lambda strategy, seed, scenario: Observer())
    assert not (tmp_path / "run").exists()
