"""The layouts: every message comes back, the published schema is that of the code, and what is wrong has a name."""

from __future__ import annotations

import json
import runpy
import struct
import typing
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from efhc.core import half_step_messages as half_steps
from efhc.core import protocol
from efhc.core.cost import ABOUT_BYTES, ACKNOWLEDGEMENT_BYTES, FRAME_HEADER_BYTES, NEIGHBOUR_BYTES
from efhc.core.uplink import About
from efhc.runtime import node_messages, wire
from efhc.runtime.decoder import Decoder, ModelProgress

DOCS = Path(__file__).parents[2] / "docs"
MODELS = wire.ModelFormat(3, "float32")
TOKEN, OTHER = (3, 41, 7), (0, 5, 2**63 - 1)
HELLO = node_messages.Hello(3, 41, {"model": "svm"}, 12, committed=4, undecided=1)
SMALL = [
    HELLO,
    node_messages.Goodbye("seen enough", final=True),
    wire.Ping(),
    wire.Got(4096, 3, 12_345_678),
    wire.Cancel(2),
    protocol.Offer(TOKEN, 0.25, 12),
    protocol.Accept(TOKEN, OTHER, 1 / 3, 12),
    protocol.Refuse(OTHER),
    protocol.Ready(TOKEN, OTHER),
    protocol.Commit(TOKEN, OTHER),
    protocol.Acknowledge(OTHER),
    protocol.Withdraw(TOKEN, None),
    protocol.Withdraw(TOKEN, OTHER),
    protocol.ModelRequest(),
    protocol.ModelReply(12, None),
    half_steps.Introduction(TOKEN, 12, 5, None),
    half_steps.Frame(TOKEN, OTHER, 4, 2, 0.125, 0.5, b"\1\2\3", 0, 12, 2, 5),
    half_steps.Frame(TOKEN, OTHER, 4, 2, 0.125, 0.5, b"\1\2\3", 0, 12, 2, 5, About(4000.0, True, (0, 7, 2**32 - 1))),
    half_steps.Frame(TOKEN, OTHER, 4, 2, 0.125, 0.5, b"", 0, 12, 2, 5, About(5e-324, False, ())),
    half_steps.Acknowledgement(TOKEN, OTHER, 4, 2, 5),
    node_messages.IterationHeader(12, fired=True, degree=5),
    node_messages.Presence(3, 41, (0, 50, 100)),
    node_messages.Presence(3, 41, ()),
    node_messages.RunEnded("device 3 has lost its state"),
    node_messages.RunEnded(""),
]
MODEL = np.array([1.5, -2.0, 0.25], "float32")
LARGE = [
    protocol.Body(TOKEN, OTHER, MODEL),
    protocol.ModelReply(12, MODEL),
    half_steps.Introduction(TOKEN, 12, 5, MODEL),
    node_messages.IterationModel(12, MODEL),
]


def fresh(models=MODELS, *, greeted=True):
    decoder = Decoder(models)
    decoder.greeted = greeted
    return decoder


def all_of(decoder, data):
    return list(decoder.feed(data))


def refused(data, models=MODELS, *, greeted=True):
    with pytest.raises(wire.WireError) as refusal:
        all_of(fresh(models, greeted=greeted), data)
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


LONG = {"CHUNK", "LONG_FRAME", "LONG_FRAME_ABOUT"}


def test_every_message_that_nodes_send_has_a_layout():
    sent = {*typing.get_args(node_messages.Message), node_messages.Hello, node_messages.Goodbye}
    assert sent <= {type(message) for message in SMALL + LARGE}
    assert {wire.layout_of(message).name for message in SMALL + LARGE} | LONG == set(wire.BY_NAME)
    assert len(wire.BY_KIND) == len(wire.BY_NAME) == len(wire.LAYOUTS)


@pytest.mark.parametrize("message", LARGE, ids=lambda message: type(message).__name__)
@pytest.mark.parametrize(("precision", "how"), [("float32", "exact"), ("float64", "exact"), ("float64", "float16")])
def test_a_model_comes_back_in_the_precision_of_the_experiment(message, precision, how):
    models = wire.ModelFormat(3, precision, how)
    data = wire.encode_whole(message._replace(model=MODEL.astype(precision)), 1, models)
    *progress, arrived = all_of(fresh(models), data)
    assert progress == [ModelProgress(3 * models.itemsize)]
    assert type(arrived) is type(message)
    assert arrived._replace(model=None) == message._replace(model=None)
    assert arrived.model.dtype == precision
    assert np.array_equal(arrived.model, MODEL)


@given(st.lists(st.integers(1, 200), max_size=60))
def test_bytes_may_come_in_any_pieces(sizes):
    stream = b"".join(wire.encode(message) for message in SMALL if not isinstance(message, node_messages.Goodbye))
    stream += wire.encode_whole(LARGE[0], 1, MODELS)
    decoder, arrived, at = fresh(greeted=False), [], 0
    for size in [*sizes, len(stream)]:
        arrived += all_of(decoder, stream[at : at + size])
        at += size
    kept = (node_messages.Goodbye, wire.Cancel)
    assert arrived[:-2] == [message for message in SMALL if not isinstance(message, kept)]
    assert np.array_equal(arrived[-1].model, MODEL)


# What is refused


def test_nothing_is_read_before_hello():
    assert refused(wire.encode(wire.Ping()), greeted=False) == "the first frame is not HELLO"
    assert refused(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", greeted=False) == "there is no frame of kind 84"


def test_hello_comes_once_and_nothing_after_goodbye():
    assert refused(wire.encode(HELLO) * 2, greeted=False) == "HELLO came twice"
    decoder = fresh()
    goodbye = node_messages.Goodbye("enough")
    assert all_of(decoder, wire.encode(goodbye) + b"\xff" * 100) == [goodbye]
    assert all_of(decoder, b"\xff" * 100) == []


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (b"[]", "HELLO does not have exactly the keys device, session, fingerprint, k, committed, undecided"),
        (b"not json", "HELLO is not JSON"),
        (b"[" * 5000, "HELLO is not JSON"),
        (b"\xff\xfe", "HELLO is not JSON"),
    ],
)
def test_a_hello_that_is_none(given, reason):
    assert refused(wire.frame(wire.HELLO, struct.pack("<H", 1) + given), greeted=False) == reason


@pytest.mark.parametrize(
    ("key", "value"),
    [("device", -1), ("device", True), ("session", 2**63), ("k", 1.5), ("committed", "3"), ("undecided", True),
     ("fingerprint", []), ("fingerprint", {"n": 3})],
)  # fmt: skip
def test_a_hello_with_a_value_of_another_type(key, value):
    payload = struct.pack("<H", 1) + json.dumps({**HELLO._asdict(), key: value}).encode()
    assert key in refused(wire.frame(wire.HELLO, payload), greeted=False)


def test_lengths_are_bounded_before_anything_is_awaited():
    header = struct.pack("<IIB", 2**32 - 1, 0, wire.CHUNK)
    assert refused(header) == "CHUNK has a length of 4294967295 bytes; allowed: 1 to 262208"
    header = struct.pack("<IIB", 20_000, 0, wire.BY_NAME["OFFER"].kind)
    assert refused(header) == "OFFER has a length of 20000 bytes; allowed: 1 to 16384"
    assert refused(struct.pack("<IIB", 0, 0, wire.CHUNK)).startswith("CHUNK has a length of 0")
    limited = Decoder(MODELS, limit=100)
    limited.greeted = True
    with pytest.raises(wire.WireError, match="a frame of 101 bytes; allowed by now: 100"):
        all_of(limited, struct.pack("<IIB", 101, 0, wire.CHUNK))


@pytest.mark.parametrize("message", [m for m in SMALL if not isinstance(m, node_messages.Hello)], ids=repr)
def test_too_many_and_too_few_bytes(message):
    layout = wire.layout_of(message)
    payload = wire.encode(message)[wire.HEADER.size :]
    if layout.fields and layout.fields[-1].type not in ("text", "bytes"):
        assert refused(wire.frame(layout.kind, payload[:-1])) == f"{layout.name} is too short"
        assert refused(wire.frame(layout.kind, payload + b"\0")) == f"{layout.name} has 1 bytes too many"


@pytest.mark.parametrize("share", [float("nan"), float("inf"), -0.5, 0.0, 1.5])
def test_a_share_is_a_share(share):
    payload = struct.pack("<IQQdQ", *TOKEN, share, 3)
    assert "where a 64-bit float above 0 and at most 1 belongs" in refused(wire.frame(16, payload))
    with pytest.raises(ValueError, match="above 0 and at most 1"):
        wire.encode(protocol.Offer(TOKEN, share, 3))


def test_counts_flags_texts_and_dtypes_have_bounds():
    assert "beyond 2^63" in refused(wire.frame(18, struct.pack("<IQQ", 1, 2**63, 1)))
    assert "below 2^63" in refused(wire.frame(26, struct.pack("<Q", 2**63)))
    assert "where 0 or 1 belongs" in refused(wire.frame(2, b"\2reason"))
    assert refused(wire.frame(2, b"\1\xff")) == "GOODBYE has a text that is not UTF-8"
    assert "a text of 3000 bytes" in refused(wire.frame(35, b"x" * 3000))
    assert "has 9 as dtype" in refused(wire.frame(33, struct.pack("<QIQB", 1, 1, 3, 9)))
    assert refused(wire.frame(34, struct.pack("<IQI", 1, 1, 2**32 - 1))) == "PRESENCE is too short"


def test_a_text_cannot_steer_a_terminal_and_is_one_line():
    (arrived,) = all_of(fresh(), wire.encode(node_messages.RunEnded("two\nlines \x1b[31m" + "é" * 3000)))
    assert arrived.reason.startswith("two lines \\x1b[31mé")
    assert len(arrived.reason.encode()) <= wire.LONGEST_TEXT + 10


def announced(transfer=1, values=3, dtype="float32"):
    return wire.encode(protocol.Body(TOKEN, OTHER, wire.ModelHeader(transfer, values, dtype)))


def part(offset, data, transfer=1):
    return wire.encode(wire.Chunk(transfer, offset, data))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (announced(values=4), "a model of 4 values; those of this node have 3"),
        (announced(values=2**62), "a model of 4611686018427387904 values; those of this node have 3"),
        (announced(dtype="float64"), "a model in float64; the models of this node are in float32"),
        (announced() * 2, "model 1 came twice"),
        (announced() + announced(2), "model 2 before model 1 was whole"),
        (wire.encode_whole(LARGE[0], 1, MODELS) * 2, "model 1 came twice"),
        (part(0, b"\0" * 4), "a part of model 1, which is not under way"),
        (announced() + part(0, b"\0" * 4, 2), "a part of model 2, which is not under way"),
        (announced() + part(4, b"\0" * 4), "a part of a model out of order: at byte 4 instead of 0"),
        (announced() + part(0, b"\0" * 4) * 2, "a part of a model out of order: at byte 0 instead of 4"),
        (announced() + part(0, b"\0" * 16), "a part of a model has 16 bytes at byte 0 of 12"),
        (announced() + part(0, b"\0" * 3), "a part of a model has 3 bytes at byte 0 of 12"),
        (announced() + part(0, b""), "a part of a model has 0 bytes at byte 0 of 12"),
        (announced() + wire.encode(wire.Cancel(1)) + part(0, b"\0" * 4), "a part of model 1, which is not under way"),
        (wire.frame(wire.CHUNK, b"\0" * 5), "CHUNK is too short"),
    ],
)  # fmt: skip
def test_models_that_are_refused(data, reason):
    assert refused(data) == reason


def test_a_part_of_a_chunk_is_known_as_such():
    decoder = fresh()
    assert not decoder.is_within_chunk
    assert all_of(decoder, part(0, b"\0" * 12)[:20]) == []
    assert decoder.is_within_chunk


def test_a_cancelled_model_makes_room_for_the_next():
    data = announced() + part(0, b"\0" * 4) + wire.encode(wire.Cancel(1))
    *_, arrived = all_of(fresh(), data + wire.encode(wire.Cancel(1)) + wire.encode_whole(LARGE[0], 2, MODELS))
    assert np.array_equal(arrived.model, MODEL)


def test_what_has_arrived_is_counted():
    decoder = fresh(greeted=False)
    all_of(decoder, wire.encode(HELLO) + wire.encode_whole(LARGE[0], 1, MODELS) + wire.encode(wire.Ping()))
    assert (decoder.messages, decoder.model_bytes) == (2, 12)


# The published schema


def test_the_published_schema_is_that_of_the_code():
    generator = runpy.run_path(str(DOCS / "wire_schema.py"))
    assert (DOCS / "wire.json").read_text() == generator["as_text"](), "python docs/wire_schema.py writes it anew"
    assert generator["markdown_table"]() in (DOCS / "wire.md").read_text()


SCALARS = {"u32": "<I", "count": "<Q", "share": "<d", "weight": "<d", "learning": "<d", "flag": "<B", "version": "<H"}
DTYPES = {1: "float16", 2: "float32", 3: "float64"}


def read_by_schema(schema, data):
    """A reader of frames that shares no code with efhc: what someone would write from docs/wire.json alone."""
    length, checksum, kind = struct.unpack_from("<IIB", data)
    body = data[8:]
    assert (len(body), zlib.crc32(body)) == (length, checksum)
    layout = next(each for each in schema["kinds"] if each["kind"] == kind)
    at = 1

    def scalar(type_):
        nonlocal at
        (value,) = struct.unpack_from(SCALARS[type_], body, at)
        at += struct.calcsize(SCALARS[type_])
        return value

    def rest(decoded):
        nonlocal at
        data, at = body[at:], len(body)
        return decoded(data)

    readers = {name: partial(scalar, name) for name in SCALARS} | {
        "token": lambda: [scalar("u32"), scalar("count"), scalar("count")],
        "optional token": lambda: readers["token"]() if scalar("flag") else None,
        "counts": lambda: [scalar("count") for _ in range(scalar("u32"))],
        "model": lambda: {"transfer": scalar("u32"), "values": scalar("count"), "dtype": DTYPES[scalar("flag")]},
        "payload": lambda: {"transfer": scalar("u32"), "size": scalar("count")},
        "about": lambda: {"rate": scalar("share"), "is_slow": scalar("version"),
                          "neighbours": [scalar("u32") for _ in range(scalar("version"))]},
        "text": partial(rest, bytes.decode),
        "hello": partial(rest, json.loads),
        "bytes": partial(rest, bytes.hex),
    }  # fmt: skip
    fields = {field["name"]: readers[field["type"]]() for field in layout["fields"]}
    assert at == len(body)
    return layout["name"], fields


def test_the_examples_can_be_read_with_the_schema_alone():
    schema = json.loads((DOCS / "wire.json").read_text())
    read = [read_by_schema(schema, bytes.fromhex(example["hex"])) for example in schema["examples"]]
    assert read == [(example["name"], example["fields"]) for example in schema["examples"]]
    assert {name for name, _ in read} == {layout["name"] for layout in schema["kinds"]}


# Half-steps

FRAME = half_steps.Frame(TOKEN, OTHER, 4, 2, 0.125, 0.5, b"", 0, 12, 2, 5)
TLS_RECORD = 22
"""Bytes that a record of TLS 1.3 adds."""


def test_headers_have_the_bytes_that_the_simulator_counts():
    assert len(wire.encode(FRAME)) + TLS_RECORD == FRAME_HEADER_BYTES
    acknowledgement = half_steps.Acknowledgement(TOKEN, OTHER, 4, 2, 5)
    assert len(wire.encode(acknowledgement)) + TLS_RECORD == ACKNOWLEDGEMENT_BYTES
    for neighbours in ((), (3, 4, 9)):
        longer = FRAME._replace(about=About(4000.0, True, neighbours))
        more = len(wire.encode(longer)) - len(wire.encode(FRAME))
        assert more == ABOUT_BYTES + NEIGHBOUR_BYTES * len(neighbours)


@pytest.mark.parametrize("told", [None, About(4000.0, True, (0, 7))])
@pytest.mark.parametrize("size", [wire.LONGEST_PAYLOAD, wire.LONGEST_PAYLOAD + 1, 3 * wire.LONGEST_CHUNK + 5])
def test_a_payload_of_any_length_comes_back(size, told):
    message = FRAME._replace(payload=bytes(number % 251 for number in range(size)), about=told)
    models = wire.ModelFormat(size // 4, "float32")
    arrived = all_of(fresh(models), wire.encode_whole(message, 1, models))[-1]
    assert arrived == message


def about(rate=4000.0, slow=0, neighbours=(1, 2), count=None):
    """A frame that says this of its sender."""
    head = wire.encode(FRAME)[wire.HEADER.size :]
    number = len(neighbours) if count is None else count
    said = struct.pack(f"<dHH{len(neighbours)}I", rate, slow, number, *neighbours)
    return wire.frame(wire.BY_NAME["FRAME_ABOUT"].kind, head + said + b"payload")


def test_what_a_device_says_of_itself_is_checked():
    (arrived,) = all_of(fresh(), about())
    assert (arrived.about, arrived.payload) == (About(4000.0, False, (1, 2)), b"payload")
    for rate in (np.nan, np.inf, 0.0, -1.0):
        assert "where a bandwidth belongs" in refused(about(rate))
        with pytest.raises(ValueError, match="where a bandwidth belongs"):
            wire.encode(FRAME._replace(about=About(rate, False, ())))
    assert "has 2 where 0 or 1 belongs" in refused(about(slow=2))
    assert "not in ascending order" in refused(about(neighbours=(2, 1)))
    assert "not in ascending order" in refused(about(neighbours=(1, 1)))
    assert refused(about(count=1000)) == "FRAME_ABOUT is too short"
    assert "has 1025 where a number of neighbours" in refused(about(neighbours=range(1025)))


def test_a_device_with_very_many_neighbours_tells_the_lowest_ones():
    crowded = FRAME._replace(payload=bytes(wire.LONGEST_PAYLOAD), about=About(4000.0, False, tuple(range(5000))))
    (arrived,) = all_of(fresh(), wire.encode(crowded))
    assert arrived == crowded._replace(about=About(4000.0, False, tuple(range(wire.MOST_NEIGHBOURS))))


@pytest.mark.parametrize("told", [None, About(4000.0, True, (0, 7))])
@pytest.mark.parametrize("size", [1, wire.LONGEST_PAYLOAD, MODELS.longest_payload + 1, 2**40])
def test_a_long_frame_announces_no_more_than_a_model_can_need(size, told):
    announced = FRAME._replace(payload=wire.PayloadHeader(1, size), about=told)
    assert "LONG_FRAME" in refused(wire.encode(announced))


@pytest.mark.parametrize(
    ("field", "value"), [("weight", np.nan), ("weight", 1.5), ("weight", -0.1), ("learning", np.inf)]
)
def test_a_step_that_is_no_step_is_refused(field, value):
    good = wire.encode(FRAME)
    place = wire.HEADER.size + 2 * 20 + 8 + (8 if field == "learning" else 0)
    payload = good[wire.HEADER.size : place] + np.float64(value).tobytes() + good[place + 8 :]
    assert "FRAME" in refused(wire.frame(wire.BY_NAME["FRAME"].kind, payload))
