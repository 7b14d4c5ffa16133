"""The directory that holds a run. Every file in it is whole or absent, whenever the run is killed.

config.toml          the complete config: `efhc run config.toml` does the same again
meta.json            status (running or complete), seeds, checksums of all input; versions, git state, machine and
                     wall time, at the start and for each session that worked on the run
metrics.parquet      a row per strategy, seed and iteration
events.parquet       who fired and which links were used, a row per strategy, seed and iteration
network.parquet      the physical links, a row per seed and iteration at which they changed
devices.parquet      bandwidth, samples and labels, a row per seed and device
models.safetensors   the final models, one (m, n) tensor "strategy/seed" each
figures/
checkpoints/         only while the run is unfinished: one file per strategy and seed
"""

from __future__ import annotations

import io
import json
import os
import shutil
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl
import safetensors
import safetensors.numpy

from efhc.base.errors import EfhcError, InputError
from efhc.base.inputs import read_bytes, sha256
from efhc.base.saving import UNFINISHED, lock, write_safely, write_tensors
from efhc.core.iteration import State
from efhc.drivers.record import Record
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import build_experiment, first_difference, input_files, to_tables, to_toml
from efhc.experiments.runs.provenance import provenance

T = TypeVar("T")

TABLES = ("metrics", "events", "network", "devices")
"""Each is a NAME.parquet."""

LOCAL = "local/"
"""In front of the names of what devices keep to themselves, in a checkpoint."""


class RunDirectory:
    """A run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._checked: set[str] = set()
        """Tables that are as they were written."""

    @classmethod
    def start(cls, path: Path, experiment: Experiment, data_sha256: Mapping[str, str], *, resume: bool) -> RunDirectory:
        """A new directory for this experiment, or with `resume` the one that it was begun in."""
        directory = cls(path)
        try:
            begun = (path / "config.toml").exists()
        except (OSError, ValueError) as error:
            raise InputError("--out", f"{str(path)[:60]} ({error})", "a path that can be a directory") from None
        if begun and not resume:
            allowed = "a new or empty directory, or --resume to go on with its run"
            raise InputError("--out", f"{path}, which holds another run", allowed)
        if not begun and path.exists() and (not path.is_dir() or any(map(_is_foreign, path.iterdir()))):
            raise InputError("--out", f"{path}, which holds other files", "a new or empty directory")
        seeds, checksums = list(experiment.seeds), _checksums(experiment, data_sha256)
        if begun:
            directory._check_same(experiment, checksums)
        else:
            write_safely(path / "config.toml", to_toml(experiment).encode())
        if not (path / "meta.json").exists():  # new, or killed before it was written
            begun_with = {"status": "running", "seeds": seeds, **checksums, **provenance()}
            directory._write_meta(begun_with | {"wall_seconds": 0.0, "sessions": []})
        return directory

    def _check_same(self, experiment: Experiment, checksums: Mapping[str, Mapping[str, str]]) -> None:
        if difference := first_difference(self._tables(), to_tables(experiment)):
            key, old, new = difference
            allowed = f"{old!r}, as that run was begun; a changed run needs another --out"
            raise InputError(key, f"{new!r} to resume {self.path}", allowed)
        self._check_inputs(checksums)

    def check_inputs(self, experiment: Experiment, data_sha256: Mapping[str, str]) -> None:
        """That data and input files are those that the run was made with."""
        self._check_inputs(_checksums(experiment, data_sha256))

    def _check_inputs(self, checksums: Mapping[str, Mapping[str, str]]) -> None:
        meta = self.meta if (self.path / "meta.json").exists() else {}
        for what, now in checksums.items():
            for name, old in meta.get(what, {}).items():
                if now.get(name) != old:
                    allowed = f"the file with SHA-256 {old[:12]}... that the run was begun with"
                    raise InputError(name if what == "input_sha256" else "data", f"a changed {name}", allowed)

    @contextmanager
    def session(self) -> Iterator[None]:
        """Work on the run: nobody else does meanwhile, and meta.json tells who did, and for how long."""
        with lock(self.path / ".lock"):
            for leftover in self.path.rglob(f".*{UNFINISHED}"):
                leftover.unlink()
            earlier, this, started = self.meta["sessions"], provenance(), time.monotonic()
            self._write_meta(self.meta | {"sessions": [*earlier, this]})
            try:
                yield
            finally:
                this["wall_seconds"] = round(time.monotonic() - started, 3)
                total = sum(session.get("wall_seconds", 0.0) for session in [*earlier, this])
                self._write_meta(self.meta | {"wall_seconds": round(total, 3), "sessions": [*earlier, this]})

    def _read(self, name: str, parse: Callable[[bytes], T]) -> T:
        try:
            return parse((self.path / name).read_bytes())
        except (OSError, ValueError, KeyError, pl.exceptions.PolarsError, safetensors.SafetensorError) as error:
            raise EfhcError(f"{self.path / name} is missing or corrupt ({error})") from error

    @property
    def meta(self) -> dict[str, Any]:
        """meta.json"""
        meta: dict[str, Any] = self._read("meta.json", json.loads)
        return meta

    def _write_meta(self, meta: Mapping[str, Any]) -> None:
        write_safely(self.path / "meta.json", json.dumps(meta, indent=2).encode() + b"\n")

    def _tables(self) -> dict[str, Any]:
        return self._read("config.toml", lambda content: tomllib.loads(content.decode()))

    def load_experiment(self) -> Experiment:
        """config.toml"""
        return build_experiment(self._tables(), self.path)

    @property
    def is_complete(self) -> bool:
        """Whether the run has finished."""
        written = os.path.exists(self.path / "meta.json")  # noqa: PTH110 - unlike Path.exists, it never fails
        meta: Any = self.meta if written else None
        return isinstance(meta, dict) and meta.get("status") == "complete"

    # Checkpoints

    def _checkpoint(self, strategy: str, seed: int) -> Path:
        return self.path / "checkpoints" / f"{strategy}.seed{seed}.safetensors"

    def save_checkpoint(self, strategy: str, seed: int, state: State, record: Record) -> None:
        """Keep where a strategy and seed has got to."""
        local = {LOCAL + name: rows for name, rows in state.local.items()}
        tensors = {"models": state.models, "last_broadcast": state.last_broadcast, **local, **record.to_arrays()}
        write_tensors(self._checkpoint(strategy, seed), tensors)

    def load_checkpoint(self, strategy: str, seed: int) -> tuple[State, Record] | None:
        """Where a strategy and seed had got to."""
        path = self._checkpoint(strategy, seed)
        if not path.exists():
            return None
        try:
            tensors = safetensors.numpy.load_file(path)
            record = Record.from_arrays(tensors)
            local = {name.removeprefix(LOCAL): rows for name, rows in tensors.items() if name.startswith(LOCAL)}
            return State(len(record), tensors["models"], tensors["last_broadcast"], local), record
        except (safetensors.SafetensorError, KeyError, ValueError) as error:
            raise EfhcError(f"{path} is corrupt ({error}); remove it to do that part of the run again") from error

    # Results

    def save_tables(self, tables: Mapping[str, pl.DataFrame]) -> None:
        """All of them."""
        for name, table in tables.items():
            self.save_table(name, table)

    def save_table(self, name: str, table: pl.DataFrame) -> None:
        """NAME.parquet"""
        buffer = io.BytesIO()
        table.write_parquet(buffer)
        write_safely(self.path / f"{name}.parquet", buffer.getvalue())

    def load_table(self, name: str) -> pl.DataFrame:
        """NAME.parquet, if it is as it was written."""
        self._check_table(name)
        return self._read(f"{name}.parquet", pl.read_parquet)

    def _check_table(self, name: str) -> None:
        """That NAME.parquet is as it was written; looked at once."""
        if name in self._checked:
            return
        expected = self.meta.get("table_sha256", {}).get(name)

        def check(content: bytes) -> None:
            if expected and sha256(content) != expected:
                raise ValueError("its SHA-256 is not the one in meta.json")

        self._read(f"{name}.parquet", check)
        self._checked.add(name)

    def read_rows(self, name: str, rows: pl.Expr) -> pl.DataFrame:
        """Some rows of NAME.parquet, for tables that do not fit into memory as a whole."""
        self._check_table(name)
        try:
            return pl.scan_parquet(self.path / f"{name}.parquet").filter(rows).collect()
        except (OSError, pl.exceptions.PolarsError) as error:
            raise EfhcError(f"{self.path / name}.parquet is missing or corrupt ({error})") from error

    def save_models(self, models: Mapping[tuple[str, int], np.ndarray]) -> None:
        """models.safetensors"""
        tensors = {f"{strategy}/{seed}": w for (strategy, seed), w in models.items()}
        write_tensors(self.path / "models.safetensors", tensors)

    def load_models(self) -> dict[tuple[str, int], np.ndarray]:
        """models.safetensors"""
        tensors = self._read("models.safetensors", safetensors.numpy.load)
        names = {name: name.rsplit("/", 1) for name in tensors}
        return {(names[name][0], int(names[name][1])): tensor for name, tensor in tensors.items()}

    def finish(self) -> None:
        """Say that all is there, and let go of the checkpoints."""
        finished = datetime.now(UTC).isoformat(timespec="seconds")
        checksums = {name: sha256((self.path / f"{name}.parquet").read_bytes()) for name in TABLES}
        self._write_meta({"finished": finished, "table_sha256": checksums} | self.meta | {"status": "complete"})
        shutil.rmtree(self.path / "checkpoints", ignore_errors=True)


def _checksums(experiment: Experiment, data_sha256: Mapping[str, str]) -> dict[str, dict[str, str]]:
    inputs = {name: sha256(read_bytes(file, name)) for name, file in input_files(experiment).items()}
    return {"data_sha256": dict(data_sha256), "input_sha256": inputs}


def _is_foreign(path: Path) -> bool:
    return not path.name.endswith(UNFINISHED) and path.name != ".lock"
