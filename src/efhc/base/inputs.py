"""Files that a user names. A relative path counts from the config file that names it, else from the current folder."""

from __future__ import annotations

import difflib
import errno
import hashlib
import io
import json
import math
import os
import stat
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, BinaryIO, NamedTuple

import numpy as np
from pydantic import BeforeValidator, ValidationInfo

from efhc.base.errors import InputError

CONFIG_FOLDER = "config_folder"
"""Key of the validation context under which the config file's folder is passed."""


def absolute(path: str | Path, folder: Path) -> Path:
    """Return the absolute path; a relative one counts from `folder`."""
    return (folder / os.path.expanduser(path)).absolute()  # noqa: PTH111 - unlike Path's, it leaves ~nobody as it is


def _absolute(path: object, info: ValidationInfo) -> object:
    if not isinstance(path, str | Path):
        return path
    return absolute(path, (info.context or {}).get(CONFIG_FOLDER, Path()))


InputFile = Annotated[Path, BeforeValidator(_absolute)]
"""A path in a config: of a file, or of a folder whose files the code that reads them hashes."""

ZIP_FORMATS = (b"PK\x03\x04", b"PK\x05\x06")
NUMPY_FORMATS = (*ZIP_FORMATS, b"\x93NUMPY")
"""The first bytes of .npz files and of .npy files."""


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
    if (remembered := _known.get().get(path)) is not None:
        return remembered
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode):
            content = path.read_bytes()
            return InputContent(path, content, sha256(content))
        reason = "it is a folder" if stat.S_ISDIR(mode) else "not a regular file"  # a FIFO or a device may never end
    except FileNotFoundError:
        raise InputError(field, path, "a file that exists", f"{path} does not exist{_similar_name(path)}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
    except MemoryError:
        reason = "larger than the free memory"
    raise InputError(field, f"{path} ({reason})", "a file that can be read")


def _similar_name(path: Path) -> str:
    """Return ` (did you mean NAME?)` if the folder has a file with a similar name and the same ending, or nothing."""
    try:
        stems = [one.stem for one in path.parent.iterdir() if one.suffix == path.suffix]
    except OSError:
        return ""
    close = difflib.get_close_matches(path.stem, stems, n=1)
    return f" (did you mean {close[0]}{path.suffix}?)" if close else ""


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
        raise InputError(field, f"{path}, which is damaged or of another kind ({reason})", allowed) from error


def memory_of_machine() -> float:
    """Return the memory of this machine in bytes; infinity if the system does not say."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        return math.inf


def refuse_beyond_memory(unpacked: int) -> None:
    """Raise a MemoryError if a file says that it unpacks to more bytes than the machine has."""
    if unpacked > memory_of_machine():
        raise MemoryError(f"{unpacked:,} bytes once it is unpacked, more than the memory of this machine")


def sha256(content: bytes) -> str:
    """Return the SHA-256 of `content` in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


# Files that may come from another user

FLAGS = os.O_RDONLY
for _name in ("O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC", "O_BINARY"):  # not every system has all of them
    FLAGS |= getattr(os, _name, 0)


def open_regular(path: Path, most_bytes: int | None = None) -> BinaryIO:
    """Open a file to read it. Raises `OSError` if it is no regular file, a link, or larger than `most_bytes`.

    A pipe would keep the reader waiting for ever, a link would show a file from elsewhere, and a huge file would fill
    the memory. Default: of any size, for a library that reads parts of the file.
    """
    file = os.fdopen(os.open(path, FLAGS), "rb")
    found = os.fstat(file.fileno())
    if stat.S_ISREG(found.st_mode) and (most_bytes is None or found.st_size <= most_bytes):
        return file
    file.close()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    raise OSError(errno.EFBIG, f"larger than {most_bytes:,} bytes", str(path))
