"""The live file: what is written is read, at any moment, in little room."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from efhc.experiments.runs import live_file
from efhc.experiments.runs.events import Begin, Devices, End, Evaluated, Firings, Network
from efhc.experiments.runs.live_file import LIMIT, SILENT_SECONDS, LiveFile, LiveRun, Tail, read_live
from efhc.experiments.runs.provenance import is_running, process_mark

RING = [(0, 1), (1, 2), (0, 2)]


def begin(k: int = 0, devices: int = 3, iterations: int = 100, links: list[tuple[int, int]] = RING) -> Begin:
    pid = os.getpid()
    facts = ("e", "EF-HC", 7, "abc", "lockstep", devices, 10, iterations, [1.0] * devices, links)
    return Begin(time.time(), k, *facts, pid, os.uname().nodename, process_mark(pid))


def evaluated(iteration: int) -> Evaluated:
    return Evaluated(time.time(), iteration + 1, row(iteration))


def sampled(k: int, *numbers: list[float] | None) -> Devices:
    return Devices(time.time(), k, *numbers)


def row(iteration: int) -> dict[str, float | int | None]:
    return {"iteration": iteration, "accuracy": 0.1 + iteration / 3e4, "train_loss": None, "seconds": iteration / 10}


def read(path: Path) -> LiveRun:
    run = read_live(path)
    assert run is not None
    return run


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "live.jsonl"
    file = LiveFile(path)
    file(begin())
    file(Firings(0, [1], [(0, 1), (1, 2)]))
    file(Firings(1, [], []))
    file(evaluated(9))
    file(sampled(10, [0.123456, 0.5, 1.0], [1 / 3, 0.0, 1e-9], [float("inf"), 0.0, 2.0]))
    file(Network(9, [(1, 2)]))  # no event used it
    file(Network(10, [(0, 1)]))
    file(Firings(10, [0], [(0, 1)]))
    run = read(path)
    assert (run.about.experiment, run.about.strategy, run.about.seed, run.about.links) == ("e", "EF-HC", 7, RING)
    assert run.rows[0].row == row(9)
    assert run.rows[0].k == 10
    assert isinstance(run.rows[0].row["iteration"], int)
    assert run.samples[0].accuracy == [0.1235, 0.5, 1.0]
    assert run.samples[0].drift == [0.3333, 0.0, 1e-9]
    assert run.samples[0].threshold == [None, 0.0, 2.0]  # JSON knows no infinity
    assert [(event.k, event.fired, event.used) for event in run.events] == [
        (0, [1], [(0, 1), (1, 2)]),
        (1, [], []),
        (10, [0], [(0, 1)]),
    ]
    assert run.networks == [Network(0, RING), Network(10, [(0, 1)])]
    assert (run.k, run.state()) == (10, "running")
    file(End(time.time(), "done", None))
    assert read(path).state() == "done"


def test_a_half_line_is_ignored_until_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "live.jsonl"
    file = LiveFile(path)
    file(begin())
    tail = Tail(path)
    assert [type(record) for record in tail.read().records] == [Begin]
    file(evaluated(9))
    whole = path.read_bytes()
    for cut in range(1, 60, 7):
        path.write_bytes(whole[:-cut])
        assert tail.read().records == []
    path.write_bytes(whole)
    news = tail.read()
    assert [record.k for record in news.records if isinstance(record, Evaluated)] == [10]
    assert (news.begins_again, news.is_there) == (False, True)
    assert tail.read().records == []


def test_what_cannot_be_read_is_an_answer(tmp_path: Path) -> None:
    path = tmp_path / "live.jsonl"
    assert read_live(path) is None
    assert Tail(path).read() == ([], False, False)
    foreign = [b"", b"\n", b"{", b"\xff\xfe\x00" * 100, b"[1]\n", b'{"kind":"efhc-live","format":99}\n{"kind":"end"}\n']
    for content in [*foreign, b"[" * 100_000, b"x" * 5000]:
        path.write_bytes(content)
        assert read_live(path) is None
    assert read_live(tmp_path) is None  # a folder
    file = LiveFile(path)
    file(begin())
    for iteration in (9, 19, 29):
        file(evaluated(iteration))
    tail = Tail(path)
    tail.read()
    lines = path.read_bytes().splitlines(keepends=True)
    lines[3] = b'{"kind":"evaluated","at":0,"k":"many"}\n\xff\x00garbage\n{"kind":"from-the-future"}\n'
    path.write_bytes(b"".join(lines))
    assert [one.k for one in read(path).rows] == [10, 30]
    path.unlink()
    assert tail.read() == ([], True, False)
    with pytest.raises(FileNotFoundError):
        file(evaluated(39))
    assert not path.exists()


def test_what_a_kill_made_undone_is_superseded(tmp_path: Path) -> None:
    path = tmp_path / "live.jsonl"
    file = LiveFile(path)
    file(begin())
    tail = Tail(path)
    for k in range(10, 60, 10):
        file(Network(k - 1, [(0, 1), (1, 2)]))
        file(Firings(k - 1, [0], []))
        file(evaluated(k - 1))
        file(sampled(k, [0.1] * 3, None, None))
    path.write_bytes(path.read_bytes() + b'{"kind":"eval')  # killed here
    assert len(tail.read().records) == 21
    again = LiveFile(path)
    again(begin(30))
    run = read(path)
    assert [one.k for one in run.rows] == [one.k for one in run.samples] == [10, 20, 30]
    assert [one.k for one in run.events] == [9, 19, 29]
    assert [one.k for one in run.networks] == [0, 9, 19, 29]
    assert (run.about.k, run.k) == (30, 30)
    news = tail.read()
    assert news.begins_again
    assert LiveRun.of(news.records) == run
    again(evaluated(39))
    assert [record.k for record in tail.read().records if isinstance(record, Evaluated)] == [40]
    LiveFile(path)(begin())  # the checkpoint was lost
    assert read(path).rows == []


@pytest.mark.parametrize("devices", [3, 1000])
def test_a_long_run_stays_small_and_evenly_sampled(tmp_path: Path, devices: int) -> None:
    path = tmp_path / "live.jsonl"
    file = LiveFile(path)
    links = [(i, (i + step) % devices) for i in range(devices) for step in ((1, 2, 3) if devices > 3 else (1,))]
    file(begin(0, devices, 10_000, links))
    tail, largest = Tail(path), 0
    for iteration in range(10_000 if devices == 3 else 2_000):
        if iteration % 5 == 0:
            file(Firings(iteration, list(range(0, devices, 20)), links[::10]))
        file(evaluated(iteration))
        if iteration % 10 == 0:
            sample = [0.123456 * (1 + number / devices) for number in range(devices)]
            file(sampled(iteration + 1, sample, sample, sample))
        if iteration % 100 == 0:
            largest = max(largest, path.stat().st_size)
    file(End(time.time(), "done", None))
    assert max(largest, path.stat().st_size) < 1.1 * LIMIT
    run, last = read(path), 9_999 if devices == 3 else 1_999
    assert run.rows[-1].row == row(last)  # the last row is there, whatever was thinned
    assert len(run.rows) > (700 if devices == 3 else 400)
    for kept in (run.rows, run.samples, run.events):
        steps = [after.k - before.k for before, after in itertools.pairwise(kept)]
        assert len(kept) > 4
        assert max(steps[:-1]) <= 4 * min(steps[:-1])
    assert tail.read().is_there


def links_in_force(run: LiveRun, k: int) -> set[tuple[int, int]]:
    return {(i, j) for i, j in max((one for one in run.networks if one.k <= k), key=lambda one: one.k).links}


def test_events_use_links_in_force_whatever_is_thinned(tmp_path: Path) -> None:
    path = tmp_path / "live.jsonl"
    everything = [(i, j) for i in range(6) for j in range(i)]

    def follow(file: LiveFile, first: int, last: int) -> None:
        file(begin(first, 6, 2000, everything))
        for k in range(first, last):
            links = everything[k % 5 :: 5]
            file(Network(k, links))
            if k % 3 == 0:  # events are told of some iterations
                file(Firings(k, [0], links))
            if k % 100 == 0:
                file(evaluated(k))

    for first, last in [(0, 900), (700, 1500), (1500, 2000)]:  # thinned several times, killed and gone on with
        follow(LiveFile(path, limit=8000), first, last)
        run = read(path)
        assert path.stat().st_size < 8800
        assert len(run.events) > 4
        assert len(run.networks) <= len(run.events) + 2
        assert all(links_in_force(run, event.k) == set(event.used) for event in run.events)


def test_a_process_is_known_by_more_than_its_number() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        mark, host = process_mark(other.pid), os.uname().nodename
        assert is_running(other.pid, host, mark)
        assert is_running(other.pid, host, None)
        assert not is_running(other.pid, host, "1@another-boot")
        assert is_running(other.pid, "elsewhere", mark) is None
        other.kill()
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
        assert not is_running(other.pid, host, mark)
    assert not is_running(other.pid, host, None)


@pytest.mark.parametrize(
    ("runs", "silent_for", "state"),
    [(None, SILENT_SECONDS - 60, "running"), (None, SILENT_SECONDS + 1, "stopped"), (False, 0, "stopped")],
)
def test_a_run_elsewhere_counts_as_stopped_when_its_file_does_not_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: bool | None, silent_for: float, state: str
) -> None:
    LiveFile(tmp_path / "live.jsonl")(replace(begin(), at=time.time() - silent_for))
    monkeypatch.setattr(live_file, "is_running", lambda *process: runs)
    assert read(tmp_path / "live.jsonl").state() == state
