"""What a page costs the run that it shows: processor time of `efhc run`, by turns with and without a page.

The page has a server of its own (`efhc watch`), or one within the process of the run (`--watch`). This process plays
the page: it asks the server for what a browser asks for.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from http.client import HTTPConnection, HTTPException
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any
from urllib.parse import urlencode, urlsplit

from benchmarks.measure import Ratio, Row, by_turns, milliseconds

ITERATIONS = {1: 60_000, 16: 24_000}
"""By batch size: about three seconds."""
ALONE, WATCHED, SERVING = "not watched", "efhc watch", "--watch"


def measure(rounds: int) -> Iterator[Row]:
    """Compare both ways of watching with a run that nobody watches."""
    for batch_size, iterations in ITERATIONS.items():
        with TemporaryDirectory(prefix="efhc-bench-") as folder:
            sides = {
                kind: partial(run, Path(folder), kind, batch_size, iterations) for kind in (ALONE, WATCHED, SERVING)
            }
            found = by_turns(sides, rounds)
        for kind in (WATCHED, SERVING):
            row = {"watched by": kind, "batch": str(batch_size), ALONE: milliseconds(found[ALONE])}
            yield row | Ratio.of(found[kind], found[ALONE]).row()


def run(folder: Path, kind: str, batch_size: int, iterations: int) -> float:
    """Run ten devices on Fashion-MNIST, evaluated every 50 iterations, and return the processor seconds."""
    out = next(place for number in count() if not (place := folder / f"{kind}-{number}").exists())
    out.mkdir()
    file = out / "bench.toml"
    settings = f"batch_size = {batch_size}\niterations = {iterations}\nseeds = [0]\ntest_samples = 1000\n"
    file.write_text(f'{settings}data = "fashion-mnist"\nstrategies.EF-HC = "ef-hc"\n')
    command = ["run", str(file), "--out", str(out / "run"), *(["--watch"] if kind == SERVING else [])]
    with _served(out) if kind == WATCHED else nullcontext():
        return _processor_seconds(command, is_looked_at=kind == SERVING)


def _processor_seconds(arguments: Sequence[str], is_looked_at: bool) -> float:
    command = [sys.executable, "-m", "efhc", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    with process.stderr as told, looking_at(_address(told)) if is_looked_at else nullcontext():
        told.read()
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"`efhc {' '.join(arguments)}` ended with exit code {process.returncode}")
    return used.ru_utime + used.ru_stime


def _address(lines: Iterator[str]) -> str:
    return next(found[0] for line in lines if (found := re.findall(r"http://\S+", line)))


@contextmanager
def _served(folder: Path) -> Iterator[None]:
    """Run `efhc watch` on a folder with one page open."""
    command = [sys.executable, "-m", "efhc", "watch", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            with looking_at(_address(server.stdout)):
                yield
        finally:
            server.terminate()


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
