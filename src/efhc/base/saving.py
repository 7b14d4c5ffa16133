"""Files that are whole or not there: written beside their place, then moved into it in one step."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from efhc.base.errors import EfhcError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

UNFINISHED = ".partial"
"""Ending of a file that is being written; one that is left over is of no use."""


def write_safely(path: Path, *content: bytes | memoryview) -> None:
    """Put `content` at `path`. A process killed at any moment leaves the old file, or none, or the new one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_and_move(path, content)
    except OSError as error:
        raise EfhcError(f"{path} cannot be written ({error.strerror})") from error


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """A .safetensors file, straight from the arrays: the library's own `save` would hold a copy of all of them.

    Eight bytes that say how long the header is; the header, JSON; the numbers of all tensors end to end.
    """
    arrays = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    header, end = {}, 0
    for name, array in arrays.items():
        start, end = end, end + array.nbytes
        header[name] = {"dtype": _DTYPES[array.dtype.name], "shape": array.shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that the numbers begin where processors like it
    flat = (array.reshape(-1).view(np.uint8).data for array in arrays.values())
    write_safely(path, len(text).to_bytes(8, "little"), text, *flat)


_DTYPES = {
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
    "bool": "BOOL",
}


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


def _write_and_move(path: Path, content: Iterable[bytes | memoryview]) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{UNFINISHED}")
    try:
        with temporary.open("xb") as file:
            file.writelines(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
