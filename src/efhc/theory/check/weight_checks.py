"""`assump:weights`: the conditions that a transition matrix P(k) must meet."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.sparse import csr_array

from efhc.base.arrays import Ints
from efhc.theory.check.outcome import Check, finding

ROUNDING = 1e-9
"""The largest difference between a sum of weights and 1, and between p_ij and p_ji, that counts as rounding."""


def broken_weights(matrix: csr_array, used_links: Ints, iteration: int) -> Check | None:
    """Return the check of the first condition that P = `matrix` does not meet at `iteration`, or None.

    (a) p_ii > 0 and p_ij >= 0; p_ij > 0 exactly where a link is used (i != j)
    (b) sum_j p_ij = 1 and sum_i p_ij = 1
    (c) p_ij = p_ji

    The columns of each row of `matrix` ascend. `used_links` is (links, 2).
    """
    for condition, reason, devices, off in _conditions(matrix, used_links):
        if len(devices):
            label = f"assump:weights-{condition}"
            return finding("weights", reason, {"off": off}, iteration, int(devices[0]), label=label)
    return None


def _conditions(matrix: csr_array, used_links: Ints) -> Iterator[tuple[str, str, Ints, float]]:
    """Yield each condition in turn, with the devices that break it and how far a sum of weights is from 1."""
    devices, weights, columns = matrix.shape[0], matrix.data, matrix.indices
    rows = np.repeat(np.arange(devices), np.diff(matrix.indptr))
    yield "(a)", "negative", rows[~(weights >= 0)], 0.0
    yield "(a)", "diagonal", np.flatnonzero(~(matrix.diagonal() > 0)), 0.0
    i, j = used_links.T
    received = np.concatenate([i * devices + j, j * devices + i])
    weighted = (rows * devices + columns)[(weights > 0) & (rows != columns)]
    if not np.array_equal(np.unique(received), weighted):
        yield "(a)", "not-received", np.setdiff1d(weighted, received) // devices, 0.0
        yield "(a)", "ignored", received[~np.isin(received, weighted)] // devices, 0.0
    for reason, places in (("row-sum", rows), ("column-sum", columns)):
        off = np.abs(np.bincount(places, weights, devices) - 1)
        yield "(b)", reason, np.flatnonzero(off == off.max()) if off.max() > ROUNDING else rows[:0], float(off.max())
    # By (a), an entry above the diagonal has one below: column by column, the entries are those of the rows.
    yield "(c)", "asymmetric", rows[np.abs(matrix.tocsc().data - weights) > ROUNDING], 0.0
