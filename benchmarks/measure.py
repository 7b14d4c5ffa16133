"""The one way to measure: sides take turns in one run, and processor time is compared.

Other programs on the machine then disturb all sides alike, and waiting does not count.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from typing import NamedTuple

Row = dict[str, str]
"""A row of a table, by column."""
Side = Callable[[], float]
"""One round: returns processor seconds per iteration, per command, or per whatever is counted."""


def processor_seconds() -> float:
    """Return the processor seconds of this process, all its threads, and the children it has waited for."""
    return sum(used.ru_utime + used.ru_stime for used in map(getrusage, (RUSAGE_SELF, RUSAGE_CHILDREN)))


def timed(work: Callable[[], int]) -> Side:
    """Return the side that times `work`, which does a few iterations and returns how many."""

    def side() -> float:
        before = processor_seconds()
        iterations = work()
        return max(processor_seconds() - before, 1e-9) / iterations

    return side


def by_turns(sides: Mapping[str, Side], rounds: int, warm_up: bool = True) -> dict[str, list[float]]:
    """Return what each side found in each round. With `warm_up`, a first round is dropped."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds + warm_up):
        for name, side in sides.items():
            found[name].append(side())
    return {name: each[warm_up:] for name, each in found.items()}


class Ratio(NamedTuple):
    """How many times the others' cost is ours: the ratio of medians, and the least and largest of any round."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, others: Sequence[float], ours: Sequence[float]) -> Ratio:
        """Return the ratio of two sides that were measured by turns."""
        each = [other / own for other, own in zip(others, ours, strict=True)]
        return cls(statistics.median(others) / statistics.median(ours), min(each), max(each))

    def row(self) -> Row:
        """Return the two columns of a table."""
        digits = 2 if self.median < 10 else 1
        return {"ratio": f"{self.median:.{digits}f}x", "least-most": f"{self.least:.{digits}f}-{self.most:.{digits}f}"}


def milliseconds(seconds: Sequence[float]) -> str:
    """Return the median as text."""
    return f"{1e3 * statistics.median(seconds):.3g} ms"
