"""Our iterations against those of another checkout of efhc, by turns: two processes, of which one works at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from efhc.base.errors import EfhcError, InputError
from efhc.benchmarks import one_side
from efhc.benchmarks.measure import Times, times_longer
from efhc.benchmarks.names import WORKLOAD_NAMES, check_names

THEIRS, OURS = "other checkout", "efhc"
OURSELVES = Path(__file__).parents[3]


def check_checkout(checkout: Path) -> None:
    """Raise `InputError` if this is not a folder with the source of efhc."""
    if not (checkout / "src" / "efhc" / "benchmarks" / "workloads.py").is_file():
        allowed = "a checkout of efhc: a folder that has src/efhc, for example made by `git worktree add DIR COMMIT`"
        raise InputError("--against", str(checkout), allowed)


def environment(source: Path) -> dict[str, str]:
    """The environment of a process that imports efhc from another folder."""
    return {**os.environ, "PYTHONPATH": str(source.resolve() / "src")}


def compare(checkout: Path, names: Iterable[str], rounds: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Times of both checkouts by workload. `tell` hears what is being measured."""
    check_checkout(checkout)
    chosen = list(names) or list(WORKLOAD_NAMES)
    check_names(chosen)
    results = {}
    for name in chosen:
        tell(name)
        times = _by_turns(name, {THEIRS: checkout, OURS: OURSELVES}, rounds)
        results[name] = {
            "seconds": {side: each.median for side, each in times.items()},
            "ratio": times_longer(times[THEIRS], times[OURS]),
        }
    return {"results": results, "against": checkout.name, "rounds": rounds}


def _by_turns(name: str, checkouts: dict[str, Path], rounds: int) -> dict[str, Times]:
    times = {side: Times([], []) for side in checkouts}
    with ExitStack() as stack:
        works = {side: stack.enter_context(_side(name, source)) for side, source in checkouts.items()}
        for _ in range(rounds):
            for side, work in works.items():
                wall, processor = work()
                times[side].wall.append(wall)
                times[side].processor.append(processor)
    return times


@contextmanager
def _side(name: str, source: Path) -> Iterator[Callable[[], tuple[float, float]]]:
    """A process that is ready to make rounds of a workload, as a function that makes one."""
    command = [sys.executable, "-P", one_side.__file__, name]
    with subprocess.Popen(
        command, env=environment(source), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def answer() -> str:
            line = stdout.readline()
            if not line:
                raise EfhcError(f"bench: {name} failed in {source}; it says why above")
            return line

        def work() -> tuple[float, float]:
            stdin.write("\n")
            stdin.flush()
            wall, processor = json.loads(answer())
            return wall, processor

        try:
            answer()
            yield work
        finally:
            stdin.close()
