"""Linear models in compiled loops: batches of bytes are gathered, scaled and used while in the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from efhc import kernels
from efhc.base.arrays import Floats, Ints
from efhc.base.threads import in_ranges
from efhc.core.iteration import NOTHING_LOCAL, Local
from efhc.learning.backends.backend import Batch
from efhc.learning.data.dataset import Dataset
from efhc.learning.models.linear import SVM, LeastSquares, LinearModel, Regularized, Softmax

TEST_SAMPLES, DEVICES = 1024, 128
"""Test samples and devices that an evaluation looks at at once."""
COMPILED: dict[Callable[..., Any], int] = {
    SVM.score_loss: kernels.MULTI_MARGIN,
    Softmax.score_loss: kernels.CROSS_ENTROPY,
    LeastSquares.score_loss: kernels.SQUARED,
}
"""What the kernels call the loss that a function computes."""


class LinearBackend:
    """`LinearModel.loss_and_gradient`, compiled."""

    def __init__(self, model: LinearModel, data: Dataset, *, threads: int = 1) -> None:
        self.parameters, self.threads = model.parameters(data), threads
        self._data = data
        kind = np.dtype(data.precision).type
        self._inputs = data.x_train, kind(data.scale), kind(data.shift), data.y_train
        self._loss = COMPILED[type(model).score_loss], kind(model.l2 if isinstance(model, Regularized) else 0)

    @staticmethod
    def knows(model: Any) -> bool:
        """Whether its loss is compiled; one that a subclass changed is not."""
        return isinstance(model, LinearModel) and type(model).score_loss in COMPILED

    def initial_local(self, devices: int) -> Local:
        return NOTHING_LOCAL

    def grads(self, models: Floats, batch: Batch, local: Local, out: Floats) -> tuple[Floats, Local]:
        samples, ends = self._end_to_end(batch.samples)
        losses = np.empty(len(models))
        arguments = (models, *self._inputs, samples, ends, *self._loss, losses, out)
        in_ranges(kernels.linear_rows, arguments, len(models), self.threads)
        return losses, local

    @staticmethod
    def _end_to_end(samples: Ints | Sequence[Ints]) -> tuple[Ints, Ints]:
        """The samples of all devices in one array, and where each device's begin."""
        sizes = [len(mine) for mine in samples]
        joined = samples.ravel() if isinstance(samples, np.ndarray) else np.concatenate(samples, dtype=np.int32)
        return joined, np.cumsum([0, *sizes])

    def problem(self, samples: Ints | Sequence[Ints]) -> tuple[Any, ...]:
        """What `kernels.stretch` wants to know: inputs, samples (iterations, all devices'), their ends, the loss."""
        if isinstance(samples, np.ndarray):
            iterations, devices, size = samples.shape
            return *self._inputs, samples.reshape(iterations, -1), np.arange(devices + 1) * size, *self._loss
        joined, ends = self._end_to_end(samples)
        return *self._inputs, joined[None], ends, *self._loss

    def accuracies(self, models: Floats, local: Local) -> Floats:
        right = np.zeros(len(models), dtype=np.int64)
        for first in range(0, len(models), DEVICES):
            self._count_right(models[first : first + DEVICES], right[first : first + DEVICES])
        return right / len(self._data.y_test)

    def _count_right(self, models: Floats, right: Ints) -> None:
        data, features = self._data, self._data.features
        classes = self.parameters // (features + 1)
        weights, biases = models[:, : classes * features].reshape(-1, features), models[:, classes * features :].ravel()
        for start in range(0, len(data.y_test), TEST_SAMPLES):
            x = data.inputs(data.x_test[start : start + TEST_SAMPLES])
            scores = x @ weights.T  # all samples, all devices, all classes: one matrix product
            scores += biases
            labels = data.y_test[start : start + TEST_SAMPLES]
            kernels.count_right(scores.reshape(len(x), len(models), classes), labels, right)
