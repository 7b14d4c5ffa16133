"""The learning problem of all devices: their data, their mini-batches, and how good their models are."""

from __future__ import annotations

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

    @cached_property
    def own(self) -> OwnDistributions:
        """The test samples of each device's own distribution."""
        if self._tested is not None:
            return OwnDistributions.of_devices_apart(self._tested)
        return OwnDistributions.of(self.data, self.parts, self._partition)

    def evaluate(self, models: Floats, local: Local, devices: Ints | None = None) -> Evaluation:
        """Return how good each of the models (m, n) and their mean are. `devices` are their numbers; default: all.

        Raises `ScoresNotFinite` if a largest score is not finite.
        """
        numbers = np.arange(len(models)) if devices is None else devices
        means: dict[str, list[Floats]] = {metric: [] for metric in self.backend.metrics}
        own: dict[str, list[Floats]] = {metric: [] for metric in self.backend.metrics}
        by_cell: dict[str, Floats] = {}
        done = 0
        for rows, of_rows in self._calls(models, local):
            try:
                scored = self.backend.scored(rows, of_rows)
            except ScoresNotFinite as error:
                place = done + (error.device or 0)
                raise ScoresNotFinite(int(numbers[place]) if place < len(models) else None) from None
            those = numbers[done : done + len(rows)]
            done += len(rows)
            for metric, values in scored.items():
                by_cell[metric] = self.own.by_cell(values)
                means[metric].append(values.mean(axis=1, dtype=np.float64))
                own[metric].append(self.own.of_devices(by_cell[metric][: len(those)], those))
        found = {}
        for metric, cells in by_cell.items():
            *every, mean_model = np.concatenate(means[metric]).tolist()  # the last row is that of the mean model
            of_mean = self.own.of_devices(np.broadcast_to(cells[-1], (len(numbers), len(cells[-1]))), numbers).mean()
            found[metric] = Scores(np.array(every), np.concatenate(own[metric]), mean_model, float(of_mean))
        return Evaluation(self.backend.metrics, found, numbers)

    def _calls(self, models: Floats, local: Local) -> Iterator[tuple[Floats, Local]]:
        """Yield the models and then their mean, in pieces for which the metrics of all test samples fit into memory."""
        mean_model, mean_local = mean_of(models, local)
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
            return self.backend.module_for(*mean_of(models, local))
        return self.backend.module_for(models[device], {name: rows[device] for name, rows in local.items()})


def mean_of(models: Floats, local: Local) -> tuple[Floats, Local]:
    """The mean model (n,), averaged in double precision, and the mean of what devices keep to themselves."""
    mean_model = models.mean(axis=0, dtype=np.float64).astype(models.dtype)
    return mean_model, {name: np.asarray(rows.mean(axis=0)).astype(rows.dtype) for name, rows in local.items()}
