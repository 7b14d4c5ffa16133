"""How much averaging contracts: the rho of Lemma `lemma:harnessing:spectral`, measured on the P(k) of a run.

    ||P(k:s) W - 1 w_bar|| <= rho(P(k:s) - J) ||W - 1 w_bar||,    P(k:s) = P(k) P(k-1) ... P(s),    J = (1/m) 1 1^T

P(k): `core.mixing.mixing_matrix`, symmetric and doubly stochastic; W: models, one row per device, w_bar their mean.

rho(X) is the spectral *norm*, the largest singular value, as in the paper. The spectral radius, the largest
|eigenvalue|, is another number: each P(k) is symmetric, but their product in general is not. With m = 3, links (0,1)
and (1,2) by turns and beta = 1/2,

    P(1) P(0) = [[.5, .5, 0], [.25, .25, .5], [.25, .25, .5]],    norm of P(1:0) - J: 1/2,    spectral radius: 1/4,

and W = (1, 1, -2)^T has ||W - 1 w_bar|| halved, not quartered: with the radius in the place of rho the lemma would be
false. The norm is called the contraction here; `spectral_radius` is for comparison.

The contraction of a window is less than 1 if and only if the links used in it join all devices (`proposition:conn`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from efhc.base.arrays import Floats, Ints
from efhc.base.threads import in_ranges
from efhc.theory import kernels

DENSE_DEVICES = 32
"""Number of devices up to which P(k:s) is multiplied out and its singular values are taken. Above it, Lanczos."""
TOLERANCE = 1e-7
"""Relative residual at which Lanczos ends. Its square over the gap between eigenvalues is the remaining error."""
ROUNDING = 1e-14
"""The smallest error that a contraction can have."""
MOST_WORK = 1e10
"""Multiplications that all windows together may take: about 8 seconds on two slow cores."""
ENTRIES_AT_ONCE, WINDOWS_AT_ONCE = 1_000_000, 1024
"""Entries of matrices that lie in memory beside those of one window, if two are not more; and windows on them."""
PROBES, TYPICAL_STEPS = 8, 30
"""Windows from which the number of Lanczos steps is estimated, and the estimate if these need none."""


class Contractions(NamedTuple):
    """rho(P(k+B-1:k) - J) for windows of B iterations."""

    window: int
    """B"""
    starts: Ints
    """k: the first iterations of the windows that were looked at, in order."""
    values: Floats
    """Their contractions."""
    of: int
    """How many windows there are."""

    @property
    def largest(self) -> float:
        """rho = sup_k rho(P(k+B-1:k) - J), over the windows looked at (at least one)."""
        return float(self.values.max())

    @property
    def largest_at(self) -> int:
        """The first iteration of the first window that has it."""
        return int(self.starts[self.values.argmax()])

    @property
    def complete(self) -> bool:
        """Whether all windows were looked at; else `largest` is a lower bound of rho."""
        return len(self.starts) == self.of


def product(matrices: Sequence[csr_array]) -> Floats:
    """P(k:s) = P(k) ... P(s), dense, of `matrices` [P(s), ..., P(k)] in the order of iterations."""
    result: Floats = matrices[0].toarray()
    for P in matrices[1:]:
        result = P @ result
    return result


def contraction(matrices: Sequence[csr_array]) -> float:
    """rho(P(k:s) - J) = ||P(k:s) - J||_2 of `matrices` [P(s), ..., P(k)], `lemma:harnessing:spectral`.

    Exactly 1 if the links of all together leave the network in parts.
    """
    stack = _side_by_side(matrices, np.array([P.nnz for P in matrices]), matrices[0].shape[0])
    values, _ = _norms(stack, np.zeros(1, np.int64), len(matrices), threads=1)
    return float(values[0])


def spectral_radius(matrices: Sequence[csr_array]) -> float:
    """The largest |eigenvalue| of P(k:s) - J: at most the contraction, and no bound on the consensus error."""
    eigenvalues = np.linalg.eigvals(product(matrices) - 1.0 / matrices[0].shape[0])
    return float(np.abs(eigenvalues).max())


def window_contractions(
    matrix: Callable[[int], csr_array],
    iterations: int,
    window: int,
    *,
    threads: int = 2,
    most_work: float = MOST_WORK,
) -> Contractions:
    """rho(P(k+B-1:k) - J) for k = 0 .. iterations - B; P(k): `matrix(k)`, B: `window`.

    Windows of the same objects in the same order are worked out once. If all windows take more than `most_work`
    multiplications, only those at k = 0, B, 2B, ... are looked at, on which the recursion of the paper rests, and,
    evenly spread, as many others as there is work left for.

    `matrix` is asked for every iteration once, then again for those that are needed, a few windows at a time: it has
    to give the same answer, and may forget it. The result does not depend on `threads`.
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


class _Stack(NamedTuple):
    """Matrices of one size side by side: row i of P_t is entries[starts[t, i] : starts[t, i + 1]], at these columns."""

    starts: Ints
    columns: Ints
    entries: Floats


def _side_by_side(matrices: Iterable[csr_array], nonzeros: Ints, devices: int) -> _Stack:
    """`nonzeros` tells how many entries each has: then none of them has to be kept."""
    ends = np.concatenate([[0], np.cumsum(nonzeros)])
    starts = np.empty((len(nonzeros), devices + 1), np.int64)
    columns, entries = np.empty(ends[-1], np.uint32), np.empty(ends[-1])
    for t, P in enumerate(matrices):
        starts[t] = P.indptr + ends[t]
        columns[ends[t] : ends[t + 1]], entries[ends[t] : ends[t + 1]] = P.indices, P.data
    return _Stack(starts, columns, entries)


def _norms(stack: _Stack, firsts: Ints, window: int, threads: int) -> tuple[Floats, Ints]:
    """||P_{t+window-1} ... P_t - J||_2 for t in `firsts`, and the Lanczos steps that each took."""
    devices = stack.starts.shape[1] - 1
    values, steps = np.empty(len(firsts)), np.zeros(len(firsts), np.int64)
    if devices <= DENSE_DEVICES:
        return _dense_norms(stack, firsts, window), steps
    seed = np.random.default_rng(0).standard_normal(devices)
    seed -= seed.mean()
    most_steps = 100 + 10 * devices  # without rounding, devices - 1 would do
    groups = _groups(firsts, window)
    arguments = (*stack, firsts, groups, window, seed, most_steps, TOLERANCE, ROUNDING, values, steps)
    in_ranges(kernels.window_norms, arguments, len(groups) - 1, threads)
    return values, steps


def _groups(firsts: Ints, window: int) -> Ints:
    """Where `firsts`, in order, is cut so that the windows between two cuts overlap and are few enough for a kernel."""
    cuts = [0]
    for place, first in enumerate(firsts.tolist()):
        if place - cuts[-1] == kernels.LANES or first - firsts[cuts[-1]] >= window:
            cuts.append(place)
    return np.array([*cuts, len(firsts)])


def _dense_norms(stack: _Stack, firsts: Ints, window: int) -> Floats:
    starts, columns, entries = stack
    count, devices = starts.shape[0], starts.shape[1] - 1
    rows = np.repeat(np.arange(count * devices), np.diff(starts).ravel())
    P = np.bincount(rows * devices + columns, entries, count * devices * devices).reshape(count, devices, devices)
    products = P[firsts]
    for later in range(1, window):
        products = P[firsts + later] @ products
    values: Floats = np.linalg.norm(products - 1.0 / devices, 2, axis=(1, 2))
    joined = [kernels.joined(starts[first : first + window], columns, entries) for first in firsts.tolist()]
    return np.where(joined, values, 1.0)


def _survey(matrix: Callable[[int], csr_array], iterations: int) -> tuple[Ints, Ints, int]:
    """Which object each P(k) is, numbered as they appear; its entries; m. Nothing is kept alive for it."""
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
    """A number for each window; two have the same if they are the same objects in the same order.

    A window of length a + b, b <= a, is told by the windows of length a at its beginning and b later.
    """
    kinds, length = objects, 1
    while length < window:
        later = min(length, window - length)
        codes = kinds[:-later] * (kinds.max() + 1) + kinds[later:]
        kinds = np.unique(codes, return_inverse=True)[1]
        length += later
    return kinds


def _spread(count: int, most: int) -> Ints:
    """At most `most` of the numbers 0 .. `count` - 1, evenly spaced."""
    fitting = min(count, most)
    places: Ints = (2 * np.arange(fitting) + 1) * count // max(2 * fitting, 1)
    return places


class _Turns(NamedTuple):
    """Windows worked out a few at a time, so that few matrices need be in memory."""

    matrix: Callable[[int], csr_array]
    nonzeros: Ints
    devices: int
    window: int
    threads: int

    def work(self, steps: Ints) -> Floats:
        """Multiplications for each window, if Lanczos takes as many steps as it took so far."""
        until = np.concatenate([[0], np.cumsum(self.nonzeros)])
        entries = until[self.window :] - until[: -self.window]
        if self.devices <= DENSE_DEVICES:
            return np.full(len(entries), 1e4 + (self.window + 25.0) * self.devices**3)
        taken = steps[steps > 0]
        multiplications: Floats = 2.0 * entries * (taken.mean() if len(taken) else TYPICAL_STEPS)
        return multiplications

    def over(self, starts: Ints) -> Iterator[tuple[Ints, Floats, Ints]]:
        """(some of the starts, their contractions, their Lanczos steps)"""
        for some in self._parts(starts):
            needed = np.unique(some[:, np.newaxis] + np.arange(self.window))
            matrices = (self.matrix(k) for k in needed.tolist())
            stack = _side_by_side(matrices, self.nonzeros[needed], self.devices)
            yield some, *_norms(stack, np.searchsorted(needed, some), self.window, self.threads)

    def _parts(self, starts: Ints) -> Iterator[Ints]:
        """Windows that overlap stay together, up to twice the entries of one, so that no P(k) is asked for often."""
        sizes = np.full_like(self.nonzeros, self.devices**2) if self.devices <= DENSE_DEVICES else self.nonzeros
        until = np.concatenate([[0], np.cumsum(sizes)]).tolist()
        part: list[int] = []
        size = end = room = 0
        for start in starts.tolist():
            new = until[start + self.window] - until[max(start, end)]
            if part and (size + new > room or len(part) == WINDOWS_AT_ONCE):
                yield np.array(part)
                part = []
            if not part:
                size, new = 0, until[start + self.window] - until[start]
                room = max(ENTRIES_AT_ONCE, 2 * new)
            size += new
            part.append(start)
            end = start + self.window
        if part:
            yield np.array(part)
