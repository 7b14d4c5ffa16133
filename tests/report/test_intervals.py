"""An interval holds its mean, moves and stretches with the data, and covers the truth about as often as it says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import bootstrap

from efhc.report.claims.intervals import interval

VALUES = np.random.default_rng(7).normal(0.6, 0.1, (5, 40))


def coverage(low, high, truth: float) -> float:
    return float(np.mean((low <= truth) & (truth <= high)))


@pytest.mark.parametrize("seeds", [2, 3, 5, 12])
def test_contains_the_mean_and_stays_within_the_values(seeds: int):
    values = np.random.default_rng(seeds).exponential(size=(seeds, 50))
    mean, low, high = interval(values)
    assert np.allclose(mean, values.mean(axis=0), rtol=1e-12)
    assert (low < mean).all()
    assert (mean < high).all()
    assert (values.min(axis=0) - 1e-12 <= low).all()
    assert (high <= values.max(axis=0) + 1e-12).all()


@settings(deadline=None, max_examples=15)
@given(st.floats(-1e3, 1e3), st.floats(0.01, 1e3))
def test_moves_and_stretches_with_the_values(shift: float, scale: float):
    plain, moved = interval(VALUES), interval(shift + scale * VALUES)
    for before, after in zip(plain, moved, strict=True):
        np.testing.assert_allclose(after, shift + scale * before, rtol=1e-9, atol=1e-9)


def test_turns_round_with_the_sign():
    (mean, low, high), mirrored = interval(VALUES), interval(-VALUES)
    np.testing.assert_allclose(mirrored, (-mean, -high, -low), rtol=1e-12)


def test_covers_the_mean_of_five_normal_values_in_92_of_100_cases_where_plain_percentiles_do_in_83():
    samples = np.random.default_rng(1).normal(3.0, 2.0, (5, 1000))
    _, low, high = interval(samples)
    plain = bootstrap((samples,), np.mean, axis=0, method="percentile", n_resamples=999, batch=100, rng=0)
    assert 0.90 < coverage(low, high, 3.0) < 0.94
    assert 0.80 < coverage(*plain.confidence_interval, 3.0) < 0.86
    wider = (high - low) / (plain.confidence_interval.high - plain.confidence_interval.low)
    assert wider.min() > 1
    assert 1.2 < np.median(wider) < 1.8


def test_of_five_seeds_the_ends_are_the_second_most_extreme_means():
    """The tail, 0.00095, is between 1/5^5, the chance of five times the least value, and 6/5^5, with its next once."""
    _, low, high = interval(np.array([7.0, 0.0, 20.0, 1.0, 3.0]))
    assert (low, high) == (pytest.approx((4 * 0 + 1) / 5), pytest.approx((4 * 20 + 7) / 5))


def test_with_many_seeds_it_is_the_usual_interval():
    samples = np.random.default_rng(2).normal(0.0, 1.0, (100, 30))
    _, low, high = interval(samples)
    np.testing.assert_allclose((high - low) / (2 * 1.984 * samples.std(axis=0, ddof=1) / 10), 1, atol=0.06)


@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, -7.7, 1e9])
@pytest.mark.parametrize("seeds", [2, 3, 5, 7])
def test_equal_values_have_an_interval_without_width(value: float, seeds: int):
    assert tuple(interval(np.full(seeds, value))) == (value, value, value)
    mean, low, high = interval(np.full((seeds, 4), value))
    assert (mean == value).all()
    assert (low == value).all()
    assert (high == value).all()


def test_one_seed_has_no_interval():
    mean, low, high = interval(np.array([0.3]))
    assert (mean, np.isnan(low), np.isnan(high)) == (0.3, True, True)
    mean, low, high = interval(np.array([[0.3, 0.5]]))
    assert mean.tolist() == [0.3, 0.5]
    assert np.isnan([low, high]).all()


def test_columns_do_not_depend_on_one_another_and_every_call_gives_the_same():
    together = np.array(interval(VALUES.reshape(5, 8, 5)))
    assert together.shape == (3, 8, 5)
    assert together.tobytes() == np.array(interval(VALUES.reshape(5, 8, 5))).tobytes()
    np.testing.assert_allclose(together.reshape(3, 40)[:, 3], interval(VALUES[:, 3]), rtol=1e-12)
