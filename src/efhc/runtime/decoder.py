"""From bytes to messages with whole models, with all checks before a byte is kept.

A model or a codec's message is put together in one array, whose size this node's own n bounds. So a connection holds at
most one of them, one frame that is not whole, and what came with the last read.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from efhc.core.half_step_messages import Frame
from efhc.runtime.node_messages import Goodbye, Hello, model_in
from efhc.runtime.wire import (
    CHUNK,
    GOODBYE,
    HEADER,
    HELLO,
    LONGEST_CHUNK,
    LONGEST_FRAME,
    LONGEST_PAYLOAD,
    LONGEST_SMALL_FRAME,
    NOT_COUNTED,
    PREFIX,
    Cancel,
    Chunk,
    ModelFormat,
    ModelHeader,
    PayloadHeader,
    WireError,
    decode,
    layout_of_kind,
)

Header = ModelHeader | PayloadHeader


class ModelProgress(NamedTuple):
    """A part of a model has arrived. It is no message, but a sign that things move."""

    model_bytes: int


class _Incoming:
    """A message whose model or codec's message is under way in chunks."""

    def __init__(self, message: Any, header: Header, models: ModelFormat) -> None:
        self._message, self.transfer, self._precision = message, header.transfer, models.precision
        self._on_wire = np.dtype(np.uint8)
        if isinstance(header, ModelHeader):
            if header.values != models.values:
                raise WireError(f"a model of {header.values} values; those of this node have {models.values}")
            if header.dtype != models.dtype:
                raise WireError(f"a model in {header.dtype}; the models of this node are in {models.dtype}")
            self.size, self._on_wire = models.model_bytes, np.dtype(models.dtype).newbyteorder("<")
        else:
            if not LONGEST_PAYLOAD < header.size <= models.longest_payload:
                allowed = f"{LONGEST_PAYLOAD + 1} to {models.longest_payload}"
                raise WireError(f"LONG_FRAME has a payload of {header.size} bytes; allowed: {allowed}")
            self.size = header.size
        self.unit = self._on_wire.itemsize
        """Parts are whole multiples of this number of bytes."""
        self.arrived = 0
        self._data = np.empty(self.size, np.uint8)

    def add(self, data: bytes | memoryview) -> None:
        self._data[self.arrived : self.arrived + len(data)] = np.frombuffer(data, np.uint8)
        self.arrived += len(data)

    @property
    def message(self) -> Any:
        """The whole message, once everything has arrived."""
        if isinstance(self._message, Frame):
            return self._message._replace(payload=self._data.tobytes())
        return self._message._replace(model=self._data.view(self._on_wire).astype(self._precision, copy=False))


class Decoder:
    """The frames of one direction of one connection. After a `WireError` it must not be fed any more."""

    def __init__(self, models: ModelFormat, limit: int = LONGEST_FRAME) -> None:
        self.models = models
        self.limit = limit
        """Largest length of a frame. A connection keeps it low until the other end has sent HELLO."""
        self.greeted = False
        """Whether HELLO has come: before it nothing else is read but GOODBYE."""
        self.ended = False
        """Whether GOODBYE has come: nothing after it is read."""
        self.model_bytes = 0
        self.messages = 0
        """The numbers of bytes and messages that `Got` acknowledges."""
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
                if left >= PREFIX and not any(view[at : at + 4]):  # it has no kind: nothing of it is still to come
                    raise WireError("a frame of no length")
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
            yield from self._message(kind, body[1:])
        self._rest += view[at:]

    @property
    def is_within_chunk(self) -> bool:
        """Whether a part of a model has arrived that is not whole yet."""
        return len(self._rest) >= HEADER.size and self._rest[HEADER.size - 1] == CHUNK

    def _check(self, length: int, kind: int) -> None:
        """Raise `WireError` for a frame that cannot be one, before its payload has come."""
        name, most = layout_of_kind(kind).name, LONGEST_FRAME if kind == CHUNK else LONGEST_SMALL_FRAME
        if not 1 <= length <= most:
            raise WireError(f"{name} has a length of {length} bytes; allowed: 1 to {most}")
        if length > self.limit:
            raise WireError(f"a frame of {length} bytes; allowed by now: {self.limit}")
        if not self.greeted and kind not in (HELLO, GOODBYE):
            raise WireError("the first frame is not HELLO")

    def _message(self, kind: int, payload: memoryview) -> Iterator[Any]:
        message = decode(kind, payload)
        self.messages += kind not in NOT_COUNTED
        if isinstance(message, Chunk):
            yield from self._chunk(*message)
            return
        if isinstance(message, Hello):
            if self.greeted:
                raise WireError("HELLO came twice")
            self.greeted = True
        elif isinstance(message, Cancel):
            if self._incoming is not None and self._incoming.transfer == message.transfer:
                self._incoming = None
            return
        elif isinstance(header := message.payload if isinstance(message, Frame) else model_in(message), Header):
            if header.transfer <= self._last_transfer:
                raise WireError(f"model {header.transfer} came twice")
            if self._incoming is not None:
                raise WireError(f"model {header.transfer} before model {self._incoming.transfer} was whole")
            self._incoming = _Incoming(message, header, self.models)
            self._last_transfer = header.transfer
            return
        elif isinstance(message, Goodbye):
            self.ended = True
        yield message

    def _chunk(self, transfer: int, offset: int, data: bytes | memoryview) -> Iterator[Any]:
        incoming = self._incoming
        if incoming is None or transfer != incoming.transfer:
            raise WireError(f"a part of model {transfer}, which is not under way")
        if offset != incoming.arrived:
            raise WireError(f"a part of a model out of order: at byte {offset} instead of {incoming.arrived}")
        size = len(data)
        if not 0 < size <= LONGEST_CHUNK or size % incoming.unit or offset + size > incoming.size:
            raise WireError(f"a part of a model has {size} bytes at byte {offset} of {incoming.size}")
        incoming.add(data)
        self.model_bytes += size
        yield ModelProgress(size)
        if incoming.arrived == incoming.size and self._incoming is incoming:
            self._incoming = None
            yield incoming.message
