"""What may be in the files of a folder that others can write to."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

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


def may_enter(folder: Path, root: Path) -> bool:
    """Return whether a folder within the watched one is read.

    A link that leads out of the watched folder is followed only if it is the reader's own, or root's: else whoever may
    write in the watched folder could show what the reader alone may read.
    """
    try:
        found = folder.lstat()
        if not stat.S_ISLNK(found.st_mode):
            return True
        own = os.geteuid() if hasattr(os, "geteuid") else found.st_uid
        return found.st_uid in (0, own) or folder.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError, ValueError):  # gone meanwhile, or a link to itself
        return False
