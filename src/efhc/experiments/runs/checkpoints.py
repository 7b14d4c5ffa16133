"""An unfinished run in its folder: pieces of its tables, and a checkpoint to go on from.

checkpoint.safetensors   what the driver goes on from: arrays (of lockstep: W, w_hat and what devices keep to
                         themselves, after k iterations) and texts; the driver checks them before it computes with them
pieces/                  the tables up to the checkpoint, as FIRST-END.TABLE.parquet: from position to position, which
                         of lockstep are iterations

A piece is written before the checkpoint that counts on it. Pieces that no checkpoint counts on are removed.
"""

from __future__ import annotations

import io
import json
import platform
import secrets
import shutil
from collections.abc import Callable, Collection, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

import numpy as np
import polars as pl

from efhc.base.errors import EfhcError
from efhc.base.inputs import sha256
from efhc.base.saving import read_tensors, write_safely, write_tensors, writing
from efhc.drivers.record import Piece
from efhc.experiments.runs.keeping import Checkpoint
from efhc.experiments.runs.run import Run
from efhc.experiments.runs.tables import tables_of

PIECES = "pieces"
"""The folder of the pieces in that of the run."""
TEXT = "text/"
"""In front of the names of a driver's texts, which are kept as bytes: a .safetensors header has a largest size."""

T = TypeVar("T")


class DamagedError(EfhcError):
    """What was kept of a run is not what was written."""


class Unfinished:
    """The files of a run that is being made, or was stopped."""

    def __init__(self, folder: Path, warn: Callable[[str], None] = lambda text: None) -> None:
        self._folder, self._warn = folder, warn
        self._pieces: dict[str, str] = {}
        """The SHA-256 of every piece, by file name."""
        self._end = 0
        """Where the last piece ends."""

    @property
    def _checkpoint(self) -> Path:
        return self._folder / "checkpoint.safetensors"

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
            self._pieces = json.loads(facts["pieces"])
            end = self._checked_end(tables_of(run.experiment).recorded)
            texts = {name.removeprefix(TEXT): tensors.pop(name) for name in [*tensors] if name.startswith(TEXT)}
            decoded = {name: text.tobytes().decode() for name, text in texts.items()}
            restored = restore(Checkpoint(end, tensors, decoded))
        except OSError as error:
            raise EfhcError(f"{error.filename or self._checkpoint} cannot be read ({error.strerror})") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._refuse(error)
            return None
        self._end = end
        self._remove_pieces(keep=self._pieces)
        for name, now in _versions().items():
            if (then := facts.get(name, now)) != now:
                self._warn(f"{run.name}: begun with {name} {then}, goes on with {now}; its last digits may differ")
        return restored

    def _refuse(self, reason: object) -> None:
        self._move_aside()
        self._warn(f"{self._checkpoint} is damaged, and that run is made again from its start: {reason}")

    def _move_aside(self) -> None:
        mark = f"damaged-{secrets.token_hex(3)}"
        self._pieces, self._end = {}, 0
        with writing(self._folder):
            for path in (self._checkpoint, self._folder / PIECES):
                if path.exists():
                    path.rename(path.with_name(f"{path.name}.{mark}"))

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
                found = sha256((self._folder / PIECES / name).read_bytes())
            except FileNotFoundError:
                found = "missing"
            if found != expected:
                raise ValueError(f"pieces/{name} is not what was written")
        return ends_of_tables.pop()

    def _remove_pieces(self, keep: Mapping[str, str] | tuple[str, ...]) -> None:
        with writing(self._folder):
            for piece in (self._folder / PIECES).glob("*"):
                if piece.name not in keep:
                    piece.unlink()

    def put_away(self, piece: Piece) -> None:
        """Write the next piece of every table. An empty piece is not written, nor one after a piece that got lost."""
        if piece.end == piece.first or piece.first != self._end:
            return
        names = {table: f"{piece.first:012d}-{piece.end:012d}.{table}.parquet" for table in piece.tables}
        contents = {name: parquet(piece.tables[table]) for table, name in names.items()}
        for name, content in contents.items():
            write_safely(self._folder / PIECES / name, content)
        self._pieces |= {name: sha256(content) for name, content in contents.items()}  # all of them, or none
        self._end = piece.end

    def save(self, piece: Piece, tensors: Mapping[str, np.ndarray], facts: Mapping[str, str]) -> None:
        """Put a piece away, then write the checkpoint that counts on it.

        If an earlier piece could not be written, the checkpoint before it stays.
        """
        self.put_away(piece)
        if self._end == piece.end:
            texts = {TEXT + name: np.frombuffer(fact.encode(), np.uint8) for name, fact in facts.items()}
            about = {"pieces": json.dumps(self._pieces), **_versions()}
            write_tensors(self._checkpoint, {**tensors, **texts}, about)

    def parts(self, table: str) -> list[Path]:
        """Return the files with the pieces of one table, in order."""
        return [self._folder / PIECES / name for name in sorted(self._pieces) if name.endswith(f".{table}.parquet")]

    def remove(self) -> None:
        """Remove the checkpoint and the pieces. Call it when the run is complete."""
        self._checkpoint.unlink(missing_ok=True)
        shutil.rmtree(self._folder / PIECES, ignore_errors=True)


def parquet(table: pl.DataFrame) -> bytes:
    """Return a table as the content of a Parquet file."""
    buffer = io.BytesIO()
    table.write_parquet(buffer)
    return buffer.getvalue()


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), "efhc": version("efhc"), "numpy": version("numpy")}
