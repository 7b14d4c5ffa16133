"""What a tracker is. Its methods are called in a thread of its own, so they may wait for disks and servers.

Nothing here depends on how runs are made: `runs/tracking.py` connects trackers to runs.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Protocol

from efhc.base.policy import Policy
from efhc.base.registry import Family

Setting = str | int | float | bool


def as_folder(text: str) -> str:
    """Return a text as it may be in the name of a folder: without slashes, spaces, quotes and the like.

    It is cut after 100 characters, so that two texts may become one name.
    """
    return re.sub(r"[^\w.,=+-]+", "_", text)[:100].strip("._") or "_"


@dataclass(frozen=True)
class TrackedRun:
    """The facts about a run that a tracker gets."""

    name: str
    """The name of the run within its experiment or study: "EF-HC.seed0"."""
    group: str
    """The name of the experiment."""
    strategy: str
    seed: int
    key: str
    """The hash of everything that determines the run."""
    k: int
    """The number of iterations made so far. Above 0, the run was stopped and goes on."""
    settings: Mapping[str, Setting]
    """The settings of the run by their dotted names: "network.kind", "strategy.r"."""
    folder: Path | None
    """The directory of the experiment or study. None: its results are kept in memory only."""
    began: datetime
    """When the command that makes the runs began, in local time: the same for all runs of an experiment or study."""
    measure: str | None
    """The measure that results go by: a column of the rows. None: accuracy, or the first metric that they have."""
    order: str
    """The column that grows from row to row: "iteration", or "seconds" of an event-driven run."""


@dataclass(frozen=True)
class Point:
    """One evaluation: a row of metrics.parquet, or of timeline.parquet.

    If an evaluation consists of several rows, their measures are means, and all else is from the last of them.
    """

    step: int
    """The number of iterations made; of an event-driven run, of all devices together."""
    at: float
    """When it was evaluated, as Unix time; of a row of an earlier session, when the run went on."""
    values: Mapping[str, float]
    """The row by column, without those that have no value."""


class Entry(Protocol):
    """What a tracker has of one run.

    An entry with the method `has(point)`, which returns whether the tracker has a point already, is given the rows of
    earlier sessions that it lacks, and no row twice. Without it, rows of earlier sessions that a killed process had
    not passed on stay missing.
    """

    def add(self, points: Sequence[Point]) -> None:
        """Log points, oldest first. If it raises, the same points are given again later, with those that came since."""

    def close(self, state: str, problem: str | None) -> None:
        """The run has ended, and all points were added. `state` is "finished", "stopped" or "failed"."""


class Tracker(Policy, ABC):
    """Where runs are logged, besides the run directory."""

    @abstractmethod
    def open(self, run: TrackedRun) -> Entry:
        """Begin to log a run or, if its k is above 0, go on with it.

        Raises an error if nothing can be logged. Then `open` is called for no other run.
        """


TRACKERS = Family(Tracker, ("efhc.experiments.trackers",), ("open",))
AnyTracker = Annotated[Tracker, TRACKERS]
