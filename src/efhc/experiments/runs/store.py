"""Where runs are kept. A run that is there is not made again, and one that was stopped goes on where it stopped."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import polars as pl

from efhc.base.arrays import Floats
from efhc.base.errors import EfhcError, InputError
from efhc.base.saving import write_safely, writing
from efhc.core.state import Local
from efhc.drivers.observers import ObserverFactory
from efhc.drivers.record import Piece
from efhc.experiments.runs.checkpoints import DamagedError, Unfinished
from efhc.experiments.runs.directory import RunDirectory
from efhc.experiments.runs.keeping import Checkpoint, Keeper
from efhc.experiments.runs.live.followers import Follower, FollowerFactory
from efhc.experiments.runs.live.reading import LIVE
from efhc.experiments.runs.live.writing import LiveFile
from efhc.experiments.runs.run import Run
from efhc.experiments.runs.tables import LOCKSTEP, tables_of

T = TypeVar("T")

Failures = Mapping[str, EfhcError]
"""The runs that could not be made, by key, and why."""


class Progress(Protocol):
    """Receives how far a run has got."""

    def __call__(self, run: Run, share: float) -> None:
        """`share` of the run is done; 1.0 once it is kept."""


class Engine(Protocol):
    """Makes runs, several at once, wherever it finds the cores."""

    def session(self) -> AbstractContextManager[None]:
        """Start what the engine needs once, for all calls of `make` in the body."""

    def make(
        self,
        runs: list[Run],
        store: Store,
        progress: Progress,
        observers: ObserverFactory | None = None,
        followers: Sequence[FollowerFactory] = (),
    ) -> Failures:
        """Make all runs and keep them in the store. Returns those that could not be made; the others are not affected.

        `observers` creates an observer for each run, and each of `followers` a follower.
        """


class Store(Protocol):
    """Keeps runs, in memory or on disk."""

    def keeper(self, run: Run) -> AbstractContextManager[Keeper | None]:
        """Return what keeps a run while it is made, or None if the run has been made in the meantime."""

    def keep(self, run: Run, files: Mapping[str, bytes]) -> None:
        """Store the files of a run that was made elsewhere."""


def _labelled(table: pl.LazyFrame, labels: Iterable[str], strategy: str, seed: int) -> pl.LazyFrame:
    """Return the table with the columns `labels` in front, which tell runs apart."""
    columns = {"strategy": pl.lit(strategy).alias("strategy"), "seed": pl.lit(seed, pl.Int64).alias("seed")}
    return table.select(*(columns[label] for label in labels), pl.all())


# In memory


@dataclass
class MemoryKeeper:
    """Keeps one run in memory. There are no checkpoints."""

    run: Run
    warn: Callable[[str], None] = lambda text: None
    tables: dict[str, pl.DataFrame] = field(default_factory=dict)
    models: Floats = field(default_factory=lambda: np.empty((0, 0)))
    local: dict[str, np.ndarray] = field(default_factory=dict)
    snapshots: dict[int, Floats] = field(default_factory=dict)
    followers: Sequence[Follower] = ()
    _pieces: list[Piece] = field(default_factory=list)

    def resume(self, restore: Callable[[Checkpoint], T]) -> T | None:
        return None

    def kept(self, table: str) -> Sequence[pl.LazyFrame]:
        return ()

    def put_away(self, piece: Piece) -> None:
        self._pieces.append(piece)

    def checkpoint(self, piece: Piece, tensors: Mapping[str, np.ndarray], facts: Mapping[str, str]) -> None:
        self.put_away(piece)

    def snapshot(self, k: int, models: Floats) -> None:
        self.snapshots[k] = models.copy()

    def finish(self, models: Floats, local: Local, devices: pl.DataFrame) -> None:
        for name, labels in tables_of(self.run.experiment).labels.items():
            parts = pl.concat(piece.tables[name].lazy() for piece in self._pieces)
            self.tables[name] = _labelled(parts, labels, self.run.strategy, self.run.seed).collect()
        self.tables["devices"] = devices
        self.models, self.local, self._pieces = models, dict(local), []


class MemoryStore:
    """Keeps runs in memory, by key."""

    def __init__(self, warn: Callable[[str], None] = lambda text: None) -> None:
        self.made: dict[str, MemoryKeeper] = {}
        self._warn = warn

    @contextmanager
    def keeper(self, run: Run) -> Iterator[MemoryKeeper]:
        keeper = MemoryKeeper(run, self._warn)
        yield keeper
        self.made[run.key] = keeper

    def keep(self, run: Run, files: Mapping[str, bytes]) -> None:
        raise NotImplementedError("runs that are made elsewhere are kept in a folder")


# On disk


@dataclass
class FolderKeeper:
    """Keeps one run in a run directory."""

    directory: RunDirectory
    unfinished: Unfinished
    run: Run
    with_models: bool
    report: Callable[[str], None]
    _last: Piece | None = None
    """The last piece that was put away. It is not on disk yet: of a run that ends, it goes straight into the tables."""
    _warnings: list[str] = field(default_factory=list)

    def warn(self, text: str) -> None:
        self._warnings.append(text)  # for meta.json: the run may be made far away, or asked for again
        self.report(text)

    @cached_property
    def followers(self) -> Sequence[Follower]:
        return [LiveFile(self.directory.path / LIVE)]

    @property
    def snapshots(self) -> Mapping[int, Floats]:
        return self.directory.snapshots(*self._pair)

    @property
    def _pair(self) -> tuple[str, int]:
        return next(iter(self.run.experiment.strategies)), self.run.seed

    def resume(self, restore: Callable[[Checkpoint], T]) -> T | None:
        return self.unfinished.load(self.run, restore)

    def kept(self, table: str) -> Sequence[pl.LazyFrame]:
        return [pl.scan_parquet(file) for file in self.unfinished.parts(table)]

    def put_away(self, piece: Piece) -> None:
        self._write_last()
        self._last = piece

    def _write_last(self) -> None:
        if self._last is not None:
            self.unfinished.put_away(self._last)
            self._last = None

    def checkpoint(self, piece: Piece, tensors: Mapping[str, np.ndarray], facts: Mapping[str, str]) -> None:
        self._write_last()
        self.unfinished.save(piece, tensors, facts)

    def snapshot(self, k: int, models: Floats) -> None:
        self.directory.save_snapshots(*self._pair, {k: models})

    def finish(self, models: Floats, local: Local, devices: pl.DataFrame) -> None:
        tables = tables_of(self.run.experiment)
        for name, labels in tables.labels.items():
            parts = [*self.kept(name)]
            if self._last is not None and self._last.end > self._last.first:
                parts.append(self._last.tables[name].lazy())
            self.directory.save_table(name, _labelled(pl.concat(parts), labels, *self._pair))
        self.directory.save_table("devices", devices)
        if self.with_models:
            self.directory.save_models({self._pair: models}, {self._pair: local})
        self.directory.finish(tables, warnings=self._warnings)
        self.unfinished.remove()


class RunStore:
    """A folder of run directories, each named after the key of its run."""

    def __init__(
        self, path: Path, warn: Callable[[str], None] = lambda text: None, *, with_models: bool = False
    ) -> None:
        self.path, self.warn, self.with_models = path, warn, with_models

    def directory(self, run: Run) -> Path:
        """Return the run directory of a run, whether or not it exists."""
        return self.path / run.key

    def complete(
        self,
        runs: Iterable[Run],
        engine: Engine,
        progress: Progress,
        observers: ObserverFactory | None = None,
        followers: Sequence[FollowerFactory] = (),
    ) -> Failures:
        """Make the runs that are missing, stopped or damaged. Returns those that could not be made, by key."""
        asked = {run.key: run for run in runs}
        missing = self.find_missing(asked.values())
        keys = {run.key for run in missing}
        for run in asked.values():
            if run.key not in keys:
                progress(run, 1.0)
        if not missing:
            return {}
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError("--out", f"{self.path} ({error.strerror})", "a folder that can be written") from None
        return engine.make(missing, self, progress, observers, followers)

    def find_missing(self, runs: Iterable[Run]) -> list[Run]:
        """Return the runs that are not there whole, each once. Those that are proved to be damaged are moved aside."""
        return [run for run in {run.key: run for run in runs}.values() if not self._holds(run)]

    def _at(self, run: Run) -> RunDirectory:
        return RunDirectory(self.directory(run), lock_beside=True)

    def _holds(self, run: Run) -> bool:
        """Return whether a run is there whole. A run that is proved to be damaged is moved aside."""
        directory = self._at(run)
        try:
            return directory.is_begun and self._is_whole(run, directory)
        except DamagedError:
            with directory.locked():  # unless another process has mended it meanwhile, it is damaged for good
                return self._is_sound(run, self._at(run)) and self._at(run).is_complete

    def _is_whole(self, run: Run, directory: RunDirectory) -> bool:
        """Return whether everything that was asked for is there. Raises `DamagedError`."""
        if not directory.is_complete:
            return False
        expected = run.inputs.checksums
        if any(directory.meta.get(name, {}) != checksums for name, checksums in expected.items()):
            raise DamagedError("it was made from other input files than its name says")
        try:
            directory.check_same(run.experiment, expected)
        except InputError as error:
            raise DamagedError(f"it is not the run that its name says: {error}") from error
        for name in tables_of(run.experiment).names:
            directory.check_file(f"{name}.parquet")
        directory.check_snapshots()
        if self.with_models and directory.has_models:
            directory.check_file("models.safetensors")
        return directory.has_models or not self.with_models

    def _is_sound(self, run: Run, directory: RunDirectory) -> bool:
        """Return whether what is there can be used or gone on with; if not, it is moved aside. Hold the lock."""
        try:
            if not self._is_whole(run, directory):
                directory.check_same(run.experiment, run.inputs.checksums)
        except (DamagedError, InputError) as error:
            self._move_aside(directory.path, error)
            return False
        return True

    def _move_aside(self, folder: Path, error: EfhcError) -> None:
        aside = folder.with_name(f"{folder.name}.damaged-{secrets.token_hex(3)}")
        try:
            folder.rename(aside)
        except OSError as failure:
            raise EfhcError(
                f"{folder} is damaged ({error}) and cannot be moved aside ({failure.strerror})"
            ) from failure
        self.warn(f"{folder} is damaged, and that run is made again: {error}; the old files are in {aside.name}")

    @contextmanager
    def keeper(self, run: Run) -> Iterator[FolderKeeper | None]:
        directory = self._at(run)
        with directory.locked():
            if directory.is_begun and not self._is_sound(run, directory):
                directory = self._at(run)
                with writing(directory.path):
                    directory.path.mkdir()
            directory.begin(run.experiment, run.inputs.checksums, resume=True)
            if self._is_whole(run, directory):
                yield None
                return
            directory.reopen()
            with directory.session():
                unfinished = Unfinished(directory.path, self.warn)
                yield FolderKeeper(directory, unfinished, run, self.with_models, self.warn)

    def keep(self, run: Run, files: Mapping[str, bytes]) -> None:
        """Store the files of a run that was made elsewhere; meta.json, which says that it is complete, last."""
        with self._at(run).locked():
            for name in sorted(files, key=lambda name: name == "meta.json"):
                write_safely(self.directory(run) / name, files[name])
            Unfinished(self.directory(run)).remove()  # of the same run, if it was once begun here
        for text in self.meta(run).get("warnings", []):
            self.warn(text)

    def scan(self, run: Run, name: str) -> pl.LazyFrame:
        """Return a table of a run, lazily, with the strategy named as in the experiment that asked for the run."""
        table = RunDirectory(self.directory(run)).scan_table(name)
        is_named = tables_of(run.experiment).is_per_strategy(name)
        return table.with_columns(strategy=pl.lit(run.strategy)) if is_named else table

    def table(self, run: Run, name: str) -> pl.DataFrame:
        """Return a table of a run, with the strategy named as in the experiment that asked for the run."""
        return self.scan(run, name).collect()

    def curve(self, run: Run) -> pl.DataFrame:
        """Return what was measured whenever the models were evaluated: rows of the metrics or of the timeline.

        The metrics get the column `broadcasts_total`, the number of broadcasts up to each row. A row of the timeline
        has no accuracy if no device was there.
        """
        tables = tables_of(run.experiment)
        rows = self.table(run, tables.curve)
        if tables is LOCKSTEP:
            return rows.with_columns(broadcasts_total=pl.col("fired").cum_sum()).drop_nulls("accuracy")
        return rows

    def meta(self, run: Run) -> dict[str, Any]:
        """Return the content of meta.json of a run."""
        return RunDirectory(self.directory(run)).meta
