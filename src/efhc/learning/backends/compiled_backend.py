"""Linear models in compiled loops: batches of bytes are gathered, scaled and used while in the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from efhc.base.arrays import Flags, Floats, Ints
from efhc.base.threads import in_ranges
from efhc.core.graph import Graph
from efhc.core.state import NOTHING_LOCAL, Local
from efhc.kernels import loops
from efhc.kernels.compiled_arithmetic import links_of
from efhc.kernels.loops import Buffers, Outcome
from efhc.learning.backends.backend import Batch, ScoresNotFinite
from efhc.learning.data.dataset import Dataset
from efhc.learning.models.linear import SVM, LeastSquares, LinearModel, Regularized, Softmax

TEST_SAMPLES, DEVICES = 1024, 128
"""Test samples and devices that an evaluation looks at at once."""
COMPILED: dict[Callable[..., Any], int] = {
    SVM.score_loss: loops.MULTI_MARGIN,
    Softmax.score_loss: loops.CROSS_ENTROPY,
    LeastSquares.score_loss: loops.SQUARED,
}
"""What the kernels call the loss that a function computes."""


class LinearBackend:
    """`LinearModel.loss_and_gradient`, compiled."""

    def __init__(self, model: LinearModel, data: Dataset, *, threads: int = 1) -> None:
        self.parameters, self.threads = model.parameters(data), threads
        self._data = data
        kind = np.dtype(data.precision).type
        self._inputs = loops.Inputs(data.x_train, kind(data.scale), kind(data.shift), data.y_train)
        self._loss = loops.Loss(
            COMPILED[type(model).score_loss], kind(model.l2 if isinstance(model, Regularized) else 0)
        )

    @staticmethod
    def knows(model: Any) -> bool:
        """Whether its loss is compiled; one that a subclass changed is not."""
        return isinstance(model, LinearModel) and type(model).score_loss in COMPILED

    def initial_local(self, devices: int) -> Local:
        return NOTHING_LOCAL

    def grads(self, models: Floats, batch: Batch, local: Local, out: Floats) -> tuple[Floats, Local]:
        samples, ends = self._end_to_end(batch.samples)
        losses = np.empty(len(models))
        arguments = (models, self._inputs, samples, ends, self._loss, losses, out)
        in_ranges(loops.linear_rows, arguments, len(models), self.threads)
        return losses, local

    def grads_of_rows(self, pool: Floats, rows: Ints, batch: Batch, out: Floats, places: Ints) -> Floats:
        samples, ends = self._end_to_end(batch.samples)
        models, gradients = _picked(rows, pool, ends), _picked(places, out, ends)
        losses = np.empty(len(models))
        arguments = (pool, models, self._inputs, samples, ends, self._loss, losses, out, gradients)
        in_ranges(loops.linear_picked, arguments, len(models), self.threads)
        return losses

    @staticmethod
    def _end_to_end(samples: Ints | Sequence[Ints]) -> tuple[Ints, Ints]:
        """The samples of all devices in one array, and where each device's begin."""
        if isinstance(samples, np.ndarray):
            devices, size = samples.shape
            return samples.ravel(), np.arange(devices + 1) * size
        sizes = [len(mine) for mine in samples]
        return np.concatenate(samples, dtype=np.int32), np.cumsum([0, *sizes])

    def stretch(
        self,
        buffers: Buffers,
        samples: Ints | Sequence[Ints],
        graph: Graph,
        new_links: Flags,
        thresholds: Floats,
        step_sizes: Floats,
    ) -> tuple[int, Outcome]:
        shape = thresholds.shape
        outcome = Outcome(np.zeros(shape, dtype=bool), np.zeros(shape), np.zeros(len(thresholds)))
        batches = self._in_rows(samples, len(thresholds))
        links, plan = links_of(graph, buffers.models.dtype), loops.Plan(new_links, thresholds, step_sizes)
        return loops.stretch(buffers, self._inputs, self._loss, batches, links, plan, outcome), outcome

    def _in_rows(self, samples: Ints | Sequence[Ints], iterations: int) -> loops.Batches:
        """The batches of several iterations, a row for each; full batches are one row for all."""
        if isinstance(samples, np.ndarray):
            _, devices, size = samples.shape
            return loops.Batches(samples[:iterations].reshape(iterations, -1), np.arange(devices + 1) * size)
        joined, ends = self._end_to_end(samples)
        return loops.Batches(joined[None], ends)

    def accuracies(self, models: Floats, local: Local) -> Floats:
        right = np.zeros(len(models), dtype=np.int64)
        for first in range(0, len(models), DEVICES):
            bad = self._count_right(models[first : first + DEVICES], right[first : first + DEVICES])
            if bad >= 0:
                raise ScoresNotFinite(f"device {first + bad}")
        return right / len(self._data.y_test)

    def _count_right(self, models: Floats, right: Ints) -> int:
        """Count the right answers of each model; returns a model with scores that are not finite, or -1."""
        data, features = self._data, self._data.features
        classes = self.parameters // (features + 1)
        weights, biases = models[:, : classes * features].reshape(-1, features), models[:, classes * features :].ravel()
        for start in range(0, len(data.y_test), TEST_SAMPLES):
            x = data.inputs(data.x_test[start : start + TEST_SAMPLES])
            with np.errstate(over="ignore", invalid="ignore"):  # scores that are not finite are refused below
                scores = x @ weights.T  # all samples, all devices, all classes: one matrix product
                scores += biases
            labels = data.y_test[start : start + TEST_SAMPLES]
            bad = int(loops.count_right(scores.reshape(len(x), len(models), classes), labels, right))
            if bad >= 0:
                return bad
        return -1


def _picked(rows: Ints, among: Floats, ends: Ints) -> Ints:
    """The numbers of rows as the loops take them. They check no index, so it is done here."""
    picked = np.ascontiguousarray(rows, dtype=np.int64)
    if len(picked) != len(ends) - 1:
        raise ValueError(f"{len(picked)} rows and {len(ends) - 1} batches")
    if len(picked) and picked.view(np.uint64).max() >= len(among):  # a negative number is a very large one
        raise IndexError(f"rows {picked.min()} to {picked.max()} of an array of {len(among)} rows")
    return picked
