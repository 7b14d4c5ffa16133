"""How much averaging contracts: the rho of `lemma:harnessing:spectral`, measured on the matrices P(k) of a run.

    ||P(k:s) W - 1 w_bar|| <= rho(P(k:s) - J) ||W - 1 w_bar||,    P(k:s) = P(k) P(k-1) ... P(s),    J = (1/m) 1 1^T

P(k) is the symmetric and doubly stochastic `core.mixing.mixing_matrix`. W holds the models, one row per device, and
w_bar is their mean.

In the paper, rho(P(k:s) - J) is the spectral norm, the largest singular value. This module calls it the contraction. It
must not be computed as the largest |eigenvalue|: each P(k) is symmetric, but a product of several is in general not.
For m = 3, links (0,1) and (1,2) in turn, and beta = 1/2,

    P(1) P(0) = [[.5, .5, 0], [.25, .25, .5], [.25, .25, .5]],

and P(1:0) - J has the norm 1/2 and the largest |eigenvalue| 1/4. W = (1, 1, -2)^T shows that the norm is the right one:
||W - 1 w_bar|| is halved.

The contraction of a window is less than 1 if and only if the links used in it connect all devices (`proposition:conn`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from efhc.base.arrays import Floats, Ints
from efhc.base.threads import in_ranges
from efhc.theory import graph_loops

DENSE_DEVICES = 32
"""The largest number of devices for which P(k:s) is formed and its singular values are computed. Above it: Lanczos."""
TOLERANCE = 1e-7
"""The relative residual at which Lanczos ends. The remaining error is its square, over the gap between eigenvalues."""
ROUNDING = 1e-14
"""The error that rounding leaves in a contraction."""
MOST_WORK = 1e10
"""The largest number of multiplications for all windows together: about 12 seconds on two slow cores."""
ENTRIES_AT_ONCE, WINDOWS_AT_ONCE = 1_000_000, 1024
"""The largest numbers of matrix entries in memory, unless two windows need more, and of windows computed from them."""
PROBES, TYPICAL_STEPS = 8, 30
"""The number of windows from which the number of Lanczos steps is estimated, and the estimate if they need none."""


class Contractions(NamedTuple):
    """The contractions rho(P(k+B-1:k) - J) of windows of B iterations."""

    window: int
    """B"""
    starts: Ints
    """The first iteration k of each window that was looked at, in order."""
    values: Floats
    """The contraction of each of these windows."""
    of: int
    """The number of windows in the run. If not all were looked at, `largest` is a lower bound of rho."""

    @property
    def largest(self) -> float:
        """rho = sup_k rho(P(k+B-1:k) - J), over the windows looked at (at least one)."""
        return float(self.values.max())

    @property
    def largest_at(self) -> int:
        """The first iteration of the first window with the largest contraction."""
        return int(self.starts[self.values.argmax()])


def window_contractions(
    matrix: Callable[[int], csr_array],
    iterations: int,
    window: int,
    *,
    threads: int = 2,
    most_work: float = MOST_WORK,
) -> Contractions:
    """Return rho(P(k+B-1:k) - J) for k = 0 .. iterations - B, where P(k) is `matrix(k)` and B is `window`.

    Windows that consist of the same matrix objects in the same order are computed once. If all windows together take
    more than `most_work` multiplications, only some are looked at: those at k = 0, B, 2B, ..., on which the recursion
    of the paper rests, and as many others as `most_work` allows, evenly spread.

    `matrix` is called once for every iteration and again for the iterations of each window that is looked at. It must
    return equal matrices for equal k, but need not keep them. The result does not depend on `threads`.
    """
    of = max(iterations - window + 1, 0)
    if of == 0:
        return Contractions(window, np.zeros(0, np.int64), np.zeros(0), 0)
    objects, nonzeros, devices = _survey(matrix, iterations)
    kinds = _kinds(objects, window)
    first_of_kind = np.unique(kinds, return_index=True)[1]
    everyone, aligned = np.sort(first_of_kind), np.unique(first_of_kind[kinds[::window]])

    turns = _Turns(matrix, nonzeros, devices, window, threads)
    values_of_kind = np.full(len(everyone), np.nan)
    steps: list[Ints] = []

    def look_at(starts: Ints) -> None:
        for some, values, taken in turns.over(starts):
            values_of_kind[kinds[some]] = values
            steps.append(taken)

    probes = aligned[_spread(len(aligned), PROBES)]
    look_at(probes)
    work = turns.work(np.concatenate(steps))
    chosen = everyone
    if work[everyone].sum() > most_work:
        others = np.setdiff1d(everyone, aligned)
        left = max(most_work - float(work[aligned].sum()), 0.0)
        fitting = int(left / work[others].mean()) if len(others) else 0
        chosen = np.union1d(aligned, others[_spread(len(others), fitting)])
    look_at(np.setdiff1d(chosen, probes))

    values = values_of_kind[kinds]
    starts = np.flatnonzero(~np.isnan(values))
    return Contractions(window, starts, values[starts], of)


_Stack = tuple[Ints, Ints, Floats]
"""starts, columns, entries: row i of matrix t has the entries starts[t, i] .. starts[t, i + 1] - 1."""


def _stacked(matrices: Iterable[csr_array], nonzeros: Ints, devices: int) -> _Stack:
    """Stack matrices in sparse rows. `nonzeros` is their number of entries, so that they can be read one at a time."""
    ends = np.concatenate([[0], np.cumsum(nonzeros)])
    starts = np.empty((len(nonzeros), devices + 1), np.int64)
    columns, entries = np.empty(ends[-1], np.uint32), np.empty(ends[-1])
    for t, P in enumerate(matrices):
        starts[t] = P.indptr + ends[t]
        columns[ends[t] : ends[t + 1]], entries[ends[t] : ends[t + 1]] = P.indices, P.data
    return starts, columns, entries


def _norms(stack: _Stack, firsts: Ints, window: int, threads: int) -> tuple[Floats, Ints]:
    """Return ||P_{t+window-1} ... P_t - J||_2 for each t in `firsts`, and the number of Lanczos steps of each."""
    devices = stack[0].shape[1] - 1
    values, steps = np.empty(len(firsts)), np.zeros(len(firsts), np.int64)
    if devices <= DENSE_DEVICES:
        return _dense_norms(stack, firsts, window), steps
    seed = np.random.default_rng(0).standard_normal(devices)
    seed -= seed.mean()
    most_steps = 100 + 10 * devices  # without rounding, devices - 1 would do
    arguments = (*stack, firsts, window, seed, most_steps, TOLERANCE, ROUNDING, values, steps)
    in_ranges(graph_loops.window_norms, arguments, len(firsts), threads)
    return values, steps


def _dense_norms(stack: _Stack, firsts: Ints, window: int) -> Floats:
    starts, columns, entries = stack
    count, devices = starts.shape[0], starts.shape[1] - 1
    rows = np.repeat(np.arange(count * devices), np.diff(starts).ravel())
    P = np.bincount(rows * devices + columns, entries, count * devices * devices).reshape(count, devices, devices)
    products = P[firsts]
    for later in range(1, window):
        products = P[firsts + later] @ products
    values: Floats = np.linalg.norm(products - 1.0 / devices, 2, axis=(1, 2))
    joined = [graph_loops.joined(starts[first : first + window], columns, entries) for first in firsts.tolist()]
    return np.where(joined, values, 1.0)


def _survey(matrix: Callable[[int], csr_array], iterations: int) -> tuple[Ints, Ints, int]:
    """Return the number of the object that each P(k) is, in order of appearance; its number of entries; and m.

    Only weak references are held, so that matrices can be freed.
    """
    seen: dict[int, tuple[weakref.ref[csr_array], int]] = {}
    objects, nonzeros = np.empty(iterations, np.int64), np.empty(iterations, np.int64)
    count, devices = 0, 0
    for k in range(iterations):
        P = matrix(k)
        known = seen.get(id(P))
        if known is None or known[0]() is not P:  # an address is used again once its object is gone
            known = seen[id(P)] = weakref.ref(P), count
            count += 1
        objects[k], nonzeros[k], devices = known[1], P.nnz, P.shape[0]
    return objects, nonzeros, devices


def _kinds(objects: Ints, window: int) -> Ints:
    """Return a number for each window, equal for windows of the same objects in the same order.

    Two windows of length a + b, b <= a, are equal if their windows of length a at the start, and b later, are equal.
    """
    kinds, length = objects, 1
    while length < window:
        later = min(length, window - length)
        codes = kinds[:-later] * (kinds.max() + 1) + kinds[later:]
        kinds = np.unique(codes, return_inverse=True)[1]
        length += later
    return kinds


def _spread(count: int, most: int) -> Ints:
    """Return at most `most` of the numbers 0 .. `count` - 1, evenly spaced."""
    fitting = min(count, most)
    places: Ints = (2 * np.arange(fitting) + 1) * count // max(2 * fitting, 1)
    return places


class _Turns(NamedTuple):
    """Computes windows in parts, so that few matrices are in memory at a time."""

    matrix: Callable[[int], csr_array]
    nonzeros: Ints
    devices: int
    window: int
    threads: int

    def work(self, steps: Ints) -> Floats:
        """Return the estimated number of multiplications of each window; `steps` are the Lanczos steps taken so far."""
        until = np.concatenate([[0], np.cumsum(self.nonzeros)])
        entries = until[self.window :] - until[: -self.window]
        if self.devices <= DENSE_DEVICES:
            return np.full(len(entries), 1e4 + (self.window + 25.0) * self.devices**3)
        taken = steps[steps > 0]
        multiplications: Floats = 2.0 * entries * (taken.mean() if len(taken) else TYPICAL_STEPS)
        return multiplications

    def over(self, starts: Ints) -> Iterator[tuple[Ints, Floats, Ints]]:
        """Yield some of `starts`, with their contractions and Lanczos steps, until all are computed."""
        for some in self._parts(starts):
            needed = np.unique(some[:, np.newaxis] + np.arange(self.window))
            matrices = (self.matrix(k) for k in needed.tolist())
            stack = _stacked(matrices, self.nonzeros[needed], self.devices)
            yield some, *_norms(stack, np.searchsorted(needed, some), self.window, self.threads)

    def _parts(self, starts: Ints) -> list[Ints]:
        """Return parts of `starts`. Overlapping windows stay together, so that few P(k) are computed more than once."""
        sizes = np.full_like(self.nonzeros, self.devices**2) if self.devices <= DENSE_DEVICES else self.nonzeros
        until = np.concatenate([[0], np.cumsum(sizes)])
        ends = starts + self.window
        new = until[ends] - until[np.maximum(starts, np.concatenate([[0], ends])[:-1])]
        room = max(ENTRIES_AT_ONCE, 2 * int((until[self.window :] - until[: -self.window]).max()))
        cuts = np.flatnonzero(np.diff(np.cumsum(new) // room)) + 1
        return np.split(starts, np.union1d(cuts, np.arange(WINDOWS_AT_ONCE, len(starts), WINDOWS_AT_ONCE)))
