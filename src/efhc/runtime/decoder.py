"""From bytes, as they come, to messages with whole models: all that is checked before a byte is kept.

A model is put together in one array of this node's own n and precision, so a connection holds at most that array, one
frame that is not whole, and what came with the last read: nothing is allocated on the other end's word.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from efhc.runtime.messages import Goodbye, Hello, model_in
from efhc.runtime.wire import (
    BY_NAME,
    CHUNK,
    CHUNK_HEADER,
    HEADER,
    LONGEST_CHUNK,
    LONGEST_FRAME,
    NOT_COUNTED,
    PREFIX,
    Cancel,
    ModelFormat,
    ModelHeader,
    WireError,
    check_header,
    decode,
)


class Progress(NamedTuple):
    """A part of a model has arrived. It is no message, but a sign that things move."""

    model_bytes: int


class _Incoming:
    """A model that is under way."""

    def __init__(self, message: Any, models: ModelFormat) -> None:
        self.message = message
        self.transfer: int = message.model.transfer
        self.array = np.empty(models.values, dtype=models.precision)
        self.arrived = 0


class Decoder:
    """The frames of one direction of one connection. After a `WireError` it must not be fed any more."""

    def __init__(self, models: ModelFormat, limit: int = LONGEST_FRAME) -> None:
        self.models = models
        self.limit = limit
        """Largest length of a frame. A connection keeps it low until the other end has said who it is."""
        self.greeted = False
        """Whether HELLO has come: before it nothing else is read but GOODBYE."""
        self.ended = False
        """Whether GOODBYE has come: nothing after it is read."""
        self.model_bytes = 0
        self.messages = 0
        """What `Got` tells the other end."""
        self._on_wire = np.dtype(models.dtype).newbyteorder("<")
        self._incoming: _Incoming | None = None
        self._last_transfer = 0
        self._rest = bytearray()
        self._needed = HEADER.size

    def feed(self, data: bytes | bytearray) -> Iterator[Any]:
        """Yield the messages that these bytes complete, and `Progress` for parts of models. Raises `WireError`."""
        if self.ended:
            return
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed:
                return
            data, self._rest = self._rest, bytearray()
        view, at = memoryview(data), 0
        while not self.ended:
            left = len(view) - at
            if left < HEADER.size:
                if left >= PREFIX:
                    self._check_length(view[at : at + PREFIX])
                self._needed = HEADER.size if left >= PREFIX else PREFIX
                break
            length, checksum, kind = HEADER.unpack_from(view, at)
            self._check(length, kind)
            if left < PREFIX + length:
                self._needed = PREFIX + length
                break
            body = view[at + PREFIX : at + PREFIX + length]
            at += PREFIX + length
            if zlib.crc32(body) != checksum:
                raise WireError("a frame's checksum is wrong")
            if kind == CHUNK:
                yield from self._chunk(body[1:])
            else:
                yield from self._message(kind, body[1:])
        self._rest += view[at:]

    @staticmethod
    def _check_length(prefix: memoryview) -> None:
        """Refuse a frame without a kind at once: nothing of it is still to come."""
        if not any(prefix[:4]):
            raise WireError("a frame of no length")

    @property
    def is_within_chunk(self) -> bool:
        """Whether a part of a model has arrived that is not whole yet."""
        return len(self._rest) >= HEADER.size and self._rest[HEADER.size - 1] == CHUNK

    def _check(self, length: int, kind: int) -> None:
        check_header(length, kind)
        if length > self.limit:
            raise WireError(f"a frame of {length} bytes; allowed by now: {self.limit}")
        if not self.greeted and kind not in (BY_NAME["HELLO"].kind, BY_NAME["GOODBYE"].kind):
            raise WireError("the first frame is not HELLO")

    def _message(self, kind: int, payload: memoryview) -> Iterator[Any]:
        message = decode(kind, payload)
        self.messages += kind not in NOT_COUNTED
        if isinstance(message, Hello):
            if self.greeted:
                raise WireError("HELLO came twice")
            self.greeted = True
        elif isinstance(message, Cancel):
            self._cancel(message)
            return
        elif isinstance(header := model_in(message), ModelHeader):
            self._announce(message, header)
            return
        elif isinstance(message, Goodbye):
            self.ended = True
        yield message

    def _announce(self, message: Any, header: ModelHeader) -> None:
        if header.values != self.models.values:
            raise WireError(f"a model of {header.values} values; those of this node have {self.models.values}")
        if header.dtype != self.models.dtype:
            raise WireError(f"a model in {header.dtype}; this node was told {self.models.dtype}")
        if header.transfer <= self._last_transfer:
            raise WireError(f"model {header.transfer} came twice")
        if self._incoming is not None:
            raise WireError(f"model {header.transfer} before model {self._incoming.transfer} was whole")
        self._last_transfer = header.transfer
        self._incoming = _Incoming(message, self.models)

    def _chunk(self, payload: memoryview) -> Iterator[Any]:
        incoming = self._incoming
        if len(payload) < CHUNK_HEADER.size:
            raise WireError("CHUNK is too short")
        transfer, offset = CHUNK_HEADER.unpack_from(payload)
        if incoming is None or transfer != incoming.transfer:
            raise WireError(f"a part of model {transfer}, which is not under way")
        if offset != incoming.arrived:
            raise WireError(f"a part of a model out of order: at byte {offset} instead of {incoming.arrived}")
        size, itemsize = len(payload) - CHUNK_HEADER.size, self._on_wire.itemsize
        if not 0 < size <= LONGEST_CHUNK or size % itemsize or offset + size > self.models.model_bytes:
            raise WireError(f"a part of a model has {size} bytes at byte {offset} of {self.models.model_bytes}")
        first = offset // itemsize
        incoming.array[first : first + size // itemsize] = np.frombuffer(payload[CHUNK_HEADER.size :], self._on_wire)
        incoming.arrived += size
        self.model_bytes += size
        yield Progress(size)
        if incoming.arrived == self.models.model_bytes and self._incoming is incoming:
            self._incoming = None
            yield incoming.message._replace(model=incoming.array)

    def _cancel(self, message: Cancel) -> None:
        if self._incoming is not None and self._incoming.transfer == message.transfer:
            self._incoming = None
