"""The learning problem of all devices: their data, their mini-batches, and the accuracy of their models."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from efhc.base.arrays import Floats, Ints
from efhc.core.randomness import Randomness
from efhc.core.state import Local
from efhc.learning.backends.backend import Backend, ScoresNotFinite
from efhc.learning.batches import MiniBatches
from efhc.learning.data.dataset import Dataset

TOGETHER = 1 << 22
"""Numbers of all models up to which the mean model is put below them, to evaluate all in one call."""


class Learner:
    """The local problems of all devices. It is immutable, so runs may share it."""

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
        """Return the accuracy of each of the models (m, n), and that of their mean, on the test samples.

        Raises `ScoresNotFinite` if a largest score is not finite.
        """
        mean_model, mean_local = mean_of(models, local)
        mean = mean_model[None], {name: row[None] for name, row in mean_local.items()}
        calls = [(models, local), mean]
        if models.size <= TOGETHER:
            joined = {name: np.concatenate([rows, mean[1][name]]) for name, rows in local.items()}
            calls = [(np.concatenate([models, mean[0]]), joined)]
        found: list[float] = []
        for call in calls:
            try:
                found += self.backend.accuracies(*call).tolist()
            except ScoresNotFinite as error:
                is_mean = error.who == f"device {len(models) - len(found)}"  # its row in the call
                raise ScoresNotFinite("the mean model") if is_mean else error from None
        return np.array(found[:-1]), found[-1]

    def module(self, models: Floats, local: Local, device: int | Literal["mean"]) -> Any:
        """Return the `torch.nn.Module` of a device, or of the mean model, in evaluation mode.

        Raises `InputError` if the model is not a torch module.
        """
        if device == "mean":
            return self.backend.module_for(*mean_of(models, local))
        return self.backend.module_for(models[device], {name: rows[device] for name, rows in local.items()})


def mean_of(models: Floats, local: Local) -> tuple[Floats, Local]:
    """The mean model (n,), averaged in double precision, and the mean of what devices keep to themselves."""
    mean_model = models.mean(axis=0, dtype=np.float64).astype(models.dtype)
    return mean_model, {name: np.asarray(rows.mean(axis=0)).astype(rows.dtype) for name, rows in local.items()}
