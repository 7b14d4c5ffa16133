"""Messages as bytes: one table of layouts, from which encoding, decoding and the published schema come.

Nothing here reads a socket or a clock. Whatever the bytes are, `decode` returns a message of this table or raises
`WireError`: nothing is executed, and nothing is allocated for what has not arrived. A frame is

    u32 length    of what follows the checksum: kind and payload
    u32 checksum  CRC-32 (as in zlib) of kind and payload
    u8  kind      a number of the table `LAYOUTS`
    ... payload   the fields of that kind, in order, nothing between them, nothing after them

All numbers are little-endian. docs/wire.md explains it to writers of other programs.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from efhc.base.errors import printable
from efhc.core import half_step_messages as half_steps
from efhc.core import protocol
from efhc.core.uplink import About
from efhc.runtime import node_messages
from efhc.runtime.node_messages import WIRE_VERSION

LONGEST_CHUNK = 256 * 1024
"""Bytes of a model that one frame carries at most."""
LONGEST_FRAME = LONGEST_CHUNK + 64
"""What `length` may be at most in a frame that carries a part of a model."""
LONGEST_SMALL_FRAME = 16 * 1024
"""What `length` may be at most in any other frame."""
LONGEST_TEXT = 2000
"""Bytes of UTF-8 of a text that people read."""
LONGEST_PAYLOAD = 8 * 1024
"""Bytes of a codec's message that FRAME carries itself. A longer one follows in chunks."""
MOST_NEIGHBOURS = 1024
"""Number of neighbours in an `About`. Of more neighbours, the lowest numbers are sent."""
LARGEST_COUNT = 2**63 - 1
"""Counts fit the signed integers of every language."""

HEADER = struct.Struct("<IIB")
PREFIX = 8
"""Bytes of length and checksum."""


class WireError(Exception):
    """Raised for bytes that this node cannot read. The text is one line with the reason."""


# Messages between connections


class Ping(NamedTuple):
    """The sender is alive, and asks for a `Got`."""


class Got(NamedTuple):
    """What has arrived since the connection was made: the credit of the other end."""

    model_bytes: int
    """Bytes of models, in all chunks together."""
    messages: int
    """All frames but PING, GOT and CHUNK."""
    clock: int
    """When that was so: microseconds of a clock of the sender's choice that never jumps."""


class Chunk(NamedTuple):
    """A part of the model that is under way."""

    transfer: int
    offset: int
    """Bytes of this model that came before."""
    data: bytes | memoryview


class Cancel(NamedTuple):
    """The rest of a model will not come: forget what came."""

    transfer: int


class ModelHeader(NamedTuple):
    """Stands for a model in the frame that announces it; chunks with the same transfer number follow."""

    transfer: int
    """Counts the models that the sender announced on this connection, from 1."""
    values: int
    dtype: str


class PayloadHeader(NamedTuple):
    """Stands for a codec's message in the frame that announces it; chunks with the same transfer number follow."""

    transfer: int
    """Counts the models and messages that the sender announced on this connection, from 1."""
    size: int
    """Bytes."""


class ModelFormat(NamedTuple):
    """How models are sent. Both ends know it beforehand, and headers are compared with it."""

    values: int
    """n"""
    precision: str
    """float32 or float64: what the experiment computes in."""
    wire: str = "exact"
    """`exact`, or `float16`: values were rounded by the sender and are widened by the receiver."""

    @property
    def dtype(self) -> str:
        return self.precision if self.wire == "exact" else self.wire

    @property
    def itemsize(self) -> int:
        return np.dtype(self.dtype).itemsize

    @property
    def model_bytes(self) -> int:
        return self.values * self.itemsize

    @property
    def longest_payload(self) -> int:
        """Bytes that a codec's message about one model has at most: all its numbers, or levels of 32 bits, and places.

        See `efhc.strategies.parts.messages`.
        """
        return 18 + self.values * np.dtype(self.precision).itemsize + -(-self.values // 8)


# Types of fields


class _Reader:
    """The payload of a frame, read field by field."""

    def __init__(self, payload: memoryview, kind: str) -> None:
        self.payload, self.at, self.kind = payload, 0, kind

    def take(self, size: int) -> memoryview:
        if self.at + size > len(self.payload):
            raise WireError(f"{self.kind} is too short")
        self.at += size
        return self.payload[self.at - size : self.at]

    def rest(self) -> memoryview:
        return self.take(len(self.payload) - self.at)


class FieldType(NamedTuple):
    """How one kind of value is laid out."""

    meaning: str
    put: Callable[[Any], bytes]
    get: Callable[[_Reader], Any]


def _numbers(
    code: str, meaning: str, make: Callable[..., Any], parts: Callable[[Any], Sequence[Any]] = lambda value: (value,)
) -> FieldType:
    """Return the layout of a value of one or more numbers.

    `make` returns the value of the numbers or raises `ValueError`, and `parts` returns the numbers of a value.
    """
    layout = struct.Struct(f"<{code}")

    def put(value: Any) -> bytes:
        make(*parts(value))
        return layout.pack(*parts(value))

    def get(reader: _Reader) -> Any:
        try:
            return make(*layout.unpack(reader.take(layout.size)))
        except ValueError as error:
            raise WireError(f"{reader.kind} has {error}") from None

    return FieldType(meaning, put, get)


def _number(code: str, meaning: str, allowed: Callable[[Any], bool] = lambda value: True) -> FieldType:
    def make(value: Any) -> Any:
        if not allowed(value):
            raise ValueError(f"{value} where {meaning} belongs")
        return value

    return _numbers(code, meaning, make)


DTYPES = {1: "float16", 2: "float32", 3: "float64"}


def _flag(value: int) -> bool:
    if value > 1:
        raise ValueError(f"{value} where 0 or 1 belongs")
    return value == 1


def _token(device: int, session: int, count: int) -> protocol.Token:
    if max(session, count) > LARGEST_COUNT:
        raise ValueError("a token beyond 2^63")
    return device, session, count


def _model_header(transfer: int, values: int, dtype: int) -> ModelHeader:
    if dtype not in DTYPES:
        raise ValueError(f"{dtype} as dtype; allowed: {', '.join(map(str, DTYPES))}")
    return ModelHeader(transfer, values, DTYPES[dtype])


def _model_numbers(header: ModelHeader) -> Sequence[int]:
    return *header[:2], next(code for code, name in DTYPES.items() if name == header.dtype)


def _version(version: int) -> int:
    if version != WIRE_VERSION:
        raise WireError(f"the other end speaks wire version {version}; this node speaks {WIRE_VERSION}")
    return version


_COUNT = _number("Q", "a 64-bit unsigned integer below 2^63", lambda value: value <= LARGEST_COUNT)
_U32 = _number("I", "a 32-bit unsigned integer")
_FLAG = _numbers("B", "one byte, 0 or 1", _flag)
_TOKEN = _numbers("IQQ", "u32 device, count session, count number: 20 bytes", _token, tuple)
_ABOUT = (
    _number("d", "a bandwidth", lambda value: 0 < value < math.inf),
    _numbers("H", "", _flag),
    _number("H", f"a number of neighbours, at most {MOST_NEIGHBOURS},", lambda value: value <= MOST_NEIGHBOURS),
)


def _get_optional_token(reader: _Reader) -> protocol.Token | None:
    return _TOKEN.get(reader) if _FLAG.get(reader) else None


def _put_text(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")[:LONGEST_TEXT].decode("utf-8", "ignore").encode()


def _get_text(reader: _Reader) -> str:
    """Return it as one line that cannot steer a terminal, for it goes into logs."""
    if len(data := reader.rest()) > LONGEST_TEXT:
        raise WireError(f"{reader.kind} has a text of {len(data)} bytes; allowed: {LONGEST_TEXT}")
    try:
        return printable(" ".join(str(data, "utf-8").split()))
    except UnicodeDecodeError:
        raise WireError(f"{reader.kind} has a text that is not UTF-8") from None


def _put_counts(counts: tuple[int, ...]) -> bytes:
    return b"".join([_U32.put(len(counts)), *map(_COUNT.put, counts)])


def _get_counts(reader: _Reader) -> tuple[int, ...]:
    return tuple(_COUNT.get(reader) for _ in range(_U32.get(reader)))


def _put_hello(hello: node_messages.Hello) -> bytes:
    return json.dumps(hello._asdict(), separators=(",", ":"), sort_keys=True).encode()


def _get_hello(reader: _Reader) -> node_messages.Hello:
    try:
        given = json.loads(str(reader.rest(), "utf-8"))
    except (ValueError, RecursionError):
        raise WireError("HELLO is not JSON") from None
    names = node_messages.Hello.__annotations__
    if not isinstance(given, dict) or set(given) != set(names):
        raise WireError(f"HELLO does not have exactly the keys {', '.join(names)}")
    for name in ("device", "session", "k", "committed", "undecided"):
        if type(given[name]) is not int or not 0 <= given[name] <= LARGEST_COUNT:
            raise WireError(f"HELLO has no count as {name}")
    fingerprint = given["fingerprint"]
    if not isinstance(fingerprint, dict) or not all(isinstance(value, str) for value in fingerprint.values()):
        raise WireError("HELLO has no table of texts as fingerprint")
    return node_messages.Hello(**given)


def _put_about(about: About) -> bytes:
    neighbours = about.neighbours[:MOST_NEIGHBOURS]
    head = about.rate, about.is_slow, len(neighbours)
    return b"".join([*(each.put(value) for each, value in zip(_ABOUT, head, strict=True)), *map(_U32.put, neighbours)])


def _get_about(reader: _Reader) -> About:
    rate, is_slow, count = (each.get(reader) for each in _ABOUT)
    neighbours = tuple(_U32.get(reader) for _ in range(count))
    if any(one >= other for one, other in pairwise(neighbours)):
        raise WireError(f"{reader.kind} has neighbours that are not in ascending order")
    return About(rate, is_slow, neighbours)


TYPES: dict[str, FieldType] = {
    "u32": _U32,
    "count": _COUNT,
    "share": _number("d", "a 64-bit float above 0 and at most 1", lambda value: 0 < value <= 1),
    "weight": _number("d", "a 64-bit float from 0 to 1", lambda value: 0 <= value <= 1),
    "learning": _number("d", "a 64-bit float, finite and at least 0", lambda value: 0 <= value < math.inf),
    "flag": _FLAG,
    "token": _TOKEN,
    "optional token": FieldType(
        "a flag, and if it is 1 a token",
        lambda token: b"\0" if token is None else b"\1" + _TOKEN.put(token),
        _get_optional_token,
    ),
    "counts": FieldType("a u32, and that many counts", _put_counts, _get_counts),
    "text": FieldType(f"UTF-8 up to the end of the frame, at most {LONGEST_TEXT} bytes", _put_text, _get_text),
    "version": _numbers("H", "a 16-bit unsigned integer: the version of all this", _version, lambda _: (WIRE_VERSION,)),
    "hello": FieldType("a JSON object in UTF-8 up to the end of the frame", _put_hello, _get_hello),
    "model": _numbers(
        "IQB",
        "u32 transfer, count of values, one byte of dtype (1 float16, 2 float32, 3 float64); CHUNK frames follow",
        _model_header,
        _model_numbers,
    ),
    "payload": _numbers("IQ", "u32 transfer, count of bytes; CHUNK frames follow", PayloadHeader, tuple),
    "about": FieldType(
        "a 64-bit float, finite and above 0: parameters per second; a 16-bit integer, 1 if the sender is slow and else "
        f"0; a 16-bit integer, at most {MOST_NEIGHBOURS}, and that many u32, ascending: its neighbours",
        _put_about,
        _get_about,
    ),
    "bytes": FieldType("bytes up to the end of the frame", lambda data: data, _Reader.rest),
}  # fmt: skip


# The table


class Field(NamedTuple):
    """One value in a frame."""

    name: str
    type: str


class Layout:
    """One kind of frame. `docs/wire_schema.py` says what each field means."""

    def __init__(self, kind: int, name: str, message: Callable[..., Any], fields: str, **constants: Any) -> None:
        """`fields` are names and types in order; `constants`, values of the message that are not in the frame."""
        self.kind, self.name, self.message, self.constants = kind, name, message, constants
        self.fields = [Field(*field.split(" ", 1)) for field in fields.split(", ")] if fields else []


_INTRODUCTION = "source token, k count, degree u32"
_FRAME = (
    "source token, target token, number u32, used u32, weight weight, learning learning, k count, acknowledged u32, "
    "degree u32"
)


def _hello(version: int, hello: node_messages.Hello) -> node_messages.Hello:
    return hello


LAYOUTS: tuple[Layout, ...] = (
    Layout(1, "HELLO", _hello, "version version, hello hello"),
    Layout(2, "GOODBYE", node_messages.Goodbye, "final flag, reason text"),
    Layout(3, "PING", Ping, ""),
    Layout(4, "GOT", Got, "model_bytes count, messages count, clock count"),
    Layout(5, "CHUNK", Chunk, "transfer u32, offset count, data bytes"),
    Layout(6, "CANCEL", Cancel, "transfer u32"),
    Layout(16, "OFFER", protocol.Offer, "token token, share share, k count"),
    Layout(17, "ACCEPT", protocol.Accept, "token token, of token, share share, k count"),
    Layout(18, "REFUSE", protocol.Refuse, "of token"),
    Layout(19, "BODY", protocol.Body, "token token, of token, model model"),
    Layout(20, "READY", protocol.Ready, "token token, of token"),
    Layout(21, "COMMIT", protocol.Commit, "token token, of token"),
    Layout(22, "ACKNOWLEDGE", protocol.Acknowledge, "of token"),
    Layout(23, "WITHDRAW", protocol.Withdraw, "token token, of optional token"),
    Layout(24, "ASK_MODEL", protocol.ModelRequest, ""),
    Layout(25, "GIVE_MODEL", protocol.ModelReply, "k count, model model"),
    Layout(26, "NO_MODEL", protocol.ModelReply, "k count", model=None),
    Layout(27, "INTRODUCTION", half_steps.Introduction, _INTRODUCTION + ", model model"),
    Layout(28, "NEWCOMER", half_steps.Introduction, _INTRODUCTION, model=None),
    Layout(29, "FRAME", half_steps.Frame, _FRAME + ", payload bytes", bits=0),
    Layout(30, "LONG_FRAME", half_steps.Frame, _FRAME + ", payload payload", bits=0),
    Layout(31, "FRAME_ACK", half_steps.Acknowledgement,
           "source token, target token, acknowledged u32, sent u32, degree u32"),
    Layout(32, "ITERATION_HEADER", node_messages.IterationHeader, "k count, fired flag, degree u32"),
    Layout(33, "ITERATION_MODEL", node_messages.IterationModel, "k count, model model"),
    Layout(34, "PRESENCE", node_messages.Presence, "device u32, session count, checkpoints counts"),
    Layout(35, "RUN_ENDED", node_messages.RunEnded, "reason text"),
    Layout(36, "FRAME_ABOUT", half_steps.Frame, _FRAME + ", about about, payload bytes", bits=0),
    Layout(37, "LONG_FRAME_ABOUT", half_steps.Frame, _FRAME + ", about about, payload payload", bits=0),
)  # fmt: skip

BY_KIND = {layout.kind: layout for layout in LAYOUTS}
BY_NAME = {layout.name: layout for layout in LAYOUTS}
CHUNK, HELLO, GOODBYE = BY_NAME["CHUNK"].kind, BY_NAME["HELLO"].kind, BY_NAME["GOODBYE"].kind
_BY_MESSAGE: dict[tuple[Any, bool], Layout] = {
    (node_messages.Hello if layout.message is _hello else layout.message, "model" in layout.constants): layout
    for layout in LAYOUTS
}
"""By type of message, and whether it lacks a model that it might have."""
NOT_COUNTED = {BY_NAME[name].kind for name in ("PING", "GOT", "CHUNK")}
"""The frames that `Got.messages` does not count."""


def layout_of(message: Any) -> Layout:
    """Return the layout with which a message is sent."""
    if isinstance(message, half_steps.Frame):
        length = "LONG_" if isinstance(message.payload, PayloadHeader) else ""
        return BY_NAME[f"{length}FRAME{'' if message.about is None else '_ABOUT'}"]
    lacks_model = isinstance(message, protocol.ModelReply | half_steps.Introduction) and message.model is None
    return _BY_MESSAGE[type(message), lacks_model]


def encode(message: Any) -> bytes:
    """Return the frame of a message; a model in it must be a `ModelHeader`, a long payload a `PayloadHeader`."""
    layout = layout_of(message)
    # The fields of HELLO are not those of its message: they are made of the whole.
    values = [getattr(message, field.name, message) for field in layout.fields]
    return frame(
        layout.kind, *(TYPES[field.type].put(value) for field, value in zip(layout.fields, values, strict=True))
    )


def frame(kind: int, *payload: bytes | memoryview) -> bytes:
    """Return the frame of any payload, given in parts, with one copy of it."""
    checksum = zlib.crc32(bytes([kind]))
    for part in payload:
        checksum = zlib.crc32(part, checksum)
    return b"".join((HEADER.pack(1 + sum(map(len, payload)), checksum, kind), *payload))


class Outgoing:
    """A message to send, and how much was sent of what goes in chunks: its model or its long payload."""

    def __init__(self, message: Any, models: ModelFormat) -> None:
        self.message, self._models = message, models
        self.transfer = self.offset = 0
        self.size, self.unit = 0, 1
        """Number of bytes to send in chunks, and the number of bytes of which each chunk is a multiple."""
        self._whole: memoryview | None = None
        if isinstance(message, half_steps.Frame):
            if len(message.payload) > LONGEST_PAYLOAD:
                self._whole = memoryview(message.payload)
                self.size = len(self._whole)
        elif (model := node_messages.model_in(message)) is not None:
            self._array, self._wire = np.ascontiguousarray(model), np.dtype(models.dtype).newbyteorder("<")
            if self._array.shape != (models.values,):
                raise ValueError(f"a model of shape {self._array.shape}; expected {(models.values,)}")
            self._whole = self._array.data.cast("B") if self._array.dtype == self._wire else None
            self.size, self.unit = models.model_bytes, self._wire.itemsize

    def announcement(self, transfer: int) -> Any:
        """Return the message with a header in place of what goes in chunks, which begin."""
        self.transfer = transfer
        if isinstance(self.message, half_steps.Frame):
            return self.message._replace(payload=PayloadHeader(transfer, self.size))
        return self.message._replace(model=ModelHeader(transfer, self._models.values, self._models.dtype))

    def chunk(self, size: int) -> bytes:
        """Return the frame of the next bytes, at most this number."""
        first, self.offset = self.offset, min(self.offset + size, self.size)
        if self._whole is not None:
            part = self._whole[first : self.offset]
        else:
            values = self._array[first // self.unit : self.offset // self.unit]
            part = values.astype(self._wire).data.cast("B")
        return encode(Chunk(self.transfer, first, part))


def encode_whole(message: Any, transfer: int, models: ModelFormat) -> bytes:
    """Return all frames of a message, the model that it may carry included, as if there were no credit to wait for."""
    outgoing = Outgoing(message, models)
    if not outgoing.size:
        return encode(message)
    frames = [encode(outgoing.announcement(transfer))]
    while outgoing.offset < outgoing.size:
        frames.append(outgoing.chunk(LONGEST_CHUNK))
    return b"".join(frames)


def decode(kind: int, payload: bytes | memoryview) -> Any:
    """Return the message of a frame whose checksum is right. Raises `WireError`.

    A model in it is a `ModelHeader`, of which nothing was compared yet.
    """
    layout = layout_of_kind(kind)
    reader = _Reader(memoryview(payload), layout.name)
    values = [TYPES[field.type].get(reader) for field in layout.fields]
    if reader.at != len(reader.payload):
        raise WireError(f"{layout.name} has {len(reader.payload) - reader.at} bytes too many")
    named = layout.constants | {field.name: value for field, value in zip(layout.fields, values, strict=True)}
    if layout.message is half_steps.Frame and not isinstance(named["payload"], PayloadHeader):
        if (size := len(named["payload"])) > LONGEST_PAYLOAD:
            raise WireError(f"{layout.name} has a payload of {size} bytes; allowed: {LONGEST_PAYLOAD}")
        named["payload"] = bytes(named["payload"])
    return layout.message(**named)


def layout_of_kind(kind: int) -> Layout:
    """Return the layout of a kind, or raise `WireError`."""
    if (layout := BY_KIND.get(kind)) is None:
        raise WireError(f"there is no frame of kind {kind}")
    return layout
