"""Times in seconds, and numbers from CSV files and from the user's own code.

Columns of a file are found by their names, and no cell may be missing.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field

from efhc.base.errors import InputError
from efhc.base.inputs import read_text

NUMBER = re.compile(r"[-+.0-9eE]+")
"""What numbers in files are written with; Python's float() takes 1_0 too."""

LEAST, MOST = 1e-9, 1e9
"""Durations in seconds. Within these, sums and products of them stay finite and above zero."""

Seconds = Annotated[float, Field(ge=LEAST, le=MOST)]
"""A duration."""


def as_number(given: Any) -> float:
    """Return a number of Python or NumPy as a float; NaN for anything else, booleans too."""
    if not isinstance(given, int | float | np.integer | np.floating) or isinstance(given, bool):
        return math.nan
    try:
        return float(given)
    except OverflowError:
        return math.nan


class TraceLine(NamedTuple):
    """One line of a file: where it is, and its cells by column."""

    path: Path
    place: int
    """The number of the line in the file, from 1."""
    cells: dict[str, str]

    def refused(self, column: str, allowed: str) -> InputError:
        """Return the error that quotes the cell of a column."""
        return InputError("path", f"{column} {self.cells[column][:40]!r} in line {self.place} of {self.path}", allowed)

    def device(self, devices: int) -> int:
        """Return the cell `device`. Raises `InputError` unless it is the number of a device."""
        device = self.whole("device")
        if device is None or device >= devices:
            raise self.refused("device", f"devices 0 to {devices - 1}")
        return device

    def whole(self, column: str) -> int | None:
        """Return the whole number in a column, 0 or above; None for anything else."""
        cell = self.cells[column]
        return int(cell) if cell.isascii() and cell.isdecimal() and len(cell) <= 18 else None

    def number(self, column: str) -> float:
        """Return the number in a column; NaN for anything else."""
        cell = self.cells[column]
        try:
            return float(cell) if NUMBER.fullmatch(cell) else math.nan
        except ValueError:
            return math.nan

    def seconds(self, least: float = LEAST) -> float:
        """Return the cell `seconds`. Raises `InputError` unless it is a number from `least` to `MOST`."""
        found = self.number("seconds")
        if not least <= found <= MOST:
            raise self.refused("seconds", f"numbers from {least:g} to {MOST:g}")
        return abs(found)  # -0 is 0


def read_trace(path: Path, *headers: tuple[str, ...], alone: str | None = None) -> Iterator[TraceLine]:
    """Yield the lines below the header, which must have the columns of one of `headers`; others are not read.

    With `alone`, a file may have no header: then each line is the cell of this column. Raises `InputError` if the file
    cannot be read, lacks a column or has it twice, or has no line.
    """
    reader = csv.reader(read_text(path).splitlines())
    try:
        first = next(filter(None, reader), [])
        names = [name.strip().lower() for name in first]
        columns = max((header for header in headers if set(header) <= set(names)), key=len, default=None)
        if columns is None and alone is None:
            allowed = " or ".join(f"the columns {', '.join(header)}" for header in headers)
            raise InputError("path", f"{path} with the columns {', '.join(names) or 'none'}", allowed)
        if twice := [name for name in columns or () if names.count(name) > 1]:
            raise InputError("path", f"{path} with two columns {twice[0]}", "each column once")
        places = {name: names.index(name) for name in columns or ()}
        empty = True
        for cells in reader if places else chain([first], reader):
            if cells:
                empty = False
                found = {name: "".join(cells[place : place + 1]).strip() for name, place in places.items()}
                yield TraceLine(path, reader.line_num, found or {alone or "": ",".join(cells).strip()})
    except csv.Error as error:
        raise InputError("path", f"{path} ({error})", "a CSV file") from None
    if empty:
        raise InputError("path", f"{path} without a line below the header", "at least one line")
