"""What makes a run and what keeps it, and how the two go together.

A run is kept in pieces: consecutive stretches of its tables, from one position to the next. What a position is, the
driver says: the number of iterations, or the number of pieces. A checkpoint holds all that a driver needs to go on from
the end of the last piece, as named arrays and texts. Whoever keeps it does not know what they mean; the driver checks
what it restores.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Protocol, TypeVar

import numpy as np
import polars as pl

from efhc.base.arrays import Floats
from efhc.base.errors import InputError
from efhc.core.state import Diverged, Local
from efhc.drivers.observers import Observer
from efhc.drivers.record import Piece
from efhc.experiments.runs.live.followers import Follower, Row
from efhc.experiments.runs.live.telling import Followers, about_run
from efhc.experiments.runs.live.totals import with_totals
from efhc.experiments.runs.run import Run
from efhc.experiments.runs.tables import LOCKSTEP, tables_of
from efhc.learning.backends.backend import ScoresNotFinite
from efhc.scenarios.scenario import Scenario

CHECKPOINT_SECONDS = 30.0
"""Default time between two checkpoints."""

T = TypeVar("T")


FAILURES = (Diverged, ScoresNotFinite, InputError)
"""Errors that concern one run only: its training, or its settings. All others end the command."""


class Stopped(Exception):
    """A run was asked to stop, and did."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What a run goes on from."""

    position: int
    """Where the pieces end that have been put away."""
    tensors: Mapping[str, np.ndarray]
    facts: Mapping[str, str]
    """What is no array, as text."""


class Keeper(Protocol):
    """Keeps what a run makes, in memory or in a folder."""

    @property
    def followers(self) -> Sequence[Follower]:
        """Those who keep what can be seen of the run while it is made."""

    @property
    def snapshots(self) -> Collection[int]:
        """The iterations whose models are kept."""

    def resume(self, restore: Callable[[Checkpoint], T]) -> T | None:
        """Return what `restore` makes of the last checkpoint, or None to begin at the start.

        If `restore` raises `ValueError`, because the checkpoint does not fit the run, the checkpoint is moved aside.
        """

    def kept(self, table: str) -> Sequence[pl.LazyFrame]:
        """Return the pieces of a table that were kept before `resume`, in order. Call it after `resume`."""

    def put_away(self, piece: Piece) -> None:
        """Keep the next piece of the tables."""

    def checkpoint(self, piece: Piece, tensors: Mapping[str, np.ndarray], facts: Mapping[str, str]) -> None:
        """Keep the next piece of the tables, and what the run can go on from after it."""

    def snapshot(self, k: int, models: Floats) -> None:
        """Keep the models of one iteration for later analysis."""

    def finish(self, models: Floats, local: Local, devices: pl.DataFrame) -> None:
        """Complete the run, whose tables have all been put away, with its last models and the table of devices."""

    def warn(self, text: str) -> None:
        """Report a problem that does not stop the run, in one line."""


@dataclass(frozen=True, eq=False)
class Making:
    """A run that is to be made, and those who have to do with it."""

    run: Run
    scenario: Scenario
    keeper: Keeper
    threads: int
    observers: Sequence[Observer]
    followers: Followers
    progress: Callable[[float], None]
    """Receives the share of the run that is done."""
    stop: Event
    """When it is set, the run saves a checkpoint and raises `Stopped`."""
    checkpoint_seconds: float

    def tell_begin(self, k: int) -> None:
        """Tell followers that the run begins or, with k > 0, goes on. Call it after `Keeper.resume`."""
        self.followers.begin(about_run(self.run, self.scenario), k)
        if self.keeper.kept(tables_of(self.run.experiment).curve):
            self.followers.recalled(self._earlier_rows)

    def _earlier_rows(self) -> Iterable[Row]:
        tables = tables_of(self.run.experiment)
        rows = pl.concat(self.keeper.kept(tables.curve))
        if tables is LOCKSTEP:
            rows = with_totals(rows).filter(pl.col("accuracy").is_not_null())
        return rows.collect().iter_rows(named=True)
