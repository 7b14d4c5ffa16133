from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest
from codec_problems import codecs, precisions, problems
from hypothesis import given
from hypothesis import strategies as st

from efhc.base.errors import EfhcError
from efhc.strategies.parts import messages
from efhc.strategies.parts.codecs import LevelsCodec, SignCodec, TopKCodec
from efhc.strategies.parts.messages import Message, MessageError

F32 = np.dtype(np.float32)


def assert_valid(message, parameters, precision):
    """What a receiver may rely on, whoever sent the message."""
    sent = parameters if message.positions is None else len(message.positions)
    assert message.parameters == parameters
    assert message.precision == precision
    assert message.values.shape == (sent,)
    assert sent > 0
    if message.positions is not None:
        assert message.positions[0] >= 0
        assert (np.diff(message.positions) > 0).all()
        assert message.positions[-1] < parameters
    if message.scale is None:
        assert np.isfinite(message.values).all()
    else:
        assert 0 < message.scale < np.inf
        assert (message.values != 0).all()
        assert np.abs(message.values).max() <= 2 ** (message.level_bits - 1)


@given(problems(), codecs)
def test_what_arrives_is_what_was_sent_and_takes_no_more_than_was_counted(problem, codec):
    model, known, _ = problem
    message = codec.message(*problem)
    new, bits = codec.send(*problem)
    if message is None:
        assert bits == 0
        assert new.tobytes() == known.tobytes()
        return
    data = message.encode()
    received = Message.decode(data, len(model), known.dtype)
    assert_valid(received, len(model), known.dtype)
    assert received.applied_to(known).tobytes() == new.tobytes()
    assert 8 * len(data) <= bits == message.bits == received.bits
    assert received.encode() == data


@given(st.integers(1, 3000), precisions, st.integers(0, 32), st.data())
def test_any_positions_and_levels_survive(n, precision, level_bits, data):
    positions = np.array(sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=60))))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    if level_bits:
        sizes = rng.integers(1, 2 ** (level_bits - 1), len(positions), endpoint=True)
        values, scale = np.where(rng.random(len(sizes)) < 0.5, -sizes, sizes), precision.type(0.1)
    else:
        values, scale = rng.normal(size=len(positions)).astype(precision), None
    message = Message(n, positions, values, level_bits, scale)
    encoded = message.encode()
    received = Message.decode(encoded, n, precision)
    np.testing.assert_array_equal(received.positions, positions)
    np.testing.assert_array_equal(received.values, values)
    assert received.scale == scale
    assert 8 * len(encoded) <= message.bits


@given(st.integers(1, 2000), st.data())
def test_some_positions_need_all_bits_that_are_counted(n, data):
    sent = data.draw(st.integers(1, n))
    last = Message(n, np.arange(n - sent, n), np.ones(sent, np.int64), 1, np.float32(1))
    assert 8 * len(last.encode()) == last.bits


@given(st.integers(1, 10**7), st.data())
def test_more_coordinates_never_count_less_and_positions_never_more_than_a_bitmap(n, data):
    sent = data.draw(st.integers(1, n))
    for level_bits in (0, 1, 3):
        bits = messages.sparse_bits(n, sent, 32, level_bits)
        assert messages.sparse_bits(n, sent - 1, 32, level_bits) <= bits
        values = sent * 32 if level_bits == 0 else 32 + sent * level_bits
        assert bits <= (48 + values + n + 7) // 8 * 8
    best = messages.rice_parameter(n, sent)
    least = min(messages.position_bits(n, sent, p) for p in range(64))
    assert messages.position_bits(n, sent, best) == least


# What strangers may send


@given(st.binary(max_size=200), st.integers(1, 300), precisions)
def test_random_bytes_are_refused_or_a_message(data, n, precision):
    check_decoding(data, n, precision)


@given(problems(), codecs, st.data())
def test_damaged_messages_are_refused_or_a_message(problem, codec, data):
    message = codec.message(*problem)
    if message is None:
        return
    damaged = bytearray(message.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, min(len(damaged) - 1, 30)))] = data.draw(st.integers(0, 255))
    n, precision = len(problem.model), problem.model.dtype
    check_decoding(bytes(damaged), n, precision)
    check_decoding(message.encode(), data.draw(st.integers(1, 300)), precision)


def check_decoding(data, n, precision):
    """Any error but `MessageError` fails the test."""
    try:
        message = Message.decode(data, n, precision)
    except MessageError:
        return
    assert_valid(message, n, precision)
    known = np.zeros(n, precision)
    again = Message.decode(message.encode(), n, precision)
    assert message.applied_to(known).tobytes() == again.applied_to(known).tobytes()


@given(problems(), codecs)
def test_no_part_of_a_message_and_nothing_longer_is_a_message(problem, codec):
    message = codec.message(*problem)
    if message is None:
        return
    data, n, precision = message.encode(), len(problem.model), problem.model.dtype
    for wrong in [*(data[:length] for length in range(min(len(data), 40))), data[:-1], data + b"\0", data * 2]:
        with pytest.raises(MessageError):
            Message.decode(wrong, n, precision)


def header(kind, count=1, p=0):
    return struct.pack("<BIB", kind, count, p)


SCALE = struct.pack("<f", 1)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "it ends 1 bytes too early"),
        (b"\xff", "its kind is 255, the largest is 65"),
        (b"\x42", "its kind is 66"),
        (header(6, count=0) + SCALE, "it has 0 coordinates of 9"),
        (header(6, count=10) + SCALE, "it has 10 coordinates of 9"),
        (header(6, count=2**32 - 1) + SCALE, "it has 4294967295 coordinates of 9"),
        (header(6, p=32) + SCALE, "its Rice parameter is 32, the largest is 31"),
        (header(6) + struct.pack("<f", np.inf) + b"\1", "it has a number that is not finite"),
        (header(6) + struct.pack("<f", np.nan) + b"\1", "it has a number that is not finite"),
        (header(6) + struct.pack("<f", 0) + b"\1", "its scale is 0.0, not a positive number"),
        (header(6) + struct.pack("<f", -1) + b"\1", "its scale is -1.0, not a positive number"),
        (header(0) + struct.pack("<f", np.nan) + b"\1", "it has a number that is not finite"),
        (header(0) + SCALE + b"\0\2", "it has 0 of 1 positions below the number of parameters"),
        (header(0, p=4) + SCALE + b"\x13", "it has coordinate 9 of 9"),
        (header(0) + SCALE + b"\3", "7 bits follow its end"),
        (header(0, count=2) + 2 * SCALE + b"\x03\0\0", "it is 1 bytes too long"),
        (b"\1" + 9 * SCALE + b"\0", "it is 1 bytes too long"),
        (b"\3" + SCALE + b"\0", "it ends 1 bits too early"),
        (b"\3" + SCALE + b"\0\2", "7 bits follow its end"),
    ],
)
def test_what_is_wrong_with_a_message_is_said_in_one_line(data, problem):
    with pytest.raises(MessageError, match=f"^not a message of a codec: {problem}") as caught:
        Message.decode(data, 9, F32)
    assert isinstance(caught.value, EfhcError)
    assert "\n" not in str(caught.value)


def test_a_message_may_have_any_rice_parameter():
    received = Message.decode(header(0, p=4) + SCALE + b"\x11", 9, F32)
    assert received.positions.tolist() == [8]


@pytest.mark.parametrize("start", [header(6, 9), header(64, 9, 31), b"\x41", b"\1", header(0, 9, 0)])
def test_long_messages_take_no_memory(start):
    data = start + SCALE + bytes([255]) * 10**7
    tracemalloc.start()
    with pytest.raises(MessageError):
        Message.decode(data, 9, F32)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10**5


def test_a_message_is_for_one_size_and_precision():
    message = SignCodec().message(np.ones(5, F32), np.zeros(5, F32), 0)
    for known in (np.zeros(4, F32), np.zeros(5), np.zeros((5, 1), F32)):
        with pytest.raises(MessageError, match="the receiver knows"):
            message.applied_to(known)


@pytest.mark.parametrize("codec", [LevelsCodec(), SignCodec(), TopKCodec(share=0.01)], ids=lambda codec: codec.kind)
def test_large_models(codec):
    rng = np.random.default_rng(0)
    model, known = (rng.normal(size=300_000).astype(F32) for _ in range(2))
    data = codec.message(model, known, 2.0).encode()
    new, bits = codec.send(model, known, 2.0)
    assert Message.decode(data, len(model), F32).applied_to(known).tobytes() == new.tobytes()
    assert 0.8 * bits < 8 * len(data) <= bits
