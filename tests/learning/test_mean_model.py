from __future__ import annotations

import numpy as np

from efhc.core.randomness import Randomness
from efhc.learning.data import Digits
from efhc.learning.learner import Learner


class Listening:
    """A backend that keeps the models it is to evaluate."""

    parameters = 2

    def __init__(self) -> None:
        self.asked: list[np.ndarray] = []

    def accuracies(self, models, local):
        self.asked.append(models.copy())
        return np.zeros(len(models))


def test_the_mean_model_is_averaged_in_double_precision():
    backend = Listening()
    data = Digits().load("float32")
    learner = Learner(backend, data, [np.arange(5)] * 3, "full", Randomness(0))
    models = np.array([[1e8, 3.0], [1.0, 0.0], [-1e8, 0.0]], dtype=np.float32)  # float32 forgets the 1
    learner.accuracies(models, {})
    (asked,) = backend.asked
    assert asked.dtype == np.float32
    assert np.array_equal(asked[:3], models)
    assert asked[3].tolist() == [np.float32(1 / 3), 1.0]
