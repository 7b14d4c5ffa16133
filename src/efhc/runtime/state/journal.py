"""An append-only file of records, each with its length and checksum, of which a kill leaves a beginning.

A record holds the mark of its file, the CRC-32 of what follows, its kind, its length and its payload. `append` returns
once all its records are on the disk. The last of them is a STATE or a FRAME, which seals those before it: `read`
returns records up to the last one of these that is whole. The header of the file names the checkpoint that it follows.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from typing import BinaryIO, NamedTuple

from typing_extensions import Buffer

from efhc.base.saving import SaveError, write_safely, writing
from efhc.runtime.state.state_folder import sync_folder

MARK_BYTES = 8
_MAGIC = b"efhcjrn1"
_HEADER = struct.Struct(f"<8sQ{MARK_BYTES}s")
_CHECKSUM = struct.Struct("<I")
_CHECKED = struct.Struct("<BQ")
_RECORD_BYTES = MARK_BYTES + _CHECKSUM.size + _CHECKED.size
_START = _HEADER.size + _CHECKSUM.size
_CHUNK = 1 << 20


class Kind(IntEnum):
    """The kind of a record."""

    MODEL = 1
    STEP = 2
    STATE = 3
    FRAME = 4


_KINDS = frozenset(Kind)
_SEALS = frozenset({Kind.STATE, Kind.FRAME})


class JournalRecord(NamedTuple):
    """Where a whole record is."""

    kind: Kind
    start: int
    """The position of its payload in the file."""
    length: int
    """The length of its payload."""

    @property
    def end(self) -> int:
        return self.start + self.length


class Contents(NamedTuple):
    """The contents of a journal file."""

    number: int
    """The checkpoint that it follows."""
    mark: bytes
    """The mark of that checkpoint."""
    records: list[JournalRecord]
    """Up to the last STATE or FRAME."""
    length: int
    """The position after the last of them: what follows is to be cut."""
    cut: int
    """The number of bytes that follow."""
    damaged: bool
    """Whether whole records follow a damaged one: then it was not the end that a kill tore."""


class Journal:
    """A journal that is open for more records."""

    def __init__(self, path: Path, mark: bytes, length: int) -> None:
        """Open the file at `path` and cut it to `length` bytes. Raises `SaveError` if it cannot be written."""
        self.path, self.length = path, length
        self._mark, self._failed = mark, False
        with writing(path):
            self._file = path.open("r+b", buffering=0)
            self._file.truncate(length)
            self._file.seek(length)

    @classmethod
    def create(cls, path: Path, number: int, mark: bytes) -> Journal:
        """Put an empty journal that follows checkpoint `number` in the place of any other."""
        header = _HEADER.pack(_MAGIC, number, mark)
        write_safely(path, header, _CHECKSUM.pack(zlib.crc32(header)))
        sync_folder(path.parent)
        return cls(path, mark, _START)

    def append(self, records: Iterable[tuple[Kind, Sequence[Buffer]]]) -> None:
        """Write records, the last one a STATE or a FRAME, onto the disk. A payload is given in parts.

        Raises `SaveError` if they cannot be written: then none is kept, nor is any later one. What an operating
        system has done with the pages of a file after an error is unknown, so only a new journal is written again.
        """
        if self._failed:
            raise SaveError(f"{self.path} cannot be written (an earlier write failed)")
        length = self.length
        try:
            with writing(self.path):
                for kind, parts in records:
                    length += self._write(kind, [memoryview(part).cast("B") for part in parts])
                os.fsync(self._file.fileno())
        except BaseException:
            self._failed = True
            self._take_back()
            raise
        self.length = length

    def _write(self, kind: Kind, parts: Sequence[memoryview]) -> int:
        checked = _CHECKED.pack(kind, sum(part.nbytes for part in parts))
        checksum = zlib.crc32(checked)
        for part in parts:
            checksum = zlib.crc32(part, checksum)
        head = self._mark + _CHECKSUM.pack(checksum) + checked
        for part in (memoryview(head), *parts):
            written = 0
            while written < part.nbytes:  # an unbuffered file may take a part of it only
                written += self._file.write(part[written:]) or 0
        return len(head) + sum(part.nbytes for part in parts)

    def _take_back(self) -> None:
        """Cut what was written in part. If even this fails, `read` finds a torn end, which is as good."""
        try:
            self._file.truncate(self.length)
            self._file.seek(self.length)
        except OSError:
            pass

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> Contents | None:
    """Return what a journal holds, or None if its header is damaged. Raises `OSError` if it cannot be read."""
    size = path.stat().st_size
    with path.open("rb") as file:
        header, checksum = file.read(_HEADER.size), file.read(_CHECKSUM.size)
        if len(checksum) < _CHECKSUM.size or _CHECKSUM.unpack(checksum)[0] != zlib.crc32(header):
            return None
        magic, number, mark = _HEADER.unpack(header)
        if magic != _MAGIC:
            return None
        records, position = [], _START
        while (record := _record_at(file, position, size, mark)) is not None:
            records.append(record)
            position = record.end
        damaged = any(_record_at(file, mark_at, size, mark) for mark_at in _marks(file, position + 1, mark))
    sealed = max((n for n, record in enumerate(records, 1) if record.kind in _SEALS), default=0)
    length = records[sealed - 1].end if sealed else _START
    return Contents(number, mark, records[:sealed], length, size - length, damaged)


def read_payload(file: BinaryIO, record: JournalRecord) -> bytes:
    """Return the payload of a record."""
    file.seek(record.start)
    return file.read(record.length)


def _record_at(file: BinaryIO, position: int, size: int, mark: bytes) -> JournalRecord | None:
    """Return the record at a position, or None if there is no whole one."""
    file.seek(position)
    head = file.read(_RECORD_BYTES)
    if len(head) < _RECORD_BYTES or not head.startswith(mark):
        return None
    (expected,) = _CHECKSUM.unpack_from(head, MARK_BYTES)
    checked = head[MARK_BYTES + _CHECKSUM.size :]
    kind, length = _CHECKED.unpack(checked)
    if kind not in _KINDS or position + _RECORD_BYTES + length > size:
        return None
    checksum, left = zlib.crc32(checked), length
    while left > 0:
        chunk = file.read(min(left, _CHUNK))
        if not chunk:
            return None
        checksum, left = zlib.crc32(chunk, checksum), left - len(chunk)
    return JournalRecord(Kind(kind), position + _RECORD_BYTES, length) if checksum == expected else None


def _marks(file: BinaryIO, position: int, mark: bytes) -> Iterator[int]:
    """Yield each position from `position` on at which the mark of the file is: there a record may begin."""
    while True:
        file.seek(position)
        chunk = file.read(_CHUNK)
        found = chunk.find(mark)
        while found >= 0:
            yield position + found
            found = chunk.find(mark, found + 1)
        if len(chunk) < _CHUNK:
            return
        position += len(chunk) - len(mark) + 1  # a mark may lie across two chunks
