"""Assumption `assump:weights`: what the transition matrix P(k) must be."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from efhc.core.arrays import Flags, Floats, Ints

ROUNDING = 1e-9
"""How far a sum of weights may be from 1."""


class Breach(NamedTuple):
    """A condition of the assumption that a matrix does not meet."""

    condition: str
    device: int
    detail: str


def weights_breach(matrix: csr_array | Floats, used_links: Ints | None = None) -> Breach | None:
    """The first condition that P = `matrix` does not meet, or nothing.

    (a) p_ii > 0; p_ij > 0 on used links and, where `used_links` (links, 2) are given, 0 elsewhere
    (b) sum_j p_ij = 1 and sum_i p_ij = 1
    (c) p_ij = p_ji
    """
    P: csr_array[np.float64, tuple[int, int]] = csr_array(matrix)  # type: ignore[assignment]
    P.sum_duplicates()
    entries = P.tocoo()
    i, j, p = entries.coords[0], entries.coords[1], entries.data
    if (bad := ~np.isfinite(p) | (p < 0)).any():
        return _breach("(a)", i, bad, "p_ij of device {} is negative or not a number")
    own = P.diagonal()
    if (own <= 0).any():
        return _breach("(a)", np.arange(len(own)), own <= 0, "p_ii of device {} is not positive")
    if used_links is not None and (breach := _only_used(P, i[(p > 0) & (i != j)], j[(p > 0) & (i != j)], used_links)):
        return breach
    for axis, word in ((1, "row"), (0, "column")):
        off = np.abs(np.asarray(P.sum(axis=axis)).ravel() - 1)
        if off.max() > ROUNDING:
            return Breach("(b)", int(off.argmax()), f"{word} {int(off.argmax())} sums to 1 only within {off.max():.3g}")
    skew = (P - P.T).tocoo()
    if (bad := np.abs(skew.data) > ROUNDING).any():
        return _breach("(c)", skew.coords[0], bad, "p_ij and p_ji of device {} differ")
    return None


def _only_used(P: csr_array, i: Ints, j: Ints, used_links: Ints) -> Breach | None:
    """Positive exactly where a link is used."""
    devices = P.shape[0]
    ends = np.asarray(used_links, dtype=np.int64).reshape(-1, 2)
    codes = np.concatenate([ends[:, 0] * devices + ends[:, 1], ends[:, 1] * devices + ends[:, 0]])
    weighted = i.astype(np.int64) * devices + j
    if (bad := ~np.isin(weighted, codes)).any():
        return _breach("(a)", i, bad, "device {} weighs a model that it did not receive")
    if (bad := ~np.isin(codes, weighted)).any():
        return _breach("(a)", codes // devices, bad, "device {} gives no weight to a model that it received")
    return None


def _breach(condition: str, devices: Ints, bad: Flags, text: str) -> Breach:
    device = int(devices[np.argmax(bad)])
    return Breach(condition, device, text.format(device))
