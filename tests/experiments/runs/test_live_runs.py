"""What followers hear of real runs is what the tables say, and hearing it changes nothing."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

import efhc
from efhc.base.arrays import Floats
from efhc.core.triggers import Bandwidths, TriggerPolicy
from efhc.experiments.runs import keeping
from efhc.experiments.runs.draw import draw_scenario
from efhc.experiments.runs.engines.cluster import replay_events
from efhc.experiments.runs.engines.local import make_run
from efhc.experiments.runs.events import Begin, Devices, EndState, Firings, Follower, Network, Row
from efhc.experiments.runs.keeping import MadeRun, RunKeeper, RunOptions, Stopped
from efhc.experiments.runs.live_file import LIVE, read_live
from efhc.experiments.runs.run import Run, Runs
from efhc.experiments.runs.store import RunStore

FIELDS = {"iterations": 130, "seeds": (0,), "evaluate_every": 7, "devices": 5}
EVENT_DRIVEN = {"driver": {"kind": "event-driven"}, "network": efhc.Ring()}
KINDS = {
    "lockstep": {"network": efhc.Ring()},
    "links that fail": {"network": efhc.RandomLinks()},
    "entrywise": {"network": efhc.Ring(), "strategies": {"E": efhc.Entrywise()}},
    "event-driven": EVENT_DRIVEN,
}
CHANGING = {
    "lockstep": {"network": efhc.RandomLinks()},
    "event-driven": {
        "network": efhc.RandomLinks(),
        "driver": {"kind": "event-driven", "network_seconds": 1.0, "sample_seconds": 1.5},
    },
}
TOTALS = {"bits_total": "bits", "broadcasts_total": "fired"}
"""What rows heard in lockstep have besides the columns of the table and `seconds`: the sums of columns so far."""


class Listener(Follower):
    """Notes down all it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.rows: list[Row] = []
        self.samples: list[Devices] = []
        self.events: list[Firings] = []
        self.networks: dict[int, list[tuple[int, int]]] = {}

    def begin(self, run: Begin) -> None:
        self.run = run
        self.heard.append(f"begin {run.k}")

    def evaluated(self, row: Row) -> None:
        self.rows.append(row)

    def sampled(self, devices: Devices) -> None:
        self.samples.append(devices)

    def happened(self, firings: Firings) -> None:
        self.events.append(firings)

    def rewired(self, network: Network) -> None:
        self.networks[network.k] = list(network.links)

    def end(self, state: EndState, problem: str | None) -> None:
        self.heard.append(f"{state}: {problem}")


def run_of(kind: str) -> Run:
    fields = {**FIELDS, "strategies": {"EF-HC": efhc.EventTriggered(r=0.05)}, **KINDS[kind]}
    (run,) = Runs().of(efhc.Experiment(**fields))
    return run


def without_totals(rows: Sequence[Row], metrics: pl.DataFrame) -> list[dict[str, Any]]:
    """The rows as the table has them, after a check of their totals against the whole table."""
    for row in rows:
        so_far = metrics.filter(pl.col("iteration") <= row["iteration"])
        for total, column in TOTALS.items():
            assert row[total] == pytest.approx(so_far[column].sum(), rel=1e-12)
    return [{name: value for name, value in row.items() if name not in {*TOTALS, "seconds"}} for row in rows]


@contextmanager
def shown(store: RunStore, run: Run) -> Iterator[RunKeeper]:
    """What keeps a run that has a live file from its beginning."""
    with store.keeper(run) as keeper:
        assert keeper is not None
        keeper.open()
        yield keeper


def made(run: Run, threads: int, *factories) -> MadeRun:
    store = RunStore(None)
    with store.keeper(run) as keeper:
        make_run(draw_scenario(run.whole, run.data, run.seed), keeper, RunOptions(threads=threads), followers=factories)
    return store.made[run.key]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_followers_hear_the_rows_of_the_table_and_change_nothing(kind: str, threads: int) -> None:
    run, listener = run_of(kind), Listener()
    alone, followed = made(run, threads), made(run, threads, lambda run: listener)
    for name, table in alone.tables.items():
        assert_frame_equal(followed.tables[name], table)
    assert np.array_equal(followed.models, alone.models)
    is_lockstep = kind != "event-driven"
    curve = alone.tables["metrics" if is_lockstep else "timeline"].drop("strategy", "seed")
    table = curve.drop_nulls("accuracy")
    seconds = [row["seconds"] for row in listener.rows]
    heard = without_totals(listener.rows, curve) if is_lockstep else listener.rows
    assert heard == table.to_dicts()  # to the last bit
    assert seconds == sorted(seconds)
    assert listener.heard == ["begin 0", "done: None"]
    last = listener.samples[-1]
    assert last.k == FIELDS["iterations"]
    assert [min(last.accuracy), max(last.accuracy)] == [
        table.row(-1, named=True)[f"accuracy_{end}"] for end in ("min", "max")
    ]
    if kind == "entrywise":
        assert last.drift is None  # which only the iteration itself knows
    else:
        assert last.drift is not None
        assert len(last.drift) == 5


@pytest.mark.parametrize("kind", ["lockstep", "links that fail"])
def test_events_and_links_are_those_of_the_tables(kind: str) -> None:
    run, listener = run_of(kind), Listener()
    tables = made(run, 1, lambda run: listener).tables
    events = {row["iteration"]: row for row in tables["events"].to_dicts()}
    assert listener.events
    for event in listener.events:
        assert event.fired == events[event.k]["fired"]
        assert event.used == list(zip(events[event.k]["link_from"], events[event.k]["link_to"], strict=True))
    network = {
        row["iteration"]: list(zip(row["link_from"], row["link_to"], strict=True))
        for row in tables["network"].to_dicts()
    }
    assert listener.run.links == network[0]
    assert all(network[k] == links for k, links in listener.networks.items())
    assert bool(listener.networks) == (kind == "links that fail")


def test_drift_and_threshold_say_who_fires_next() -> None:
    run, listener = run_of("lockstep"), Listener()
    tables = made(run, 1, lambda run: listener).tables
    fired = dict(tables["events"].select("iteration", "fired").iter_rows())
    first = listener.samples[0]
    assert first.k == 1
    assert first.drift is not None
    assert first.threshold is not None
    assert [i for i in range(5) if first.drift[i] >= first.threshold[i]] == fired[first.k]


def test_one_that_fails_is_warned_of_once_and_left_out() -> None:
    class Failing(Listener):
        def evaluated(self, row: Row) -> None:
            super().evaluated(row)
            raise RuntimeError("no room left")

    def absent(run: Run) -> Follower:
        raise RuntimeError("not installed")

    failing, listener, warned = Failing(), Listener(), []
    run = run_of("lockstep")
    store = RunStore(None, warned.append)
    with store.keeper(run) as keeper:
        scenario = draw_scenario(run.whole, run.data, run.seed)
        make_run(scenario, keeper, followers=[absent, lambda run: failing, lambda run: listener])
    assert len(failing.rows) == 1
    assert len(listener.rows) == 20
    assert warned == [
        "EF-HC, seed 0: absent gets no further updates (not installed); the run continues",
        "EF-HC, seed 0: Failing gets no further updates (no room left); the run continues",
    ]


def test_a_run_that_diverges_says_so(tmp_path: Path) -> None:
    (run,) = Runs().of(
        efhc.Experiment(**FIELDS, step_size=efhc.Constant(value=3e38), strategies={"ZT": efhc.ZeroThreshold()})
    )
    store = RunStore(tmp_path)
    listener = Listener()
    with shown(store, run) as keeper, pytest.raises(efhc.EfhcError, match="diverged"):
        make_run(draw_scenario(run.whole, run.data, 0), keeper, followers=[lambda run: listener])
    live = read_live(store.directory(run) / LIVE)
    assert live is not None
    assert live.state() == "failed"
    assert live.end is not None
    assert listener.heard[-1] == f"failed: {live.end.problem}"


@pytest.mark.slow
def test_a_killed_run_can_be_read_and_goes_on(tmp_path: Path) -> None:
    config, out = tmp_path / "run.toml", tmp_path / "out"
    config.write_text('iterations = 60000\nevaluate_every = 50\nseeds = [0]\nstrategies.A.kind = "ef-hc"\n')
    command = [sys.executable, "-m", "efhc", "run", str(config), "--out", str(out), "--no-figure"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            lives = [live for path in out.glob(f"runs/*/{LIVE}") if (live := read_live(path)) is not None]
            if lives and len(lives[0].rows) > 20:
                break
            time.sleep(0.05)
        assert lives[0].state() == "running"
        running = efhc.Result.load(out, unfinished=True)
        assert running.states == {("A", 0): "running"}
        process.kill()
        process.wait()
    with pytest.raises(efhc.EfhcError, match="unfinished=True"):
        efhc.Result.load(out)
    result = efhc.Result.load(out, unfinished=True)
    assert result.states == {("A", 0): "stopped"}
    assert len(result.metrics) > 20
    assert result.models == {}
    assert result.summary()["accuracy"][0] > 0.3
    assert result.plot().axes
    (path,) = out.glob(f"runs/*/{LIVE}")
    killed = read_live(path)
    assert killed is not None

    subprocess.run([*command, "--resume"], check=True, capture_output=True, timeout=120)
    whole = efhc.Result.load(out)
    seen = whole.metrics.filter(pl.col("iteration").is_in(result.metrics["iteration"].implode()))
    assert_frame_equal(result.metrics, seen)  # what was read of the killed run is in the whole one, bit for bit
    live = read_live(path)
    assert live is not None
    assert live.state() == "done"
    iterations = [record.row["iteration"] for record in live.rows]
    assert iterations == sorted(set(iterations))
    table = whole.metrics.filter(pl.col("iteration").is_in(iterations)).drop("strategy", "seed")
    assert without_totals([record.row for record in live.rows], whole.metrics) == table.to_dicts()
    for line in path.read_text().splitlines():
        assert json.loads(line)["kind"]


def test_a_run_that_is_stopped_and_goes_on_adds_its_seconds(tmp_path: Path) -> None:
    run, store = run_of("lockstep"), RunStore(tmp_path)

    class Stopping(efhc.drivers.observers.Observer):
        def after(self, steps, state) -> None:
            time.sleep(0.02)
            if state.k >= 60:
                raise KeyboardInterrupt

    scenario = draw_scenario(run.whole, run.data, 0)
    with store.keeper(run) as keeper, pytest.raises(KeyboardInterrupt):
        make_run(scenario, keeper, RunOptions(observers=[Stopping()]))
    stopped = read_live(store.directory(run) / LIVE)
    assert stopped is not None
    assert stopped.state() == "stopped"
    with store.keeper(run) as keeper:
        make_run(scenario, keeper)
    live = read_live(store.directory(run) / LIVE)
    assert live is not None
    assert (live.state(), live.k, live.about.k) == ("done", 130, stopped.k)
    seconds = [record.row["seconds"] for record in live.rows]
    assert seconds == sorted(seconds)
    assert [record.row for record in live.rows][: len(stopped.rows)] == [record.row for record in stopped.rows]
    assert len(live.rows) == 20


def test_an_unfinished_result_holds_the_runs_that_are_whole(tmp_path: Path) -> None:
    class Stop(efhc.drivers.observers.Observer):
        def __init__(self, strategy: str) -> None:
            self._strategy = strategy

        def after(self, steps, state) -> None:
            if self._strategy == "ZT" and state.k >= 70:
                raise KeyboardInterrupt

    fields = {**FIELDS, "strategies": {"EF-HC": efhc.EventTriggered(), "ZT": efhc.ZeroThreshold()}}
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        efhc.simulate(**fields, out=out, jobs=1, observers=lambda strategy, seed, scenario: Stop(strategy))
    result = efhc.Result.load(out, unfinished=True)
    assert result.states == {("EF-HC", 0): "done", ("ZT", 0): "stopped"}
    (models,) = result.models.values()
    whole = efhc.simulate(**fields, out=out, resume=True)
    for name, table in result.tables.items():
        kept = whole.tables[name]
        if name in {"metrics", "events"}:
            stopped = table.filter(strategy="ZT")
            assert len(stopped) >= 70
            kept = kept.filter((pl.col("strategy") == "EF-HC") | (pl.col("iteration") < len(stopped)))
        assert_frame_equal(table, kept)
    assert np.array_equal(models, whole.models["EF-HC", 0])
    assert set(whole.states.values()) == {"done"}
    assert result.summary()["strategy"].to_list() == ["EF-HC", "ZT"]


@pytest.mark.parametrize("kind", ["lockstep", "event-driven"])
def test_a_run_that_was_made_elsewhere_is_heard_as_if_it_had_been_made_here(kind: str, tmp_path: Path) -> None:
    run, store, there, here, without_file = run_of(kind), RunStore(tmp_path), Listener(), Listener(), Listener()
    with shown(store, run) as keeper:
        make_run(draw_scenario(run.whole, run.data, 0), keeper, followers=[lambda run: there])
    replay_events(run, store, [lambda run: here], pytest.fail)
    (store.directory(run) / LIVE).unlink()
    replay_events(run, store, [lambda run: without_file], pytest.fail)
    for listener in (here, without_file):
        assert replace(listener.run, at=there.run.at) == there.run
        assert (listener.heard, len(listener.rows)) == (there.heard, len(there.rows))
    for row, known, expected in zip(here.rows, without_file.rows, there.rows, strict=True):
        assert row == pytest.approx(expected, rel=1e-12)
        if kind == "lockstep":
            assert known == {**row, "seconds": None}
        else:
            assert known == row


def links_unknown(listener: Listener) -> list[int]:
    """The iterations whose events used links of which followers had not heard."""
    networks = {0: listener.run.links, **listener.networks}
    return [
        event.k
        for event in listener.events
        if not set(event.used) <= set(networks[max(k for k in networks if k <= event.k)])
    ]


@pytest.mark.parametrize("kind", CHANGING)
def test_events_use_links_in_force_also_of_a_run_that_went_on(kind: str, tmp_path: Path) -> None:
    strategies = {"EF-HC": efhc.EventTriggered(r=0.05)}
    (run,) = Runs().of(efhc.Experiment(**FIELDS, strategies=strategies, **CHANGING[kind]))
    scenario, store = draw_scenario(run.whole, run.data, 0), RunStore(tmp_path)
    stop = Event()

    def slow(share: float) -> None:
        time.sleep(0.01)

    def progress(share: float) -> None:
        slow(share)
        if share > 0.5:
            stop.set()

    first, second = Listener(), Listener()
    with shown(store, run) as keeper, pytest.raises(Stopped):
        make_run(scenario, keeper, RunOptions(progress=progress, stop=stop), followers=[lambda run: first])
    with store.keeper(run) as keeper:
        make_run(scenario, keeper, RunOptions(progress=slow), followers=[lambda run: second])
    for listener in (first, second):
        assert any(event.used for event in listener.events)
        assert len(listener.networks) > 3
        assert links_unknown(listener) == []
    live, of_file = read_live(store.directory(run) / LIVE), Listener()
    assert live is not None
    of_file.run, of_file.events = first.run, live.events
    of_file.networks = {one.k: list(one.links) for one in live.networks}
    assert len(of_file.events) > len(first.events)
    assert links_unknown(of_file) == []


def test_totals_are_right_also_after_nobody_listened(tmp_path: Path) -> None:
    run, store, stop, listener = run_of("lockstep"), RunStore(tmp_path, warn=lambda text: None), Event(), Listener()
    scenario = draw_scenario(run.whole, run.data, 0)

    def progress(share: float) -> None:
        (store.directory(run) / LIVE).unlink(missing_ok=True)  # so that it is left out
        if share > 0.5:
            stop.set()

    with store.keeper(run) as keeper, pytest.raises(Stopped):
        make_run(scenario, keeper, RunOptions(progress=progress, stop=stop))
    with store.keeper(run) as keeper:
        make_run(scenario, keeper, followers=[lambda run: listener])
    assert len(listener.rows) > 5
    without_totals(listener.rows, store.table(run, "metrics"))


# Devices on their own clocks


class Counts(Follower):
    """Notes the k of all events."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.reached_k: list[int] = []
        self.samples: list[tuple[int, Devices]] = []
        """The k of the row before, and the sample."""
        self.events: list[tuple[int, int]] = []

    def reached(self, k: int) -> None:
        self.reached_k.append(k)

    def evaluated(self, row: Row) -> None:
        self.rows.append(int(row["steps"] or 0) // FIELDS["devices"])
        assert self.reached_k[-1] == self.rows[-1]

    def sampled(self, devices: Devices) -> None:
        self.samples.append((self.rows[-1], devices))

    def happened(self, firings: Firings) -> None:
        self.events.append((self.reached_k[-1], firings.k))


def heard(strategy: object, **driver: object) -> Counts:
    listener = Counts()
    (run,) = Runs().of(
        efhc.Experiment(
            devices=FIELDS["devices"], iterations=100, evaluate_every=3, seeds=(0,), network=efhc.Ring(),
            strategies={"one": strategy}, driver={"kind": "event-driven", **driver},
        )
    )  # fmt: skip
    with RunStore(None).keeper(run) as keeper:
        scenario = draw_scenario(run.whole, run.data, run.seed)
        make_run(scenario, keeper, followers=[lambda run: listener])
    return listener


@pytest.mark.parametrize("seconds", [None, 30.0])
def test_k_is_the_mean_number_of_steps_also_of_a_run_that_ends_at_a_second(seconds: float | None) -> None:
    listener = heard(efhc.EventTriggered(), seconds=seconds)
    assert listener.rows[-1] == listener.reached_k[-1] == (100 if seconds is None else 30)
    assert listener.samples
    assert all(sample.k == k for k, sample in listener.samples)
    assert listener.events
    assert all(event == reached for reached, event in listener.events)


class Counting(TriggerPolicy):
    """Fails when it is asked for what the run itself does not ask for."""

    asked: ClassVar[Counter[int]] = Counter()

    def thresholds(self, k: int, gamma: float, bandwidths: Bandwidths, coins: Callable[[int], Floats]) -> Floats:
        self.asked[k] += 1
        if k > 0 and self.asked[k] > FIELDS["devices"]:  # with k = 0, it is tried before the run
            raise RuntimeError("each device asks once")
        return np.full(FIELDS["devices"], 0.01)


def test_an_own_trigger_that_fails_for_followers_alone_does_not_fail_the_run() -> None:
    # With measured bandwidths, the trigger is asked anew for each device.
    Counting.asked.clear()
    listener = heard(Counting(), seconds=30.0, bandwidth="measured")
    assert listener.rows[-1] == 30
    assert listener.samples[-1][1].threshold is None
    assert all(sample.drift is not None for _, sample in listener.samples)


# A run that lasts longer than a moment


@pytest.mark.parametrize("is_followed", [False, True])
@pytest.mark.parametrize("kind", CHANGING)
def test_a_live_file_that_begins_later_has_all_rows(kind: str, is_followed: bool, tmp_path: Path, monkeypatch) -> None:
    strategies = {"EF-HC": efhc.EventTriggered(r=0.05)}
    (run,) = Runs().of(efhc.Experiment(**FIELDS, strategies=strategies, **CHANGING[kind]))
    monkeypatch.setattr(keeping, "SHORT_SECONDS", float("inf"))
    store, listener = RunStore(tmp_path), Listener()

    def note(share: float) -> None:
        if share > 0.5:
            monkeypatch.setattr(keeping, "SHORT_SECONDS", -1.0)

    followers = [lambda run: listener] if is_followed else []
    for threads in (1, 2):
        with store.keeper(run) as keeper:
            assert keeper is not None
            assert not store.directory(run).exists()
            make_run(draw_scenario(run.whole, run.data, 0), keeper, RunOptions(threads, (), note), followers)
        live, of_file = read_live(store.directory(run) / LIVE), Listener()
        assert live is not None
        curve = store.curve(run).drop("strategy", "seed", "broadcasts_total", strict=False)
        assert [{name: one.row[name] for name in curve.columns} for one in live.rows] == curve.to_dicts()
        of_file.run, of_file.events = live.about, live.events
        of_file.networks = {one.k: list(one.links) for one in live.networks}
        assert links_unknown(of_file) == []
        assert live.state() == "done"
        shutil.rmtree(store.directory(run))
        monkeypatch.setattr(keeping, "SHORT_SECONDS", float("inf"))
