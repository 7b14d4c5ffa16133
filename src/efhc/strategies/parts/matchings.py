"""MATCHA: how a graph is cut into matchings, how often each is used, and with which weight."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from efhc.base.arrays import Floats, Ints, read_only
from efhc.core.graph import Graph

CLOSE_ENOUGH = 0.01
"""The probabilities reach the largest possible second-smallest eigenvalue, but for this share of it."""
MOST_ROUNDS = 300
"""The search for the probabilities ends after this number of rounds in any case; its best result counts."""
LOWEST = 6
"""How many of the smallest eigenvalues are looked at."""


class Matchings(NamedTuple):
    """A graph as matchings: sets of links of which no two have an end in common."""

    of_link: Ints
    """The number of the matching of each link."""
    probabilities: Floats
    """p_j: how often matching j is used."""
    weight: float
    """alpha: the weight of every link that is used."""


@lru_cache(maxsize=16)
def matchings(graph: Graph, budget: float) -> Matchings:
    """Return the matchings of a graph, used so that sum_j p_j <= `budget` times their number."""
    of_link = read_only(matching_of_links(graph))
    if not len(of_link):
        return Matchings(of_link, np.zeros(0), 0.0)
    probabilities = activation_probabilities(graph, of_link, budget)
    return Matchings(of_link, read_only(probabilities), best_weight(graph, probabilities[of_link]))


def laplacian(graph: Graph, weights: Floats) -> Floats:
    """Return the Laplacian of a graph whose links have these weights, (m, m)."""
    i, j = graph.links.T
    L = np.zeros((graph.devices, graph.devices))
    L[i, j] = L[j, i] = -weights
    np.fill_diagonal(L, -L.sum(axis=1))
    return L


def averaging_of_parts(graph: Graph) -> Floats:
    """J: the matrix that averages each connected part of the graph, (m, m); all entries are 1/m if it is connected."""
    same = (graph.parts[:, None] == graph.parts).astype(np.float64)
    J: Floats = same / same.sum(axis=1)
    return J


def activation_probabilities(graph: Graph, of_link: Ints, budget: float) -> Floats:
    """Return the p that maximise lambda_2(sum_j p_j L_j) subject to sum_j p_j <= budget M and 0 <= p_j <= 1.

    L_j: the Laplacian of matching j of M, whose links are given by `of_link`; lambda_2: the smallest eigenvalue on
    vectors that average to zero on each connected part of the graph, the second smallest of all if it is connected.
    Every unit vector v of that kind bounds it: lambda_2(p) <= sum_j p_j (v^T L_j v). Kelley's method: maximise the
    least of the bounds found so far, a linear programme; add the bounds of the lowest eigenvectors there; stop when
    lambda_2 reaches what the bounds allow, up to `CLOSE_ENOUGH`. (The paper leaves it to a solver of semidefinite
    programmes.)
    """
    from scipy.linalg import eigh

    M, (i, j) = int(of_link.max()) + 1, graph.links.T
    J, lowest = averaging_of_parts(graph), [0, min(LOWEST, graph.devices) - 1]
    best, best_value = np.full(M, budget), 0.0
    p, bounds = best, np.empty((0, M))
    for _ in range(MOST_ROUNDS):
        # All eigenvalues of sum_j p_j L_j are at most 2 M; J lifts those of constant vectors above them.
        values, vectors = eigh(laplacian(graph, p[of_link]) + (2 * M + 1) * J, subset_by_index=lowest)
        if values[0] > best_value:
            best, best_value = p, values[0]
        stretched = (vectors[i] - vectors[j]) ** 2  # v^T L v, link by link, for each eigenvector
        found = [np.bincount(of_link, column, M) for column in stretched.T[values < 2 * M + 0.5]]
        bounds = np.vstack([bounds, *found])
        p, allowed = _highest(bounds, budget * M)
        if allowed <= best_value * (1 + CLOSE_ENOUGH):
            break
    return best


def _highest(bounds: Floats, total: float) -> tuple[Floats, float]:
    """Return the p that maximises t subject to t <= bounds @ p, sum_j p_j <= total and 0 <= p_j <= 1; and that t."""
    from scipy.optimize import linprog

    count, M = bounds.shape
    left = np.vstack([np.column_stack([-bounds, np.ones(count)]), [*np.ones(M), 0.0]])
    right = [*np.zeros(count), total]
    solved = linprog([*np.zeros(M), -1.0], left, right, bounds=[(0, 1)] * M + [(0, None)])
    x = np.asarray(solved.x)
    return np.clip(x[:M], 0.0, 1.0), float(x[M])


def best_weight(graph: Graph, probability: Floats) -> float:
    """Return the alpha that minimises `contraction`, a convex function of it."""
    from scipy.optimize import minimize_scalar

    found = minimize_scalar(lambda alpha: contraction(graph, probability, alpha), bounds=(0.0, 1.0), method="bounded")
    return float(found.x)


def contraction(graph: Graph, probability: Floats, alpha: float) -> float:
    """rho = || E[W^T W] - J ||_2 of W = I - alpha sum_j B_j L_j, where B_j is 1 with probability p_j, else 0.

    p_j: `probability`, for each link that of its matching; J: the averaging of each connected part of the graph. As
    L_j^2 = 2 L_j for a matching and the B_j are independent,

        E[W^T W] = I - 2 alpha L1 + alpha^2 (L1^2 + 2 L2),   L1 = sum_j p_j L_j,   L2 = sum_j p_j (1 - p_j) L_j
    """
    from scipy.linalg import eigvalsh

    L1, L2 = laplacian(graph, probability), laplacian(graph, probability * (1 - probability))
    second_moment = np.eye(graph.devices) - 2 * alpha * L1 + alpha**2 * (L1 @ L1 + 2 * L2)
    return float(np.abs(eigvalsh(second_moment - averaging_of_parts(graph))).max())


def matching_of_links(graph: Graph) -> Ints:
    """Return the number of a matching for each link, from 0 on: at most D + 1 where D is the largest degree.

    Misra & Gries (Information Processing Letters 1992), link by link: a link takes a number that is free at both ends.
    If there is none, others change theirs: with c free at u, the d/c path from u swaps its numbers, and the links of a
    fan of u, where the number of each is free at the end of the one before, pass their numbers on.
    """
    colouring = _Colouring(graph.devices, int(graph.degrees.max(initial=0)) + 1)
    for u, v in graph.links.tolist():
        colouring.add(u, v)
    numbers = [colouring.number(u, v) for u, v in graph.links.tolist()]
    without_gaps: Ints = np.unique(np.array(numbers, dtype=np.int64), return_inverse=True)[1]
    return without_gaps


class _Colouring:
    """The numbers of the links so far."""

    def __init__(self, devices: int, numbers: int) -> None:
        self._all = range(numbers)
        self._at: list[dict[int, int]] = [{} for _ in range(devices)]
        """For each device, its neighbours by the number of the link."""
        self._of: dict[tuple[int, int], int] = {}

    def number(self, u: int, v: int) -> int:
        return self._of[min(u, v), max(u, v)]

    def add(self, u: int, v: int) -> None:
        """Give the link of u and v a number."""
        both = next((one for one in self._all if one not in self._at[u] and one not in self._at[v]), None)
        if both is not None:
            self._put(u, v, both)
            return
        fan = self._fan(u, v)
        c, d = self._free(u), self._free(fan[-1])
        self._swap(u, d, c)
        self._pass_on(u, self._usable(fan, d), d)

    def _free(self, device: int) -> int:
        return next(one for one in self._all if one not in self._at[device])

    def _fan(self, u: int, v: int) -> list[int]:
        """Return neighbours of u from v on, as many as possible: each one's number is free at the one before."""
        fan = [v]
        while True:
            follow = (w for one, w in self._at[u].items() if one not in self._at[fan[-1]] and w not in fan)
            if (following := next(follow, None)) is None:
                return fan
            fan.append(following)

    def _swap(self, u: int, d: int, c: int) -> None:
        """Exchange the numbers d and c along the path of links d, c, d, ... from u: d becomes free at u."""
        path, here, one = [], u, d
        while one in self._at[here]:
            there = self._at[here][one]
            path.append((here, there, one))
            here, one = there, c + d - one
        for here, there, one in path:
            self._take(here, there, one)
        for here, there, one in path:
            self._put(here, there, c + d - one)

    def _usable(self, fan: list[int], d: int) -> list[int]:
        """Return the fan up to the first device at which d is free after the swap.

        It is a fan still. The swap changes one link of u at most, from d to c; d was free at the device before it in
        the fan. There either d is free still, and the fan ends there or earlier, or the path ended there, which makes c
        free.
        """
        last = next(place for place, device in enumerate(fan) if d not in self._at[device])
        return fan[: last + 1]

    def _pass_on(self, u: int, fan: list[int], d: int) -> None:
        """Give each link of the fan the number of the next one, and d to the last."""
        numbers = [self.number(u, device) for device in fan[1:]]
        for device, one in zip(fan[1:], numbers, strict=True):
            self._take(u, device, one)
        for device, one in zip(fan, [*numbers, d], strict=True):
            self._put(u, device, one)

    def _put(self, u: int, v: int, one: int) -> None:
        self._at[u][one], self._at[v][one] = v, u
        self._of[min(u, v), max(u, v)] = one

    def _take(self, u: int, v: int, one: int) -> None:
        del self._at[u][one], self._at[v][one]
