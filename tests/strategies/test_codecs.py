from __future__ import annotations

import numpy as np
import pytest
from codec_problems import codecs, differences, problems
from hypothesis import given
from hypothesis import strategies as st

from efhc.strategies.parts.codecs import FullCodec, LevelsCodec, SignCodec, TopKCodec

COMPRESSING = [LevelsCodec(), LevelsCodec(bits=1), LevelsCodec(bits=32), SignCodec(), TopKCodec(), TopKCodec(share=0.3)]


@given(problems(), codecs)
def test_only_coordinates_that_reach_the_threshold_change(problem, codec):
    model, known, threshold = (part.copy() if isinstance(part, np.ndarray) else part for part in problem)
    new, bits = codec.send(model, known, threshold)
    assert (new.shape, new.dtype) == (known.shape, known.dtype)
    changed = new != known
    assert (differences(problem.model, problem.known)[changed] >= threshold).all()
    assert (bits > 0) or not changed.any()
    assert bits % 8 == 0
    assert not np.shares_memory(new, model)
    assert not np.shares_memory(new, known)
    np.testing.assert_array_equal(model, problem.model)
    np.testing.assert_array_equal(known, problem.known)


@given(problems())
def test_full_makes_known_what_reaches_the_threshold(problem):
    new, bits = FullCodec().send(*problem)
    reaches = (differences(problem.model, problem.known) >= problem.threshold) | (problem.threshold <= 0)
    np.testing.assert_array_equal(new, np.where(reaches, problem.model, problem.known))
    assert bits <= 8 + 8 * problem.model.nbytes


def test_levels_of_3_bits_are_quarters_of_the_largest_difference():
    delta = np.array([8, -8, 5.1, 4.9, 2, -1.1, 0.9, 0, -6])
    known = np.arange(9.0)
    new, _ = LevelsCodec(bits=3).send(known + delta, known, 0)
    assert (new - known).tolist() == [8, -8, 6, 4, 2, -2, 0, 0, -6]
    new, _ = LevelsCodec(bits=3).send(known + delta, known, 3)
    assert (new - known).tolist() == [8, -8, 6, 4, 0, 0, 0, 0, -6]


@given(st.integers(0, 99), st.integers(1, 32), st.sampled_from([np.float32, np.float64]))
def test_levels_are_off_by_at_most_half_a_step(seed, bits, precision):
    model = np.random.default_rng(seed).normal(size=200).astype(precision)
    new, _ = LevelsCodec(bits=bits).send(model, np.zeros_like(model), 0)
    step = np.abs(model).max() / 2 ** (bits - 1)
    rounding = 4 * np.finfo(precision).eps * np.abs(model).max()
    assert np.abs(model - new).max() <= step / 2 + rounding
    assert len(np.unique(np.abs(new))) <= 1 + 2 ** (bits - 1)


def test_signs_have_the_mean_size_of_what_is_sent():
    known = np.zeros(4)
    assert SignCodec().send(np.array([1, -2, 0, 5.0]), known, 0)[0].tolist() == [2, -2, 2, 2]
    assert SignCodec().send(np.array([1, -2, 0, 5.0]), known, 2)[0].tolist() == [0, -3.5, 0, 3.5]
    assert SignCodec().send(known, known, 0)[1] == 0


@given(st.integers(0, 99), st.floats(0, 2), st.sampled_from([np.float32, np.float64]))
def test_the_mean_of_signs_is_as_precise_as_the_models(seed, threshold, precision):
    delta = np.random.default_rng(seed).normal(size=300).astype(precision)
    new, _ = SignCodec().send(delta, np.zeros_like(delta), threshold)
    sizes = np.abs(delta[np.abs(delta) >= threshold]).astype(np.float64)
    expected = sizes.mean() if len(sizes) else 0
    np.testing.assert_allclose(np.abs(new).max(), expected, rtol=max(2**-36, np.finfo(precision).eps))


@given(problems(), st.floats(0, 1, exclude_min=True))
def test_top_k_sends_the_k_largest_differences_as_they_are(problem, share):
    model, known, threshold = problem
    new, _ = TopKCodec(share=share).send(*problem)
    sizes = differences(problem.model, problem.known)
    largest = sorted(range(len(model)), key=lambda t: (-sizes[t], t))[: max(1, round(share * len(model)))]
    expected = [model[t] if t in largest and sizes[t] >= threshold else known[t] for t in range(len(model))]
    np.testing.assert_array_equal(new, expected)


@given(st.integers(0, 99), st.sampled_from(COMPRESSING), st.sampled_from([1, 3, 9]))
def test_every_message_brings_what_is_known_closer(seed, codec, power):
    rng = np.random.default_rng(seed)
    model, known = rng.normal(size=100) ** power, rng.normal(size=100) ** power
    before = np.linalg.norm(model - known)
    for _ in range(5):
        known, _ = codec.send(model, known, 0)
        after = np.linalg.norm(model - known)
        assert after < before or after <= 1e-12 * np.linalg.norm(model)
        before = after


@pytest.mark.parametrize("width", [32, 64])
def test_bits_of_messages_that_can_be_counted_by_hand(width):
    known = np.zeros(1000, f"f{width // 8}")
    model = known.copy()
    model[[10, 500]] = [1, -1]
    # Two gaps of at most 998 together: p = 9 takes 2 * 10 + 1 bits, p = 8 takes 2 * 9 + 3, and no other takes less.
    header, positions = 8 + 32 + 8, 21

    def whole_bytes(bits):
        return (bits + 7) // 8 * 8

    for codec, threshold, bits in [
        (FullCodec(), 0, 8 + 1000 * width),
        (FullCodec(), 0.5, header + positions + 2 * width),
        (LevelsCodec(), 0, header + width + positions + 2 * 3),
        (LevelsCodec(), 2, 0),
        (SignCodec(), 0, 8 + width + 1000),
        (SignCodec(), 0.5, header + width + positions + 2),
        (TopKCodec(share=0.002), 0, header + positions + 2 * width),
        (TopKCodec(share=1), 0, header + positions + 2 * width),
    ]:
        assert codec.send(model, known, threshold)[1] == whole_bytes(bits), codec
    assert TopKCodec(share=1).send(model + 1, known - 5, 0)[1] == 8 + 1000 * width


@pytest.mark.parametrize("codec", [LevelsCodec(), SignCodec(), TopKCodec()], ids=lambda codec: codec.kind)
def test_what_does_not_differ_is_not_sent(codec):
    known = np.arange(5, dtype=np.float32)
    new, bits = codec.send(known, known, 0)
    np.testing.assert_array_equal(new, known)
    assert bits == 0


@pytest.mark.parametrize("precision", [np.float32, np.float64])
def test_differences_too_small_for_a_step_are_not_sent(precision):
    known = np.zeros(3, precision)
    smallest = np.finfo(precision).smallest_subnormal
    assert LevelsCodec(bits=3).send(known + smallest, known, 0)[1] == 0
