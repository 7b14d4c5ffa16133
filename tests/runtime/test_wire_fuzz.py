"""The decoder under 2,000 hostile streams, or as many as EFHC_FRAMES says (`make fuzz`: 100,000).

Whatever comes, it yields messages of the table or raises `WireError`, and holds no more than what has arrived and one
model of its own n.
"""

from __future__ import annotations

import os
import struct
import tracemalloc
import zlib

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from efhc.core import half_step_messages as half_steps
from efhc.core import protocol
from efhc.core.uplink import About
from efhc.runtime import node_messages, wire
from efhc.runtime.decoder import Decoder, ModelProgress

FRAMES = int(os.environ.get("EFHC_FRAMES", "2000"))
MODELS = wire.ModelFormat(64, "float32")
SLACK = 32 * 1024
"""Bytes that objects of Python take, whatever arrives."""

tokens = st.tuples(st.integers(0, 9), st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
counts = st.integers(0, 2**63 - 1)
shares = st.floats(0, 1, exclude_min=True)
headers = st.builds(
    wire.ModelHeader, st.integers(0, 3), st.sampled_from([0, 64, 2**63]), st.sampled_from(["float32", "float64"])
)
chunks = st.builds(
    wire.Chunk, st.integers(0, 3), st.sampled_from([0, 4, 128]), st.integers(0, 300).map(lambda size: b"\x7f" * size)
)
numbers = st.integers(0, 2**32 - 1)
abouts = st.builds(About, shares, st.booleans(), st.sets(numbers, max_size=4).map(sorted).map(tuple))
messages_without_models = st.one_of(
    st.builds(node_messages.Hello, counts, counts, st.dictionaries(st.text(), st.text(), max_size=3), *[counts] * 3),
    st.builds(
        node_messages.Goodbye, st.text("abc é", min_size=1).map(lambda text: " ".join(text.split())), st.booleans()
    ),
    st.just(wire.Ping()),
    st.builds(wire.Got, counts, counts, counts),
    st.builds(wire.Cancel, st.integers(0, 3)),
    st.builds(protocol.Offer, tokens, shares, counts),
    st.builds(protocol.Accept, tokens, tokens, shares, counts),
    st.builds(protocol.Withdraw, tokens, st.none() | tokens),
    st.builds(node_messages.Presence, st.integers(0, 9), counts, st.lists(counts, max_size=5).map(tuple)),
    st.builds(protocol.Body, tokens, tokens, headers),
    st.builds(protocol.ModelReply, counts, st.none() | headers),
    st.builds(node_messages.IterationModel, counts, headers),
    st.builds(
        half_steps.Frame, tokens, tokens, numbers, numbers, shares, shares, st.binary(max_size=20), st.just(0), counts,
        numbers, numbers, st.none() | abouts,
    ),
)  # fmt: skip
small = st.one_of(messages_without_models, st.builds(node_messages.RunEnded, st.text(max_size=40)), chunks).map(
    wire.encode
)
whole = st.builds(
    lambda transfer: wire.encode_whole(
        protocol.Body((1, 1, 1), (0, 1, 1), np.ones(64, "float32")), transfer, MODELS
    ),
    st.integers(0, 3),
)  # fmt: skip
mutations = st.tuples(
    st.sampled_from(["flip", "cut", "insert", "repeat", "payload", "length"]),
    st.integers(0, 2**31),
    st.binary(max_size=9),
)


def mutated(frames, changes):
    """Frames with changes, some of which have the right checksum: those reach what is behind it."""
    frames = list(frames)
    for kind, where, data in changes:
        place = where % len(frames)
        frame = bytearray(frames[place])
        at = where % max(1, len(frame))
        if kind == "flip" and frame:
            frame[at] ^= 1 << (where % 8)
        elif kind == "cut":
            del frame[at:]
        elif kind == "insert":
            frame[at:at] = data
        elif kind == "repeat":
            frames.insert(place, bytes(frame))
        elif kind == "length":
            frame[:4] = struct.pack("<I", where)
        elif len(frame) > wire.HEADER.size:
            payload = bytes(frame[wire.HEADER.size : at]) + data
            body = bytes([frame[8]]) + payload
            frame[:] = struct.pack("<II", len(body), zlib.crc32(body)) + body
        frames[place] = bytes(frame)
    return b"".join(frames)


streams = st.one_of(
    st.binary(max_size=400),
    st.builds(mutated, st.lists(small | whole, min_size=1, max_size=8), st.lists(mutations, max_size=4)),
    st.lists(small | whole, max_size=8).map(b"".join),
)
pieces = st.lists(st.integers(1, 300), max_size=12)
KNOWN = (ModelProgress, node_messages.Hello, node_messages.Goodbye, wire.Ping, wire.Got)


def is_a_message(thing):
    return isinstance(thing, KNOWN) or type(thing) in {layout.message for layout in wire.LAYOUTS}


@given(messages_without_models)
def test_every_message_comes_back(message):
    assert wire.decode(wire.layout_of(message).kind, wire.encode(message)[wire.HEADER.size :]) == message


@settings(max_examples=FRAMES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(streams, pieces, st.booleans())
def test_no_stream_breaks_the_decoder(stream, sizes, greeted):
    decoder, at = Decoder(MODELS), 0
    decoder.greeted = greeted
    arrived, reason = [], ""
    tracemalloc.start()
    try:
        for size in [*sizes, len(stream)]:
            for thing in decoder.feed(stream[at : at + size]):
                assert is_a_message(thing)
                model = node_messages.model_in(thing)
                assert model is None or (model.shape == (64,) and model.dtype == np.float32)
                arrived.append(type(thing))
            at += size
    except wire.WireError as refusal:
        reason = str(refusal)
    finally:
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert "\n" not in reason
    assert len(reason) < 300
    # What has arrived is there once as a piece, once as a rest and once as messages, of which each has some overhead.
    assert most <= SLACK + MODELS.model_bytes * (1 + arrived.count(protocol.Body)) + 8 * len(stream)


def test_a_large_frame_that_never_becomes_whole_holds_no_more_than_what_came():
    models = wire.ModelFormat(10_000_000, "float64")
    decoder = Decoder(models)
    decoder.greeted = True
    header = wire.ModelHeader(1, models.values, "float64")
    list(decoder.feed(wire.encode(protocol.ModelReply(1, header))))  # one model of our own n, not yet touched
    tracemalloc.start()
    for data in [struct.pack("<IIB", 200_000, 0, wire.CHUNK), *[b"x" * 1000] * 150]:
        assert list(decoder.feed(data)) == []
    held, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 200_000
    assert most < 400_000
