"""Files that a user names. A relative path counts from the config file that names it, else from the current folder."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import BeforeValidator, ValidationInfo

from efhc.base.errors import InputError

CONFIG_FOLDER = "config_folder"
"""Key of the validation context under which the config file's folder is handed down."""


def absolute(path: str | Path, folder: Path) -> Path:
    """Return the absolute path; a relative one counts from `folder`."""
    return (folder / os.path.expanduser(path)).absolute()  # noqa: PTH111 - unlike Path's, it leaves ~nobody as it is


def _absolute(path: object, info: ValidationInfo) -> object:
    if not isinstance(path, str | Path):
        return path
    return absolute(path, (info.context or {}).get(CONFIG_FOLDER, Path()))


InputFile = Annotated[Path, BeforeValidator(_absolute)]
"""A path in a config."""

ZIP_FORMATS = (b"PK\x03\x04", b"PK\x05\x06")
NUMPY_FORMATS = (*ZIP_FORMATS, b"\x93NUMPY")
"""The first bytes of .npz files and of .npy files."""

InputFolder = InputFile
"""A path of a folder in a config. The code that reads its files computes their checksums."""


def is_folder(path: Path) -> bool:
    """Return whether `path` is an existing folder."""
    return os.path.isdir(path)  # noqa: PTH112 - unlike Path's, it takes names of any length


class InputContent(NamedTuple):
    """An input file as it was read: its hash and what is computed from it are of the same content."""

    path: Path
    content: bytes
    sha256: str


def read_input(path: Path, field: str = "path") -> InputContent:
    """Read the whole file. Raises `InputError` where that is impossible."""
    if (remembered := _remembered(path)) is not None:
        return remembered
    content = _regular_content(path, field)
    return InputContent(path, content, sha256(content))


def read_bytes(path: Path, field: str = "path") -> bytes:
    """Read the whole file. Raises `InputError` where that is impossible."""
    return read_input(path, field).content


_known: ContextVar[Mapping[Path, InputContent]] = ContextVar("known inputs", default=MappingProxyType({}))
"""Within `using_inputs`, the content of a file is the one given there, whatever the disk says by now."""


@contextmanager
def using_inputs(contents: Mapping[str, InputContent]) -> Iterator[None]:
    """Within the body, these files are read as they are given here, and not from the disk.

    This holds for the calling thread, and for others that run in a copy of its context (`contextvars.copy_context`).
    """
    token = _known.set({**_known.get(), **{given.path: given for given in contents.values()}})
    try:
        yield
    finally:
        _known.reset(token)


def _remembered(path: Path) -> InputContent | None:
    return _known.get().get(path)


def _regular_content(path: Path, field: str) -> bytes:
    """Return the content of a regular file; a folder, FIFO, socket or device, which may never end, is refused."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode):
            return path.read_bytes()
        reason = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
    except MemoryError:
        reason = "larger than the free memory"
    raise InputError(field, f"{path} ({reason})", "a file that can be read")


def read_text(path: Path, field: str = "path") -> str:
    """Return the whole file, which must be UTF-8. Raises `InputError` if it cannot be read."""
    try:
        return read_bytes(path, field).decode("utf-8-sig")  # spreadsheets put a mark in front
    except UnicodeDecodeError:
        raise InputError(field, f"{path} (not UTF-8 text)", "a text file") from None


def read_json(path: Path, allowed: str, field: str = "path") -> Any:
    """Return the content of a JSON file. Raises `InputError`, which quotes `allowed`, if it is not JSON."""
    try:
        return json.loads(read_text(path, field))
    except (ValueError, RecursionError) as error:
        raise InputError(field, f"{path} ({error})", allowed) from None


def parse_numpy(content: bytes, path: Path, allowed: str, field: str = "path") -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file by name; the array of an .npy file has an empty name. Nothing is unpickled."""
    if not content.startswith(NUMPY_FORMATS):
        raise InputError(field, f"{path}, which is not a NumPy file", allowed)
    try:
        if content.startswith(ZIP_FORMATS):
            with zipfile.ZipFile(io.BytesIO(content)) as packed:
                refuse_beyond_memory(sum(member.file_size for member in packed.infolist()))
        loaded = np.load(io.BytesIO(content), allow_pickle=False)
        arrays = dict(loaded) if isinstance(loaded, np.lib.npyio.NpzFile) else {"": loaded}
        if other := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
            raise ValueError(f"its member {other[0]} is not an array")
        return arrays
    except Exception as error:  # a damaged file raises whatever its first wrong byte leads numpy, zip and zlib to
        reason = "it holds Python objects, which are never loaded" if "pickle" in str(error) else error
        raise InputError(field, f"{path}, corrupt or of another kind ({reason})", allowed) from error


def refuse_beyond_memory(unpacked: int) -> None:
    """Raise a MemoryError if a file says that it unpacks to more bytes than the machine has."""
    if hasattr(os, "sysconf") and unpacked > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
        raise MemoryError(f"{unpacked:,} bytes once it is unpacked, more than the memory of this machine")


def sha256(content: bytes) -> str:
    """Return the SHA-256 of `content` in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()
