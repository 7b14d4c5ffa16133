"""What following costs a run, by turns: `python -m efhc.benchmarks.following` prints ratios of processor time.

The base is a run that writes no live file. Beside it: one that does, as every run in a folder; and one that is watched.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

from efhc.experiments.runs.simulate import simulate
from efhc.experiments.runs.store import FolderKeeper

ROUNDS = 4
ITERATIONS = {1: 20_000, 16: 8_000}
"""By batch size."""


def seconds_of_run(batch_size: int, out: Path) -> float:
    """Return the processor seconds of a run of ten devices on Fashion-MNIST, evaluated every 50 iterations."""
    start = time.process_time()
    fields: dict[str, Any] = {
        "data": "fashion-mnist",
        "seeds": 0,
        "strategies": {"EF-HC": "ef-hc"},
        "test_samples": 1000,
    }
    simulate(**fields, batch_size=batch_size, iterations=ITERATIONS[batch_size], out=out, jobs=1)
    return time.process_time() - start


@contextmanager
def watched(folder: Path) -> Iterator[None]:
    """Run `efhc watch` on a folder, and read its stream, as a page does."""
    command = [sys.executable, "-m", "efhc", "watch", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = urlsplit(next(word for word in server.stdout.readline().split() if word.startswith("http")))
        connection = HTTPConnection(str(address.hostname), address.port)
        connection.request("GET", "/api/stream")
        answer = connection.getresponse()

        def read() -> None:
            with suppress(HTTPException, OSError):  # the server ends before the stream does
                answer.read()

        reader = Thread(target=read, daemon=True)
        reader.start()
        time.sleep(1)
        try:
            yield
        finally:
            server.terminate()
            server.wait()
            reader.join(5)


def main() -> None:
    """Print one line per batch size."""
    nobody = patch.object(FolderKeeper, "followers", ())
    for batch_size in ITERATIONS:
        written, seen = [], []
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            seconds_of_run(batch_size, folder / "first")
            for turn in range(ROUNDS):
                with nobody:
                    base = seconds_of_run(batch_size, folder / f"base-{turn}")
                written.append(seconds_of_run(batch_size, folder / f"written-{turn}") / base)
                with watched(folder):
                    seen.append(seconds_of_run(batch_size, folder / f"seen-{turn}") / base)
        print(f"batch {batch_size}: live file {median(written):.3f}x, watched {median(seen):.3f}x")  # noqa: T201


if __name__ == "__main__":
    main()
