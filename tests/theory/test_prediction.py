"""Who will fire: on drifts that are exactly what the prediction takes them to be."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from efhc.theory.prediction import drift_speeds, predicted_firing


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


def test_speed_of_a_device_that_fires():
    speeds = np.array([1.0, 2.0, 0.5])
    alphas = np.full(12, 0.25)
    drifts, fired = rehearse(speeds, alphas, constant(0.5, 12, 3))
    assert fired.any(axis=0).all()
    assert drift_speeds(drifts, fired, alphas).tolist() == speeds.tolist()


def test_speed_of_a_device_that_never_fires_is_where_it_got_to():
    alphas = np.array([0.5, 0.25, 0.25])
    drifts = np.array([[0.0], [3.0], [3.0]])
    assert drift_speeds(drifts, np.zeros((3, 1), dtype=bool), alphas).tolist() == [4.0]  # 3 / (0.5 + 0.25), not 3 / 0.5


def test_speed_is_the_median_over_broadcasts():
    alphas = np.ones(4)
    drifts = np.array([[0.0], [1.0], [100.0], [3.0]])
    fired = np.array([[False], [True], [True], [True]])
    assert drift_speeds(drifts, fired, alphas).tolist() == [3.0]


def test_what_comes_after_the_last_broadcast_counts_only_if_there_was_none_with_a_drift():
    alphas = np.ones(3)
    drifts = np.array([[0.0], [2.0], [7.0]])
    assert drift_speeds(drifts, np.array([[False], [True], [False]]), alphas).tolist() == [2.0]
    # a broadcast at k = 0 tells nothing: nobody has drifted yet
    assert drift_speeds(drifts, np.array([[True], [False], [False]]), alphas).tolist() == [3.5]


def test_one_iteration_tells_nothing():
    assert drift_speeds(np.zeros((1, 2)), np.array([[True, False]]), np.ones(1)).tolist() == [0.0, 0.0]


def test_step_sizes_of_zero_move_nobody():
    drifts = np.array([[0.0], [0.0], [0.0], [1.0]])
    fired = np.array([[True], [True], [True], [True]])
    assert drift_speeds(drifts, fired, np.array([0.0, 0.0, 0.5, 0.5])).tolist() == [2.0]


@given(st.lists(eighths, min_size=1, max_size=4), st.lists(eighths, min_size=1, max_size=20), eighths)
def test_linear_drifts_have_their_speed(speeds, alphas, threshold):
    speeds, alphas = np.array(speeds), np.array(alphas)
    drifts, fired = rehearse(speeds, alphas, constant(threshold, len(alphas), len(speeds)))
    found = drift_speeds(drifts, fired, alphas)
    assert found.tolist() == (speeds if len(alphas) > 1 else 0 * speeds).tolist()


# Firing


@pytest.mark.parametrize(
    ("speed", "alpha", "threshold", "gap"),
    [(1.0, 0.5, 1.0, 2), (1.0, 0.5, 1.25, 3), (2.0, 0.5, 1.0, 1), (4.0, 0.5, 1.0, 1), (0.25, 0.25, 1.0, 16)],
)
def test_gap_by_hand(speed, alpha, threshold, gap):
    fired = predicted_firing(np.array([speed]), np.full(50, alpha), constant(threshold, 50))
    assert np.flatnonzero(fired).tolist() == list(range(gap, 50, gap))


@given(eighths, eighths, st.integers(1, 2000).map(lambda n: n / 64))
def test_gap_is_the_threshold_over_the_speed(speed, alpha, threshold):
    gap = math.ceil(threshold / (speed * alpha))
    fired = predicted_firing(np.array([speed]), np.full(3 * gap + 1, alpha), constant(threshold, 3 * gap + 1))
    assert np.flatnonzero(fired).tolist() == [gap, 2 * gap, 3 * gap]


def test_always_and_never():
    thresholds = np.tile([0.0, math.inf], (6, 1))
    for speeds in (np.zeros(2), np.ones(2), np.full(2, 1e300)):
        fired = predicted_firing(speeds, np.ones(6), thresholds)
        assert fired.tolist() == [[True, False]] * 6
        assert fired.dtype == bool


def test_devices_do_not_mind_each_other():
    speeds, thresholds = np.array([1.0, 2.0, 0.0]), np.tile([2.0, 6.0, 1.0], (12, 1))
    fired = predicted_firing(speeds, np.ones(12), thresholds)
    assert [np.flatnonzero(column).tolist() for column in fired.T] == [[2, 4, 6, 8, 10], [3, 6, 9], []]


def test_thresholds_that_change():
    thresholds = np.array([[9.0], [9.0], [2.0], [2.0], [1.0], [9.0]])
    fired = predicted_firing(np.ones(1), np.ones(6), thresholds)
    # travelled before each: 0 1 2 1 2 1
    assert np.flatnonzero(fired).tolist() == [2, 4]


def test_diminishing_step_sizes_make_gaps_longer():
    alphas = 1 / (1 + np.arange(200.0))
    fired = predicted_firing(np.ones(1), alphas, constant(1, 200))
    found = gaps(fired)
    assert found[0] < found[1] < found[2]
    at = np.flatnonzero(fired)
    for last, now in itertools.pairwise(at):
        assert alphas[last:now].sum() >= 1 > alphas[last : now - 1].sum()


def test_what_was_travelled_before_is_carried_over():
    since = np.array([0.0, 1.0, 2.0, 7.0])
    fired = predicted_firing(np.ones(4), np.ones(5), constant(2, 5, 4), since)
    assert [np.flatnonzero(column).tolist() for column in fired.T] == [[2, 4], [1, 3], [0, 2, 4], [0, 2, 4]]
    assert since.tolist() == [0, 1, 2, 7]


def test_since_in_whole_numbers():
    fired = predicted_firing(np.ones(1), np.full(4, 0.5), constant(2, 4), np.array([1]))
    assert np.flatnonzero(fired).tolist() == [2]


@given(
    st.lists(eighths, min_size=1, max_size=3), st.lists(eighths, min_size=2, max_size=20), eighths, st.integers(1, 19)
)
def test_a_rehearsal_goes_on_as_predicted(speeds, alphas, threshold, cut):
    speeds, alphas = np.array(speeds), np.array(alphas)
    cut = min(cut, len(alphas) - 1)
    thresholds = constant(threshold, len(alphas), len(speeds))
    _, fired = rehearse(speeds, alphas, thresholds)
    assert np.array_equal(predicted_firing(speeds, alphas, thresholds), fired)
    since = np.array([alphas[np.flatnonzero(row)[-1] if row.any() else 0 : cut].sum() for row in fired[:cut].T])
    assert np.array_equal(predicted_firing(speeds, alphas[cut:], thresholds[cut:], since), fired[cut:])


def test_no_iterations_left():
    assert predicted_firing(np.ones(2), np.empty(0), np.empty((0, 2))).shape == (0, 2)
