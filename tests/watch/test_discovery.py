"""Which runs are found: complete, unfinished and failed ones of both layouts, and stores elsewhere."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from live_files import CONFIG, KEY, begun, evaluated

import efhc
from efhc.watch import watcher
from efhc.watch.discovery import Discovery, FoundRun
from efhc.watch.watcher import Watcher

STRATEGIES = {"mine": efhc.EventTriggered(), "ZT": efhc.ZeroThreshold()}
SMALL: dict[str, Any] = {
    "devices": 3,
    "iterations": 20,
    "evaluate_every": 10,
    "seeds": (0, 1),
    "strategies": STRATEGIES,
}


def runs_in(folder: Path, store: Path | None = None) -> list[FoundRun]:
    """The runs of the only group in a folder."""
    (group,) = Discovery(folder, store).find()
    assert group.problem is None
    return list(group.runs)


def listed(folder: Path) -> list[tuple[str, int, str, float | None]]:
    watched = Watcher.of(folder, may_be_empty=True)
    (group,) = watched.tree["groups"]
    return [(run["strategy"], run["seed"], run["state"], run["latest"].get("accuracy")) for run in group["runs"]]


def expected(result: efhc.Result) -> list[tuple[str, int, str, float | None]]:
    last = result.metrics.filter(iteration=19)
    return [
        (strategy, seed, "done", last.filter(strategy=strategy, seed=seed)["accuracy"].item())
        for strategy in STRATEGIES
        for seed in SMALL["seeds"]
    ]


def meta_of(folder: Path, **changed: object) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta, **changed}))


@pytest.mark.parametrize("layout", ["runs", "own tables", "store"])
def test_complete_runs_are_those_of_the_experiment_in_each_layout(tmp_path: Path, layout: str) -> None:
    out, store = tmp_path / "runs" / "out", tmp_path / "store"
    if layout == "store":  # which has runs of the same strategies and seeds in another experiment, too
        efhc.simulate(out=tmp_path / "earlier", store=store, **SMALL | {"batch_size": 2})
        result = efhc.simulate(out=out, store=store, **SMALL)
        efhc.simulate(out=tmp_path / "later", store=store, **SMALL | {"batch_size": 3})
        assert len([*store.glob("*/")]) == 12
    elif layout == "own tables":  # as efhc 0.2 left a complete experiment
        result = efhc.simulate(**SMALL)
        result.save(out)
    else:
        result = efhc.simulate(out=out, **SMALL)
    assert listed(tmp_path / "runs") == expected(result)
    (run,) = (run for run in runs_in(tmp_path / "runs") if (run.strategy, run.seed) == ("ZT", 1))
    watched = Watcher.of(tmp_path / "runs", may_be_empty=True)
    lines = watched.metrics_csv(run.id)
    assert lines is not None
    assert pl.read_csv(lines.encode()).equals(result.metrics.filter(strategy="ZT", seed=1))


def test_an_experiment_that_efhc_02_began_has_its_runs_by_their_settings(tmp_path: Path) -> None:
    result = efhc.simulate(out=tmp_path, **SMALL)
    meta_of(tmp_path, runs=[], status="running")
    assert listed(tmp_path) == expected(result)


def test_names_and_failures_of_runs(tmp_path: Path) -> None:
    efhc.simulate(out=tmp_path / "out", **SMALL)
    shutil.move(tmp_path / "out" / "runs", tmp_path / "store")  # short runs, which have no live file
    assert {run.strategy for run in runs_in(tmp_path / "store")} == set(STRATEGIES)
    assert {run.problem for run in runs_in(tmp_path / "out")} == {
        "its folder is missing; `efhc run --resume` makes it again"
    }
    failed = {"strategy": "ZT", "seed": 1, "reason": "it diverged"}
    assert [*(run.problem for run in runs_in(tmp_path / "out", tmp_path / "store"))] == [None] * 4
    meta_of(tmp_path / "out", failed=[failed])
    assert [run.problem for run in runs_in(tmp_path / "out", tmp_path / "store")] == [None, None, None, "it diverged"]
    one = next((tmp_path / "store").glob("*/"))
    (alone,) = runs_in(one)
    assert (alone.strategy in STRATEGIES, alone.is_complete) == (True, True)


def test_a_run_appears_once_it_has_a_folder(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(CONFIG)
    runs = [{"strategy": "EF-HC", "seed": 0, "key": KEY}]
    (tmp_path / "meta.json").write_text(json.dumps({"status": "running", "runs": runs, "sessions": []}))
    watched = Watcher.of(tmp_path, may_be_empty=True)
    assert watched.tree["groups"][0]["state"] == "waiting"
    run = watched.tree["groups"][0]["runs"][0]["id"]
    first = watched.reader(run).rows("curve")
    begun(tmp_path / "runs" / KEY)(evaluated(1, 0.5))
    watched.scan_now()
    assert watched.reader(run).rows("curve", first.generation, first.end).columns["accuracy"] == [0.5]
    assert watched.tree["groups"][0]["runs"][0]["state"] == "running"


def test_an_experiment_of_short_runs_goes_on_as_long_as_runs_are_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    efhc.simulate(out=tmp_path, **SMALL)
    meta = json.loads((tmp_path / "meta.json").read_text())
    shutil.rmtree(tmp_path / "runs" / meta["runs"][-1]["key"])
    session = {name: fact for name, fact in meta["sessions"][0].items() if name != "wall_seconds"}
    meta_of(tmp_path, status="running", sessions=[session])

    def state() -> str:
        watched = Watcher.of(tmp_path, may_be_empty=True)
        return watched.tree["groups"][0]["state"]

    monkeypatch.setattr(watcher, "SHORT_RUNS_SECONDS", 1e9)
    assert state() == "running"
    meta_of(tmp_path, sessions=[{**session, "wall_seconds": 1.0}])  # it was interrupted
    assert state() == "stopped"
    meta_of(tmp_path, sessions=[session])
    monkeypatch.setattr(watcher, "SHORT_RUNS_SECONDS", 0.0)
    assert state() == "stopped"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize(
    ("place", "is_own", "is_read"),
    [("private", True, True), ("private", False, False), ("runs/store", False, True), ("runs/link", False, False)],
)
def test_a_store_elsewhere_is_read_only_if_the_reader_named_it(
    tmp_path: Path, place: str, is_own: bool, is_read: bool
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "private")
    (tmp_path / "private").mkdir()
    efhc.simulate(out=tmp_path / "runs" / "out", store=tmp_path / place, **SMALL)
    if not is_own:
        os.chown(tmp_path / "runs" / "out" / "meta.json", 54321, 54321)
        os.lchown(tmp_path / "runs" / "link", 54321, 54321)
    groups = {group.folder.name: group for group in Discovery(tmp_path / "runs").find()}
    assert {run.is_complete for run in groups["out"].runs} == {is_read}


@pytest.mark.parametrize("key", ["../../private", "/etc", KEY.upper(), 7])
def test_a_key_is_no_path(tmp_path: Path, key: object) -> None:
    (tmp_path / "config.toml").write_text(CONFIG)
    (tmp_path / "meta.json").write_text(json.dumps({"runs": [{"strategy": "EF-HC", "seed": 0, "key": key}]}))
    (group,) = Discovery(tmp_path).find()
    assert (group.problem, group.runs) == ("meta.json is damaged", ())


def test_an_experiment_resumed_without_its_store_goes_on_there(tmp_path: Path) -> None:
    def stop(strategy: str, seed: int, done: int) -> None:
        if (strategy, seed) == ("ZT", 1):
            raise KeyboardInterrupt

    out, store = tmp_path / "out", tmp_path / "store"
    with pytest.raises(KeyboardInterrupt):
        efhc.simulate(out=out, store=store, progress=stop, jobs=1, **SMALL)
    result = efhc.simulate(out=out, resume=True, **SMALL)
    assert not (out / "runs").exists()
    assert listed(out) == expected(result)
