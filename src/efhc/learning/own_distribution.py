"""How good a model is on the data of one device: the test samples, weighted by the device's own distribution.

Test samples fall into cells: those of one label, or of one group if devices hold whole groups (`Partition.own_by`) and
the data set knows the groups of its test samples. With s_t the metric of the device's model on test sample t,

    own_i = sum_c q_ic (1 / |T_c|) sum_{t in T_c} s_t,     sum_c q_ic = 1

T_c: the test samples of cell c. q_ic by label: the share of label c among the device's training samples. By group, q_ic
is |T_c| divided by the number of test samples of all groups of device i. Where test samples were set aside from each
device's own samples, for validation, every device is a cell, and q_ic = 1 for its own. Cells without test samples are
left out, and `coverage` is the share of the device's training samples that are in the others. A device without any has
no such value (NaN).

Where labels are no classes (numbers, or several per sample) and devices do not hold whole groups, all test samples are
one cell if devices differ in nothing (`Partition.own_by`). Otherwise own distributions are not known.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

import numpy as np

from efhc.base.arrays import Floats, Ints
from efhc.learning.data.dataset import Dataset
from efhc.learning.partition import Partition


class OwnDistributions:
    """q_ic of all devices, and the cells of all test samples."""

    def __init__(
        self,
        cell_of_training: Ints,
        cell_of_test: Ints,
        parts: list[Ints],
        by: Literal["label", "group", "device", "sample"],
    ):
        """Cells are whole numbers from 0, of each training and each test sample."""
        self.by = by
        counts = np.bincount(cell_of_test, minlength=int(cell_of_training.max(initial=0)) + 1)
        self._order = np.argsort(cell_of_test, kind="stable")
        self._tested = np.flatnonzero(counts)
        """The cells with test samples, ascending."""
        self._starts = np.concatenate([[0], counts[self._tested].cumsum()[:-1]])
        self.sizes = counts[self._tested].astype(np.float64)
        """|T_c| of the cells that have test samples."""
        device = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        cells = cell_of_training[np.concatenate(parts)]
        codes, held = np.unique(device * len(counts) + cells, return_counts=True)
        row, cell = np.divmod(codes, len(counts))
        is_tested = counts[cell] > 0
        totals = np.bincount(row, held, len(parts))
        self.coverage: Floats = np.bincount(row[is_tested], held[is_tested], len(parts)) / totals
        """The share of each device's training samples whose cells have test samples, (m,)."""
        row, cell, held = row[is_tested], cell[is_tested], held[is_tested]
        weights = (counts[cell] if by == "group" else held).astype(np.float64)
        self._column = np.searchsorted(self._tested, cell)
        self._q = weights / np.bincount(row, weights, len(parts))[row]
        self._first = np.searchsorted(row, np.arange(len(parts) + 1))

    @classmethod
    def of(cls, data: Dataset, parts: list[Ints], partition: Any) -> OwnDistributions:
        """Return those of the devices that hold these training samples."""
        by = getattr(partition, "own_by", Partition.own_by)
        if by == "group" and data.groups is not None and data.test_groups is not None:
            return cls(data.groups, data.test_groups, parts, "group")
        if data.has_classes:
            return cls(data.y_train, data.y_test, parts, "label")
        cell = 0 if by == "nothing" else 1
        return cls(np.zeros(len(data.y_train), np.int64), np.full(len(data.y_test), cell), parts, "sample")

    @classmethod
    def of_devices_apart(cls, counts: Ints) -> OwnDistributions:
        """Return those of devices that have these numbers of test samples each, the first device first."""
        devices = np.arange(len(counts))
        return cls(devices, np.repeat(devices, counts), list(devices[:, None]), "device")

    def sums_by_cell(self, values: Floats) -> Floats:
        """Return the sums of values (metrics, models, test samples) over the samples of each cell that has any."""
        sums: Floats = np.add.reduceat(values[..., self._order], self._starts, axis=-1, dtype=np.float64)
        return sums

    def of_devices(self, cell_means: Floats, devices: Ints) -> Floats:
        """Return own_i of these devices, (metrics, devices), given the means by cell of one model for each."""
        rows, entry = self._all_entries if len(devices) == len(self.coverage) else self._entries(devices)
        products = self._q[entry] * cell_means[:, rows, self._column[entry]]
        found = np.stack([np.bincount(rows, of_metric, len(devices)) for of_metric in products])
        return np.where(self.coverage[devices] > 0, found, np.nan)

    def _entries(self, devices: Ints) -> tuple[Ints, Ints]:
        """Return the entries of q for these devices, and which of the devices each is of."""
        counts = self._first[devices + 1] - self._first[devices]
        rows = np.repeat(np.arange(len(devices)), counts)
        return rows, np.arange(len(rows)) + np.repeat(self._first[devices] - (counts.cumsum() - counts), counts)

    @cached_property
    def _all_entries(self) -> tuple[Ints, Ints]:
        return self._entries(np.arange(len(self.coverage)))

    def problem(self) -> str | None:
        """Return what the own distributions lack, in one sentence; None if nothing."""
        least = int(np.argmin(self.coverage))
        what = f"own data: the {self.by}s of device {least}"
        if self.coverage[least] == 0 and self.by == "sample":
            return "own data: labels are no classes, and devices hold no groups: there are no measures on own data"
        if self.coverage[least] == 0:
            if self.by == "device":
                what = f"own data: device {least}, whose single sample it trains on,"
                return f"{what} has no samples for validation, so there are no measures on own data (own_accuracy, ...)"
            return f"{what} have no test samples, so there are no measures on own data (own_accuracy, ...)"
        if self.coverage[least] < 1:
            share = 100 * (1 - self.coverage[least])
            return f"{what} that have no test samples are left out: {share:.3g} % of its training samples"
        return None
