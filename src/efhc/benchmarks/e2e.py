"""Whole commands as a user gives them, each in a process of its own, from its start to its end."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, NamedTuple

from efhc.base.errors import EfhcError
from efhc.benchmarks.against import OURS, OURSELVES, THEIRS, check_checkout, environment
from efhc.benchmarks.measure import Times, times_longer


class Command(NamedTuple):
    """A command to time."""

    arguments: tuple[str, ...]
    """Of Python."""
    is_first: bool = False
    """Whether it finds no compiled loops and no list of fonts, as after an installation."""


COMMANDS = {
    "import numpy": Command(("-c", "import numpy")),
    "import efhc": Command(("-c", "import efhc")),
    "efhc --help": Command(("-m", "efhc", "--help")),
    "efhc demo, first": Command(("-m", "efhc", "demo"), is_first=True),
    "efhc demo, later": Command(("-m", "efhc", "demo")),
    "efhc run fashion-mnist": Command(("-m", "efhc", "run", "examples/fashion-mnist.toml")),
}


def measure_commands(checkout: Path | None, rounds: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Seconds of each command, those of another checkout beside ours if one is given."""
    sources = {OURS: OURSELVES}
    if checkout:
        check_checkout(checkout)
        sources = {THEIRS: checkout, OURS: OURSELVES}
    with TemporaryDirectory(prefix="efhc-bench-") as folder:
        caches = {side: _caches(folder) for side in sources}
        results: dict[str, Any] = {}
        for name, command in COMMANDS.items():
            tell(name)
            times = {side: Times([], []) for side in sources}
            for round_ in range(-1 if not command.is_first else 0, rounds):  # once for nothing: files, caches
                for side, source in sources.items():
                    kept = _caches(folder) if command.is_first else caches[side]
                    wall, processor = _timed(command, source, {**environment(source), **kept})
                    if round_ >= 0:
                        times[side].wall.append(wall)
                        times[side].processor.append(processor)
            results[name] = _result(times)
    return {"results": results, "rounds": rounds, **({"against": checkout.name} if checkout else {})}


def _result(times: Mapping[str, Times]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "seconds": {side: each.median for side, each in times.items()},
        "least": min(times[OURS].wall),
        "most": max(times[OURS].wall),
        "processor": statistics.median(times[OURS].processor),
    }
    if THEIRS in times:
        result["ratio"] = times_longer(times[THEIRS], times[OURS])
    return result


def _caches(folder: str) -> dict[str, str]:
    """Empty places for compiled loops and for matplotlib's list of fonts, as environment variables."""
    made = mkdtemp(dir=folder)
    return {"NUMBA_CACHE_DIR": f"{made}/numba", "MPLCONFIGDIR": f"{made}/matplotlib"}


def _timed(command: Command, source: Path, variables: Mapping[str, str]) -> tuple[float, float]:
    """Seconds of a process with all its children, on the wall and of the processor."""
    with TemporaryDirectory(prefix="efhc-bench-") as folder:
        if (source / "examples").is_dir():  # an installed efhc finds its examples itself
            (Path(folder) / "examples").symlink_to((source / "examples").resolve())
        started = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, *command.arguments],
            cwd=folder,
            env=dict(variables),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise EfhcError(f"bench: `python {' '.join(command.arguments)}` ended with exit code {process.returncode}")
    return wall, used.ru_utime + used.ru_stime
