"""What made a result: versions, git state, machine, process."""

from __future__ import annotations

import os
import platform
import subprocess
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("efhc", "numpy", "scipy", "numba", "networkx", "polars", "pydantic")


def provenance(seconds_ago: float = 0.0) -> dict[str, Any]:
    """Return the time, the versions, the git state and the machine, as meta.json holds them.

    What is described began `seconds_ago`.
    """
    return {
        "started": (datetime.now(UTC) - timedelta(seconds=seconds_ago)).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), **_versions()},
        "git": _git_state(Path.cwd()),
        "machine": machine(),
    }


@cache
def _versions() -> dict[str, str]:
    """Return what is installed. It is read once: each lookup reads the whole description of a package."""
    found = {name: version(name) for name in PACKAGES}
    with suppress(PackageNotFoundError):  # only networks need it
        found["torch"] = version("torch")
    return found


@cache
def _git_state(folder: Path) -> dict[str, Any] | None:
    """Return the commit of the repository of the current folder; None outside of one.

    Whether files have changed since is not recorded: the repository may belong to another user, and `git status`
    runs programs that its settings name (filters, monitors, transports).
    """
    command = ["git", "-c", "core.fsmonitor=", "rev-parse", "--verify", "HEAD"]
    quiet = os.environ | {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10, env=quiet, cwd=folder)
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": done.stdout.strip()}


@cache
def machine() -> dict[str, Any]:
    """Return the operating system, the processor, the number of cores and the memory of this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None
    return {
        "system": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": memory,
    }


def process_mark(pid: int) -> str | None:
    """Return what distinguishes a process from a later one with the same pid: when and in which boot it began.

    Returns None if there is no such process, or if the system does not say (outside of Linux).
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        of_process = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *rest = of_process.rpartition(")")[2].split()  # the name before it may hold blanks
    return None if state in "ZX" else f"{rest[18]}@{boot}"


own_mark = cache(process_mark)
"""The mark of this process, given its number. It does not change."""


def is_running(pid: int, host: str, mark: str | None) -> bool | None:
    """Return whether a process runs on this machine. None: it cannot be known here."""
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
    except OSError:  # it belongs to another user
        return True
    return True
