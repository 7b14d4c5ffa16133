"""What made a result: versions, git state, machine."""

from __future__ import annotations

import os
import platform
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("efhc", "numpy", "scipy", "numba", "networkx", "polars", "pydantic")


def provenance() -> dict[str, Any]:
    """Return the time, the versions, the git state and the machine, as meta.json holds them."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
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

    Whether files have changed since is not asked: the repository may be somebody else's, and `git status` runs
    programs that its settings name (filters, monitors, transports).
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
