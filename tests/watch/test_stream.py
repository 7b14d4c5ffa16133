"""What a page hears while runs are made: real files that grow, real runs and real nodes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from live_files import CONFIG, KEY, begin, begun, evaluated
from streams import stream

from efhc.experiments.runs.events import Devices, End, Evaluated, Firings, Network
from efhc.experiments.runs.live_file import LiveFile


def begun_experiment(folder: Path) -> LiveFile:
    """An experiment whose one run has begun, with its live file."""
    live = begun(folder / "runs" / KEY)
    (folder / "config.toml").write_text(CONFIG)
    runs = [{"strategy": "EF-HC", "seed": 0, "key": KEY}]
    (folder / "meta.json").write_text(json.dumps({"status": "running", "sessions": [], "runs": runs}))
    return live


def row(k: int, accuracy: float) -> Evaluated:
    return evaluated(k, accuracy, transmission_time_total=2.0 * k, bits_total=32.0 * k, broadcasts_total=k,
                     seconds=0.1 * k, train_loss=1.0, consensus_error=0.5)  # fmt: skip


def ids(client: httpx.Client) -> tuple[str, str]:
    (group,) = client.get("/api/tree").json()["groups"]
    return group["id"], group["runs"][0]["id"]


def test_rows_come_once_they_are_whole(tmp_path, serve):
    live = begun_experiment(tmp_path / "mine")
    live(row(1, 0.1))
    with serve(tmp_path) as (_, client):
        group, run = ids(client)
        with stream(client, group=group, run=run) as events, stream(client, group=group) as other:
            first = events.wait(lambda name, data: name == "detail")
            assert (first["id"], first["curve"]["k"]) == (run, [1])
            for k in (10, 20, 30):
                live(row(k, k / 100))
                delta = events.delta("curve")
                assert delta["columns"]["k"] == [k]
                assert delta["columns"]["bits"] == [32.0 * k]
                assert delta["columns"]["seconds"] == [0.1 * k]
            told: list[int] = []
            while len(told) < 4:
                told += other.delta("curve")["columns"]["k"]
            assert told == [1, 10, 20, 30]
            live(Devices(time.time(), 30, [0.1, 0.2, 0.3], [0.0, 1.0, 2.0], None))
            assert events.delta("samples")["columns"]["drift"] == [[0.0, 1.0, 2.0]]
            live(Firings(31, [2], [(1, 2)]))
            assert events.delta("events")["columns"] == {
                "k": [31], "fired": [[2]], "used": [[[1, 2]]], "seconds": [None],
            }  # fmt: skip
            live(Network(32, [(0, 2)]))
            live(Firings(32, [], []))  # a wiring is written with the first event that it has
            assert events.delta("network")["columns"] == {"k": [32], "links": [[[0, 2]]]}
        detail = client.get(f"/api/runs/{run}").json()
        assert detail["curve"]["k"] == [1, 10, 20, 30]
        assert detail["network"]["k"] == [0, 32]


def test_a_run_that_goes_on_supersedes_what_was_lost(tmp_path, serve):
    live = begun_experiment(tmp_path / "mine")
    for k in (10, 20, 30):
        live(row(k, k / 100))
    with serve(tmp_path) as (_, client):
        group, _ = ids(client)
        with stream(client, group=group) as events:
            assert events.delta("curve")["columns"]["k"] == [10, 20, 30]
            live(End(time.time(), "stopped", "no space left"))
            tree = events.wait(lambda name, data: name == "tree" and data["groups"][0]["runs"][0]["state"] == "stopped")
            assert tree["groups"][0]["runs"][0]["problem"] == "no space left"
            again = LiveFile(tmp_path / "mine" / "runs" / KEY / "live.jsonl")
            again(begin(20))
            delta = events.delta("curve", start=0)
            assert delta["columns"]["k"] == [10, 20]
            again(row(30, 0.9))
            delta = events.delta("curve")
            assert (delta["start"], delta["columns"]["accuracy"]) == (2, [0.9])
            events.wait(lambda name, data: name == "tree" and data["groups"][0]["runs"][0]["state"] == "running")


def test_a_run_that_is_deleted_disappears(tmp_path, serve):
    begun_experiment(tmp_path / "mine")
    with serve(tmp_path) as (_, client):
        group, run = ids(client)
        with stream(client, group=group, run=run) as events:
            events.wait(lambda name, data: name == "tree" and data["groups"])
            shutil.rmtree(tmp_path / "mine")
            assert {events.wait(lambda name, data: name == "gone")["id"] for _ in range(2)} == {group, run}
        assert client.get("/api/tree").json()["groups"] == []
        assert client.get(f"/api/runs/{run}").status_code == 404


@contextmanager
def command(*words: object) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "efhc", *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


@pytest.mark.slow
def test_a_run_shows_itself_while_it_is_made(tmp_path):
    config = tmp_path / "real.toml"
    config.write_text('devices = 10\niterations = 200000\nevaluate_every = 100\nseeds = [0]\n'
                      '[strategies.EF-HC]\nkind = "ef-hc"\n')  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    words = [sys.executable, "-m", "efhc", "run", config, "--out", tmp_path / "shown", "--no-figure", "--watch"]
    with subprocess.Popen(
        words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment, text=True
    ) as process:
        line = process.stderr.readline()
        assert " at http://127.0.0.1:" in line
        with httpx.Client(base_url=line.split(" at ")[1].strip()) as client:
            end = time.monotonic() + 60
            while not (groups := client.get("/api/tree").json()["groups"]) or not groups[0]["runs"][0]["k"]:
                assert time.monotonic() < end
                time.sleep(0.1)
            assert groups[0]["state"] == "running"
        rest = process.stderr.read()
        assert process.wait(timeout=120) == 0
    assert f"efhc watch {tmp_path / 'shown'}" in rest


@pytest.mark.slow
def test_nodes_are_devices_with_links(tmp_path, serve):
    pytest.importorskip("cryptography")
    config = tmp_path / "nodes.toml"
    config.write_text('name = "nodes"\ndevices = 3\niterations = 100000\nseeds = [0]\nnetwork = "ring"\n'
                      '[strategies.EF-HC]\nkind = "ef-hc"\n')  # fmt: skip
    with (
        serve(tmp_path) as (_, client),
        stream(client) as events,
        command("launch", config, "--out", tmp_path / "out", "--mode", "free-running", "--seconds", 12),
    ):

        def trains(name, data):
            return name == "tree" and any(
                group["kind"] == "nodes" and group["runs"][0]["k"] > 0 for group in data["groups"]
            )

        tree = events.wait(trains, 90)
        (group,) = (group for group in tree["groups"] if group["kind"] == "nodes")
        assert (group["runs"][0]["strategy"], group["runs"][0]["seed"]) == ("EF-HC", 0)
        run = group["runs"][0]["id"]
        with stream(client, group=group["id"], run=run) as of_run:
            for part in ("curve", "samples", "events"):
                of_run.delta(part)
        detail = client.get(f"/api/runs/{run}").json()
        assert [device["node"]["device"] for device in detail["devices"]] == [0, 1, 2]
        assert {tuple(link) for link in detail["network"]["links"][-1]} == {(0, 1), (0, 2), (1, 2)}
        assert all(len(drifts) == 3 for drifts in detail["samples"]["drift"])
        assert detail["curve"]["bits"][-1] > 0
