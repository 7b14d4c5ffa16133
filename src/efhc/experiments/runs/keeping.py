"""What is kept of a run while it is made, and when it ends.

A run is kept in memory until it has lasted `SHORT_SECONDS`, or until it has more than memory should hold. Then it
gets its folder and, with each checkpoint, pieces of its tables: consecutive stretches from one position to the next. A
position is a number of iterations or of pieces, depending on the driver. A checkpoint stores, as named arrays and
texts, all that the driver needs to continue after the last piece; the driver checks them when it resumes. A piece
counts only once a later checkpoint lists it. A run that ends before it gets a folder is written in one step.

The way of a run into its store:

    RunStore.keeper             begins: a `RunKeeper` for the driver, or None if the run is there already
    RunKeeper.put_away          takes the next piece of the tables from the driver, as does `RunKeeper.checkpoint`
    RunKeeper.finish            ends: the tables are put together from the pieces, and written by
      UnfinishedRun.finish_run  if the run has a folder
      RunStore.add              if it has none: all files in one step, or memory only
    RunStore.keep               writes the files of a run that was made on another machine
"""

from __future__ import annotations

import json
import platform
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

import numpy as np
import polars as pl

from efhc.base.arrays import Floats
from efhc.base.errors import EfhcError, InputError
from efhc.base.inputs import sha256
from efhc.base.saving import read_tensors, write_safely, write_tensors, writing
from efhc.core.state import Diverged, Local
from efhc.drivers.observers import Observer
from efhc.drivers.record import Piece
from efhc.experiments.runs.events import EventStream, Row
from efhc.experiments.runs.folder import CHECKPOINT, PIECES, RunFolder, parquet
from efhc.experiments.runs.live_file import LIVE, LiveFile
from efhc.experiments.runs.run import Run
from efhc.experiments.runs.tables import SCHEMAS, labelled, tables_of
from efhc.learning.backends.backend import ScoresNotFinite

if TYPE_CHECKING:
    from efhc.experiments.runs.store import RunStore

CHECKPOINT_SECONDS = 30.0
"""Default time between two checkpoints."""
SHORT_SECONDS = 1.0
"""Seconds after which a run gets a folder. A shorter one is written once, at its end."""
APART = 1e8
"""Consensus error above which a run is reported as diverged."""
TEXT = "text/"
"""In front of the names of a driver's texts, which are kept as bytes: a .safetensors header has a largest size."""

T = TypeVar("T")

FAILURES = (Diverged, ScoresNotFinite, InputError)
"""Errors that concern one run only: its training, or its settings. All others end the command."""


class Stopped(Exception):
    """Raised when a run has stopped on request."""


class MadeMeanwhile(Exception):
    """Raised when another process has completed the run: there is nothing left to make."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What a run is resumed from."""

    position: int
    """The end of the last piece that was put away."""
    tensors: Mapping[str, np.ndarray]
    facts: Mapping[str, str]
    """Everything that is not an array, as text."""


@dataclass(frozen=True, eq=False)
class RunOptions:
    """How a run is made. None of this changes its result."""

    threads: int = 1
    observers: Sequence[Observer] = ()
    """Called in lockstep runs only."""
    progress: Callable[[float], None] = lambda share: None
    """Called with the share of the run that is done."""
    stop: Event = field(default_factory=Event)
    """When it is set, the run saves a checkpoint and raises `Stopped`."""
    checkpoint_seconds: float = CHECKPOINT_SECONDS


@dataclass(frozen=True, eq=False)
class MadeRun:
    """A complete run in memory."""

    tables: Mapping[str, pl.DataFrame]
    models: Floats | None = None
    local: Mapping[str, np.ndarray] = field(default_factory=dict)
    snapshots: Mapping[int, Floats] = field(default_factory=dict)
    state: ClassVar[Literal["done"]] = "done"
    problem: ClassVar[None] = None

    def table(self, name: str) -> pl.DataFrame:
        return self.tables[name]


def joined(pieces: Sequence[pl.LazyFrame]) -> pl.LazyFrame:
    """Return the pieces of a table in one. One without an evaluation lacks the columns of the user's own metrics."""
    return pl.concat(pieces, how="diagonal")


class RunKeeper:
    """Keeps one run in memory and, if its store has a folder, there once it has taken longer than `SHORT_SECONDS`."""

    def __init__(self, run: Run, store: RunStore) -> None:
        self.run, self._store = run, store
        self._is_in_memory = store.path is None
        self.stream = EventStream(run, self.warn)
        self._folder: UnfinishedRun | None = None
        self._resources = ExitStack()
        """The lock of the folder."""
        self._is_shown = False
        self._pieces: list[Piece] = []
        """Those that are in memory only. With a folder, at most one."""
        self._snapshots: dict[int, Floats] = {}
        self._warnings: list[str] = []
        self._began = time.monotonic()
        self.backend: str | None = None
        """The backend that the run is made by, or was begun by. None: it is not known yet."""

    def __enter__(self) -> RunKeeper:
        return self

    def __exit__(self, *reason: object) -> None:
        with self._resources:
            if self._folder is not None and reason[0] is not None:
                self._folder.end_session()

    def warn(self, text: str) -> None:
        """Report a problem that does not stop the run, in one line."""
        self._warnings.append(text)  # for meta.json: the run may be made on another machine, or read later
        self._store.warn(text)

    # The folder

    @property
    def is_open(self) -> bool:
        return self._folder is not None

    def open(self) -> UnfinishedRun:
        """Create and lock the folder of the run, if that was not done.

        Raises `BusyError` if another process has it, and `MadeMeanwhile` if the run is there whole.
        """
        if self._folder is None:
            self._folder = self._resources.enter_context(self._store.opened(self.run, self._began))
            self.use(self.backend or self._folder.meta.get("backend"))
        return self._folder

    def use(self, backend: str | None) -> None:
        """Note the backend that the run is made by: `auto` need not take the same one elsewhere."""
        self.backend = backend
        if self._folder is not None and backend and self._folder.meta.get("backend") != backend:
            self._folder.write_meta({**self._folder.meta, "backend": backend})

    @property
    def should_show(self) -> bool:
        """Whether the run is no longer short, and has no live file yet."""
        is_hidden = not (self._is_shown or self._is_in_memory)
        return is_hidden and time.monotonic() - self._began > SHORT_SECONDS

    def show(self, rows: Sequence[Row] = ()) -> None:
        """Write the live file from now on; `rows` are those that were evaluated before."""
        if not self._is_shown and not self._is_in_memory:
            self._is_shown = True
            self.stream.add(LiveFile(self.open().path / LIVE), rows)

    # Called by drivers

    def resume(self, restore: Callable[[Checkpoint], T]) -> T | None:
        """Return what `restore` makes of the last checkpoint, or None to begin at the start.

        If `restore` raises `ValueError`, because the checkpoint does not fit the run, the checkpoint is moved aside.
        """
        return None if self._folder is None else self._folder.load(self.run, restore)

    @property
    def snapshots(self) -> Collection[int]:
        return self._snapshots if self._folder is None else self._folder.snapshots(*self._pair)

    def kept(self, table: str) -> Sequence[pl.LazyFrame]:
        """Return the pieces of a table that are in the folder, in order. Call it after `resume`."""
        return [] if self._folder is None else [pl.scan_parquet(file) for file in self._folder.parts(table)]

    def put_away(self, piece: Piece) -> None:
        """Keep the next piece of the tables. With a folder, the last one stays in memory until the next comes."""
        self._write_pieces()
        self._pieces.append(piece)

    def checkpoint(self, piece: Piece, tensors: Mapping[str, np.ndarray], facts: Mapping[str, str]) -> None:
        """Keep the next piece of the tables, and what the run can be resumed from after it."""
        if self._is_in_memory:
            self.put_away(piece)
        else:
            self._write_pieces()
            self.open().save(self.run, piece, tensors, facts)

    def snapshot(self, k: int, models: Floats) -> None:
        """Keep the models of one iteration for later analysis."""
        if self._is_in_memory:
            self._snapshots[k] = models.copy()
        else:
            self.open().save_snapshot(*self._pair, k, models)

    def warn_if_apart(self, errors: pl.Series) -> None:
        """Warn if the models of the run, whose last consensus errors are given, ran apart, which raises no error."""
        last = errors.drop_nulls().tail(1)
        if len(last) and last.item() > APART:
            advice = "try a smaller rate or correction of the strategy, or a smaller step_size"
            self.warn(f"{self.run.name}: the models ran apart (consensus error {last.item():.1e}); {advice}")

    def finish(self, models: Floats, local: Local, devices: pl.DataFrame) -> None:
        """Complete the run, whose tables have all been put away, with its last models and the table of devices."""
        labels = tables_of(self.run.experiment).labels
        tables = {name: labelled(self._whole(name), of, *self._pair) for name, of in labels.items()}
        tables["devices"] = devices
        final = {self._pair: (models, local)} if self._store.with_models else {}
        if self._folder is not None:
            self._folder.finish_run(tables, final, self._warnings)
        else:
            whole = {name: table.lazy().collect() for name, table in tables.items()}
            made = MadeRun(whole, models, dict(local), self._snapshots)
            facts = {} if self.backend is None else {"backend": self.backend}  # nodes compute by their own
            self._store.add(self.run, made, final, self._warnings, self._began, **facts)

    def _whole(self, name: str) -> pl.LazyFrame | pl.DataFrame:
        in_memory = [piece.tables[name] for piece in self._pieces if piece.end > piece.first]
        on_disk = self.kept(name)
        if len(in_memory) == 1 and not on_disk:
            return in_memory[0]
        return joined([*on_disk, *(table.lazy() for table in in_memory)])

    @property
    def _pair(self) -> tuple[str, int]:
        return next(iter(self.run.experiment.strategies)), self.run.seed

    def _write_pieces(self) -> None:
        while self._pieces and not self._is_in_memory:
            self.open().put_away(self._pieces[0])
            del self._pieces[0]


class UnfinishedRun(RunFolder):
    """The folder of a run that is being made, or was stopped, with its checkpoint and the pieces of its tables."""

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        super().__init__(path)
        self._checkpoint, self._warn = path / CHECKPOINT, warn
        self._pieces: dict[str, str] = {}
        """The SHA-256 of every piece, by file name."""
        self._end = 0
        """Where the last piece ends."""

    def load(self, run: Run, restore: Callable[[Checkpoint], T]) -> T | None:
        """Return what `restore` makes of the checkpoint.

        Returns None if there is no checkpoint, or if it is damaged or `restore` raises `ValueError`: then it is moved
        aside. Raises `EfhcError` if a file cannot be read.
        """
        if not self._checkpoint.exists():
            self._remove_pieces(keep=())
            return None
        try:
            tensors, facts = read_tensors(self._checkpoint)
            if facts.get("run", run.key) != run.key:  # efhc 0.2 did not write it
                raise ValueError("it is that of another run")
            self._pieces = json.loads(facts["pieces"])
            end = self._checked_end(tables_of(run.experiment).labels)
            texts = {name.removeprefix(TEXT): tensors.pop(name) for name in [*tensors] if name.startswith(TEXT)}
            decoded = {name: text.tobytes().decode() for name, text in texts.items()}
            restored = restore(Checkpoint(end, tensors, decoded))
        except OSError as error:
            raise EfhcError(f"{error.filename or self._checkpoint} cannot be read ({error.strerror})") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._move_aside(error)
            return None
        self._end = end
        self._remove_pieces(keep=self._pieces)
        for name, now in _versions().items():
            if (then := facts.get(name, now)) != now:
                self._warn(f"{run.name}: begun with {name} {then}, goes on with {now}; its last digits may differ")
        return restored

    def _move_aside(self, reason: object) -> None:
        mark = f"damaged-{secrets.token_hex(3)}"
        self._pieces, self._end = {}, 0
        with writing(self.path):
            for path in (self._checkpoint, self.path / PIECES):
                if path.exists():
                    path.rename(path.with_name(f"{path.name}.{mark}"))
        self._warn(f"{self._checkpoint} is damaged; the run starts again from its beginning: {reason}")

    def _checked_end(self, tables: Collection[str]) -> int:
        """Return where the pieces end. Raises `ValueError` unless they are whole, and end alike for all tables."""
        ends_of_tables = set()
        for table in tables:
            names = sorted(name for name in self._pieces if name.endswith(f".{table}.parquet"))
            spans = [tuple(map(int, name.split(".")[0].split("-"))) for name in names]
            ends = [0, *(end for _, end in spans)]
            if [first for first, _ in spans] != ends[:-1]:
                raise ValueError(f"its pieces of {table} do not reach from the start to the checkpoint")
            ends_of_tables.add(ends[-1])
        if len(ends_of_tables) != 1:
            raise ValueError("its pieces do not reach equally far")
        for name, expected in self._pieces.items():
            try:
                found = sha256((self.path / PIECES / name).read_bytes())
            except FileNotFoundError:
                found = "missing"
            if found != expected:
                raise ValueError(f"pieces/{name} is not what was written")
            table = name.split(".")[1]
            if not set(pl.read_parquet_schema(self.path / PIECES / name)) >= set(SCHEMAS[table]):  # or has metrics more
                raise ValueError(f"pieces/{name} has not the columns that {table} has now")
        return ends_of_tables.pop()

    def _remove_pieces(self, keep: Mapping[str, str] | tuple[str, ...]) -> None:
        with writing(self.path):
            for piece in (self.path / PIECES).glob("*"):
                if piece.name not in keep:
                    piece.unlink()

    def put_away(self, piece: Piece) -> None:
        """Write the next piece of every table. An empty piece is not written, nor one after a piece that got lost."""
        if piece.end == piece.first or piece.first != self._end:
            return
        names = {table: f"{piece.first:012d}-{piece.end:012d}.{table}.parquet" for table in piece.tables}
        contents = {name: parquet(piece.tables[table]) for table, name in names.items()}
        for name, content in contents.items():
            write_safely(self.path / PIECES / name, content)
        self._pieces |= {name: sha256(content) for name, content in contents.items()}  # all of them, or none
        self._end = piece.end

    def save(self, run: Run, piece: Piece, tensors: Mapping[str, np.ndarray], facts: Mapping[str, str]) -> None:
        """Put a piece away, then write the checkpoint that counts on it.

        If an earlier piece could not be written, the checkpoint before it stays.
        """
        self.put_away(piece)
        if self._end == piece.end:
            texts = {TEXT + name: np.frombuffer(fact.encode(), np.uint8) for name, fact in facts.items()}
            about = {"pieces": json.dumps(self._pieces), "run": run.key, **_versions()}
            write_tensors(self._checkpoint, {**tensors, **texts}, about)

    def parts(self, table: str) -> list[Path]:
        return [self.path / PIECES / name for name in sorted(self._pieces) if name.endswith(f".{table}.parquet")]


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), "efhc": version("efhc"), "numpy": version("numpy")}
