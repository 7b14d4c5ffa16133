"""Intervals of means over seeds. The same values give the same interval, to the last digit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import sqrt
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, stdtrit

from efhc.base.arrays import Floats

FEWEST_SEEDS = 5
"""The least number of seeds for a verdict. Without any true difference, n seeds still all agree on its sign with
probability 2^(1-n), which is 1/8 for four seeds and 1/16 for five."""

LEVEL = 0.95
RESAMPLES = 9999
AT_ONCE = 1000
"""Resamples per batch. This many fit into the processor's cache; all of them do not."""


class Interval(NamedTuple):
    """A mean over seeds and its 95 % interval: numbers, or arrays of one shape."""

    mean: Floats | float
    low: Floats | float
    high: Floats | float


def bounds_words(seeds: Iterable[int]) -> str:
    """Return what to call the bounds of `interval` over these numbers of seeds: "95 %" or "min to max".

    Below `FEWEST_SEEDS` seeds, `interval` ends at the smallest and the largest value: resamples of so few values are
    all equal to one of these too often for a narrower interval of 95 %.
    """
    few = {count < FEWEST_SEEDS for count in seeds if count > 1}
    if few == {True, False}:
        return f"95 %; below {FEWEST_SEEDS} seeds min to max"
    return "min to max" if True in few else "95 %"


def bounds(per_seed: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the two ends of `interval`, for a table: None for fewer than two seeds."""
    if len(per_seed) < 2:
        return None, None
    _, low, high = interval(np.array(per_seed))
    return float(low), float(high)


def of_other_seeds(found: Interval) -> Interval:
    """Return the range in which the mean of equally many other seeds is expected: sqrt(2) times as wide.

    Compare the curve of another implementation with this range: its mean is as uncertain as this one.
    """
    mean, low, high = found
    return Interval(mean, mean + sqrt(2) * (low - mean), mean + sqrt(2) * (high - mean))


def interval(per_seed: Floats) -> Interval:
    """Return the mean over seeds (axis 0) and its 95 % bootstrap interval, the *expanded percentile* interval.

    tail = Φ(-sqrt(n/(n-1)) t_{0.975, n-1})          n seeds; Hesterberg, The American Statistician 69(4), 2015

    Means of n values resampled from the n seeds spread too little, by sqrt((n-1)/n), and their percentiles are those of
    a normal distribution where few seeds call for Student's t. So the percentiles at 2.5 and 97.5 % of five normal
    values cover the true mean in about 83 of 100 cases; those at `tail` and 1 - tail cover it in 92. (No resampling of
    five values does better than 94, because it cannot leave their range.) With many seeds both become 95.

    To compare strategies, pass their differences seed by seed. One seed has no interval: its bounds are NaN.
    """
    n = len(per_seed)
    # Relative to the first seed, equal values are exact zeros, which gives an interval without width for any value.
    first = per_seed[0]
    apart = np.ascontiguousarray(np.moveaxis(per_seed - first, 0, -1))
    mean = first + apart.mean(axis=-1)
    if n == 1:
        return Interval(mean, mean * np.nan, mean * np.nan)
    tail = float(ndtr(-sqrt(n / (n - 1)) * stdtrit(n - 1, (1 + LEVEL) / 2)))
    # What scipy.stats.bootstrap computes, to the last bit, without the third of a second that importing it takes.
    tail = (1 - (1 - 2 * tail)) / 2
    drawn = np.random.default_rng(0).integers(0, n, (RESAMPLES, n))
    batches = (drawn[start : start + AT_ONCE] for start in range(0, RESAMPLES, AT_ONCE))
    means = np.sort(np.concatenate([apart[..., batch].mean(axis=-1) for batch in batches], axis=-1))
    return Interval(mean, first + _percentile(means, tail), first + _percentile(means, 1 - tail))


def _percentile(ordered: Floats, share: float) -> Floats:
    """Return the percentile at `share` of values in order (last axis), between the two values next to it."""
    count = ordered.shape[-1]
    place = share * count + (1 - share)  # from 1
    before, after = min(int(place), count) - 1, min(int(place) + 1, count) - 1
    found: Floats = (1 - place % 1) * ordered[..., before] + place % 1 * ordered[..., after]
    return found
