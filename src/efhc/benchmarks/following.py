"""What following costs a run, by turns: `python -m efhc.benchmarks.following` prints ratios of processor time.

The base is a run that writes no live file. Beside it: one that does, as every run in a folder; and one that is watched
by a page, which has a server of its own (`efhc watch`) or one within the process of the run (`--watch`). Each run is a
process of its own; the page is played by this one, which asks the server for what a browser asks for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import Any
from unittest.mock import patch
from urllib.parse import urlencode, urlsplit

from efhc.experiments.runs.simulate import simulate
from efhc.experiments.runs.store import FolderKeeper

ROUNDS = 8
ITERATIONS = {1: 60_000, 16: 24_000}
"""By batch size: about three seconds."""
BASE, WRITTEN, WATCHED, SERVING = "no live file", "live file", "watched", "--watch"


def make_run(batch_size: int, out: Path, kind: str) -> None:
    """Run ten devices on Fashion-MNIST, evaluated every 50 iterations, and print its processor seconds."""
    fields: dict[str, Any] = {
        "data": "fashion-mnist",
        "seeds": 0,
        "strategies": {"EF-HC": "ef-hc"},
        "test_samples": 1000,
        "batch_size": batch_size,
        "jobs": 1,
    }
    simulate(**fields, iterations=50, out=out / "first")  # imports, data, compiled loops
    with ExitStack() as stack:
        if kind == BASE:
            stack.enter_context(patch.object(FolderKeeper, "followers", ()))
        if kind == SERVING:
            from efhc.watch.server import Server
            from efhc.watch.watched import Watched

            server = stack.enter_context(Server(Watched(out)))
            print(server.address, flush=True)  # noqa: T201
            time.sleep(1)
        start = time.process_time()
        simulate(**fields, iterations=ITERATIONS[batch_size], out=out / "second")
        print(time.process_time() - start)  # noqa: T201


def seconds_of_run(batch_size: int, out: Path, kind: str) -> float:
    """Return the processor seconds of a run that is a process of its own."""
    command = [sys.executable, "-m", "efhc.benchmarks.following", str(batch_size), str(out), kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        page = looking_at(process.stdout.readline().strip()) if kind == SERVING else nullcontext()
        with page:
            return float(process.stdout.read())


@contextmanager
def served(folder: Path) -> Iterator[list[float]]:
    """Run `efhc watch` on a folder with one page open. Afterwards, the list has the server's processor seconds."""
    used: list[float] = []
    command = [sys.executable, "-m", "efhc", "watch", str(folder)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = next(word for word in server.stdout.readline().split() if word.startswith("http"))
        with looking_at(address):
            yield used
    finally:
        server.terminate()
        _, _, usage = os.wait4(server.pid, 0)
        server.returncode = 0
        used.append(usage.ru_utime + usage.ru_stime)


@contextmanager
def looking_at(address: str) -> Iterator[None]:
    """Ask for what a page asks for: the tree until a run goes on, then that run, its group, and their stream."""
    place, stop = urlsplit(address), Event()

    def get(target: str) -> Any:
        connection = HTTPConnection(str(place.hostname), place.port, timeout=60)
        connection.request("GET", target)
        return connection.getresponse()

    def read() -> None:
        with suppress(HTTPException, OSError):  # the server ends before the stream does
            while not stop.is_set():
                groups = json.load(get("/api/tree"))["groups"]
                running = [(group, run) for group in groups for run in group["runs"] if run["state"] == "running"]
                if not running:
                    time.sleep(0.1)
                    continue
                group, run = running[0]
                get(f"/api/runs/{run['id']}").read()
                get(f"/api/groups/{group['id']}/curves").read()
                stream = get("/api/stream?" + urlencode({"group": group["id"], "run": run["id"]}))
                while not stop.is_set() and stream.readline():
                    pass

    reader = Thread(target=read, daemon=True)
    reader.start()
    try:
        yield
    finally:
        stop.set()
        reader.join(1)


def main() -> None:
    """Print a line per batch size and kind."""
    for batch_size in ITERATIONS:
        ratios: dict[str, list[float]] = {WRITTEN: [], WATCHED: [], SERVING: []}
        servers = []
        for _ in range(ROUNDS):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                written = seconds_of_run(batch_size, folder / "written", WRITTEN)
                base = seconds_of_run(batch_size, folder / "base", BASE)
                ratios[WRITTEN].append(written / base)
                ratios[SERVING].append(seconds_of_run(batch_size, folder / "serving", SERVING) / written)
                with served(folder) as used:
                    ratios[WATCHED].append(seconds_of_run(batch_size, folder / "watched", WRITTEN) / written)
                servers.append(used[0] / written)
        for kind, against in (WRITTEN, BASE), (WATCHED, WRITTEN), (SERVING, WRITTEN):
            found = sorted(ratios[kind])
            words = f"{median(found):.3f}x of {against} ({found[0]:.3f}-{found[-1]:.3f})"
            print(f"batch {batch_size}: {kind}: {words}", flush=True)  # noqa: T201
        print(f"batch {batch_size}: `efhc watch` itself: {median(servers):.2f}x of the run")  # noqa: T201


if __name__ == "__main__":
    if len(sys.argv) > 1:
        make_run(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
    else:
        main()
