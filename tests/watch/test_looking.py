"""Looking for runs and telling what is new: cheap with many runs and in large folders, and right while files change."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

import polars as pl
import pytest

import efhc
from efhc.experiments.nodes.status_query import Answer
from efhc.experiments.runs.live.followers import About
from efhc.experiments.runs.live.reading import Tail
from efhc.experiments.runs.live.writing import LiveFile
from efhc.watch import discovery, looking, node_source
from efhc.watch import watched as watched_module
from efhc.watch.discovery import Discovery
from efhc.watch.live_source import LiveSource
from efhc.watch.node_source import NodeSource
from efhc.watch.stream import Changes
from efhc.watch.watched import Watched

CONFIG = 'name = "mine"\ndevices = 3\niterations = 100\nseeds = [0]\n[strategies.EF-HC]\nkind = "ef-hc"\n'
ABOUT = About("mine", "EF-HC", 0, "0" * 24, "lockstep", 3, 650, 100, [1.0, 2.0, 3.0], [(0, 1)])


@pytest.fixture
def reads(monkeypatch) -> list[str]:
    """The tables that were read."""
    read: list[str] = []
    scan = pl.scan_parquet
    monkeypatch.setattr(pl, "scan_parquet", lambda path: (read.append(path), scan(path))[1])
    return read


def fill(store, run, numbers) -> None:
    for n in numbers:
        shutil.copytree(run, store / f"{n:024x}", copy_function=os.link)


def test_complete_runs_are_told_once_and_never_read_again(tmp_path, reads):
    run, store = tmp_path / "run", tmp_path / "store"
    efhc.simulate(
        out=run, devices=3, iterations=10, evaluate_every=5, seeds=(0,), strategies={"EF-HC": efhc.EventTriggered()}
    )
    fill(store, run, range(400))
    watched = Watched(store)
    watched.refresh()
    (group,) = watched.tree["groups"]
    changes = Changes(watched, group["id"], group["runs"][0]["id"])
    reads.clear()
    assert [name for name, _ in changes.next()] == ["tree"]
    assert reads == []  # the page has asked for these runs by itself
    fill(store, run, range(400, 500))
    watched.look_again()
    told = [data for name, data in changes.next() if name == "delta"]
    assert len(told) == 100
    assert all(delta["columns"]["k"] == [1, 5, 10] for delta in told)
    reads.clear()
    seconds = []
    for _ in range(10):
        began = time.perf_counter()
        assert [name for name, _ in changes.next()] in ([], ["tree"])
        seconds.append(time.perf_counter() - began)
    assert reads == []
    assert min(seconds) < 0.02


def test_a_look_at_a_large_folder_holds_nobody_up_and_is_followed_by_a_rest(tmp_path, monkeypatch):
    monkeypatch.setattr(looking, "LOOK_SECONDS", 0.0)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text(CONFIG)
    find, may_go_on, looks = Discovery.find, threading.Event(), []
    may_go_on.set()

    def slow(self):
        looks.append(time.monotonic())
        assert may_go_on.wait(10)
        time.sleep(0.02)
        return find(self)

    monkeypatch.setattr(Discovery, "find", slow)
    watched = Watched(tmp_path)
    watched.refresh()  # waits: nothing is known yet
    assert len(watched.tree["groups"]) == 1
    watched.refresh()
    assert len(looks) == 1
    time.sleep(0.6)
    may_go_on.clear()
    began = time.monotonic()
    for _ in range(3):
        watched.refresh()
    assert len(looks) == 2
    assert looks[1] - looks[0] > 20 * 0.02
    assert time.monotonic() - began < 2
    assert watched.has_group(watched.tree["groups"][0]["id"])  # no lock is held
    may_go_on.set()
    watched.look_again()
    assert len(looks) == 3


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
    watched = Watched(tmp_path)
    watched.refresh()
    assert watched.tree["left_out"] == found.left_out


def test_rows_and_their_generation_are_of_one_moment(tmp_path, monkeypatch):
    """A run goes on from a checkpoint while a page asks what is new."""
    live = LiveFile(tmp_path / "live.jsonl")

    def evaluate(accuracy: float, *iterations: int) -> None:
        for k in iterations:
            live.evaluated({"iteration": k - 1, "accuracy": accuracy})

    live.begin(ABOUT, 0)
    evaluate(0.1, 1, 2, 3)
    source = LiveSource(tmp_path / "live.jsonl")
    source.read()
    first = source.rows("curve")
    live.begin(ABOUT, 1)
    evaluate(0.2, 2, 3, 4)
    records, readers = LiveSource._records, [threading.Thread(target=source.read)]

    def overtaken(self, part):
        if readers:
            reader = readers.pop()
            reader.start()
            reader.join(0.3)
        return records(self, part)

    monkeypatch.setattr(LiveSource, "_records", overtaken)
    page, told = first.columns["accuracy"], first
    for _ in range(2):
        told = source.rows("curve", told.generation, told.end)
        page[told.start :] = told.columns["accuracy"]
        assert page in ([0.1, 0.1, 0.1], [0.1, 0.2, 0.2, 0.2])
        time.sleep(0.1)
    assert page == [0.1, 0.2, 0.2, 0.2]


def test_a_page_that_is_open_opens_only_files_that_have_changed(tmp_path, monkeypatch):
    """One run goes on, another one was stopped: neither that file nor any folder is touched between two looks."""
    monkeypatch.setattr(looking, "LOOK_SECONDS", 1000.0)
    monkeypatch.setattr(watched_module, "READ_SECONDS", 0.0)
    files = {}
    for name in ("on", "stopped"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.toml").write_text(CONFIG)
        files[name] = LiveFile(tmp_path / name / "live.jsonl")
        files[name].begin(ABOUT, 0)
        files[name].evaluated({"iteration": 0, "accuracy": 0.1})
    files["stopped"].end("stopped", "no space left")
    watched = Watched(tmp_path)
    watched.refresh()
    opened, looked_at = [], []
    read, stat = Tail.read, Path.stat
    monkeypatch.setattr(Tail, "read", lambda self: (opened.append(self.path.parent.name), read(self))[1])
    monkeypatch.setattr(Path, "stat", lambda self, **how: (looked_at.append(self.name), stat(self, **how))[1])
    for _ in range(3):
        watched.refresh()
    assert opened == []
    files["on"].evaluated({"iteration": 1, "accuracy": 0.2})
    watched.refresh()
    assert opened == ["on"]
    assert set(looked_at) == {"live.jsonl"}
    runs = {group["place"]: group["runs"][0] for group in watched.tree["groups"]}
    assert [(runs[name]["state"], runs[name]["accuracy"]) for name in files] == [("running", 0.2), ("stopped", 0.1)]
    monkeypatch.undo()
    for group in watched.tree["groups"]:
        assert group["changed"] == (tmp_path / group["place"]).stat().st_mtime


def test_a_group_is_not_stopped_before_a_look_has_told(tmp_path, monkeypatch):
    """The process that made all runs has ended since the last look: what it has collected is not known yet."""
    monkeypatch.setattr(looking, "LOOK_SECONDS", 1000.0)
    monkeypatch.setattr(watched_module, "READ_SECONDS", 0.0)
    (tmp_path / "config.toml").write_text(CONFIG)
    live = LiveFile(tmp_path / "live.jsonl")
    live.begin(ABOUT, 0)
    live.end("done", None)
    watched = Watched(tmp_path)
    watched.refresh()
    assert watched.tree["groups"][0]["state"] == "running"
    monkeypatch.setattr(watched_module, "is_running", lambda *_: False)
    watched.refresh()
    assert watched.tree["groups"][0]["state"] == "running"
    watched.look_again()
    assert watched.tree["groups"][0]["state"] == "stopped"


def test_a_live_file_that_is_replaced_is_read_again(tmp_path):
    path = tmp_path / "live.jsonl"
    source = LiveSource(path)
    source.read()
    for accuracy in (0.1, 0.2):
        path.unlink(missing_ok=True)
        source.read()
        assert source.run is None
        live = LiveFile(path)
        live.begin(ABOUT, 0)
        live.evaluated({"iteration": 0, "accuracy": accuracy})
        source.read()
        assert source.evaluated == [{"iteration": 0, "accuracy": accuracy}]


def test_metrics_of_a_live_file_that_is_deleted_meanwhile(tmp_path, monkeypatch):
    (tmp_path / "config.toml").write_text(CONFIG)
    live = LiveFile(tmp_path / "live.jsonl")
    live.begin(ABOUT, 0)
    live.evaluated({"iteration": 0, "accuracy": 0.1})
    watched = Watched(tmp_path)
    watched.refresh()
    ((run,),) = (group["runs"] for group in watched.tree["groups"])
    source = watched.source(run["id"])
    known = [source.run]  # it is there when it is looked at once, and gone after that
    monkeypatch.setattr(LiveSource, "run", property(lambda self: known.pop() if known else None), raising=False)
    assert watched.metrics_csv(run["id"]) == "iteration,accuracy\n0,0.1\n"
    assert watched.metrics_csv(run["id"]).strip() == ""


def node(device: int, k: int, is_up: bool) -> Answer:
    other = {"device": 1 - device, "up": is_up, "bytes_sent": 0, "exchanges": {"committed": k}}
    status = {"device": device, "iteration": k, "iterations": 10_000, "loss": 1.0, "broadcasts": k, "drift": 0.0,
              "threshold": 1.0, "neighbours": [other], "state": "training", "steps_per_second": 1.0}  # fmt: skip
    return Answer(f"node{device}", status, None)


def test_links_of_nodes_stay_as_they_were_when_looks_are_forgotten(monkeypatch):
    monkeypatch.setattr(node_source, "MOST_LOOKS", 10)
    source = NodeSource()
    down = range(7, 9), range(12, 40), range(45, 46)
    for k in range(60):
        is_up = not any(k in some for some in down)
        source.hear([node(0, k, is_up), node(1, k, is_up)], float(k))
    looks, changes = source.rows("events").columns["k"], source.rows("network").columns
    assert 10 <= len(looks) < 20
    assert looks[-1] == 59
    for k in looks:
        links = [links for at, links in zip(changes["k"], changes["links"], strict=True) if at <= k][-1]
        assert bool(links) is not any(k in some for some in down), k
