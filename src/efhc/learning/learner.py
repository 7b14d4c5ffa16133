"""What the devices' data say of their models: stochastic gradients on their own samples, accuracy on the test set."""

from __future__ import annotations

from typing import Literal

import numpy as np

from efhc.base.arrays import Floats, Ints
from efhc.core.iteration import Local
from efhc.core.randomness import Randomness
from efhc.learning.backends.backend import Backend
from efhc.learning.batches import MiniBatches
from efhc.learning.data.dataset import Dataset


class Learner:
    """The local problems of all devices."""

    def __init__(
        self,
        backend: Backend,
        data: Dataset,
        parts: list[Ints],
        batch_size: int | Literal["full"],
        randomness: Randomness,
    ) -> None:
        self.backend, self.data, self.parts = backend, data, parts
        self.batches = None if batch_size == "full" else MiniBatches(parts, batch_size, randomness)

    def accuracies(self, models: Floats, local: Local) -> tuple[Floats, float]:
        """The share of test samples that each of the models (m, n) gets right, and that their mean gets right."""
        mean_model = models.mean(axis=0, dtype=np.float64, keepdims=True).astype(models.dtype)
        mean_local = {name: rows.mean(axis=0, keepdims=True).astype(rows.dtype) for name, rows in local.items()}
        of_mean = self.backend.accuracies(mean_model, mean_local)
        return self.backend.accuracies(models, local), float(of_mean[0])
