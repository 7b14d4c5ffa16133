"""The accuracy of linear models on the test samples, in compiled loops."""

from __future__ import annotations

from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from efhc.base.arrays import Floats
from efhc.base.threads import in_ranges
from efhc.kernels import evaluation, lanes
from efhc.learning.backends.backend import ScoresNotFinite
from efhc.learning.data.dataset import Dataset

MODELS_BYTES = 3 << 17
"""Bytes of the models that are evaluated together: they stay in the second cache while all samples meet them."""
AT_ONCE = 1 << 23
"""Bytes of test samples that are laid side by side at once."""

_LAID: WeakKeyDictionary[Dataset, tuple[evaluation.Panels, ...]] = WeakKeyDictionary()
"""The test samples of each data set side by side, for all runs on it."""
_LAYING = Lock()


class LinearEvaluation:
    """The test samples as the loops take them. Runs may share it."""

    def __init__(self, data: Dataset, classes: int) -> None:
        self._data, self._classes = data, classes
        self._wide = 2 * lanes.width(np.empty(0, data.precision))

    def accuracies(self, models: Floats, threads: int) -> Floats:
        """The share of test samples that each of the models (m, n) gets right.

        Raises `ScoresNotFinite` for the first model with a score that is NaN or a largest score that is not finite.
        """
        models = np.ascontiguousarray(models)
        right = np.zeros(len(models), dtype=np.int64)
        is_bad = np.zeros(len(models), dtype=bool)
        starts = self._starts(models)
        together = max(1, MODELS_BYTES // (models.itemsize * models.shape[1]))
        for panels in self._panels():
            for first in range(0, len(models), together):
                some = slice(first, first + together)
                counts = np.zeros((len(panels.ranks), len(models[some])), dtype=np.int64)
                bad = np.zeros(counts.shape, dtype=bool)
                arguments = (panels, models[some], starts[some], counts, bad)
                in_ranges(_count_right, arguments, len(counts), threads)
                right[some] += counts.sum(axis=0)
                is_bad[some] |= bad.any(axis=0)
        if is_bad.any():
            raise ScoresNotFinite(f"device {np.argmax(is_bad)}")
        return right / len(self._data.y_test)

    def _panels(self) -> tuple[evaluation.Panels, ...]:
        """All test samples side by side, in a few pieces. They are laid out once for a data set."""
        with _LAYING:
            if self._data not in _LAID:
                samples = len(self._data.y_test)
                panel_bytes = self._wide * self._data.features * self._data.x_test.itemsize
                step = self._wide * max(1, AT_ONCE // panel_bytes)
                pieces = (self._laid(first, min(first + step, samples)) for first in range(0, samples, step))
                _LAID[self._data] = tuple(pieces)
            return _LAID[self._data]

    def _starts(self, models: Floats) -> Floats:
        """bias + shift * (sum of the weights), for each model and class."""
        weights = models[:, : -self._classes].reshape(len(models), self._classes, -1)
        with np.errstate(over="ignore", invalid="ignore"):  # scores that are not finite are refused
            starts = models[:, -self._classes :] + self._data.shift * weights.sum(axis=-1, dtype=np.float64)
            rounded: Floats = starts.astype(models.dtype)
        return rounded

    def _laid(self, first: int, end: int) -> evaluation.Panels:
        """Lay samples `first` to `end` - 1 side by side, next to those that are zero in the same features."""
        data, kind, wide = self._data, np.dtype(self._data.precision).type, self._wide
        x, y, panels = data.x_test[first:end], data.y_test[first:end], -(-(end - first) // wide)
        is_seen = x != 0
        order = np.lexsort((is_seen.sum(axis=1), is_seen.argmax(axis=1), y))
        rows, ranks = np.zeros((panels * wide, data.features), x.dtype), np.zeros(panels * wide, kind)
        rows[: end - first], ranks[: end - first] = x[order], self._classes - y[order]
        values = rows.reshape(panels, wide, -1).transpose(0, 2, 1)
        is_there = values.any(axis=2)
        starts = np.concatenate([[0], np.cumsum(is_there.sum(axis=1))])
        features = np.nonzero(is_there)[1]
        return evaluation.Panels(values[is_there], features, starts, ranks.reshape(panels, wide), kind(data.scale))


def _count_right(panels: evaluation.Panels, models: Floats, starts: Floats, *rest: Any) -> None:
    """`evaluation.count_right`, in memory of its own: several threads count at once."""
    evaluation.count_right(evaluation.room_for(panels, models, starts), panels, models, starts, *rest)
