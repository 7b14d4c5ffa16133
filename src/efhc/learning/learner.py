"""The learning problem of all devices: their data, their mini-batches, and how good their models are."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Literal

import numpy as np

from efhc.base.arrays import Floats, Ints
from efhc.core.randomness import Randomness
from efhc.core.state import Local
from efhc.learning.backends.backend import Backend, ScoresNotFinite
from efhc.learning.batches import MiniBatches
from efhc.learning.data.dataset import Dataset
from efhc.learning.measures import Evaluation, Scores
from efhc.learning.own_distribution import OwnDistributions

TOGETHER = 1 << 22
"""Numbers of all models up to which the mean model is put below them, to evaluate all in one call; and numbers of
models times test samples that are looked at in one."""


class Learner:
    """The local problems of all devices. It is immutable, so runs may share it."""

    def __init__(
        self,
        backend: Backend,
        data: Dataset,
        parts: list[Ints],
        batch_size: int | Literal["full"],
        randomness: Randomness,
        partition: Any = None,
        tested: Ints | None = None,
    ) -> None:
        """`partition` is what the parts were drawn by, which says what a device's own test samples are.

        Of test samples that were set aside from the devices' own, `tested` has the number of each device, in order.
        """
        self._tested = tested
        self.backend, self.data, self.parts, self._partition = backend, data, parts, partition
        self.batches = None if batch_size == "full" else MiniBatches(parts, batch_size, randomness)

    def with_backend(self, backend: Backend) -> Learner:
        """Return the same problem, computed by another backend."""
        other = copy.copy(self)
        other.backend = backend
        return other

    @cached_property
    def own(self) -> OwnDistributions:
        """The test samples of each device's own distribution."""
        if self._tested is not None:
            return OwnDistributions.of_devices_apart(self._tested)
        return OwnDistributions.of(self.data, self.parts, self._partition)

    def evaluate(self, models: Floats, local: Local, devices: Ints | None = None) -> Evaluation:
        """Return how good the models that devices use are, given their models (m, n), and how good the mean model is.

        `devices` are their numbers; default: all.

        Raises `ScoresNotFinite` if a largest score is not finite.
        """
        numbers = np.arange(len(models)) if devices is None else devices
        metrics, own = self.backend.metrics, self.own
        sums: list[Floats] = []
        done = 0
        mean = mean_of(*self.backend.models_to_average(models, local))
        for rows, of_rows in self._calls(*self.backend.models_in_use(models, local, numbers), *mean):
            try:
                scored = self.backend.scored(rows, of_rows)
            except ScoresNotFinite as error:
                place = done + (error.device or 0)
                raise ScoresNotFinite(int(numbers[place]) if place < len(models) else None) from None
            done += len(rows)
            sums.append(own.sums_by_cell(np.stack([scored[metric] for metric in metrics])))
        of_cells = np.concatenate(sums, axis=1)  # the last row is that of the mean model
        every, of_cells = of_cells.sum(axis=2) / len(self.data.y_test), of_cells / own.sizes
        of_own = own.of_devices(of_cells[:, :-1], numbers)
        of_mean = own.of_devices(np.broadcast_to(of_cells[:, -1:], of_cells[:, :-1].shape), numbers).mean(axis=1)
        found = zip(metrics, every[:, :-1], of_own, every[:, -1].tolist(), of_mean.tolist(), strict=True)
        return Evaluation(metrics, {metric: Scores(*scores) for metric, *scores in found}, numbers)

    def _calls(
        self, models: Floats, local: Local, mean_model: Floats, mean_local: Local
    ) -> Iterator[tuple[Floats, Local]]:
        """Yield the models and then the mean, in pieces for which the metrics of all test samples fit into memory."""
        mean = mean_model[None], {name: row[None] for name, row in mean_local.items()}
        at_once = max(1, TOGETHER // len(self.data.y_test))
        if models.size <= TOGETHER and len(models) < at_once:
            joined = {name: np.concatenate([rows, mean[1][name]]) for name, rows in local.items()}
            yield np.concatenate([models, mean[0]]), joined
            return
        for first in range(0, len(models), at_once):
            piece = slice(first, first + at_once)
            yield models[piece], {name: rows[piece] for name, rows in local.items()}
        yield mean

    def module(self, models: Floats, local: Local, device: int | Literal["mean"]) -> Any:
        """Return the `torch.nn.Module` of a device, or of the mean model, in evaluation mode.

        Raises `InputError` if the model is not a torch module.
        """
        if device == "mean":
            return self.backend.module_for(*mean_of(*self.backend.models_to_average(models, local)))
        own: Local = {name: rows[[device]] for name, rows in local.items()}
        used, own = self.backend.models_in_use(models[[device]], own, np.array([device]))
        return self.backend.module_for(used[0], {name: rows[0] for name, rows in own.items()})


def mean_of(models: Floats, local: Local) -> tuple[Floats, Local]:
    """The mean model (n,), averaged in double precision, and the mean of what devices keep to themselves."""
    mean_model = models.mean(axis=0, dtype=np.float64).astype(models.dtype)
    return mean_model, {name: np.asarray(rows.mean(axis=0)).astype(rows.dtype) for name, rows in local.items()}
