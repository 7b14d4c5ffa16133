"""Linear models in compiled loops: batches of bytes are gathered, scaled and used while in the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from efhc.base.arrays import Flags, Floats, Ints
from efhc.base.threads import in_ranges
from efhc.core.graph import Graph
from efhc.core.state import Local
from efhc.kernels import iteration_loops, lanes, linear_evaluation, linear_loops
from efhc.kernels.compiled_arithmetic import drift, links_of, spread_tiles
from efhc.kernels.iteration_loops import Buffers, Outcome, StretchInputs
from efhc.kernels.linear_loops import Batches, room_for
from efhc.kernels.model_loops import copy_rows
from efhc.learning.backends.backend import ParameterPart, RangeBackend, end_to_end, inputs_of, layout_of
from efhc.learning.data.dataset import Dataset
from efhc.learning.models.linear import SVM, LeastSquares, LinearModel, Regularized, Softmax

COMPILED: dict[Callable[..., Any], int] = {
    SVM.score_loss: linear_loops.MULTI_MARGIN,
    Softmax.score_loss: linear_loops.CROSS_ENTROPY,
    LeastSquares.score_loss: linear_loops.SQUARED,
}
"""The code of the kernels for the loss that a function computes."""


MODELS_BYTES = 3 << 17
"""Bytes of the models that are evaluated together: they stay in the second cache while all samples meet them."""
AT_ONCE = 1 << 23
"""Bytes of test samples that are laid side by side at once."""

_LAID: WeakKeyDictionary[Dataset, tuple[tuple[linear_evaluation.Panels, Ints], ...]] = WeakKeyDictionary()
"""The test samples of each data set side by side, for all runs on it."""
_LAYING = Lock()


class LinearBackend(RangeBackend):
    """`LinearModel.loss_and_gradient`, compiled."""

    name = "linear"

    def __init__(self, model: LinearModel, data: Dataset, *, threads: int = 1) -> None:
        self.parameters, self.threads = model.parameters(data), threads
        self._model, self.data, self._inputs = model, data, inputs_of(data, data.x_train, data.y_train)
        l2 = np.dtype(data.precision).type(model.l2 if isinstance(model, Regularized) else 0)
        self._loss = linear_loops.Loss(COMPILED[type(model).score_loss], l2)

    @staticmethod
    def knows(model: Any) -> bool:
        """Return whether the loss of `model` is compiled. The loss of a subclass that overrides it is not."""
        return isinstance(model, LinearModel) and type(model).score_loss in COMPILED

    def layout(self) -> list[ParameterPart]:
        return layout_of(self._model, self.data, self)

    def _compute(
        self, models: Floats, every: Ints, batches: Batches, losses: Floats, out: Floats, low: int, high: int
    ) -> None:
        given = room_for(models, self._inputs), models, every, self._inputs, self._loss, batches
        linear_loops.linear_picked(*given, losses, out, every, low, high)

    def stretch(
        self,
        buffers: Buffers,
        samples: Ints | Sequence[Ints],
        graph: Graph,
        new_links: Flags,
        thresholds: Floats,
        step_sizes: Floats,
        in_cache: bool,
    ) -> tuple[int, Buffers, Outcome]:
        """Make the iterations of `core.iteration.iterate` on one graph, many in one call.

        Returns how many were made, which array is which afterwards, and what the iterations did.

        One is made for each row of `thresholds` (iterations, m), with its entry of `step_sizes` and its row of
        `samples` (iterations, m, batch size), or with one array of samples per device in every iteration. `new_links`
        are those of the first. An iteration that diverges is not made and ends the stretch. `in_cache` says whether W
        is so small that one thread makes all iterations while everything is in the cache; else each pass over the
        models uses all threads. The bits are the same.
        """
        shape = thresholds.shape
        outcome = Outcome(np.zeros(shape, dtype=bool), np.zeros(shape), np.zeros(len(thresholds)))
        batches = self._in_rows(samples, len(thresholds))
        links, plan = links_of(graph, buffers.models.dtype), StretchInputs(new_links, thresholds, step_sizes)
        if np.isnan(buffers.drifts[0]) and iteration_loops.needs_drifts(thresholds[0]):
            buffers.drifts[:] = drift(buffers.models, buffers.last_broadcast, self.threads)
        loop = iteration_loops.stretch if in_cache else self._in_threads(buffers.models)
        room = iteration_loops.stretch_room(buffers.models, self._inputs, len(new_links))
        done, after = loop(room, buffers, self._inputs, self._loss, batches, links, plan, outcome)
        return done, after, outcome

    def _in_threads(self, models: Floats) -> Callable[..., tuple[int, Buffers]]:
        """Return `iteration_loops.stretch` with every pass over the models spread over threads."""

        def step(_: Any, *given: Any) -> None:
            def of_range(low: int, high: int) -> None:
                iteration_loops.step_rows(room_for(models, self._inputs), *given[:-2], low, high)

            in_ranges(of_range, (), given[-1], self.threads)

        def spread(_: Any, models: Floats, spreads: Floats, low: int, high: int) -> None:
            spread_tiles(models, spreads, self.threads)

        def copy(*given: Any) -> None:
            in_ranges(copy_rows, given[:-2], given[-1], self.threads)

        return iteration_loops.stretch_of(step, spread, copy)

    def _in_rows(self, samples: Ints | Sequence[Ints], iterations: int) -> Batches:
        """The batches of several iterations, a row for each; full batches are one row for all."""
        if isinstance(samples, np.ndarray):
            _, devices, size = samples.shape
            return Batches(samples[:iterations].reshape(iterations, -1), np.arange(devices + 1) * size)
        joined, ends = end_to_end(samples)
        return Batches(joined[None], ends)

    def _scored(self, models: Floats, local: Local) -> tuple[dict[str, Floats], Flags]:
        models = np.ascontiguousarray(models)
        is_bad = np.zeros(len(models), dtype=bool)
        right, losses = (np.empty((len(models), len(self.data.y_test)), models.dtype) for _ in range(2))
        starts = _starts(self.data, models)
        together = max(1, MODELS_BYTES // (models.itemsize * models.shape[1]))
        for panels, order in panels_of(self.data):
            for first in range(0, len(models), together):
                some = slice(first, first + together)
                both = [np.empty((len(models[some]), panels.ranks.size), models.dtype) for _ in range(2)]
                bad = np.zeros((len(panels.ranks), len(models[some])), dtype=bool)
                given = panels, models[some], starts[some], self._loss.kind, *both, bad
                in_ranges(_test_samples, given, len(panels.ranks), self.threads)
                right[some, order], losses[some, order] = (values[:, : len(order)] for values in both)
                is_bad[some] |= bad.any(axis=0)
        return {"accuracy": right, "loss": losses}, is_bad


def panels_of(data: Dataset) -> tuple[tuple[linear_evaluation.Panels, Ints], ...]:
    """Return all test samples side by side, in a few pieces, each with the numbers of its samples.

    They are laid out once for a data set.
    """
    with _LAYING:
        if data not in _LAID:
            wide, samples = 2 * lanes.BYTES // np.dtype(data.precision).itemsize, len(data.y_test)
            step = wide * max(1, AT_ONCE // (wide * data.features * data.x_test.itemsize))
            pieces = (_laid(data, wide, first, min(first + step, samples)) for first in range(0, samples, step))
            _LAID[data] = tuple(pieces)
        return _LAID[data]


def _starts(data: Dataset, models: Floats) -> Floats:
    """bias + shift * (sum of the weights), for each model and class."""
    classes = models.shape[1] // (data.features + 1)
    weights = models[:, :-classes].reshape(len(models), classes, -1)
    with np.errstate(over="ignore", invalid="ignore"):  # scores that are not finite are refused
        starts = models[:, -classes:] + data.shift * weights.sum(axis=-1, dtype=np.float64)
        rounded: Floats = starts.astype(models.dtype)
    return rounded


def _laid(data: Dataset, wide: int, first: int, end: int) -> tuple[linear_evaluation.Panels, Ints]:
    """Lay samples `first` to `end` - 1 side by side, sorted so that neighbours are zero in the same features."""
    x, y, panels = data.x_test[first:end], data.y_test[first:end], -(-(end - first) // wide)
    kind, is_seen = np.dtype(data.precision).type, x != 0
    order = np.lexsort((is_seen.sum(axis=1), is_seen.argmax(axis=1), y))
    rows, ranks = np.zeros((panels * wide, data.features), x.dtype), np.zeros(panels * wide, kind)
    rows[: end - first], ranks[: end - first] = x[order], data.classes - y[order]
    values = rows.reshape(panels, wide, -1).transpose(0, 2, 1)
    is_there = values.any(axis=2)
    starts = np.concatenate([[0], np.cumsum(is_there.sum(axis=1))])
    features = np.nonzero(is_there)[1]
    side_by_side = ranks.reshape(panels, wide)
    laid = linear_evaluation.Panels(values[is_there], features, starts, side_by_side, kind(data.scale))
    return laid, first + order


def _test_samples(panels: linear_evaluation.Panels, models: Floats, starts: Floats, *rest: Any) -> None:
    """Call `linear_evaluation.test_samples` with new working memory, because several threads test at once."""
    linear_evaluation.test_samples(linear_evaluation.room_for(panels, models, starts), panels, models, starts, *rest)
