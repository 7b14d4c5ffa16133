"""What nodes say as bytes: one table of layouts, from which encoding, decoding and the published schema come.

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
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from efhc.base.errors import printable
from efhc.core import half_steps, protocol
from efhc.core.uplink import About
from efhc.runtime import messages
from efhc.runtime.messages import WIRE_VERSION

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
"""Numbers of neighbours that a device tells others. Of more, it tells the lowest ones."""
LARGEST_COUNT = 2**63 - 1
"""Counts fit the signed integers of every language."""

HEADER = struct.Struct("<IIB")
PREFIX = 8
"""Bytes of length and checksum."""
CHUNK_HEADER = struct.Struct("<IQ")


class WireError(Exception):
    """Bytes that are not what this node can read; the text is one line that says why."""


# What only connections say to one another


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
    """How models are sent. Both ends know it beforehand: what a header says is only compared with it."""

    values: int
    """n"""
    precision: str
    """float32 or float64: what the experiment computes in."""
    wire: str = "exact"
    """`exact`, or `float16`: values were rounded by the sender and are widened by the receiver."""

    @property
    def dtype(self) -> str:
        """The name of the numbers on the wire."""
        return self.precision if self.wire == "exact" else self.wire

    @property
    def itemsize(self) -> int:
        """Bytes per value on the wire."""
        return np.dtype(self.dtype).itemsize

    @property
    def model_bytes(self) -> int:
        """Bytes of one model on the wire."""
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


def _number(code: str, meaning: str, allowed: Callable[[Any], bool] = lambda value: True) -> FieldType:
    layout = struct.Struct(f"<{code}")

    def put(value: Any) -> bytes:
        if not allowed(value):
            raise ValueError(f"{value!r} cannot be sent as {meaning}")
        return layout.pack(value)

    def get(reader: _Reader) -> Any:
        (value,) = layout.unpack(reader.take(layout.size))
        if not allowed(value):
            raise WireError(f"{reader.kind} has {value} where {meaning} belongs")
        return value

    return FieldType(meaning, put, get)


_COUNT = _number("Q", "a 64-bit unsigned integer below 2^63", lambda value: value <= LARGEST_COUNT)
_U32 = _number("I", "a 32-bit unsigned integer")
_TOKEN = struct.Struct("<IQQ")


def _put_token(token: protocol.Token) -> bytes:
    return _TOKEN.pack(*token)


def _get_token(reader: _Reader) -> protocol.Token:
    device, session, count = _TOKEN.unpack(reader.take(_TOKEN.size))
    if max(session, count) > LARGEST_COUNT:
        raise WireError(f"{reader.kind} has a token beyond 2^63")
    return device, session, count


def _get_flag(reader: _Reader) -> bool:
    (value,) = reader.take(1)
    if value > 1:
        raise WireError(f"{reader.kind} has {value} where 0 or 1 belongs")
    return value == 1


def _get_optional_token(reader: _Reader) -> protocol.Token | None:
    return _get_token(reader) if _get_flag(reader) else None


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
    return struct.pack(f"<I{len(counts)}Q", len(counts), *counts)


def _get_counts(reader: _Reader) -> tuple[int, ...]:
    number = _U32.get(reader)
    return tuple(_COUNT.get(reader) for _ in range(min(number, len(reader.payload)))) if number else ()


def _put_version(version: int) -> bytes:
    return struct.pack("<H", version)


def _get_version(reader: _Reader) -> int:
    (version,) = struct.unpack("<H", reader.take(2))
    if version != WIRE_VERSION:
        raise WireError(f"the other end speaks wire version {version}; this node speaks {WIRE_VERSION}")
    return WIRE_VERSION


def _put_hello(hello: messages.Hello) -> bytes:
    return json.dumps(hello._asdict(), separators=(",", ":"), sort_keys=True).encode()


def _get_hello(reader: _Reader) -> messages.Hello:
    try:
        given = json.loads(str(reader.rest(), "utf-8"))
    except (ValueError, RecursionError):
        raise WireError("HELLO is not JSON") from None
    names = messages.Hello.__annotations__
    if not isinstance(given, dict) or set(given) != set(names):
        raise WireError(f"HELLO does not have exactly the keys {', '.join(names)}")
    for name in ("device", "session", "k", "committed", "undecided"):
        if type(given[name]) is not int or not 0 <= given[name] <= LARGEST_COUNT:
            raise WireError(f"HELLO has no count as {name}")
    fingerprint = given["fingerprint"]
    if not isinstance(fingerprint, dict) or not all(isinstance(value, str) for value in fingerprint.values()):
        raise WireError("HELLO has no table of texts as fingerprint")
    return messages.Hello(**given)


DTYPES = {1: "float16", 2: "float32", 3: "float64"}
_DTYPE_CODES = {name: code for code, name in DTYPES.items()}
_MODEL = struct.Struct("<IQB")


def _put_model(header: ModelHeader) -> bytes:
    return _MODEL.pack(header.transfer, header.values, _DTYPE_CODES[header.dtype])


def _get_model(reader: _Reader) -> ModelHeader:
    transfer, values, dtype = _MODEL.unpack(reader.take(_MODEL.size))
    if dtype not in DTYPES:
        raise WireError(f"{reader.kind} has {dtype} as dtype; allowed: {', '.join(map(str, DTYPES))}")
    return ModelHeader(transfer, values, DTYPES[dtype])


_PAYLOAD = struct.Struct("<IQ")


def _put_payload(header: PayloadHeader) -> bytes:
    return _PAYLOAD.pack(*header)


def _get_payload(reader: _Reader) -> PayloadHeader:
    return PayloadHeader(*_PAYLOAD.unpack(reader.take(_PAYLOAD.size)))


_ABOUT = struct.Struct("<dHH")


def _put_about(about: About) -> bytes:
    if not 0 < about.rate < math.inf:
        raise ValueError(f"{about.rate!r} cannot be sent as a bandwidth")
    neighbours = about.neighbours[:MOST_NEIGHBOURS]
    head = _ABOUT.pack(about.rate, about.is_slow, len(neighbours))
    return head + struct.pack(f"<{len(neighbours)}I", *neighbours)


def _get_about(reader: _Reader) -> About:
    rate, slow, count = _ABOUT.unpack(reader.take(_ABOUT.size))
    if not 0 < rate < math.inf:
        raise WireError(f"{reader.kind} has {rate} where a bandwidth belongs")
    if slow > 1:
        raise WireError(f"{reader.kind} has {slow} where 0 or 1 belongs")
    if count > MOST_NEIGHBOURS:
        raise WireError(f"{reader.kind} has {count} neighbours; allowed: {MOST_NEIGHBOURS}")
    neighbours = struct.unpack(f"<{count}I", reader.take(4 * count))
    if any(one >= other for one, other in pairwise(neighbours)):
        raise WireError(f"{reader.kind} has neighbours that are not in ascending order")
    return About(rate, slow == 1, neighbours)


TYPES: dict[str, FieldType] = {
    "u32": _U32,
    "count": _COUNT,
    "share": _number(
        "d", "a 64-bit float above 0 and at most 1", lambda value: math.isfinite(value) and 0 < value <= 1
    ),
    "weight": _number("d", "a 64-bit float from 0 to 1", lambda value: 0 <= value <= 1),
    "learning": _number("d", "a 64-bit float, finite and at least 0", lambda value: 0 <= value < math.inf),
    "flag": FieldType("one byte, 0 or 1", lambda value: bytes([value]), _get_flag),
    "token": FieldType("u32 device, count session, count number: 20 bytes", _put_token, _get_token),
    "optional token": FieldType(
        "a flag, and if it is 1 a token", lambda token: b"\0" if token is None else b"\1" + _put_token(token),
        _get_optional_token,
    ),
    "counts": FieldType("a u32, and that many counts", _put_counts, _get_counts),
    "text": FieldType(f"UTF-8 up to the end of the frame, at most {LONGEST_TEXT} bytes", _put_text, _get_text),
    "version": FieldType("a 16-bit unsigned integer: the version of all this", _put_version, _get_version),
    "hello": FieldType("a JSON object in UTF-8 up to the end of the frame", _put_hello, _get_hello),
    "model": FieldType(
        "u32 transfer, count of values, one byte of dtype (1 float16, 2 float32, 3 float64); CHUNK frames follow",
        _put_model,
        _get_model,
    ),
    "payload": FieldType("u32 transfer, count of bytes; CHUNK frames follow", _put_payload, _get_payload),
    "about": FieldType(
        "a 64-bit float, finite and above 0: parameters per second; a 16-bit integer, 1 if the sender is slow and else "
        f"0; a 16-bit integer, at most {MOST_NEIGHBOURS}, and that many u32, ascending: its neighbours",
        _put_about,
        _get_about,
    ),
    "bytes": FieldType("bytes up to the end of the frame", bytes, _Reader.rest),
}  # fmt: skip


# The table


class Field(NamedTuple):
    """One value in a frame."""

    name: str
    type: str
    meaning: str


class Layout(NamedTuple):
    """One kind of frame."""

    kind: int
    name: str
    message: Callable[..., Any]
    fields: tuple[Field, ...]
    meaning: str


_TOKEN_FIELD = Field("token", "token", "the sender's name of the exchange")
_OF_FIELD = Field("of", "token", "the receiver's name of the exchange")
_MODEL_FIELD = Field("model", "model", "what is announced")
_INTRODUCTION = (
    Field("source", "token", "the sender's name of this life of the link"),
    Field("k", "count", "the sender's iteration"),
    Field("degree", "u32", "number of neighbours that the sender has"),
)
_ENDS = (
    Field("source", "token", "the sender's name of this life of the link"),
    Field("target", "token", "the receiver's name of it"),
)
_FRAME = (
    *_ENDS,
    Field("number", "u32", "the version of the sender's model that the receiver has after it"),
    Field("used", "u32", "the version of the receiver's model that the step was computed with"),
    Field("weight", "weight", "c"),
    Field("learning", "learning", "l"),
    Field("k", "count", "the sender's iteration"),
    Field("acknowledged", "u32", "the newest version of the receiver's model that the sender has"),
    Field("degree", "u32", "number of neighbours that the sender has"),
)
_ABOUT_FIELD = Field("about", "about", "the bandwidth of the sender's uplink, and its neighbours")
_SHORT_PAYLOAD = Field("payload", "bytes", f"a codec's message, at most {LONGEST_PAYLOAD} bytes")
_LONG_PAYLOAD = Field("payload", "payload", "a codec's message")


def _hello(version: int, hello: messages.Hello) -> messages.Hello:
    return hello


LAYOUTS: tuple[Layout, ...] = (
    Layout(1, "HELLO", _hello, (
        Field("version", "version", "of this protocol"),
        Field("hello", "hello", "keys device, session, k, committed, undecided (counts), fingerprint (texts by name)"),
    ), "Who the sender is. The first frame of each end; the one that dialled speaks first."),
    Layout(2, "GOODBYE", messages.Goodbye, (
        Field("final", "flag", "whether to connect again soon makes no sense"),
        Field("reason", "text", "one line for people"),
    ), "The sender closes the connection. Nothing follows."),
    Layout(3, "PING", Ping, (), "The sender is alive, and asks for GOT."),
    Layout(4, "GOT", Got, (
        Field("model_bytes", "count", "bytes in all CHUNK frames that arrived on this connection"),
        Field("messages", "count", "number of frames that arrived on this connection, but for PING, GOT and CHUNK"),
        Field("clock", "count", "when that was so: microseconds of a clock of the sender's that never jumps"),
    ), "What arrived. Sent after CHUNK frames, and in answer to PING."),
    Layout(5, "CHUNK", Chunk, (
        Field("transfer", "u32", "that of the model under way"),
        Field("offset", "count", "bytes of this model that came before"),
        Field("data", "bytes", f"whole values, at least one, at most {LONGEST_CHUNK} bytes"),
    ), "A part of a model, in order and without gaps."),
    Layout(6, "CANCEL", Cancel, (Field("transfer", "u32", "that of the model under way"),),
           "The rest of this model will not come."),
    Layout(16, "OFFER", protocol.Offer, (
        _TOKEN_FIELD, Field("share", "share", "q_i"), Field("k", "count", "the sender's iteration"),
    ), "Let us exchange models."),
    Layout(17, "ACCEPT", protocol.Accept, (
        _TOKEN_FIELD, _OF_FIELD, Field("share", "share", "q_j"), Field("k", "count", "the sender's iteration"),
    ), "Yes."),
    Layout(18, "REFUSE", protocol.Refuse, (_OF_FIELD,), "Not now. The sender will offer."),
    Layout(19, "BODY", protocol.Body, (_TOKEN_FIELD, _OF_FIELD, _MODEL_FIELD), "The sender's model u follows."),
    Layout(20, "READY", protocol.Ready, (_TOKEN_FIELD, _OF_FIELD), "The sender has kept the step and can make it."),
    Layout(21, "COMMIT", protocol.Commit, (_TOKEN_FIELD, _OF_FIELD), "Both make the step."),
    Layout(22, "ACKNOWLEDGE", protocol.Acknowledge, (_OF_FIELD,), "The sender has kept that it was committed."),
    Layout(23, "WITHDRAW", protocol.Withdraw, (
        _TOKEN_FIELD, Field("of", "optional token", "the receiver's name of the exchange, if the sender knows it"),
    ), "The exchange is off, and the sender has not committed it."),
    Layout(24, "ASK_MODEL", protocol.AskModel, (), "The sender is new: it asks for a model to start from."),
    Layout(25, "GIVE_MODEL", protocol.GiveModel, (Field("k", "count", "the sender's iteration"), _MODEL_FIELD),
           "The model to start from follows."),
    Layout(26, "NO_MODEL", protocol.GiveModel, (Field("k", "count", "the sender's iteration"),),
           "The sender is new itself and has no model to give."),
    Layout(27, "INTRODUCTION", half_steps.Introduction, (*_INTRODUCTION, _MODEL_FIELD),
           "Half-steps: the link begins a new life. The sender's model, version 0, follows."),
    Layout(28, "NEWCOMER", half_steps.Introduction, _INTRODUCTION,
           "Half-steps: the link begins a new life, and the sender waits for a model to start from."),
    Layout(29, "FRAME", half_steps.Frame, (*_FRAME, _SHORT_PAYLOAD), "Half-steps: one step of both ends."),
    Layout(30, "LONG_FRAME", half_steps.Frame, (*_FRAME, _LONG_PAYLOAD),
           "Half-steps: one step of both ends, whose codec's message follows in CHUNK frames."),
    Layout(31, "FRAME_ACK", half_steps.Acknowledgement, (
        *_ENDS,
        Field("acknowledged", "u32", "the newest version of the receiver's model that the sender has"),
        Field("sent", "u32", "number of the last frame that the sender has sent"),
        Field("degree", "u32", "number of neighbours that the sender has"),
    ), "Half-steps: the sender has kept the frames up to this one."),
    Layout(32, "ITERATION_HEADER", messages.IterationHeader, (
        Field("k", "count", "the iteration"),
        Field("fired", "flag", "whether the sender broadcasts in it; with half-steps, whether FRAME follows"),
        Field("degree", "u32", "number of neighbours that the sender has in it"),
    ), "Lockstep: what the sender does in iteration k."),
    Layout(33, "ITERATION_MODEL", messages.IterationModel, (Field("k", "count", "the iteration"), _MODEL_FIELD),
           "Lockstep: the sender's model w(k) follows."),
    Layout(34, "PRESENCE", messages.Presence, (
        Field("device", "u32", "who is there"), Field("session", "count", "which start of it"),
        Field("checkpoints", "counts", "iterations that it can start from, ascending; empty: it has begun"),
    ), "Lockstep: a device is there. Passed on by who hears it first."),
    Layout(35, "RUN_ENDED", messages.RunEnded, (Field("reason", "text", "one line for people"),),
           "Lockstep: the run cannot go on, for anybody. Passed on by who hears it first."),
    Layout(36, "FRAME_ABOUT", half_steps.Frame, (*_FRAME, _ABOUT_FIELD, _SHORT_PAYLOAD),
           "Half-steps: FRAME, with what the sender tells about itself so that its neighbours can choose links."),
    Layout(37, "LONG_FRAME_ABOUT", half_steps.Frame, (*_FRAME, _ABOUT_FIELD, _LONG_PAYLOAD),
           "Half-steps: LONG_FRAME, likewise."),
)  # fmt: skip

BY_KIND = {layout.kind: layout for layout in LAYOUTS}
BY_NAME = {layout.name: layout for layout in LAYOUTS}
CHUNK, HELLO, GOODBYE = BY_NAME["CHUNK"].kind, BY_NAME["HELLO"].kind, BY_NAME["GOODBYE"].kind
_VARIANTS = {"NO_MODEL", "NEWCOMER", "LONG_FRAME", "FRAME_ABOUT", "LONG_FRAME_ABOUT"}
_BY_MESSAGE = {layout.message: layout for layout in LAYOUTS if layout.name not in _VARIANTS}
NOT_COUNTED = {BY_NAME[name].kind for name in ("PING", "GOT", "CHUNK")}
"""The frames that `Got.messages` does not count."""


def layout_of(message: Any) -> Layout:
    """Return the layout with which a message is sent."""
    if isinstance(message, messages.Hello):
        return BY_NAME["HELLO"]
    if isinstance(message, protocol.GiveModel) and message.model is None:
        return BY_NAME["NO_MODEL"]
    if isinstance(message, half_steps.Introduction) and message.model is None:
        return BY_NAME["NEWCOMER"]
    if isinstance(message, half_steps.Frame):
        length = "LONG_" if isinstance(message.payload, PayloadHeader) else ""
        return BY_NAME[f"{length}FRAME{'' if message.about is None else '_ABOUT'}"]
    return _BY_MESSAGE[type(message)]


def encode(message: Any) -> bytes:
    """Return the frame of a message; a model in it must be a `ModelHeader`, a long payload a `PayloadHeader`."""
    layout = layout_of(message)
    if isinstance(message, messages.Hello):
        fields = [_put_version(WIRE_VERSION), _put_hello(message)]
    else:
        fields = [TYPES[field.type].put(getattr(message, field.name)) for field in layout.fields]
    return frame(layout.kind, b"".join(fields))


def frame(kind: int, payload: bytes) -> bytes:
    """Return the frame of any payload."""
    body = bytes([kind]) + payload
    return HEADER.pack(len(body), zlib.crc32(body), kind) + payload


def encode_chunk(transfer: int, offset: int, data: bytes | memoryview) -> bytes:
    """Return the frame of a part of a model, with one copy of it."""
    head = CHUNK_HEADER.pack(transfer, offset)
    checksum = zlib.crc32(data, zlib.crc32(head, _CRC_OF_CHUNK))
    return b"".join((HEADER.pack(1 + len(head) + len(data), checksum, CHUNK), head, data))


_CRC_OF_CHUNK = zlib.crc32(bytes([CHUNK]))


def encode_whole(message: Any, transfer: int, models: ModelFormat) -> bytes:
    """Return all frames of a message, the model that it may carry included, as if there were no credit to wait for."""
    if (body := body_of(message, models)) is None:
        return encode(message)
    starts = range(0, len(body), LONGEST_CHUNK)
    chunks = [encode_chunk(transfer, at, body[at : at + LONGEST_CHUNK]) for at in starts]
    return b"".join([encode(announcement(message, transfer, models)), *chunks])


def body_of(message: Any, models: ModelFormat) -> memoryview | None:
    """Return what of a message goes in chunks: a model, without a copy if that is possible, or a long payload."""
    if isinstance(message, half_steps.Frame):
        return memoryview(message.payload) if len(message.payload) > LONGEST_PAYLOAD else None
    if (model := messages.model_in(message)) is None:
        return None
    if model.shape != (models.values,):
        raise ValueError(f"a model of shape {model.shape}; expected {(models.values,)}")
    return np.ascontiguousarray(model, np.dtype(models.dtype).newbyteorder("<")).data.cast("B")


def announcement(message: Any, transfer: int, models: ModelFormat) -> Any:
    """Return a message with a header in place of what goes in chunks."""
    if isinstance(message, half_steps.Frame):
        return message._replace(payload=PayloadHeader(transfer, len(message.payload)))
    return message._replace(model=ModelHeader(transfer, models.values, models.dtype))


def decode(kind: int, payload: bytes | memoryview) -> Any:
    """Return the message of a frame whose checksum is right. Raises `WireError`.

    A model in it is a `ModelHeader`, of which nothing was compared yet.
    """
    layout = layout_of_kind(kind)
    reader = _Reader(memoryview(payload), layout.name)
    values = [TYPES[field.type].get(reader) for field in layout.fields]
    if reader.at != len(reader.payload):
        raise WireError(f"{layout.name} has {len(reader.payload) - reader.at} bytes too many")
    if layout.name == "NO_MODEL":
        return protocol.GiveModel(values[0], None)
    if layout.name == "NEWCOMER":
        source, k, degree = values
        return half_steps.Introduction(source, k, degree, None)
    if layout.message is _hello:
        return values[1]
    named = {field.name: value for field, value in zip(layout.fields, values, strict=True)}
    if layout.message is half_steps.Frame:
        if not isinstance(named["payload"], PayloadHeader):
            if len(named["payload"]) > LONGEST_PAYLOAD:
                size = len(named["payload"])
                raise WireError(f"{layout.name} has a payload of {size} bytes; allowed: {LONGEST_PAYLOAD}")
            named["payload"] = bytes(named["payload"])
        return half_steps.Frame(**named, bits=0)  # the sender alone counts bits
    return layout.message(**named)


def layout_of_kind(kind: int) -> Layout:
    """Return the layout of a kind, or raise `WireError`."""
    if (layout := BY_KIND.get(kind)) is None:
        raise WireError(f"there is no frame of kind {kind}")
    return layout


def check_header(length: int, kind: int) -> None:
    """Raise `WireError` for a frame that cannot be one, before its payload has come."""
    name = layout_of_kind(kind).name
    limit = LONGEST_FRAME if kind == CHUNK else LONGEST_SMALL_FRAME
    if not 1 <= length <= limit:
        raise WireError(f"{name} has a length of {length} bytes; allowed: 1 to {limit}")
