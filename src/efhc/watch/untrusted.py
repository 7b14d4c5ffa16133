"""Files, folders and answers that others may have written: what of them is read, and how.

A user who may write in the watched folder cannot show files that the reader alone may read, or stop the page: links are
followed only if the reader made them or if they stay within the folder, files must be regular and of bounded size, and
the number of rows of a table and of levels in a file is limited.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from efhc.base.errors import EfhcError
from efhc.base.inputs import open_regular

MOST_LEVELS, LARGEST = 16, 2**64
"""How deep tables may be nested, and the largest whole number in them."""
MOST_ROWS, MOST_ROWS_OF = 20_000_000, {"steps": 100_000_000, "exchanges": 100_000_000}
"""The largest number of rows of a table, and of the largest tables: a few kilobytes can hold any number of rows."""


def check_content(content: Any, levels: int = MOST_LEVELS) -> None:
    """Raise `ValueError` if tables are nested too deep, or hold a number that no run has."""
    if type(content) is int and abs(content) > LARGEST:
        raise ValueError("a number is too large")
    if not isinstance(content, dict | list):
        return
    if not levels:
        raise ValueError(f"it is nested more than {MOST_LEVELS} levels deep")
    inner: Iterable[Any] = content.values() if isinstance(content, dict) else content
    for one in inner:
        check_content(one, levels - 1)


def is_own(owner: int) -> bool:
    """Return whether files of a user, given by number, belong to the reader or to root."""
    return owner in (0, os.geteuid() if hasattr(os, "geteuid") else owner)


def may_enter(folder: Path, root: Path) -> bool:
    """Return whether a folder within the watched one is read.

    A link that leads out of the watched folder is followed only if it belongs to the reader or to root. Otherwise
    any user who may write in the watched folder could show files that the reader alone may read.
    """
    try:
        found = folder.lstat()
        is_link = stat.S_ISLNK(found.st_mode)
        return not is_link or is_own(found.st_uid) or folder.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError, ValueError):  # deleted meanwhile, or a link to itself
        return False


def is_socket(path: Path) -> bool:
    """Return whether a path is a socket itself: a link may lead to one of another program."""
    try:
        return stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        return False


def stamp_of(path: Path) -> tuple[int, int, int] | None:
    """Return what changes whenever a file is written. None: there is no file."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


@contextmanager
def readable(folder: Path) -> Iterator[None]:
    """Raise an `EfhcError` if the body cannot read files of a run: they are damaged, or were deleted meanwhile.

    The data causes every error of the body: a damaged table makes Polars raise anything, even panic.
    """
    try:
        yield
    except EfhcError:
        raise
    except (Exception, pl.exceptions.PanicException) as error:
        text = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise EfhcError(f"{folder.name}: its files cannot be read ({text})") from error


def read_table(folder: Path, name: str) -> pl.LazyFrame:
    """Return a table in a folder.

    Raises `OSError` if it is no regular file, or a link, and `ValueError` if it has more rows than a page can show.
    """
    with open_regular(folder / f"{name}.parquet") as file:
        table = pl.scan_parquet(file)  # the file that was checked, whatever is put in its place
    # The length in the header may be wrong on purpose: the rows that would be read are counted.
    last = table.with_row_index("row number").select(pl.max("row number")).collect().item()
    most = MOST_ROWS_OF.get(name, MOST_ROWS)
    if last is not None and last >= most:
        raise ValueError(f"{name}.parquet has {last + 1:,} rows; a page shows tables of at most {most:,}")
    return table
