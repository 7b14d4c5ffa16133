"""Files that are whole or not there: written beside their place, then moved into it in one step."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import filelock
import numpy as np
import safetensors
import safetensors.numpy

from efhc.base.errors import EfhcError

UNFINISHED = ".partial"
"""Ending of a file that is being written. One that is left over after a kill can be removed."""


def is_unfinished(path: Path) -> bool:
    """Return whether a file is one that `write_safely` was writing."""
    return re.fullmatch(rf"\..+\.[0-9a-f]{{8}}{re.escape(UNFINISHED)}", path.name) is not None


class SaveError(EfhcError):
    """A file cannot be written. It ends the whole command: other files could not be written either."""


def write_safely(path: Path, *content: bytes | memoryview) -> None:
    """Write `content` to `path`. A process killed at any moment leaves the old file, or none, or the new one.

    Raises `SaveError` if the file cannot be written.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, temporary.open("xb") as file:
            file.writelines(content)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise a `SaveError` if the body cannot write at `path`."""
    try:
        yield
    except (OSError, ValueError) as error:  # a ValueError for a path with a NUL in it
        reason = (
            "a file is where a folder is needed" if isinstance(error, FileExistsError | NotADirectoryError) else error
        )
        raise SaveError(f"{path} cannot be written ({getattr(reason, 'strerror', None) or reason})") from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Let the body write a file beside `path`, then move it there once it is on the disk. If it raises, remove it.

    What a symbolic link leads to is replaced, not the link. Raises `OSError` if a device, a pipe or the like is there.
    """
    path = path.resolve() if path.is_symlink() else path
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{UNFINISHED}")
    try:
        yield temporary
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_folder(path: Path, files: Mapping[str, bytes]) -> bool:
    """Create a folder with these files in one step. Returns False if another process has created it meanwhile.

    A process killed at any moment leaves no folder, or the whole one. A machine that loses power may leave damaged
    files: use it for what can be made again, and check what is read. Raises `SaveError` if it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{UNFINISHED}")
    with writing(path):
        temporary.mkdir(parents=True)
        try:
            for name, content in files.items():
                (temporary / name).write_bytes(content)
            temporary.rename(path)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise
    return True


# Arrays

_DTYPES = {
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
    "bool": "BOOL",
}


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray], facts: Mapping[str, str] | None = None) -> None:
    """Write a .safetensors file straight from the arrays. Raises `SaveError` if the file cannot be written."""
    write_safely(path, *tensor_content(tensors, facts))


def tensor_content(
    tensors: Mapping[str, np.ndarray], facts: Mapping[str, str] | None = None
) -> list[bytes | memoryview]:
    """Return the content of a .safetensors file, in parts; the library's own `save` would copy all arrays.

    The file holds the length of the header in eight bytes, the header as JSON, and the numbers of all tensors end to
    end. With `facts` the header also holds these texts and the SHA-256 of the numbers, which `read_tensors` checks.
    """
    arrays = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    flat = [array.reshape(-1).view(np.uint8).data for array in arrays.values()]
    header: dict[str, object] = {}
    if facts is not None:
        digest = hashlib.sha256()
        for numbers in flat:
            digest.update(numbers)
        header["__metadata__"] = {**facts, "sha256": digest.hexdigest()}
    end = 0
    for name, array in arrays.items():
        start, end = end, end + array.nbytes
        header[name] = {"dtype": _DTYPES[array.dtype.name], "shape": array.shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that the numbers are aligned to eight bytes
    return [len(text).to_bytes(8, "little"), text, *flat]


def read_tensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the tensors and facts of a .safetensors file. Raises `ValueError` if it is damaged."""
    content = path.read_bytes()
    try:
        tensors = safetensors.numpy.load(content)
        length = int.from_bytes(content[:8], "little")
        facts: dict[str, str] = json.loads(content[8 : 8 + length]).get("__metadata__", {})
    except (safetensors.SafetensorError, ValueError, KeyError, AttributeError, MemoryError, OverflowError) as error:
        raise ValueError(f"not a whole .safetensors file: {error}") from error
    expected = facts.pop("sha256", None)
    if expected is not None and hashlib.sha256(memoryview(content)[8 + length :]).hexdigest() != expected:
        raise ValueError("its numbers are not those that were written")
    return tensors, facts


# Locks


class BusyError(EfhcError):
    """Another process holds a lock."""


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold a lock on `path` in the body. It is released at the latest when the process ends, however it ends.

    The file stays when the lock is released: removing it would let two processes hold locks on two files of one name.
    Raises `EfhcError` at once if another process or thread holds the lock.
    """
    held = filelock.FileLock(path, timeout=0)
    try:
        held.acquire()
    except filelock.Timeout:
        raise BusyError(f"another process is working on {path.parent}; wait for it, or stop it") from None
    except OSError as error:
        raise SaveError(f"{path} cannot be locked ({error.strerror})") from error
    try:
        yield
    finally:
        held.release()
