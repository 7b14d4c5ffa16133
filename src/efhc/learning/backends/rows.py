"""Rows and samples in the form that compiled loops take. The loops check no index, so rows are checked here.

Numbers of samples are not checked here. `experiments.runs.draw.draw_parts` checks those of every partition, and batches
are drawn from the partition.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from efhc.base.arrays import Floats, Ints
from efhc.core.state import NOTHING_LOCAL, Local
from efhc.kernels.linear_loops import Batches
from efhc.learning.backends.backend import Batch


class OfRows(ABC):
    """A backend whose devices keep nothing to themselves, and that computes any rows of an array as it computes all."""

    @abstractmethod
    def grads_of_rows(self, pool: Floats, rows: Ints, batch: Batch, out: Floats, places: Ints) -> Floats:
        """See `backend.RowBackend`."""

    def initial_local(self, devices: int) -> Local:
        return NOTHING_LOCAL

    def grads(self, models: Floats, batch: Batch, local: Local, out: Floats) -> tuple[Floats, Local]:
        every = np.arange(len(models))
        return self.grads_of_rows(models, every, batch, out, every), local


def checked_rows(rows: Ints, among: Floats, ends: Ints) -> Ints:
    """Return the numbers of rows of an array, one row for each batch that `ends` delimits.

    Raises `IndexError` if the array has no such row, and `ValueError` if there are more or fewer rows than batches.
    """
    checked = np.ascontiguousarray(rows, dtype=np.int64)
    if len(checked) != len(ends) - 1:
        raise ValueError(f"{len(checked)} rows and {len(ends) - 1} batches")
    if len(checked) and checked.view(np.uint64).max() >= len(among):  # a negative number is a very large one
        raise IndexError(f"rows {checked.min()} to {checked.max()} of an array of {len(among)} rows")
    return checked


def end_to_end(samples: Ints | Sequence[Ints]) -> Batches:
    """Return the samples of all devices in one array."""
    if isinstance(samples, np.ndarray):
        devices, size = samples.shape
        return Batches(samples.ravel(), np.arange(devices + 1) * size)
    sizes = [len(mine) for mine in samples]
    return Batches(np.concatenate(samples, dtype=np.int32), np.cumsum([0, *sizes]))
