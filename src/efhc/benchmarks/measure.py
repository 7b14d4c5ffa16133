"""Timing by turns: what else the machine does meanwhile then falls on all alike, and ratios stay true."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple


class Times(NamedTuple):
    """Seconds per iteration, one entry per round."""

    rounds: list[float]

    @property
    def median(self) -> float:
        """The middle round."""
        return statistics.median(self.rounds)


def times_longer(others: Times, ours: Times) -> dict[str, float]:
    """How many times longer the others take: the ratio of the medians, and the least and largest of any round."""
    each = [other / own for other, own in zip(others.rounds, ours.rounds, strict=True)]
    return {"median": others.median / ours.median, "least": min(each), "most": max(each)}


def by_turns(sides: Mapping[str, Callable[[], int]], rounds: int) -> dict[str, Times]:
    """Seconds per iteration of each side. A side does a few iterations when it is called and says how many."""
    for work in sides.values():  # once for nothing: compiling, caches, threads
        work()
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, work in sides.items():
            started = time.perf_counter()
            iterations = work()
            seconds[name].append((time.perf_counter() - started) / iterations)
    return {name: Times(each) for name, each in seconds.items()}


def peak_memory(workload: str, side: str) -> int | None:
    """The most bytes that a process held which does nothing but one side of a workload; None if it could not."""
    command = [sys.executable, "-m", "efhc.benchmarks.workloads", workload, side]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return int(done.stdout) if done.returncode == 0 else None
