"""`assump:weights`: the conditions that a transition matrix P(k) must meet."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from efhc.base.arrays import Flags, Floats, Ints
from efhc.theory.connectivity import network_loops

ROUNDING = 1e-9
"""The largest difference between a sum of weights and 1, and between p_ij and p_ji, that counts as rounding."""


class Breach(NamedTuple):
    """A condition of `assump:weights` that a matrix does not meet."""

    condition: str
    """(a), (b) or (c)"""
    device: int
    reason: str
    """A code, for which `efhc.theory.check.sentences` has the sentence."""
    off: float = 0.0
    """How far a sum of weights is from 1."""


def weights_breach(matrix: csr_array | Floats, used_links: Ints | None = None) -> Breach | None:
    """Return the first condition that P = `matrix` does not meet, or None.

    (a) p_ii > 0 and p_ij >= 0; if `used_links` is given, p_ij > 0 exactly where a link is used (i != j)
    (b) sum_j p_ij = 1 and sum_i p_ij = 1
    (c) p_ij = p_ji

    `used_links`, (links, 2), names each link once.
    """
    P: csr_array[np.float64, tuple[int, int]] = csr_array(matrix, copy=True)  # type: ignore[assignment]
    P.sum_duplicates()
    links = np.zeros((0, 2), np.int64) if used_links is None else np.asarray(used_links, np.int64).reshape(-1, 2)
    parts = P.indptr, P.indices, P.data.astype(np.float64, copy=False), links
    if network_loops.weights_are_sound(*parts, used_links is not None, ROUNDING, np.empty(P.shape[0])):
        return None
    return _nonnegative(P) or (used_links is not None and _only_used(P, links)) or _stochastic(P) or _symmetric(P)


def _nonnegative(P: csr_array) -> Breach | None:
    rows = np.repeat(np.arange(P.shape[0]), np.diff(P.indptr))
    return _breach("(a)", rows, ~(P.data >= 0), "negative") or _breach(
        "(a)", np.arange(P.shape[0]), ~(P.diagonal() > 0), "diagonal"
    )


def _only_used(P: csr_array, links: Ints) -> Breach | None:
    """Check that weights are positive exactly where a link is used."""
    devices, entries = P.shape[0], P.tocoo()
    i, j = (ends[(entries.data > 0) & (entries.coords[0] != entries.coords[1])] for ends in entries.coords)
    codes = np.concatenate([links[:, 0] * devices + links[:, 1], links[:, 1] * devices + links[:, 0]])
    weighted = i.astype(np.int64) * devices + j
    return _breach("(a)", i, ~np.isin(weighted, codes), "not-received") or _breach(
        "(a)", codes // devices, ~np.isin(codes, weighted), "ignored"
    )


def _stochastic(P: csr_array) -> Breach | None:
    for axis, word in ((1, "row"), (0, "column")):
        off = np.abs(np.asarray(P.sum(axis=axis)).ravel() - 1)
        if not off.max() <= ROUNDING:
            return Breach("(b)", int(off.argmax()), f"{word}-sum", float(off.max()))
    return None


def _symmetric(P: csr_array) -> Breach | None:
    skew = (P - P.T).tocoo()
    return _breach("(c)", skew.coords[0], np.abs(skew.data) > ROUNDING, "asymmetric")


def _breach(condition: str, devices: Ints, bad: Flags, reason: str) -> Breach | None:
    if not bad.any():
        return None
    return Breach(condition, int(devices[np.argmax(bad)]), reason)
