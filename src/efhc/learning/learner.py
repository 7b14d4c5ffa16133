"""What the devices' data say of their models: stochastic gradients on their own samples, accuracy on the test set."""

from __future__ import annotations

from typing import Literal

import numpy as np

from efhc.core.arrays import Floats, Ints
from efhc.core.randomness import Randomness
from efhc.learning.batches import MiniBatches
from efhc.learning.data.dataset import Dataset
from efhc.learning.models import LinearModel


class Learner:
    """The local problems of all devices."""

    def __init__(
        self,
        model: LinearModel,
        data: Dataset,
        parts: list[Ints],
        batch_size: int | Literal["full"],
        randomness: Randomness,
    ) -> None:
        self.model, self.data, self.parts = model, data, parts
        sizes = [len(part) for part in parts]
        self._batches = None if batch_size == "full" else MiniBatches(sizes, batch_size, randomness)
        self._local = [(data.x_train[part], data.y_train[part]) for part in parts] if self._batches is None else []
        # The parts end to end, so that a batch of all devices is one gather.
        self._samples = np.concatenate(parts)
        self._starts = np.cumsum([0, *sizes[:-1]])[:, None]

    @property
    def parameters(self) -> int:
        """n, the number of parameters."""
        return self.model.parameters(self.data.features, self.data.classes)

    def gradients(self, models: Floats, k: int) -> tuple[Floats, Floats]:
        """G(k), (m, n), at `models`, and each device's loss on its batch, (m,)."""
        if self._batches is None:
            each = [self.model.loss_and_gradient(w, x, y) for w, (x, y) in zip(models, self._local, strict=True)]
            return np.stack([gradient for _, gradient in each]), np.array([loss for loss, _ in each])
        batch = self._samples[self._starts + self._batches.positions(k)]
        losses, gradients = self.model.loss_and_gradient(models, self.data.x_train[batch], self.data.y_train[batch])
        return gradients, losses

    def accuracies(self, models: Floats) -> Floats:
        """The share of test samples that each of the models (m, n) gets right."""
        answers = (self.model.scores(w, self.data.x_test).argmax(axis=-1) for w in models)
        return np.array([np.mean(answer == self.data.y_test) for answer in answers])
