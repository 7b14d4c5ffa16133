"""The directory that holds an experiment. Every file in it is whole or absent, whenever the command is killed.

config.toml          the complete config: `efhc run config.toml` does the same again
meta.json            status (running or complete), seeds, checksums of all input and output, runs that failed, warnings;
                     versions, git state, machine and wall time, at the start and for each session that worked on it;
                     of a session with a store elsewhere, its folder
metrics.parquet      lockstep: a row per strategy, seed and iteration
events.parquet       lockstep: who fired and which links were used, a row per strategy, seed and iteration
timeline.parquet     event-driven: accuracies, counts and bytes, a row per strategy, seed and sample
exchanges.parquet    event-driven: a row per strategy, seed and exchange
steps.parquet        event-driven: a row per strategy, seed, device and its iteration
network.parquet      the physical links, a row per seed and iteration at which they changed
devices.parquet      bandwidth, samples and labels, a row per seed and device
models.safetensors   the final models, one (m, n) tensor "strategy/seed" each
local.safetensors    what devices keep to themselves (running statistics), "strategy/seed/name"; only if there is any
data.npz             the data set, if it was made in Python
snapshots/           the models of single iterations, STRATEGY.seedSEED/ITERATION.safetensors, with `keep_models_every`
live/                what was seen of each run while it was made, STRATEGY.seedSEED.jsonl; no checksum, may be missing
figures/
live.jsonl           of a single run: the same, while it is made and later
runs/                only while it is unfinished: the single runs, each a directory of this form
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import polars as pl
import tomli_w

from efhc.base.arrays import Floats
from efhc.base.errors import EfhcError, InputError
from efhc.base.inputs import InputContent, sha256
from efhc.base.saving import (
    UNFINISHED,
    SaveError,
    is_unfinished,
    lock,
    map_tensors,
    read_tensors,
    replacing,
    write_safely,
    write_tensors,
    writing,
)
from efhc.drivers.record import PIECE_ENTRIES
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import build_experiment, first_difference, to_tables
from efhc.experiments.runs.checkpoints import DamagedError
from efhc.experiments.runs.provenance import provenance
from efhc.experiments.runs.run import file_name
from efhc.experiments.runs.tables import RunTables
from efhc.learning.data import Dataset
from efhc.learning.data.npz import npz_content

T = TypeVar("T")

OWN_RUNS = "runs"
"""The folder of an unfinished experiment's single runs, within its directory."""
COLLECTED = "live"
"""The folder of an experiment's live files, once it is complete."""
DATA = "data.npz"
"""A data set that was made in Python."""

LARGEST_LIVE = 1 << 24
"""Bytes of a live file that is kept. Most have a million at most; the links of a huge network may need more."""

CHECKSUMS = ("table_sha256", "snapshot_sha256")
"""What meta.json knows of the files of a complete run."""

Pair = tuple[str, int]
"""A strategy and a seed."""


class RunDirectory:
    """The files of an experiment, or of a single run."""

    def __init__(self, path: Path, *, lock_beside: bool = False) -> None:
        """`lock_beside` puts the lock beside the directory, so that it stays when the directory is moved aside."""
        self.path, self._lock_beside = path, lock_beside
        self._checked: set[str] = set()
        """Files that are as they were written."""

    # Beginning and going on

    def begin(
        self,
        experiment: Experiment,
        checksums: Mapping[str, Mapping[str, str]],
        *,
        resume: bool,
        unnamed: Literal["refuse", "describe"] = "refuse",
    ) -> None:
        """Make this the directory of a new experiment or, with `resume`, check that it is that of the same one.

        `checksums` are those of the data and of the input files. `unnamed` says what to do about parts that were made
        in Python and have no name: see `to_tables`. Call it within `locked`. Raises `InputError` if the directory holds
        something else.
        """
        begun = self.is_begun
        self.check_may_go_on(experiment, resume=resume)
        if not begun and self.path.exists() and any(map(_is_foreign, self.path.iterdir())):
            raise InputError("--out", f"{self.path}, which holds other files", "a new or empty directory")
        with writing(self.path):
            for leftover in filter(is_unfinished, self.path.rglob(f".*{UNFINISHED}")):
                leftover.unlink()
        if begun:
            self.check_same(experiment, checksums)
        else:
            tables = to_tables(experiment, unnamed)
            if tables["data"].get("path") == str((self.path / DATA).absolute()):
                tables["data"]["path"] = DATA  # so that the directory can be moved
            write_safely(self.path / "config.toml", tomli_w.dumps(tables).encode())
        if not (self.path / "meta.json").exists():  # new, or killed before it was written
            begun_with = {"status": "running", "seeds": list(experiment.seeds), **checksums, **provenance()}
            self._write_meta(begun_with | {"wall_seconds": 0.0, "sessions": []})

    def data_of(self, experiment: Experiment) -> InputContent | None:
        """The content of data.npz for a data set that was made in Python; None for others, which can be named."""
        content = npz_content(experiment.data) if isinstance(experiment.data, Dataset) else None
        return None if content is None else InputContent((self.path / DATA).absolute(), content, sha256(content))

    def keep_data(self, data: InputContent | None) -> None:
        """Write data.npz, if there is such data and it is not there yet. Call it after `begin`."""
        if data is not None and not data.path.exists():
            write_safely(data.path, data.content)

    def check_may_go_on(self, experiment: Experiment, *, resume: bool) -> None:
        """Raise `InputError` if the directory holds an experiment, this one or another, and not `resume`."""
        if not self.is_begun or resume:
            return
        if first_difference(self._config(), to_tables(experiment, "describe")):
            raise InputError("--out", f"{self.path}, which holds another run", "a new or empty directory")
        allowed = "--resume, which continues or shows it, or a new or empty directory"
        raise InputError("--out", f"{self.path}, which holds this run already", allowed)

    def in_the_order_begun(self, experiment: Experiment) -> Experiment:
        """The same experiment with its strategies in the order of config.toml."""
        names = self._config()["strategies"]
        return experiment.model_copy(update={"strategies": {name: experiment.strategies[name] for name in names}})

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the directory if needed, and hold its lock in the body, so that no other process works on it.

        Raises `EfhcError` if another process holds the lock.
        """
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        with lock(self.path.with_name(f".{self.path.name}.lock") if self._lock_beside else self.path / ".lock"):
            yield

    @contextmanager
    def session(self, store: Path | None = None) -> Iterator[None]:
        """Add the body to the sessions in meta.json: versions, git state and machine, and the wall time it took.

        `store` is the folder of its single runs, if that is not within the directory.
        """
        earlier, this, started = self.meta["sessions"], provenance(), time.monotonic()
        this |= {} if store is None else {"store": str(store.absolute())}
        self._write_meta(self.meta | {"sessions": [*earlier, this]})
        try:
            yield
        finally:
            this["wall_seconds"] = round(time.monotonic() - started, 3)
            total = sum(session.get("wall_seconds", 0.0) for session in [*earlier, this])
            self._write_meta(self.meta | {"wall_seconds": round(total, 3), "sessions": [*earlier, this]})

    def note(self, facts: Mapping[str, Any]) -> None:
        """Add facts to meta.json, for people. Call it after `begin`, while the lock is held."""
        self._write_meta({**self.meta, **facts})

    @property
    def is_begun(self) -> bool:
        """Whether the directory holds an experiment."""
        return os.path.exists(self.path / "config.toml")  # noqa: PTH110 - unlike Path.exists, it never fails

    def check_same(self, experiment: Experiment, checksums: Mapping[str, Mapping[str, str]]) -> None:
        """Raise `InputError` unless the directory is that of this experiment, with this data and these input files."""
        if difference := first_difference(self._config(), to_tables(experiment)):
            key, old, new = difference
            allowed = f"{old!r}, as that run was begun; a changed run needs another --out"
            raise InputError(key, f"{new!r} to resume {self.path}", allowed)
        self.check_inputs(checksums)

    def check_inputs(self, checksums: Mapping[str, Mapping[str, str]]) -> None:
        """Raise `InputError` unless the data and input files are those that the run was made with."""
        meta = self.meta if (self.path / "meta.json").exists() else {}
        for what, now in checksums.items():
            for name, old in meta.get(what, {}).items():
                if now.get(name) != old:
                    allowed = f"the file that the run was begun with (SHA-256 {old[:12]}...), or another --out"
                    setting = name if what == "input_sha256" else "data"
                    raise InputError(setting, f"a changed {self._file_of(name) or name}", allowed)

    def _file_of(self, setting: str) -> str | None:
        """Return the name of the file that a setting of config.toml names."""
        value: Any = self._config()
        for key in setting.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        return Path(value.rpartition(":")[0] or value).name if isinstance(value, str) else None

    # Reading

    def _read(self, name: str, parse: Callable[[Path], T]) -> T:
        try:
            return parse(self.path / name)
        except FileNotFoundError as error:
            raise DamagedError(f"{self.path / name} is missing") from error
        except OSError as error:
            raise EfhcError(f"{self.path / name} cannot be read ({error.strerror})") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, pl.exceptions.PolarsError) as error:
            raise DamagedError(f"{self.path / name} is damaged ({error})") from error

    @property
    def meta(self) -> dict[str, Any]:
        """The content of meta.json. Raises `DamagedError` if it is missing or damaged."""

        def parse(path: Path) -> dict[str, Any]:
            meta = json.loads(path.read_bytes())
            if not isinstance(meta, dict) or not _describes_a_run(meta):
                raise ValueError("it does not describe a run")
            return meta

        return self._read("meta.json", parse)

    def _write_meta(self, meta: Mapping[str, Any]) -> None:
        write_safely(self.path / "meta.json", json.dumps(meta, indent=2).encode() + b"\n")

    def _config(self) -> dict[str, Any]:
        tables = self._read("config.toml", lambda path: tomllib.loads(path.read_bytes().decode()))
        if isinstance(tables.get("data"), dict) and tables["data"].get("path") == DATA:
            tables["data"]["path"] = str((self.path / DATA).absolute())
        return tables

    def read_experiment(self) -> Experiment:
        """Return the experiment of config.toml without running any code: parts of the user's own refuse to run."""
        return build_experiment(self._config(), self.path, run_code=False)

    def load_experiment(self, *, trust_code: bool = True) -> Experiment:
        """The experiment of config.toml.

        Settings such as "file.py:Name" run the Python code that they name. With `trust_code` = False such a config is
        refused: use it for directories that somebody else made.
        """
        tables = self._config()
        if not trust_code and (code := named_code(tables)):
            allowed = "--trust-code, if you trust whoever made this directory to run code on your machine"
            raise InputError(next(iter(code)), f"code in {', '.join(sorted(set(code.values())))}", allowed)
        return build_experiment(tables, self.path)

    @property
    def is_complete(self) -> bool:
        """Whether the run has finished."""
        written = os.path.exists(self.path / "meta.json")  # noqa: PTH110 - unlike Path.exists, it never fails
        return written and self.meta["status"] == "complete"

    @property
    def failures(self) -> dict[Pair, str]:
        """Runs that failed, and why."""
        return {(each["strategy"], each["seed"]): each["reason"] for each in self.meta.get("failed", [])}

    def load_table(self, name: str) -> pl.DataFrame:
        """Return the table in NAME.parquet. Raises `DamagedError` if the file is not as it was written."""
        return self.scan_table(name).collect()

    def read_rows(self, name: str, rows: pl.Expr) -> pl.DataFrame:
        """Return some rows of NAME.parquet. Use it for tables that do not fit into memory as a whole."""
        return self._read(f"{name}.parquet", lambda _: self.scan_table(name).filter(rows).collect())

    def scan_table(self, name: str) -> pl.LazyFrame:
        """Return NAME.parquet as a lazy table. Raises `DamagedError` if the file is not as it was written."""
        self.check_file(f"{name}.parquet")
        return self._read(f"{name}.parquet", pl.scan_parquet)

    def check_file(self, name: str) -> None:
        """Raise `DamagedError` unless the file is as it was written. Each file is read for this once per object."""
        if name in self._checked:
            return
        expected = self.meta.get("table_sha256", {}).get(name.partition(".")[0])

        def check(path: Path) -> None:
            found = _file_sha256(path)
            if expected and found != expected:
                raise ValueError("its SHA-256 is not the one in meta.json")

        self._read(name, check)
        self._checked.add(name)

    def check_snapshots(self) -> None:
        """Raise `DamagedError` unless all models of single iterations are as they were written."""
        for name, expected in self.meta.get("snapshot_sha256", {}).items():
            if self._read(name, _file_sha256) != expected:
                raise DamagedError(f"{self.path / name} is damaged (its SHA-256 is not the one in meta.json)")

    def load_models(self) -> dict[Pair, Floats]:
        """Return the final models (m, n) in models.safetensors, by strategy and seed."""
        self.check_file("models.safetensors")
        return self._read("models.safetensors", lambda path: _by_pair(read_tensors(path)[0]))

    def map_models(self) -> dict[Pair, Floats]:
        """Return what `load_models` returns, as memory maps: only the rows that are used are read from disk."""
        self.check_file("models.safetensors")
        return self._read("models.safetensors", lambda path: _by_pair(map_tensors(path)))

    @property
    def has_models(self) -> bool:
        """Whether the final models were kept."""
        return (self.path / "models.safetensors").exists()

    def load_local(self) -> dict[Pair, dict[str, np.ndarray]]:
        """Return what devices keep to themselves (local.safetensors), by strategy and seed; most models: nothing."""
        if not (self.path / "local.safetensors").exists():
            return {}
        self.check_file("local.safetensors")

        def parse(path: Path) -> dict[Pair, dict[str, np.ndarray]]:
            local: dict[Pair, dict[str, np.ndarray]] = {}
            for name, rows in read_tensors(path)[0].items():
                strategy, seed, buffer = name.split("/", 2)
                local.setdefault((strategy, int(seed)), {})[buffer] = rows
            return local

        return self._read("local.safetensors", parse)

    def snapshots(self, strategy: str, seed: int) -> Mapping[int, Floats]:
        """Return the models (m, n) of single iterations, by iteration. Each file is read when it is asked for."""
        return Snapshots(self.path / "snapshots" / file_name(strategy, seed))

    # Writing results

    def save_table(self, name: str, table: pl.LazyFrame | pl.DataFrame) -> None:
        """Write NAME.parquet. A large table is written in parts, so that it need not fit into memory."""
        target = self.path / f"{name}.parquet"
        rows = table.lazy()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with replacing(target) as temporary:
                if (at_once := _rows_at_once(rows)) is None:
                    rows.collect().rechunk().write_parquet(temporary)  # the same bytes from whatever pieces
                else:
                    with _reading_little_ahead():
                        rows.sink_parquet(temporary, row_group_size=at_once)
        except (OSError, pl.exceptions.ComputeError) as error:
            raise SaveError(f"{target} cannot be written ({getattr(error, 'strerror', None) or error})") from error

    def save_models(self, models: Mapping[Pair, np.ndarray], local: Mapping[Pair, Mapping[str, np.ndarray]]) -> None:
        """Write models.safetensors and, if devices keep anything to themselves, local.safetensors."""
        own = {
            f"{strategy}/{seed}/{name}": rows for (strategy, seed), each in local.items() for name, rows in each.items()
        }
        if own:
            write_tensors(self.path / "local.safetensors", own)
        tensors = {f"{strategy}/{seed}": w for (strategy, seed), w in models.items()}
        write_tensors(self.path / "models.safetensors", tensors)  # last: where these are, all is

    def save_snapshots(self, strategy: str, seed: int, snapshots: Mapping[int, np.ndarray]) -> None:
        """Write the models of single iterations, one file each."""
        folder = self.path / "snapshots" / file_name(strategy, seed)
        for k, models in snapshots.items():
            write_tensors(folder / f"{k:012d}.safetensors", {"models": models}, {})

    def save_live(self, strategy: str, seed: int, live: Path) -> None:
        """Keep the live file of a run, if there is one. It is for people: no checksum, and the run is whole without.

        A link, a device or a huge file is none that efhc wrote: its end may be far away.
        """
        with suppress(OSError):
            found = live.lstat()
            if stat.S_ISREG(found.st_mode) and found.st_size <= LARGEST_LIVE:
                write_safely(self.live_file(strategy, seed), live.read_bytes())

    def live_file(self, strategy: str, seed: int) -> Path:
        """Return where the live file of a run of a complete experiment is kept."""
        return self.path / COLLECTED / f"{file_name(strategy, seed)}.jsonl"

    def finish(
        self, tables: RunTables, failures: Mapping[Pair, str] | None = None, warnings: Sequence[str] = ()
    ) -> None:
        """Complete meta.json: the checksums of all files, the runs that failed, warnings, and the status."""
        finished = datetime.now(UTC).isoformat(timespec="seconds")
        files = [*(f"{name}.parquet" for name in tables.names), "models.safetensors", "local.safetensors"]
        checksums = {
            name.partition(".")[0]: _file_sha256(self.path / name) for name in files if (self.path / name).exists()
        }
        failed = [{"strategy": pair[0], "seed": pair[1], "reason": text} for pair, text in (failures or {}).items()]
        checksums_of = {"table_sha256": checksums}
        snapshots = {
            str(file.relative_to(self.path)): _file_sha256(file)
            for file in sorted((self.path / "snapshots").glob("*/*.safetensors"))
        }
        if snapshots:
            checksums_of["snapshot_sha256"] = snapshots
        found = {name: some for name, some in (("failed", failed), ("warnings", list(warnings))) if some}
        self._write_meta(self.meta | {"finished": finished, **checksums_of, **found, "status": "complete"})

    def reopen(self) -> None:
        """Note in meta.json that the run is being made again, to keep more of it, if it was complete."""
        if self.is_complete:
            self._write_meta(self.meta | {"status": "running"})


MANY_ENTRIES = 2 * PIECE_ENTRIES
"""Largest number of devices and links in the lists of a table that is written at once."""


@contextmanager
def _reading_little_ahead() -> Iterator[None]:
    """Let polars read one part of a table after the other in the body. By default it reads 128 parts ahead."""
    name = "POLARS_ROW_GROUP_PREFETCH_SIZE"
    before = os.environ.get(name)
    os.environ[name] = before or "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)  # other threads may have been here meanwhile


def _rows_at_once(table: pl.LazyFrame) -> int | None:
    """The number of rows of a large table that should be in memory at a time; None for all."""
    lists = [name for name, kind in table.collect_schema().items() if isinstance(kind, pl.List)]
    entries = pl.sum_horizontal(pl.col(lists).list.len()).sum() if lists else pl.lit(0)
    rows, total = table.select(pl.len(), entries.alias("entries")).collect(engine="streaming").row(0)
    return max(1, rows * PIECE_ENTRIES // total) if total > MANY_ENTRIES else None


class Snapshots(Mapping[int, Floats]):
    """The models of single iterations. Each file is read when its iteration is asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = {int(file.stem): file for file in sorted(folder.glob("*.safetensors")) if file.stem.isdecimal()}

    def __getitem__(self, k: int) -> Floats:
        file = self._files[k]
        try:
            return read_tensors(file)[0]["models"]
        except (ValueError, KeyError, FileNotFoundError) as error:
            raise DamagedError(f"{file} is damaged or missing ({error})") from error
        except OSError as error:
            raise EfhcError(f"{file} cannot be read ({error.strerror})") from error

    def __repr__(self) -> str:
        return f"<Snapshots of iterations {', '.join(map(str, self)) or 'none'}, in {self._folder}>"

    def __iter__(self) -> Iterator[int]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def _describes_a_run(meta: Mapping[str, Any]) -> bool:
    tables = [meta.get(name, {}) for name in (*CHECKSUMS, "input_sha256", "data_sha256")]
    sessions = meta.get("sessions")
    is_noted = isinstance(sessions, list) and all(isinstance(session, dict) for session in sessions)
    return is_noted and "status" in meta and all(isinstance(table, dict) for table in tables)


def _by_pair(tensors: Mapping[str, np.ndarray]) -> dict[Pair, Floats]:
    """Return tensors that are named "strategy/seed" by strategy and seed. Raises `ValueError` for other names."""
    pairs = {name: name.rsplit("/", 1) for name in tensors}
    if odd := [name for name, parts in pairs.items() if len(parts) != 2 or not parts[1].isdecimal()]:
        raise ValueError(f"a tensor is named {odd[0]!r} instead of STRATEGY/SEED")
    return {(pairs[name][0], int(pairs[name][1])): tensor for name, tensor in tensors.items()}


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


NO_CODE = {"name", "path", "description"}
"""Settings whose text may hold a colon without naming code."""


def named_code(tables: Any, setting: str = "") -> dict[str, str]:
    """Return the settings of a config that name Python code, by the rule of those who load it: a text with a colon."""
    if isinstance(tables, Mapping):
        inner = (named_code(value, f"{setting}.{key}" if setting else key) for key, value in tables.items())
        return {name: code for found in inner for name, code in found.items()}
    if isinstance(tables, list):
        return {name: code for one in tables for name, code in named_code(one, setting).items()}
    is_code = isinstance(tables, str) and ":" in tables and setting.rpartition(".")[2] not in NO_CODE
    return {setting: tables} if is_code else {}


def _is_foreign(path: Path) -> bool:
    return not is_unfinished(path) and path.name != ".lock"
