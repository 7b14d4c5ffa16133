"""Reading folders that others can write to.

Nobody who may write in the watched folder can show files that the reader alone may read, or stop the page: links are
followed only if the reader made them or if they stay within the folder, files must be regular and of bounded size, and
the number of folders, of runs and of levels in a file is limited.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from efhc.base.errors import EfhcError
from efhc.experiments.runs.naming import KEY

MOST_FOLDERS, DEPTH = 20_000, 8
"""How many folders are searched, and how deep: the watched folder may be a whole disk."""
WITHOUT_RUNS = frozenset({"node_modules", "site-packages", "__pycache__"})
"""Folders that are not searched. Nor are hidden ones and virtual environments: they have thousands of folders."""
MOST_LEVELS, LARGEST = 16, 2**64
"""How deep tables may be nested, and the largest whole number in them."""
MOST_RUNS = 10_000
"""The largest number of runs of one experiment."""


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


def check_runs(strategies: dict[str, Any], seeds: list[int]) -> None:
    """Raise `ValueError` if an experiment has more runs than a page can show."""
    if (runs := len(strategies) * len(seeds)) > MOST_RUNS:
        raise ValueError(f"it has {runs:,} runs; a page shows at most {MOST_RUNS:,}")


def is_own(owner: int) -> bool:
    """Return whether files of a user, given by number, belong to the reader or to root."""
    return owner in (0, os.geteuid() if hasattr(os, "geteuid") else owner)


def may_enter(folder: Path, root: Path) -> bool:
    """Return whether a folder within the watched one is read.

    A link that leads out of the watched folder is followed only if it belongs to the reader or to root. Otherwise
    anybody who may write in the watched folder could show files that the reader alone may read.
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


class Walk:
    """One search through a folder. Folders near its root come first."""

    def __init__(self) -> None:
        self.left_out: str | None = None
        """What was not searched, in words."""

    def folders(self, root: Path) -> Iterator[tuple[Path, set[str]]]:
        """Yield folders with the names in them. The runs of experiments and of stores are not entered."""
        waiting = deque([(root, 0)])
        seen: set[tuple[int, int]] = set()
        further = "To see more, watch a folder further down."
        while waiting:
            if len(seen) >= MOST_FOLDERS:
                self.left_out = f"Only the nearest {MOST_FOLDERS:,} folders were searched. {further}"
                return
            folder, depth = waiting.popleft()
            try:
                with os.scandir(folder) as entries:
                    found = list(entries)
                of_folder = folder.stat()
            except OSError:  # deleted meanwhile, or not readable
                continue
            if (of_folder.st_dev, of_folder.st_ino) in seen:  # a link that leads back
                continue
            seen.add((of_folder.st_dev, of_folder.st_ino))
            names = {entry.name for entry in found}
            yield folder, names
            inner = _inner(found, names, root)
            if depth < DEPTH:
                waiting += [(Path(entry.path), depth + 1) for entry in inner]
            elif inner:
                self.left_out = f"Folders more than {DEPTH} levels down were not searched. {further}"


def _inner(found: Iterable[os.DirEntry[str]], names: set[str], root: Path) -> list[os.DirEntry[str]]:
    """Return the folders to be searched within one, given what is in it."""
    if "pyvenv.cfg" in names:  # a virtual environment
        return []
    is_experiment = "config.toml" in names
    return [
        entry
        for entry in sorted(found, key=lambda entry: entry.name)
        if (entry.name == "nodes" or not is_experiment)
        and not entry.name.startswith(".")
        and entry.name not in WITHOUT_RUNS
        and not KEY.fullmatch(entry.name)
        and _is_folder(entry, root)
    ]


def _is_folder(entry: os.DirEntry[str], root: Path) -> bool:
    try:
        return entry.is_dir() and (not entry.is_symlink() or may_enter(Path(entry.path), root))
    except OSError:
        return False
