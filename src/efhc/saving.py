"""Files that are whole or not there: written beside their place, then moved into it in one step."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from efhc.core.errors import EfhcError


def write_safely(path: Path, content: bytes) -> None:
    """Put `content` at `path`. A process killed at any moment leaves the old file, or none, or the new one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_and_move(path, content)
    except OSError as error:
        raise EfhcError(f"{path} cannot be written ({error.strerror})") from error


def _write_and_move(path: Path, content: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".partial")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
