"""Reading files that somebody else may have put there: regular files only, through no link, of bounded size.

A pipe would keep the reader waiting for ever, a link would show a file from elsewhere, and a huge file would fill the
memory.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

FLAGS = os.O_RDONLY
for name in ("O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC", "O_BINARY"):  # not every system has all of them
    FLAGS |= getattr(os, name, 0)


def open_regular(path: Path, most_bytes: int | None = None) -> BinaryIO:
    """Open a file to read it. Raises `OSError` if it is no regular file, a link, or larger than `most_bytes`.

    Default: of any size, for a library that reads parts of the file.
    """
    file = os.fdopen(os.open(path, FLAGS), "rb")
    try:
        found = os.fstat(file.fileno())
        _check(found, path)
        if most_bytes is not None and found.st_size > most_bytes:
            raise _too_large(path, most_bytes)
    except BaseException:
        file.close()
        raise
    return file


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Return what is in a file. Raises `OSError` as `open_regular` does, also if the file grows beyond `most_bytes`."""
    with open_regular(path, most_bytes) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise _too_large(path, most_bytes)
    return content


def _check(found: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def _too_large(path: Path, most_bytes: int) -> OSError:
    return OSError(errno.EFBIG, f"larger than {most_bytes:,} bytes", str(path))
