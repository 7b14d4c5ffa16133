"""Scans for runs, and what is new since: cheap with many runs and in large folders, right while files change."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

import polars as pl
import pytest
from live_files import CONFIG, begin, begun, evaluated

import efhc
from efhc.experiments.runs.events import End
from efhc.experiments.runs.live_file import Tail
from efhc.watch import discovery, watcher
from efhc.watch.discovery import Discovery
from efhc.watch.readers import LiveReader
from efhc.watch.stream import Changes
from efhc.watch.watcher import Watcher


@pytest.fixture
def reads(monkeypatch) -> list[str]:
    """The tables that were read."""
    read: list[str] = []
    scan = pl.scan_parquet
    monkeypatch.setattr(pl, "scan_parquet", lambda path: (read.append(path), scan(path))[1])
    return read


def source_of(folder: Path) -> LiveReader:
    """The source of the only run in a folder."""
    ((run,),) = (group.runs for group in Discovery(folder).find())
    return LiveReader(run)


def fill(store, run, numbers) -> None:
    for n in numbers:
        shutil.copytree(run, store / f"{n:024x}", copy_function=os.link)


def test_complete_runs_are_sent_once_and_never_read_again(tmp_path, reads):
    out, store = tmp_path / "run", tmp_path / "store"
    efhc.simulate(
        out=out, devices=3, iterations=10, evaluate_every=5, seeds=(0,), strategies={"EF-HC": efhc.EventTriggered()}
    )
    (run,) = (out / "runs").glob("*/")
    fill(store, run, range(400))
    watched = Watcher.of(store, may_be_empty=True)
    (group,) = watched.tree["groups"]
    changes = Changes(watched, group["id"], group["runs"][0]["id"])
    names, data = zip(*changes.next(), strict=True)
    assert names == ("tree", "detail", *["delta"] * 399)
    assert all(curve["k"] == [1, 5, 10] for curve in (data[1]["curve"], *(delta["columns"] for delta in data[2:])))
    fill(store, run, range(400, 500))
    watched.scan_now()
    sent = [data for name, data in changes.next() if name == "delta"]
    assert len(sent) == 100
    assert all(delta["columns"]["k"] == [1, 5, 10] for delta in sent)
    reads.clear()
    for _ in range(10):
        assert [name for name, _ in changes.next()] in ([], ["tree"])
    assert reads == []


def test_a_scan_of_a_large_folder_holds_nobody_up_and_is_followed_by_a_pause(tmp_path, monkeypatch):
    monkeypatch.setattr(watcher, "SCAN_SECONDS", 1000.0)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text(CONFIG)
    find, may_go_on, scans = Discovery.find, threading.Event(), []
    may_go_on.set()

    def slow(self):
        scans.append(1)
        assert may_go_on.wait(60)
        return find(self)

    monkeypatch.setattr(Discovery, "find", slow)
    watched = Watcher(tmp_path)
    watched.refresh()  # waits: nothing is known yet
    assert len(watched.tree["groups"]) == 1
    watched.refresh()
    assert len(scans) == 1
    watched._scans._due = 0.0  # the pause is over
    may_go_on.clear()
    for _ in range(3):
        watched.refresh()  # returns although the scan cannot end
    assert len(scans) == 2
    assert watched.has(watched.tree["groups"][0]["id"])  # no lock is held
    may_go_on.set()
    watched.scan_now()
    assert len(scans) == 3


def test_folders_without_runs_are_not_searched_and_what_is_left_out_is_said(tmp_path, monkeypatch):
    for place in ("mine", "node_modules/a", ".git/a", "lib/site-packages/a", "env/a"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "config.toml").write_text(CONFIG)
    (tmp_path / "env" / "pyvenv.cfg").touch()
    found = Discovery(tmp_path)
    assert [group.folder.name for group in found.find()] == ["mine"]
    assert found.left_out is None
    for n in range(30):
        (tmp_path / "a" / str(n)).mkdir(parents=True)
    monkeypatch.setattr(discovery, "MOST_FOLDERS", 20)
    assert [group.folder.name for group in found.find()] == ["mine"]  # near ones first
    assert "nearest 20 folders" in found.left_out
    monkeypatch.setattr(discovery, "MOST_FOLDERS", 100)
    monkeypatch.setattr(discovery, "DEPTH", 1)
    found.find()
    assert "more than 1 levels down" in found.left_out
    watched = Watcher.of(tmp_path, may_be_empty=True)
    assert watched.tree["left_out"] == found.left_out


def test_rows_and_their_generation_are_of_one_moment(tmp_path, monkeypatch):
    """A run goes on from a checkpoint while a page asks what is new."""
    live = begun(tmp_path)

    def evaluate(accuracy: float, *iterations: int) -> None:
        for k in iterations:
            live(evaluated(k, accuracy))

    evaluate(0.1, 1, 2, 3)
    source = source_of(tmp_path)
    source.read()
    first = source.rows("curve")
    live(begin(1))
    evaluate(0.2, 2, 3, 4)
    rows, reader = LiveReader._rows, threading.Thread(target=source.read)

    def overtaken(self, part, first):
        if reader.ident is None:
            reader.start()
            reader.join(0.3)
        return rows(self, part, first)

    monkeypatch.setattr(LiveReader, "_rows", overtaken)
    page, told = first.columns["accuracy"], first
    for _ in range(2):
        told = source.rows("curve", told.generation, told.end)
        page[told.start :] = told.columns.get("accuracy", [])
        assert page in ([0.1, 0.1, 0.1], [0.1, 0.2, 0.2, 0.2])
        reader.join(60)
    assert page == [0.1, 0.2, 0.2, 0.2]


def test_a_page_that_is_open_opens_only_files_that_have_changed(tmp_path, monkeypatch):
    """One run goes on, another one was stopped: neither that file nor any folder is touched between two scans."""
    monkeypatch.setattr(watcher, "SCAN_SECONDS", 1000.0)
    monkeypatch.setattr(watcher, "READ_SECONDS", 0.0)
    files = {}
    for name in ("on", "stopped"):
        files[name] = begun(tmp_path / name)
        files[name](evaluated(1, 0.1))
    files["stopped"](End(time.time(), "stopped", "no space left"))
    watched = Watcher.of(tmp_path, may_be_empty=True)
    opened, checked = [], []
    read, stat = Tail.read, Path.stat
    monkeypatch.setattr(Tail, "read", lambda self: (opened.append(self.path.parent.name), read(self))[1])
    monkeypatch.setattr(Path, "stat", lambda self, **how: (checked.append(self.name), stat(self, **how))[1])
    for _ in range(3):
        watched.refresh()
    assert opened == []
    files["on"](evaluated(2, 0.2))
    watched.refresh()
    assert opened == ["on"]
    assert set(checked) == {"live.jsonl"}
    runs = {group["place"]: group["runs"][0] for group in watched.tree["groups"]}
    assert [(runs[name]["state"], runs[name]["latest"]["accuracy"]) for name in files] == [
        ("running", 0.2),
        ("stopped", 0.1),
    ]
    monkeypatch.undo()
    for group in watched.tree["groups"]:
        assert group["changed"] == (tmp_path / group["place"]).stat().st_mtime


def test_a_group_is_not_stopped_before_the_next_scan(tmp_path, monkeypatch):
    """The process that made all runs has ended since the last scan: whether all runs are complete is not known yet."""
    monkeypatch.setattr(watcher, "SCAN_SECONDS", 1000.0)
    monkeypatch.setattr(watcher, "READ_SECONDS", 0.0)
    begun(tmp_path)(End(time.time(), "done", None))
    watched = Watcher.of(tmp_path, may_be_empty=True)
    assert watched.tree["groups"][0]["state"] == "running"
    monkeypatch.setattr(watcher, "is_running", lambda *_: False)
    watched.refresh()
    assert watched.tree["groups"][0]["state"] == "running"
    watched.scan_now()
    assert watched.tree["groups"][0]["state"] == "stopped"


def test_a_live_file_that_is_replaced_is_read_again(tmp_path):
    begun(tmp_path)
    source = source_of(tmp_path)
    for accuracy in (0.1, 0.2):
        (tmp_path / "live.jsonl").unlink()
        source.read()
        assert source.live is None
        assert source.metrics().is_empty()
        begun(tmp_path)(evaluated(1, accuracy))
        source.read()
        assert source.metrics().to_dicts() == [{"iteration": 0, "accuracy": accuracy}]
