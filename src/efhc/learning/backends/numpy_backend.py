"""Models written in NumPy: any object with `loss_and_gradient(w, x, y)` and `scores(w, x)`, for all devices at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from efhc.base.arrays import Floats, read_only
from efhc.core.state import Local
from efhc.learning.backends.backend import Backend, Batch, ScoresNotFinite
from efhc.learning.data.dataset import Dataset


class ArraysBackend(Backend):
    """Calls the model's own functions, `efhc.learning.models.linear` among them."""

    def __init__(self, model: Any, data: Dataset) -> None:
        self.parameters = model.parameters(data)
        self._model, self._data = model, data

    def grads(self, models: Floats, batch: Batch, local: Local, out: Floats) -> tuple[Floats, Local]:
        data, models = self._data, read_only(models)
        if isinstance(batch.samples, np.ndarray):
            x, y = data.inputs(data.x_train[batch.samples]), data.y_train[batch.samples]
            losses, out[:] = self._model.loss_and_gradient(models, x, y)
            return losses, local
        losses = np.empty(len(models))
        for i, samples in enumerate(batch.samples):
            x, y = data.inputs(data.x_train[samples]), data.y_train[samples]
            losses[i], out[i] = self._model.loss_and_gradient(models[i], x, y)
        return losses, local

    def accuracies(self, models: Floats, local: Local) -> Floats:
        x = read_only(self._data.inputs(self._data.x_test))
        return np.array([self._accuracy(device, w, x) for device, w in enumerate(read_only(models))])

    def _accuracy(self, device: int, w: Floats, x: Floats) -> float:
        with np.errstate(over="ignore", invalid="ignore"):
            scores = self._model.scores(w, x)
        if not np.isfinite(scores.max(axis=-1)).all():  # the largest is NaN if any is
            raise ScoresNotFinite(f"device {device}")
        return float(np.mean(scores.argmax(axis=-1) == self._data.y_test))
