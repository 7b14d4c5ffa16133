"""An unfinished run in its folder: pieces of its tables, and a checkpoint to go on from.

checkpoint.safetensors   W, w_hat and what devices keep to themselves, after k iterations; the shapes and types of all
                         arrays are checked before anything computes with them
pieces/                  the tables of iterations 0 to k - 1, as FIRST-END.TABLE.parquet

A piece is written before the checkpoint that counts on it. Pieces that no checkpoint counts on are removed.
"""

from __future__ import annotations

import io
import json
import platform
import secrets
import shutil
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

import numpy as np
import polars as pl

from efhc.base.errors import EfhcError
from efhc.base.inputs import sha256
from efhc.base.saving import read_tensors, write_safely, write_tensors, writing
from efhc.core.iteration import State
from efhc.drivers.record import Piece, Record
from efhc.experiments.runs.run import Run

LOCAL = "local/"
"""In front of the names of what devices keep to themselves."""

PIECE_TABLES = ("metrics", "events", "network")


class DamagedError(EfhcError):
    """What was kept of a run is not what was written."""


class Unfinished:
    """The files of a run that is being made, or was stopped."""

    def __init__(self, folder: Path, warn: Callable[[str], None] = lambda text: None) -> None:
        self._folder, self._warn = folder, warn
        self._pieces: dict[str, str] = {}
        """The SHA-256 of every piece, by file name."""
        self._end = 0
        """The iteration after the last piece."""

    @property
    def _checkpoint(self) -> Path:
        return self._folder / "checkpoint.safetensors"

    def load(self, run: Run, initial: State) -> tuple[State, Record] | None:
        """Return the state and the record of the checkpoint.

        Returns None if there is no checkpoint, or if it is damaged: then it is moved aside. Raises `EfhcError` if a
        file cannot be read.
        """
        if not self._checkpoint.exists():
            self._remove_pieces(keep=())
            return None
        try:
            tensors, facts = read_tensors(self._checkpoint)
            state, record = _checked(tensors, initial, run.experiment.iterations)
            self._pieces = json.loads(facts["pieces"])
            self._check_pieces(state.k)
        except OSError as error:
            raise EfhcError(f"{error.filename or self._checkpoint} cannot be read ({error.strerror})") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self.refuse(error)
            return None
        self._end = state.k
        self._remove_pieces(keep=self._pieces)
        for name, now in _versions().items():
            if (then := facts.get(name, now)) != now:
                self._warn(f"{run.name}: begun with {name} {then}, goes on with {now}; its last digits may differ")
        return state, record

    def refuse(self, reason: object) -> None:
        """Move the checkpoint aside, because of `reason`: the run is made again from its start."""
        self._move_aside()
        self._warn(f"{self._checkpoint} is damaged, and that run is made again from its start: {reason}")

    def _move_aside(self) -> None:
        mark = f"damaged-{secrets.token_hex(3)}"
        self._pieces, self._end = {}, 0
        with writing(self._folder):
            for path in (self._checkpoint, self._folder / "pieces"):
                if path.exists():
                    path.rename(path.with_name(f"{path.name}.{mark}"))

    def _check_pieces(self, k: int) -> None:
        for table in PIECE_TABLES:
            names = sorted(name for name in self._pieces if name.endswith(f".{table}.parquet"))
            spans = [tuple(map(int, name.split(".")[0].split("-"))) for name in names]
            ends = [0, *(end for _, end in spans)]
            if [first for first, _ in spans] != ends[:-1] or ends[-1] != k:
                raise ValueError(f"its pieces of {table} do not reach from the start to the checkpoint")
        for name, expected in self._pieces.items():
            try:
                found = sha256((self._folder / "pieces" / name).read_bytes())
            except FileNotFoundError:
                found = "missing"
            if found != expected:
                raise ValueError(f"pieces/{name} is not what was written")

    def _remove_pieces(self, keep: Mapping[str, str] | tuple[str, ...]) -> None:
        with writing(self._folder):
            for piece in (self._folder / "pieces").glob("*"):
                if piece.name not in keep:
                    piece.unlink()

    def put_away(self, piece: Piece) -> None:
        """Write the next piece of every table. An empty piece is not written."""
        if piece.end == piece.first:
            return
        names = {table: f"{piece.first:012d}-{piece.end:012d}.{table}.parquet" for table in PIECE_TABLES}
        contents = {name: parquet(getattr(piece, table)) for table, name in names.items()}
        for name, content in contents.items():
            write_safely(self._folder / "pieces" / name, content)
        self._pieces |= {name: sha256(content) for name, content in contents.items()}  # all of them, or none
        self._end = piece.end

    def save(self, state: State, record: Record) -> None:
        """Put the record's rows away, then write the checkpoint that counts on them.

        If an earlier piece could not be written, the checkpoint before it stays.
        """
        self.put_away(record.take())
        if self._end != state.k:
            return
        local = {LOCAL + name: rows for name, rows in state.local.items()}
        tensors = {
            "models": state.models,
            "last_broadcast": state.last_broadcast,
            "k": np.array([state.k]),
            "time_total": np.array([record.time_total]),
            **local,
        }
        write_tensors(self._checkpoint, tensors, {"pieces": json.dumps(self._pieces), **_versions()})

    def parts(self, table: str) -> list[Path]:
        """Return the files with the pieces of one table, in order."""
        return [self._folder / "pieces" / name for name in sorted(self._pieces) if name.endswith(f".{table}.parquet")]

    def remove(self) -> None:
        """Remove the checkpoint and the pieces. Call it when the run is complete."""
        self._checkpoint.unlink(missing_ok=True)
        shutil.rmtree(self._folder / "pieces", ignore_errors=True)


def parquet(table: pl.DataFrame) -> bytes:
    """Return a table as the content of a Parquet file."""
    buffer = io.BytesIO()
    table.write_parquet(buffer)
    return buffer.getvalue()


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), "efhc": version("efhc"), "numpy": version("numpy")}


def _checked(tensors: Mapping[str, np.ndarray], initial: State, iterations: int) -> tuple[State, Record]:
    """Return the state and an empty record for the iterations after it. Raises `ValueError` if anything does not fit.

    Compiled loops check no index, so shapes, types and numbers are checked here.
    """
    k, time_total = int(tensors["k"].item()), float(tensors["time_total"].item())
    if not 0 < k <= iterations:
        raise ValueError(f"it tells of {k} iterations of {iterations}")
    local = {name.removeprefix(LOCAL): rows for name, rows in tensors.items() if name.startswith(LOCAL)}
    expected = {"models": initial.models, "last_broadcast": initial.last_broadcast}
    expected |= {LOCAL + name: rows for name, rows in initial.local.items()}
    found = {name: rows for name, rows in tensors.items() if name not in {"k", "time_total"}}
    if found.keys() != expected.keys():
        raise ValueError(f"it holds {', '.join(sorted(found))} instead of {', '.join(sorted(expected))}")
    for name, rows in found.items():
        if rows.shape != expected[name].shape or rows.dtype != expected[name].dtype:
            raise ValueError(f"{name} is {rows.dtype} of shape {rows.shape}")
        if rows.dtype.kind == "f" and not np.isfinite(rows).all():
            raise ValueError(f"{name} is not finite")
    if not np.isfinite(time_total):
        raise ValueError("time_total is not finite")
    return State(k, tensors["models"], tensors["last_broadcast"], local), Record(first=k, time_total=time_total)
