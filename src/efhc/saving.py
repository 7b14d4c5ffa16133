"""Files that are whole or not there: written beside their place, then moved into it in one step."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from efhc.core.errors import EfhcError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

UNFINISHED = ".partial"
"""Ending of a file that is being written; one that is left over is of no use."""


def write_safely(path: Path, content: bytes) -> None:
    """Put `content` at `path`. A process killed at any moment leaves the old file, or none, or the new one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_and_move(path, content)
    except OSError as error:
        raise EfhcError(f"{path} cannot be written ({error.strerror})") from error


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold `path` against other processes; it is let go when this one ends, however it does."""
    try:
        file = path.open("w")
    except OSError as error:
        raise EfhcError(f"{path.parent} cannot be written ({error.strerror})") from error
    with file:
        if fcntl:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise EfhcError(f"another process is working on {path.parent}; wait for it, or stop it") from None
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _write_and_move(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{UNFINISHED}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
