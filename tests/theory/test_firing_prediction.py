"""Who will fire: on drifts that are exactly what the prediction takes them to be."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from efhc.theory.connectivity import LATEST, drift_speeds, predicted_firing


def rehearse(speeds, step_sizes, thresholds):
    """Drifts and broadcasts of devices that drift by v_i alpha(k) per iteration, by the book."""
    drifts, fired = [], []
    drift = np.zeros(len(speeds))
    for alpha, threshold in zip(step_sizes, thresholds, strict=True):
        drifts.append(drift)
        fired.append(drift >= threshold)
        drift = np.where(fired[-1], 0.0, drift) + speeds * alpha
    return np.array(drifts), np.array(fired)


def constant(value, iterations, devices=1):
    return np.full((iterations, devices), float(value))


def gaps(fired):
    return np.diff(np.flatnonzero(fired)).tolist()


eighths = st.integers(1, 64).map(lambda n: n / 8)


# Speeds


def test_speed_of_a_device_that_never_fires_is_what_it_gained_in_the_second_half():
    alphas = np.array([0.5, 0.5, 0.25, 0.25, 0.25])
    drifts = np.array([[0.0, 0.0, 0.0], [3.0, 3.0, 3.0], [4.0, 4.0, 4.0], [9.0, 4.0, 2.0], [6.0, 4.0, 1.0]])
    # (6 - 4) / (0.25 + 0.25), whatever was in between and before; one that stands still, and one that comes back
    assert drift_speeds(drifts, np.zeros((5, 3), dtype=bool), alphas).tolist() == [4.0, 0.0, 0.0]


def test_only_the_latest_broadcasts_count():
    """Near the optimum a device drifts more slowly: what it did at first is not what it will do."""
    early, late = [100.0] * 20, [1.0, 5.0, 2.0, 4.0, 3.0]
    drifts = np.array([[0.0, 0.0], *([drift, drift] for drift in early + late)])
    fired = np.ones((len(drifts), 2), dtype=bool)
    fired[22:, 1] = False  # the second falls silent after its 21st broadcast: 100, 100, 100, 100, 1
    assert len(late) == LATEST
    assert drift_speeds(drifts, fired, np.ones(len(drifts))).tolist() == [3.0, 100.0]


def test_what_comes_after_the_last_broadcast_counts_only_if_there_was_none_with_a_drift():
    alphas = np.ones(3)
    drifts = np.array([[0.0], [2.0], [7.0]])
    assert drift_speeds(drifts, np.array([[False], [True], [False]]), alphas).tolist() == [2.0]
    # a broadcast at k = 0 tells nothing: nobody has drifted yet
    assert drift_speeds(drifts, np.array([[True], [False], [False]]), alphas).tolist() == [5.0]  # from k = 1 to 2


@given(st.lists(eighths, min_size=1, max_size=4), st.lists(eighths, min_size=1, max_size=20), eighths)
def test_linear_drifts_have_their_speed(speeds, alphas, threshold):
    speeds, alphas = np.array(speeds), np.array(alphas)
    drifts, fired = rehearse(speeds, alphas, constant(threshold, len(alphas), len(speeds)))
    found = drift_speeds(drifts, fired, alphas)
    assert found.tolist() == (speeds if len(alphas) > 1 else 0 * speeds).tolist()


# Firing


@given(eighths, eighths, st.integers(1, 2000).map(lambda n: n / 64))
def test_gap_is_the_threshold_over_the_speed(speed, alpha, threshold):
    gap = math.ceil(threshold / (speed * alpha))
    fired = predicted_firing(np.array([speed]), np.full(3 * gap + 1, alpha), constant(threshold, 3 * gap + 1))
    assert np.flatnonzero(fired).tolist() == [gap, 2 * gap, 3 * gap]


def test_thresholds_that_change():
    thresholds = np.array([[9.0], [9.0], [2.0], [2.0], [1.0], [9.0]])
    fired = predicted_firing(np.ones(1), np.ones(6), thresholds)
    # drifts before each: 0 1 2 1 2 1
    assert np.flatnonzero(fired).tolist() == [2, 4]


def test_a_drift_that_saturates_below_the_threshold_never_fires():
    """As near to 1 as it gets: at 20 iterations' average speed it would be past 1.5 after some 11 more."""
    alphas = np.full(2000, 0.1)
    drifts = np.column_stack([1 - 0.5 ** np.arange(20), np.minimum(np.arange(20) / 8, 1.0)])
    drifts = np.round(drifts, 2)
    fired = np.zeros(drifts.shape, dtype=bool)
    speeds = drift_speeds(drifts, fired, alphas[:20])
    assert speeds.tolist() == [0.0, 0.0]
    assert not predicted_firing(speeds, alphas, constant(1.5, 2000, 2), drifts[-1]).any()
    # but once the threshold falls below where it stands it does, and then no more
    falling = np.repeat([[1.5, 1.5], [0.99, 0.99]], 1000, axis=0)
    assert np.flatnonzero(predicted_firing(speeds, alphas, falling, drifts[-1]).any(axis=1)).tolist() == [1000]


@given(
    st.lists(eighths, min_size=1, max_size=3), st.lists(eighths, min_size=2, max_size=20), eighths, st.integers(1, 19)
)
def test_a_rehearsal_goes_on_as_predicted(speeds, alphas, threshold, cut):
    speeds, alphas = np.array(speeds), np.array(alphas)
    cut = min(cut, len(alphas) - 1)
    thresholds = constant(threshold, len(alphas), len(speeds))
    drifts, fired = rehearse(speeds, alphas, thresholds)
    assert np.array_equal(predicted_firing(speeds, alphas, thresholds), fired)
    assert np.array_equal(predicted_firing(speeds, alphas[cut:], thresholds[cut:], drifts[cut]), fired[cut:])
