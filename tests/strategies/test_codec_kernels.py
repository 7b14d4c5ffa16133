from __future__ import annotations

import numpy as np
import pytest
from codec_problems import Problem, codecs, problems
from hypothesis import example, given
from hypothesis import strategies as st

from efhc.base.threads import in_ranges
from efhc.kernels import codecs as kernels
from efhc.strategies.parts import messages
from efhc.strategies.parts.codecs import FullCodec, LevelsCodec, SignCodec, TopKCodec

ONE_OF_EACH = [FullCodec(), LevelsCodec(), SignCodec(), TopKCodec(share=0.2)]


def sent_rows(codec, models, who, known, thresholds, chosen):
    out, bits = np.full_like(known, np.nan), np.zeros(len(known), np.int64)
    send_rows = kernels.SEND_ROWS[codec.kind]
    send_rows(codec.parameter, models, who, known, thresholds, chosen, out, bits, 0, len(known))
    return out, bits


def hard(precision, name, codec, share=0.0):
    """All differences, or a share of them, are a limit of the precision."""
    model = np.zeros(5, precision)
    model[: max(1, round(5 * share))] = getattr(np.finfo(precision), name)
    return example(Problem(model, np.zeros(5, precision), 0.0), codec)


@hard(np.float64, "max", SignCodec())  # the mean is a number, what it is computed from might overflow
@hard(np.float64, "max", SignCodec(), share=1)
@hard(np.float32, "max", SignCodec(), share=1)
@hard(np.float64, "smallest_subnormal", SignCodec())
@hard(np.float32, "smallest_subnormal", SignCodec())
@hard(np.float32, "smallest_subnormal", LevelsCodec())
@hard(np.float64, "tiny", LevelsCodec(bits=32))
@hard(np.float32, "max", LevelsCodec(bits=1), share=1)
@given(problems(), codecs)
def test_a_row_is_what_send_returns(problem, codec):
    model, known, threshold = problem
    out, bits = sent_rows(codec, model[None], np.array([0]), known[None], np.array([threshold]), np.array([True]))
    expected, expected_bits = codec.send(model, known, threshold)
    np.testing.assert_array_equal(out[0], expected)
    assert bits[0] == expected_bits


@given(problems(), codecs, st.data())
def test_no_difference_that_is_not_finite_makes_a_row_other_than_send(problem, codec, data):
    model, known, threshold = problem
    model = model.copy()
    model[data.draw(st.integers(0, len(model) - 1))] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    threshold = data.draw(st.sampled_from([threshold, np.nan]))
    with np.errstate(invalid="ignore"):
        expected, expected_bits = codec.send(model, known, threshold)
    out, bits = sent_rows(codec, model[None], np.array([0]), known[None], np.array([threshold]), np.array([True]))
    np.testing.assert_array_equal(out[0], expected)
    assert bits[0] == expected_bits


@pytest.fixture(params=[np.float32, np.float64], ids=lambda kind: kind.__name__)
def rows(request):
    """Models of four devices, and what is known of them in six rows."""
    rng = np.random.default_rng(0)
    models, known = rng.normal(size=(4, 3000)).astype(request.param), rng.normal(size=(6, 3000)).astype(request.param)
    who, chosen = np.array([3, 0, 0, 1, 2, 3]), np.array([True, True, False, True, False, True])
    return models, who, known, np.array([0.0, 0.5, 0.0, 2.0, 1.0, 9.0]), chosen


@pytest.mark.parametrize("codec", ONE_OF_EACH, ids=lambda codec: codec.kind)
def test_rows_that_are_not_chosen_stay_as_they_are(rows, codec):
    models, who, known, thresholds, chosen = rows
    before = known.copy()
    out, bits = sent_rows(codec, *rows)
    np.testing.assert_array_equal(known, before)
    for r in range(len(known)):
        expected = codec.send(models[who[r]], known[r], thresholds[r]) if chosen[r] else (known[r], 0)
        np.testing.assert_array_equal(out[r], expected[0])
        assert bits[r] == expected[1]


@pytest.mark.parametrize("codec", ONE_OF_EACH, ids=lambda codec: codec.kind)
def test_neither_threads_nor_working_in_place_change_anything(rows, codec):
    models, who, known, thresholds, chosen = rows
    expected = sent_rows(codec, *rows)
    out, bits = known.copy(), np.zeros(len(known), np.int64)
    arguments = (codec.parameter, models, who, out, thresholds, chosen, out, bits)
    in_ranges(kernels.SEND_ROWS[codec.kind], arguments, len(known), 3)
    np.testing.assert_array_equal(out, expected[0])
    np.testing.assert_array_equal(bits, expected[1])


@given(st.integers(1, 10**8), st.data())
@example(1, None)
def test_the_sizes_of_messages_are_those_of_the_plain_functions(n, data):
    sent = n if data is None else data.draw(st.integers(0, n) | st.integers(0, min(n, 100)))
    for width in (32, 64):
        for level_bits in (0, 1, 3, 32):
            plain, compiled = messages.dense_bits(n, width, level_bits), kernels.dense_bits(n, width, level_bits)
            assert plain == compiled
            plain = messages.sparse_bits(n, sent, width, level_bits)
            assert plain == kernels.sparse_bits(n, sent, width, level_bits)


@given(st.lists(st.integers(0, 2**31 - 1) | st.integers(0, 5), min_size=1), st.data())
def test_the_kth_largest(sizes, data):
    k = data.draw(st.integers(1, len(sizes)))
    for kind, number in ((np.int32, np.float32), (np.int64, np.float64)):
        found, equal = kernels.kth_largest(np.array(sizes, kind).view(number), k)
        assert found == sorted(sizes)[-k]
        assert sum(one > found for one in sizes) + equal == k
