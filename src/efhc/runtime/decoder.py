"""From bytes to messages with whole models, with all checks before a byte is kept.

A model is put together in one array of this node's own n and precision, and a codec's message in as many bytes as have
arrived, which n bounds. So a connection holds at most one of them, one frame that is not whole, and what came with the
last read: nothing is allocated because the other end announces it.
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
    CHUNK_HEADER,
    GOODBYE,
    HEADER,
    HELLO,
    LONGEST_CHUNK,
    LONGEST_FRAME,
    LONGEST_PAYLOAD,
    NOT_COUNTED,
    PREFIX,
    Cancel,
    ModelFormat,
    ModelHeader,
    PayloadHeader,
    WireError,
    check_header,
    decode,
)


class ModelProgress(NamedTuple):
    """A part of a model has arrived. It is no message, but a sign that things move."""

    model_bytes: int


class _IncomingModel:
    """A model that is under way."""

    def __init__(self, message: Any, header: ModelHeader, models: ModelFormat) -> None:
        if header.values != models.values:
            raise WireError(f"a model of {header.values} values; those of this node have {models.values}")
        if header.dtype != models.dtype:
            raise WireError(f"a model in {header.dtype}; this node was told {models.dtype}")
        self._message, self.transfer, self.size = message, header.transfer, models.model_bytes
        self.arrived = 0
        self._on_wire = np.dtype(models.dtype).newbyteorder("<")
        self.unit = self._on_wire.itemsize
        """Parts are whole multiples of this number of bytes."""
        self._array = np.empty(models.values, dtype=models.precision)

    def add(self, data: memoryview) -> None:
        first = self.arrived // self.unit
        self._array[first : first + len(data) // self.unit] = np.frombuffer(data, self._on_wire)
        self.arrived += len(data)

    @property
    def message(self) -> Any:
        """The message with its model, once it is whole."""
        return self._message._replace(model=self._array)


class _IncomingPayload:
    """A codec's message that is under way."""

    unit = 1

    def __init__(self, message: Any, header: PayloadHeader, models: ModelFormat) -> None:
        if not LONGEST_PAYLOAD < header.size <= models.longest_payload:
            allowed = f"{LONGEST_PAYLOAD + 1} to {models.longest_payload}"
            raise WireError(f"LONG_FRAME has a payload of {header.size} bytes; allowed: {allowed}")
        self._message, self.transfer, self.size = message, header.transfer, header.size
        self._data = bytearray()

    @property
    def arrived(self) -> int:
        return len(self._data)

    def add(self, data: memoryview) -> None:
        self._data += data

    @property
    def message(self) -> Any:
        """The message with its payload, once it is whole."""
        return self._message._replace(payload=bytes(self._data))


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
        self._incoming: _IncomingModel | _IncomingPayload | None = None
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
            if kind == CHUNK:
                yield from self._chunk(body[1:])
            else:
                yield from self._message(kind, body[1:])
        self._rest += view[at:]

    @property
    def is_within_chunk(self) -> bool:
        """Whether a part of a model has arrived that is not whole yet."""
        return len(self._rest) >= HEADER.size and self._rest[HEADER.size - 1] == CHUNK

    def _check(self, length: int, kind: int) -> None:
        check_header(length, kind)
        if length > self.limit:
            raise WireError(f"a frame of {length} bytes; allowed by now: {self.limit}")
        if not self.greeted and kind not in (HELLO, GOODBYE):
            raise WireError("the first frame is not HELLO")

    def _message(self, kind: int, payload: memoryview) -> Iterator[Any]:
        message = decode(kind, payload)
        self.messages += kind not in NOT_COUNTED
        if isinstance(message, Hello):
            if self.greeted:
                raise WireError("HELLO came twice")
            self.greeted = True
        elif isinstance(message, Cancel):
            if self._incoming is not None and self._incoming.transfer == message.transfer:
                self._incoming = None
            return
        elif isinstance(header := _header_in(message), ModelHeader | PayloadHeader):
            self._announce(message, header)
            return
        elif isinstance(message, Goodbye):
            self.ended = True
        yield message

    def _announce(self, message: Any, header: ModelHeader | PayloadHeader) -> None:
        kind = _IncomingModel if isinstance(header, ModelHeader) else _IncomingPayload
        if header.transfer <= self._last_transfer:
            raise WireError(f"model {header.transfer} came twice")
        if self._incoming is not None:
            raise WireError(f"model {header.transfer} before model {self._incoming.transfer} was whole")
        self._incoming = kind(message, header, self.models)  # type: ignore[arg-type] # of its own kind
        self._last_transfer = header.transfer

    def _chunk(self, payload: memoryview) -> Iterator[Any]:
        incoming = self._incoming
        if len(payload) < CHUNK_HEADER.size:
            raise WireError("CHUNK is too short")
        transfer, offset = CHUNK_HEADER.unpack_from(payload)
        if incoming is None or transfer != incoming.transfer:
            raise WireError(f"a part of model {transfer}, which is not under way")
        if offset != incoming.arrived:
            raise WireError(f"a part of a model out of order: at byte {offset} instead of {incoming.arrived}")
        size = len(payload) - CHUNK_HEADER.size
        if not 0 < size <= LONGEST_CHUNK or size % incoming.unit or offset + size > incoming.size:
            raise WireError(f"a part of a model has {size} bytes at byte {offset} of {incoming.size}")
        incoming.add(payload[CHUNK_HEADER.size :])
        self.model_bytes += size
        yield ModelProgress(size)
        if incoming.arrived == incoming.size and self._incoming is incoming:
            self._incoming = None
            yield incoming.message


def _header_in(message: Any) -> Any:
    """Return the header in place of a model or of a codec's message, if there is one."""
    return message.payload if isinstance(message, Frame) else model_in(message)
