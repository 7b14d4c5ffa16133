"""Where runs are kept: in memory, or in a folder of run folders, each named by the key of its run.

In a folder, complete runs are reused, and stopped runs are resumed.
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import polars as pl

from efhc.base.arrays import Floats
from efhc.base.errors import EfhcError, InputError
from efhc.base.saving import UNFINISHED, BusyError, is_unfinished, lock, write_folder, write_safely, writing
from efhc.drivers.observers import ObserverFactory
from efhc.drivers.record import with_totals
from efhc.experiments.config.files import to_tables
from efhc.experiments.runs.events import FollowerFactory
from efhc.experiments.runs.folder import CHECKPOINT, PIECES, DamagedError, Final, Pair, RunFolder
from efhc.experiments.runs.keeping import MadeMeanwhile, MadeRun, RunKeeper, UnfinishedRun
from efhc.experiments.runs.live_file import LIVE, LiveRun, read_live
from efhc.experiments.runs.run import Run
from efhc.experiments.runs.tables import LOCKSTEP, SCHEMAS, RunTables, labelled, tables_of
from efhc.learning.measures import evaluated
from efhc.report.timelines import with_ends
from efhc.report.views import State

Failures = Mapping[str, EfhcError]
"""The runs that could not be made, by key, and why."""
LEFTOVER_SECONDS = 600.0
"""The age from which on a folder that a process was writing counts as left over by a kill."""

Progress = Callable[[Run, float], None]
"""Called with a run and the share of it that is done; 1.0 once it is kept."""


class Engine(Protocol):
    """Makes runs, several at once, wherever it finds the cores."""

    def session(self) -> AbstractContextManager[None]:
        """Start what the engine needs once, for all calls of `make` in the body."""

    def make(
        self,
        runs: list[Run],
        store: RunStore,
        progress: Progress,
        observers: ObserverFactory | None = None,
        followers: Sequence[FollowerFactory] = (),
    ) -> Failures:
        """Make all runs and keep them in the store. Returns those that could not be made; the others are not affected.

        `observers` creates an observer for each run, and each of `followers` a reader of its events.
        """


class RunStore:
    """Runs by their keys."""

    def __init__(
        self, path: Path | None, warn: Callable[[str], None] = lambda text: None, *, with_models: bool = False
    ) -> None:
        """`path` is the folder of the runs; None: memory. `with_models`: whether the folder keeps final models."""
        self.path, self._warn, self.with_models = path, warn, with_models
        self.warnings: list[str] = []
        self.made: dict[str, MadeRun] = {}
        """The runs in memory, by key. Empty with a folder."""

    def warn(self, text: str) -> None:
        """Report a problem that does not stop the runs, in one line."""
        self.warnings.append(text)
        self._warn(text)

    @property
    def folder(self) -> Path:
        assert self.path is not None, "the runs of this store are in memory"
        return self.path

    def directory(self, run: Run) -> Path:
        return self.folder / run.key

    # Making runs

    def make_missing(
        self,
        runs: Iterable[Run],
        engine: Engine,
        progress: Progress,
        observers: ObserverFactory | None = None,
        followers: Sequence[FollowerFactory] = (),
    ) -> Failures:
        """Make the runs that are missing, stopped or damaged. Returns those that could not be made, by key."""
        wanted = {run.key: run for run in runs}
        missing = {run.key: run for run in self.find_missing(wanted.values())}
        for run in wanted.values():
            if run.key not in missing:
                self._remove_leftovers(run)
                for text in self.meta(run).get("warnings", []):
                    if text not in self.warnings:
                        self.warn(text)
                progress(run, 1.0)
        if not missing:
            return {}
        if self.path is not None:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                for leftover in filter(is_unfinished, self.path.glob(f".*{UNFINISHED}")):
                    if time.time() - leftover.stat().st_mtime > LEFTOVER_SECONDS:
                        shutil.rmtree(leftover, ignore_errors=True)
            except OSError as error:
                raise InputError("store", f"{self.path} ({error.strerror})", "a folder that can be written") from None
        failures = engine.make(list(missing.values()), self, progress, observers, followers)
        if self.path is not None:
            for key, failure in failures.items():
                self._add_failure(missing[key], str(failure))
        return failures

    def _add_failure(self, run: Run, problem: str) -> None:
        """Write that a run failed, and why. It is begun again when it is next made."""
        with suppress(BusyError, MadeMeanwhile), self.opened(run, time.monotonic()) as folder:  # by another process
            if not folder.is_complete:
                folder.end_session(status="failed", problem=problem)

    def _remove_leftovers(self, run: Run) -> None:
        """Remove what the process that completed a run has left if it was killed, unless one is adding models."""
        folder = RunFolder(self.directory(run))
        if folder.has(CHECKPOINT) or folder.has(PIECES):
            with suppress(EfhcError), self._locked(run):
                folder.remove_unfinished()

    def find_missing(self, runs: Iterable[Run]) -> list[Run]:
        """Return the runs that are not complete, each once. Nothing is written."""
        return [run for run in {run.key: run for run in runs}.values() if not self.holds(run)]

    def holds(self, run: Run, key: str | None = None) -> bool:
        """Return whether a run is there whole, under its own key or another one. Nothing is written."""
        if self.path is None:
            return False
        folder = RunFolder(self.path / (key or run.key))
        try:
            return folder.is_begun and self._is_whole(run, folder)
        except DamagedError:  # `opened` moves it aside
            return False

    def _is_whole(self, run: Run, folder: RunFolder) -> bool:
        """Return whether the tables of a run are there, and the models that it needs.

        Raises `DamagedError` if the run is not complete and cannot be resumed either.
        """
        expected = run.inputs.checksums
        if folder.is_complete and any(folder.meta.get(name, {}) != sums for name, sums in expected.items()):
            raise DamagedError("it was made from other input files than its name says")
        try:
            folder.check_same(run.experiment, expected)
        except InputError as error:
            raise DamagedError(f"it is not the run that its name says: {error}") from error
        if not folder.is_complete:
            return False
        folder.check_files(tables_of(run.experiment).names)
        return folder.has("models.safetensors") or not self.with_models

    def _is_whole_or_aside(self, run: Run, folder: RunFolder) -> bool:
        """Return whether a run is there whole; one that cannot be resumed is moved aside. Hold the lock."""
        try:
            return self._is_whole(run, folder)
        except DamagedError as error:
            place = folder.path
            aside = place.with_name(f"{place.name}.damaged-{secrets.token_hex(3)}")
            try:
                place.rename(aside)
            except OSError as failure:
                problem = f"{place} is damaged ({error}) and cannot be moved aside ({failure.strerror})"
                raise EfhcError(problem) from failure
            self.warn(f"{place} is damaged, and that run is made again: {error}; the old files are in {aside.name}")
            return False

    @contextmanager
    def _locked(self, run: Run) -> Iterator[None]:
        """Hold the lock of a run. It lies beside its folder, so that it stays when the folder is moved aside."""
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        with lock(self.folder / f".{run.key}.lock"):
            yield

    @contextmanager
    def keeper(self, run: Run) -> Iterator[RunKeeper | None]:
        """Yield what keeps a run, or None if it is there whole. A run that is new has no folder at first."""
        with RunKeeper(run, self) as keeper:
            is_there = False
            if self.path is not None and self.directory(run).exists():
                try:
                    keeper.open()
                except MadeMeanwhile:
                    is_there = True
            yield None if is_there else keeper

    @contextmanager
    def opened(self, run: Run, began: float) -> Iterator[UnfinishedRun]:
        """Yield the folder of a run, locked, and begin a new session. A folder that is damaged is moved aside.

        `began` is when work on the run began, by `time.monotonic`. Raises `MadeMeanwhile` if the run is there whole.
        """
        with self._locked(run):
            folder = UnfinishedRun(self.directory(run), self.warn)
            for leftover in filter(is_unfinished, folder.path.rglob(f".*{UNFINISHED}")):
                leftover.unlink(missing_ok=True)
            with suppress(OSError):
                folder.path.rmdir()  # if it is empty: its process was killed before it wrote anything
            if folder.path.exists() and self._is_whole_or_aside(run, folder):
                raise MadeMeanwhile
            folder = UnfinishedRun(folder.path, self.warn)  # nothing of what was moved aside is known
            _begin(folder, run, began)
            yield folder

    def add(self, run: Run, made: MadeRun, final: Final, warnings: Sequence[str], began: float, **facts: str) -> None:
        """Keep a run that was made in memory, in a folder in one step. `began` is when, by `time.monotonic`.

        Raises `BusyError` if another process is making it in the folder.
        """
        if self.path is None:
            self.made[run.key] = made
            return
        files: dict[str, bytes] = {}
        in_memory = RunFolder(self.path / f".{run.key}{UNFINISHED}", files)
        _begin(in_memory, run, began)
        in_memory.finish_run(made.tables, final, warnings, **facts)
        if write_folder(self.directory(run), files):
            return
        with suppress(MadeMeanwhile), self.opened(run, began) as folder:  # another process has begun it
            folder.finish_run(made.tables, final, warnings, **facts)

    def keep(self, run: Run, files: Mapping[str, bytes]) -> None:
        """Store the files of a run that was made elsewhere; meta.json, which says that it is complete, last."""
        with self._locked(run):
            if RunFolder(self.directory(run)).is_begun:
                self._is_whole_or_aside(run, RunFolder(self.directory(run)))
            for name in sorted(files, key=lambda name: name == "meta.json"):
                write_safely(self.directory(run) / name, files[name])
            RunFolder(self.directory(run)).remove_unfinished()  # of the same run, if it was once begun here
        for text in self.meta(run).get("warnings", []):
            self.warn(text)

    # Reading runs

    def table(self, run: Run, name: str) -> pl.DataFrame:
        """Return a table of a run, with the strategy named as in the run's experiment."""
        table = RunFolder(self.directory(run)).table(name)
        is_named = tables_of(run.experiment).is_per_strategy(name)
        return table.with_columns(strategy=pl.lit(run.strategy)) if is_named else table

    def curve(self, run: Run) -> pl.DataFrame:
        """Return what was measured whenever the models were evaluated: rows of the metrics or of the timeline.

        The metrics get the column `broadcasts_total`, the number of broadcasts up to each row. The last row of the
        timeline has no measures if no device was there.
        """
        tables = tables_of(run.experiment)
        rows = self.table(run, tables.curve)
        if tables is LOCKSTEP:
            return evaluated(with_totals(rows, ["broadcasts_total"]))
        return with_ends(rows)

    def meta(self, run: Run) -> dict[str, Any]:
        return RunFolder(self.directory(run)).meta


def _begin(folder: RunFolder, run: Run, began: float) -> None:
    """Begin a session in the folder of a run. `began` is when work on it began, by `time.monotonic`.

    Its names there are those of the experiment that it is made for.
    """
    names = {"experiment": run.whole.name, "strategy": run.strategy}
    config, checksums = run.tables or to_tables(run.experiment), run.inputs.checksums
    folder.begin_session(config, checksums, began=began, adds_models=True, names=names)


class StoredRun:
    """A run in a folder, as far as it was made. It is read once; what changes later is not seen.

    Of a run that is complete, that is everything. Of one that is being made, or was stopped, it is the pieces of its
    tables that were put away, up to the last checkpoint or a little further, and after them the evaluated rows of its
    live file.
    """

    def __init__(self, folder: RunFolder, tables: RunTables, pair: Pair | None = None) -> None:
        """`pair` is one of the runs whose rows are in the tables of the folder. Default: they have one run only."""
        self._folder, self._tables, self._shared = folder, tables, pair
        self._is_complete = folder.is_complete
        self._problem = folder.problem
        self._live: LiveRun | None = None if self._is_complete else read_live(folder.path / LIVE)
        self._read: dict[str, pl.DataFrame] = {}

    @property
    def state(self) -> State:
        if self._is_complete:
            return "done"
        if self._problem is not None:
            return "failed"
        if self._live is not None:
            state = self._live.state()
            return "stopped" if state == "done" else state  # its files are gone, or were not written yet
        return "stopped" if any((self._folder.path / PIECES).glob("*")) else "waiting"

    @property
    def problem(self) -> str | None:
        if self._problem is not None:
            return self._problem
        end = self._live.end if self._live is not None else None
        return (end.problem or "") if end is not None and end.state == "failed" else None

    def table(self, name: str) -> pl.DataFrame:
        """Return a table, as far as the run was made. A run that failed has no rows."""
        if name not in self._read:
            self._read[name] = self._whole(name) if self._is_complete else self._so_far(name)
        return self._read[name]

    def _whole(self, name: str) -> pl.DataFrame:
        if self._shared is None:
            return self._folder.table(name)
        rows = self._folder.scan(name).filter(pl.col("seed") == self._shared[1])
        if "strategy" in rows.collect_schema().names():
            rows = rows.filter(pl.col("strategy") == self._shared[0])
        return self._folder.read(f"{name}.parquet", lambda _: rows.collect())

    def _so_far(self, name: str) -> pl.DataFrame:
        for _ in range(2):  # a run that ends meanwhile removes its pieces, and has tables then
            try:
                self._folder.forget()
                return self._folder.table(name) if self._folder.is_complete else self._pieces(name)
            except (DamagedError, FileNotFoundError, pl.exceptions.PolarsError):
                continue
        return self._pieces(name, ())

    def _pieces(self, name: str, files: Iterable[Path] | None = None) -> pl.DataFrame:
        end, parts = 0, [pl.DataFrame(schema=dict(SCHEMAS[name]))]
        if self.problem is None:
            found = (self._folder.path / PIECES).glob(f"*.{name}.parquet") if files is None else files
            for file in sorted(found):
                first, after = map(int, file.name.split(".")[0].split("-"))
                if first == end:
                    parts.append(pl.read_parquet(file))
                    end = after
        table = pl.concat(parts, how="diagonal_relaxed")
        if name == self._tables.curve and self._live is not None and self.problem is None:
            rows = _rows_after(table, self._live, SCHEMAS[name])
            table = pl.concat([table, rows], how="diagonal_relaxed")
        return labelled(table, self._tables.labels.get(name, ("seed",)), *self._pair)

    @cached_property
    def _pair(self) -> Pair:
        if self._shared is not None:
            return self._shared
        config = self._folder.config
        return next(iter(config["strategies"])), config["seeds"][0]

    @property
    def models(self) -> Floats | None:
        return self._folder.models().get(self._pair) if self._is_complete else None

    @property
    def local(self) -> Mapping[str, np.ndarray]:
        return self._folder.local().get(self._pair, {}) if self._is_complete else {}

    @property
    def snapshots(self) -> Mapping[int, Floats]:
        return self._folder.snapshots(*self._pair)


KeptRun: TypeAlias = MadeRun | StoredRun


def _rows_after(table: pl.DataFrame, live: LiveRun, schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    order = "iteration" if "iteration" in schema else "seconds"
    last = table[order].max() if len(table) else None
    rows = [record.row for record in live.rows]
    after = [row for row in rows if last is None or (row.get(order) or 0) > last]  # type: ignore[operator]
    return pl.DataFrame([{name: row.get(name) for name in schema} for row in after], schema=dict(schema))
