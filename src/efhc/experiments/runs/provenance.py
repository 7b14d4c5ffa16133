"""What made a result: versions, git state, machine."""

from __future__ import annotations

import os
import platform
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

PACKAGES = ("efhc", "numpy", "scipy", "numba", "networkx", "polars", "pydantic")


def provenance() -> dict[str, Any]:
    """Return the time, the versions, the git state and the machine, as meta.json holds them."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), **_versions()},
        "git": git_state(),
        "machine": machine(),
    }


def _versions() -> dict[str, str]:
    found = {name: version(name) for name in PACKAGES}
    with suppress(PackageNotFoundError):  # only networks need it
        found["torch"] = version("torch")
    return found


def git_state() -> dict[str, Any] | None:
    """Return the commit of the current folder's repository and whether it has changes; None outside a repository."""
    try:
        commit = _git("rev-parse", "HEAD")
        return {"commit": commit, "changed": bool(_git(*_harmless_settings(), "status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None


COMMANDS_IN_GIT = r"^(filter\..*|core\.(fsmonitor|hookspath|sshcommand|pager|editor|askpass)|diff\..*|.*\.command)$"
"""Settings of a repository that make git run programs. The repository may be somebody else's."""


def _harmless_settings() -> list[str]:
    """Options that switch off every program that the repository's own config asks git to run."""
    try:
        names = _git("config", "--local", "--includes", "--name-only", "--get-regexp", COMMANDS_IN_GIT).split()
    except subprocess.CalledProcessError:  # there is none
        names = []
    found = {*names, "core.fsmonitor"}
    return [word for name in sorted(found) for word in ("-c", f"{name}={'false' if name.endswith('required') else ''}")]


def _git(*words: str) -> str:
    quiet = os.environ | {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    command = ["git", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10, env=quiet).stdout.strip()


def machine() -> dict[str, Any]:
    """Return the operating system, the processor, the number of cores and the memory of this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None
    return {
        "system": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": memory,
    }
