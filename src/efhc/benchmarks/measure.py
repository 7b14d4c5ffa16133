"""Timing by turns: what else the machine does meanwhile then falls on all alike, and ratios stay true."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple


class Times(NamedTuple):
    """Seconds per iteration, or per command; one entry per round."""

    wall: list[float]
    """Of the clock on the wall."""
    processor: list[float]
    """Of all cores together. Other programs on the machine disturb them less."""

    @property
    def median(self) -> float:
        """The middle round, by the clock on the wall."""
        return statistics.median(self.wall)


def times_longer(others: Times, ours: Times) -> dict[str, float]:
    """How many times longer the others take: the ratio of the medians, and the least and largest of any round.

    "processor" is the same ratio of medians in processor seconds.
    """
    processor = _ratio(others.processor, ours.processor)["median"]
    return {**_ratio(others.wall, ours.wall), "processor": processor}


def _ratio(others: Sequence[float], ours: Sequence[float]) -> dict[str, float]:
    each = [other / own for other, own in zip(others, ours, strict=True)]
    return {"median": statistics.median(others) / statistics.median(ours), "least": min(each), "most": max(each)}


def by_turns(sides: Mapping[str, Callable[[], int]], rounds: int) -> dict[str, Times]:
    """Seconds per iteration of each side. A side does a few iterations when it is called and says how many."""
    for work in sides.values():  # once for nothing: compiling, caches, threads
        work()
    times = {name: Times([], []) for name in sides}
    for _ in range(rounds):
        for name, work in sides.items():
            wall, processor = timed(work)
            times[name].wall.append(wall)
            times[name].processor.append(processor)
    return times


def timed(work: Callable[[], int]) -> tuple[float, float]:
    """Seconds per iteration of one call, of the clock on the wall and of the processor."""
    started, used = time.perf_counter(), time.process_time()
    iterations = work()
    wall, processor = time.perf_counter() - started, time.process_time() - used
    return wall / iterations, max(processor, 1e-9) / iterations  # a sleeping side uses no processor


def peak_memory(workload: str, side: str) -> int | None:
    """The most bytes that a process held which does nothing but one side of a workload; None if it could not."""
    command = [sys.executable, "-m", "efhc.benchmarks.workloads", workload, side]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return int(done.stdout) if done.returncode == 0 else None
