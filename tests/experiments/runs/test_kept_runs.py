"""A killed run resumes to the same bytes, and no run is computed or written twice."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import tomli_w
from stopped_runs import assert_same, interrupt_at

import efhc
from efhc.base.errors import EfhcError
from efhc.base.saving import BusyError
from efhc.experiments.runs import draw, keeping, provenance
from efhc.experiments.runs.experiment_folder import ExperimentFolder
from efhc.experiments.runs.folder import RunFolder
from efhc.experiments.runs.run import Runs
from efhc.experiments.runs.store import RunStore, StoredRun
from efhc.experiments.runs.tables import LOCKSTEP

OLD = Path(__file__).parents[2] / "data" / "efhc-0.2"
"""An experiment that efhc 0.2 completed: EF-HC and ZT with seed 3."""
ONE: dict[str, Any] = {
    "iterations": 3, "seeds": (0,), "evaluate_every": 2, "devices": 4, "network": efhc.RandomLinks(),
    "strategies": {"A": efhc.ZeroThreshold()},
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "lockstep": {},
    "with snapshots": {"keep_models_every": 3},
    "event-driven": {"driver": {"kind": "event-driven", "sample_seconds": 1.0}},
    "own biases": {"strategies": {"A": efhc.ZeroThreshold(personal={"keep": "bias"})}},
    "Ditto, event-driven": {
        "driver": {"kind": "event-driven", "sample_seconds": 1.0},
        "strategies": {"A": efhc.ZeroThreshold(personal={"kind": "ditto"})},
    },
}


def files_of(out: Path) -> dict[str, bytes]:
    """The tables and models in a folder, but for those that were moved aside."""
    files = [*out.rglob("*.parquet"), *out.rglob("*.safetensors")]
    return {str(file.relative_to(out)): file.read_bytes() for file in files if "damaged" not in str(file)}


def run_folder(out: Path) -> Path:
    """The folder of the only run of an experiment."""
    (found,) = (path for path in (out / "runs").iterdir() if path.is_dir() and "damaged" not in path.name)
    return found


# Killed at any moment

HOOKS: list[Callable[[str, tuple[Any, ...]], None]] = []
"""Called before every file operation of this process."""


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if HOOKS and event in {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree"}:
        HOOKS[0](event, arguments)


sys.addaudithook(_audit)  # it stays; without HOOKS it does nothing


@contextmanager
def copied_at_every_moment(out: Path, copies: Path) -> Iterator[None]:
    """Copy a folder before every file operation in it: that is what a process killed there leaves behind."""
    seen: set[str] = set()

    def copy(event: str, arguments: tuple[Any, ...]) -> None:
        if not str(arguments[0]).startswith(str(out)) or not out.exists():
            return
        if event == "open" and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
        hook = HOOKS.pop()
        try:
            state = hashlib.sha256()
            for path in sorted(out.rglob("*")):
                state.update(str(path).encode() + (path.read_bytes() if path.is_file() else b""))
            if state.digest() not in seen:
                seen.add(state.digest())
                shutil.copytree(out, copies / f"{len(seen):03d}")
        finally:
            HOOKS.append(hook)

    HOOKS.append(copy)
    try:
        yield
    finally:
        HOOKS.clear()


@pytest.mark.parametrize(("kind", "is_short"), [
    ("lockstep", True), ("with snapshots", False), ("event-driven", False), ("own biases", False),
    ("Ditto, event-driven", False),
])  # fmt: skip
def test_killed_at_any_moment_a_run_goes_on_to_the_same_bytes(tmp_path, monkeypatch, kind, is_short):
    fields = ONE | KINDS[kind] | ({} if is_short else {"checkpoint_seconds": 0.0})
    whole = efhc.simulate(**fields, out=tmp_path / "whole")
    monkeypatch.setattr(keeping, "SHORT_SECONDS", 1.0 if is_short else 0.0)
    with copied_at_every_moment(tmp_path / "run", tmp_path / "copies"):
        efhc.simulate(**fields, out=tmp_path / "run", jobs=1)
    copies = sorted((tmp_path / "copies").iterdir())
    assert len(copies) > (5 if is_short else 20)
    expected = files_of(tmp_path / "whole")
    for copy in copies:
        resumed = efhc.simulate(**ONE | KINDS[kind], out=copy, resume=True, warn=pytest.fail)
        assert files_of(copy) == expected
        assert not [*copy.rglob("*.partial")]
        assert_same(resumed, whole)


# Two processes


def test_only_one_process_works_on_an_experiment_or_on_a_long_run(tmp_path):
    out, store = tmp_path / "run", RunStore(tmp_path / "store", with_models=True)
    out.mkdir()
    with ExperimentFolder(out).locked(), pytest.raises(BusyError, match="another process"):
        efhc.simulate(**ONE, out=out)
    assert [path.name for path in out.iterdir()] == [".lock"]
    (run,) = Runs().of(efhc.Experiment(**ONE))
    with store.keeper(run) as keeper:
        keeper.open()
        with pytest.raises(BusyError, match="another process"):
            efhc.simulate(**ONE, out=out, store=store.path)
    assert not ExperimentFolder(out).is_complete
    assert_same(efhc.simulate(**ONE, out=out, store=store.path, resume=True), efhc.simulate(**ONE))


@pytest.mark.parametrize("is_complete", [True, False])
def test_two_processes_that_make_the_same_short_run_keep_it_once(tmp_path, is_complete):
    """The second process has made it, or has begun it and was killed, when the first one writes it."""
    store, (run,) = RunStore(tmp_path / "store", with_models=True), Runs().of(efhc.Experiment(**ONE))

    def meanwhile(strategy: str, seed: int, done: int) -> None:
        if done == 2 and is_complete:
            efhc.simulate(**ONE, out=tmp_path / "other", store=store.path)
        elif done == 2:
            with store.keeper(run) as keeper:
                keeper.open()

    made = efhc.simulate(**ONE, out=tmp_path / "run", store=store.path, progress=meanwhile)
    assert_same(made, efhc.simulate(**ONE))
    assert_same(efhc.Result.load(tmp_path / "run"), made)
    assert store.meta(run)["wall_seconds"] < 60


@pytest.mark.parametrize("kind", ["lockstep", "event-driven"])
def test_a_long_run_that_another_process_makes_meanwhile_is_not_written_again(tmp_path, monkeypatch, kind):
    fields = ONE | KINDS[kind]
    store, (run,) = RunStore(tmp_path / "store", with_models=True), Runs().of(efhc.Experiment(**fields))
    before: list[bytes] = []

    def meanwhile(strategy: str, seed: int, done: int) -> None:
        if done >= 1 and not before:
            efhc.simulate(**fields, out=tmp_path / "other", store=store.path)
            before.append((store.directory(run) / "meta.json").read_bytes())
            monkeypatch.setattr(keeping, "SHORT_SECONDS", 0.0)

    monkeypatch.setattr(keeping, "SHORT_SECONDS", 1e9)
    made = efhc.simulate(**fields, out=tmp_path / "run", store=store.path, progress=meanwhile, jobs=1)
    assert_same(made, efhc.simulate(**fields))
    assert (store.directory(run) / "meta.json").read_bytes() == before[0]
    assert not (store.directory(run) / "live.jsonl").exists()


# Files that are not as they were written


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("meta.json", b""), ("meta.json", b"[]"), ("meta.json", None),
        ("metrics.parquet", b"PAR"), ("events.parquet", None), ("models.safetensors", b"x" * 100),
    ],
)  # fmt: skip
def test_a_damaged_run_is_named_in_one_line_and_made_again(tmp_path, file, content):
    whole = efhc.simulate(**ONE, out=tmp_path / "run")
    expected, victim = files_of(tmp_path / "run"), run_folder(tmp_path / "run") / file
    victim.unlink()
    if content is not None:
        victim.write_bytes(content)

    def read() -> None:
        loaded = efhc.Result.load(tmp_path / "run")
        _ = loaded.tables, loaded.models

    with pytest.raises(EfhcError) as caught:
        read()
    assert "\n" not in str(caught.value)
    assert victim.name in str(caught.value) or victim.parent.name in str(caught.value)
    said: list[str] = []
    assert_same(efhc.simulate(**ONE, out=tmp_path / "run", resume=True, warn=said.append), whole)
    assert len(said) == (0 if (file, content) == ("meta.json", None) else 1)  # without it, a run is unfinished
    assert files_of(tmp_path / "run") == expected


def test_a_run_that_is_gone_is_named_and_made_again(tmp_path):
    whole = efhc.simulate(**ONE, out=tmp_path / "run")
    gone = run_folder(tmp_path / "run")
    shutil.rmtree(gone)
    with pytest.raises(EfhcError, match=f"{gone.name} is missing or damaged"):
        efhc.Result.load(tmp_path / "run")
    partial = efhc.Result.load(tmp_path / "run", unfinished=True)
    assert partial.states == {("A", 0): "waiting"}
    with pytest.raises(efhc.InputError, match="no run of A with seed 0"):
        partial.rows("metrics", "A", 0)
    assert_same(efhc.simulate(**ONE, out=tmp_path / "run", resume=True), whole)
    meta = ExperimentFolder(tmp_path / "run").meta
    assert meta["status"] == "complete"
    assert len(meta["sessions"]) == 2
    assert meta["wall_seconds"] < 60


def test_a_run_folder_without_its_config_is_made_again(tmp_path):
    whole = efhc.simulate(**ONE, out=tmp_path / "run")
    (run_folder(tmp_path / "run") / "config.toml").unlink()
    said: list[str] = []
    assert_same(efhc.simulate(**ONE, out=tmp_path / "run", resume=True, warn=said.append), whole)
    assert len(said) == 1


def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(tmp_path):
    efhc.simulate(**ONE, out=tmp_path / "run")
    meta = run_folder(tmp_path / "run") / "meta.json"
    meta.unlink()
    os.mkfifo(meta)
    with pytest.raises(EfhcError, match="not a regular file"):
        efhc.Result.load(tmp_path / "run")


@pytest.mark.parametrize(
    "change",
    [
        {"runs": 5}, {"runs": [5]}, {"runs": [{"strategy": "A", "seed": 0}]},
        {"runs": [{"strategy": [], "seed": 0, "key": "x"}]}, {"failed": [1]}, {"sessions": [{"store": 5}]},
        {"sessions": [{"store": "a\0"}]}, {"data_sha256": {"a": 5}},
    ],
)  # fmt: skip
def test_facts_of_the_wrong_type_are_one_line(tmp_path, change):
    efhc.simulate(**ONE, out=tmp_path / "run")
    file = tmp_path / "run" / "meta.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(EfhcError) as caught:
        efhc.Result.load(tmp_path / "run")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("is_shared", [True, False])
def test_what_another_process_is_writing_to_a_shared_store_stays(tmp_path, is_shared):
    """An experiment's own folder is locked, so what was being written there was left over by a kill."""
    place = tmp_path / "store" if is_shared else tmp_path / "run" / "runs"
    fields = ONE | ({"store": place} if is_shared else {})
    efhc.simulate(**fields, out=tmp_path / "run")
    (run,) = Runs().of(efhc.Experiment(**ONE))
    shutil.rmtree(place / run.key)
    writing = place / f".{'0' * 24}.0badcafe.partial"
    writing.mkdir()
    (writing / "meta.json").touch()
    efhc.simulate(**fields, out=tmp_path / "run", resume=True)
    assert writing.exists() == is_shared


@pytest.mark.parametrize("file", ["meta.json", "config.toml"])
def test_a_damaged_experiment_is_one_line(tmp_path, file):
    efhc.simulate(**ONE, out=tmp_path / "run")
    (tmp_path / "run" / file).write_text("{")
    with pytest.raises(EfhcError, match=rf"{file} is damaged \([^\n]*$"):
        efhc.Result.load(tmp_path / "run")
    with pytest.raises(EfhcError, match=rf"{file} is damaged"):
        efhc.simulate(**ONE, out=tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    "file", ["local.safetensors", "models.safetensors", "snapshots/A.seed0/000000000003.safetensors"]
)
@pytest.mark.parametrize("is_gone", [True, False])
def test_a_listed_file_that_is_gone_or_another_one_is_named(tmp_path, file, is_gone):
    store = RunStore(tmp_path / "store", with_models=True)
    fields = ONE | {"keep_models_every": 3}
    (run,) = Runs().of(efhc.Experiment(**fields))
    tables = efhc.simulate(**fields).tables
    local = {"mean": np.zeros((4, 2), np.float32)}
    with store.keeper(run) as keeper:
        assert keeper is not None
        for k in (0, 3):
            keeper.snapshot(k, np.full((4, 650), k, np.float32))
        folder = keeper.open()
        pair = next(iter(run.experiment.strategies)), 0
        folder.finish_run(tables, {pair: (np.zeros((4, 650), np.float32), local)}, ())
    place = store.directory(run)
    (there,) = (path for path in [place / file, *place.glob(f"snapshots/*/{Path(file).name}")] if path.exists())
    another = next(path for path in sorted(place.rglob("*.safetensors"), reverse=True) if path != there)
    there.unlink()
    if not is_gone:
        shutil.copy(another, there)
    loaded = StoredRun(RunFolder(place), LOCKSTEP)

    def read() -> object:
        return loaded.models, loaded.local, dict(loaded.snapshots)

    with pytest.raises(EfhcError, match=rf"{there.name} is (missing|damaged)"):
        read()


def test_runs_in_each_others_folders_are_damaged(tmp_path):
    fields = ONE | {"strategies": {"A": efhc.ZeroThreshold(), "B": efhc.Never()}}
    whole = efhc.simulate(**fields, out=tmp_path / "run")
    one, other = (tmp_path / "run" / "runs" / run.key for run in Runs().of(whole.experiment))
    one.rename(tmp_path / "moved")
    other.rename(one)
    (tmp_path / "moved").rename(other)
    with pytest.raises(EfhcError, match="missing or damaged"):
        efhc.Result.load(tmp_path / "run")
    said: list[str] = []
    assert_same(efhc.simulate(**fields, out=tmp_path / "run", resume=True, warn=said.append), whole)
    assert len(said) == 2


def test_an_empty_config_is_damaged(tmp_path):
    efhc.simulate(**ONE, out=tmp_path / "run")
    (run_folder(tmp_path / "run") / "config.toml").write_text("")
    with pytest.raises(EfhcError, match="is missing or damaged; resume"):
        efhc.Result.load(tmp_path / "run")
    (tmp_path / "run" / "config.toml").write_text("")
    with pytest.raises(EfhcError, match=r"config\.toml is damaged \([^\n]*$"):
        efhc.Result.load(tmp_path / "run")


# Folders of efhc 0.2


def test_a_folder_of_an_earlier_version_with_settings_that_are_gone_is_read_but_not_resumed(tmp_path):
    shutil.copytree(OLD, tmp_path / "old")
    config = tmp_path / "old" / "config.toml"
    tables = tomllib.loads(config.read_text())
    old = {"momentum": 0.0, "per": "device"}
    tables["strategies"] |= {
        "E": {"kind": "entrywise", "r": 1500.0, "rate": 0.25, "bits": 3, **old},
        "C": {"kind": "choco", "rate": 1.0, "budget": {"share": 0.01}, "codec": {"kind": "levels", "bits": 3}, **old},
        "O": {"kind": "one-way", "r": 250.0, "rate": 1.0, "correction": 0.3, "bits": 3, **old},
    }
    config.write_text(tomli_w.dumps(tables))
    loaded = efhc.Result.load(tmp_path / "old")
    assert list(loaded.experiment.strategies) == ["EF-HC", "ZT", "E", "C", "O"]
    with pytest.raises(EfhcError, match=r"only efhc 0\.2 had"):
        efhc.load_experiment(config)
    assert len(loaded.summary()) == 2
    now = loaded.experiment.model_copy(update={"strategies": {"E": efhc.Entrywise()}})
    with pytest.raises(EfhcError, match=r"begun with efhc 0\.2[^\n]*$"):
        efhc.simulate(now, out=tmp_path / "old", resume=True)


def test_a_complete_folder_of_an_earlier_version_is_loaded_and_shown(tmp_path):
    shutil.copytree(OLD, tmp_path / "old")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "old").rglob("*")}
    loaded = efhc.Result.load(tmp_path / "old")
    again = efhc.simulate(loaded.experiment)
    assert_same(loaded, again, is_old=True)
    assert set(loaded.states.values()) == {"done"}
    assert len(loaded.rows("metrics", "ZT", 3)) == 3
    assert_same(efhc.simulate(loaded.experiment, out=tmp_path / "old", resume=True), again, is_old=True)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "old").rglob("*")} == before
    models = tmp_path / "old" / "models.safetensors"
    models.write_bytes(models.read_bytes()[:-1] + b"\xff")
    with pytest.raises(EfhcError, match=r"models\.safetensors is damaged"):
        _ = efhc.Result.load(tmp_path / "old").models


def test_an_unfinished_folder_of_an_earlier_version_goes_on(tmp_path):
    """Its meta.json does not list runs: they are found by their configs."""
    fields = ONE | {"strategies": {"A": efhc.ZeroThreshold(), "same": efhc.ZeroThreshold(), "B": efhc.Never()}}

    with pytest.raises(KeyboardInterrupt):
        efhc.simulate(**fields, out=tmp_path / "run", jobs=1, progress=interrupt_at(1, "B"))
    meta = json.loads((tmp_path / "run" / "meta.json").read_text())
    del meta["runs"]
    (tmp_path / "run" / "meta.json").write_text(json.dumps(meta))
    result = efhc.Result.load(tmp_path / "run", unfinished=True)
    assert result.states == {("A", 0): "done", ("same", 0): "done", ("B", 0): "stopped"}
    assert result.models.keys() == {("A", 0), ("same", 0)}
    assert_same(efhc.simulate(**fields, out=tmp_path / "run", resume=True), efhc.simulate(**fields))


# No more than needed


@pytest.fixture
def calls(monkeypatch) -> Counter[str]:
    """The number of calls of what should be done once."""
    counts = Counter[str]()

    def count(name: str, owner: Any, function: str) -> None:
        original = getattr(owner, function)

        def counted(*arguments: Any, **named: Any) -> Any:
            counts[name] += 1
            return original(*arguments, **named)

        monkeypatch.setattr(owner, function, counted)

    count("fsync", os, "fsync")
    count("draw", draw, "draw_scenario")
    count("git", provenance.subprocess, "run")
    count("table", pl.DataFrame, "write_parquet")
    count("validation", efhc.Experiment, "model_validate")
    return counts


def test_a_short_run_is_validated_drawn_and_written_once(tmp_path, calls):
    provenance._git_state.cache_clear()
    experiment = efhc.Experiment(**ONE)
    calls.clear()
    efhc.simulate(experiment, out=tmp_path / "run")
    assert calls["validation"] == 0  # it was validated when it was created
    assert (calls["draw"], calls["git"], calls["table"]) == (1, 1, 4)
    assert not [*tmp_path.rglob("live.jsonl"), *tmp_path.rglob(".*.lock")]
    calls.clear()
    efhc.simulate(**ONE, out=tmp_path / "fields")
    assert (calls["validation"], calls["draw"], calls["git"]) == (1, 1, 0)
    of_one = calls["fsync"]
    calls.clear()
    many = ONE | {"seeds": range(10), "strategies": {"A": efhc.ZeroThreshold(), "B": efhc.Never()}}
    efhc.simulate(**many, out=tmp_path / "many")
    assert (calls["draw"], calls["table"]) == (10, 80)
    assert calls["fsync"] - of_one <= 19


def test_a_study_says_how_to_choose_a_result(tmp_path):
    study = efhc.Study({"compare": efhc.simulate(iterations=2, seeds=0, devices=3)}, tmp_path)
    with pytest.raises(
        AttributeError, match=r"study of 1 experiment: choose one, such as study\['compare'\]\.summary\(\)$"
    ):
        _ = study.summary
    with pytest.raises(AttributeError, match=r"study\['compare'\]\.at_budget\(\)$"):
        _ = study.at_budget
