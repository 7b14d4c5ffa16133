"""Which process makes a run, and whether it still does."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path


def process_mark(pid: int) -> str | None:
    """Return what tells a process from a later one with the same pid: when and in which boot it began.

    Returns None if there is no such process, or if the system does not say (outside of Linux).
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        of_process = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *rest = of_process.rpartition(")")[2].split()  # the name before it may hold blanks
    return None if state in "ZX" else f"{rest[18]}@{boot}"


@cache
def own_mark(pid: int) -> str | None:
    """Return the mark of this process, whose number is `pid`; that does not change."""
    return process_mark(pid)


def is_running(pid: int, host: str, mark: str | None) -> bool | None:
    """Return whether a process runs on this machine. None: nobody here can know."""
    if host != platform.node():
        return None
    if mark is not None:
        return process_mark(pid) == mark
    if os.name != "posix":
        return None
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # no system has a pid that overflows
        return False
    except OSError:  # it belongs to somebody else
        return True
    return True
