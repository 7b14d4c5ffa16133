"""Who gets what, as laws: labels in a random order, and shares cut where they end."""

from __future__ import annotations

import numpy as np
import pytest

from efhc.core.randomness import Purpose, Randomness
from efhc.learning.data import Dataset, Digits
from efhc.learning.partition import Dirichlet, LabelsPerDevice


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return Digits().load("float64")


def test_the_order_of_labels_is_drawn_for_each_seed(digits: Dataset):
    orders = set()
    for seed in range(6):
        parts = LabelsPerDevice().split(digits, 10, Randomness(seed))
        order = tuple(int(digits.y_train[part[0]]) for part in parts)
        assert sorted(order) == list(range(10))
        orders.add(order)
    assert len(orders) == 6


def test_dirichlet_cuts_each_label_at_the_nearest_sample(digits: Dataset):
    """After device i, sum_{j <= i} share_j of the label's samples are given away, to within half a sample."""
    devices, errors = 5, []
    parts = Dirichlet(concentration=10.0).split(digits, devices, Randomness(1))
    stream = Randomness(1).stream(Purpose.PARTITION, 0)
    for label in range(10):
        samples = stream.permutation(np.flatnonzero(digits.y_train == label))
        shares = stream.dirichlet(np.full(devices, 10.0))
        counts = [np.sum(digits.y_train[part] == label) for part in parts]
        errors.append(np.cumsum(counts) - np.cumsum(shares) * len(samples))
    assert np.abs(errors).max() <= 0.5
    assert np.max(errors) > 0.1  # up as well as down
    assert np.min(errors) < -0.1
