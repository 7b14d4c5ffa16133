"""The information flow of a run: the links that carried models at each iteration, and their weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy.sparse import csr_array

from efhc.base.arrays import Flags, Ints
from efhc.core.graph import Graph
from efhc.core.mixing import mixing_matrix

KEPT_GRAPHS, KEPT_LINKS = 16, 5_000_000
"""Matrices are kept of the latest `KEPT_GRAPHS` graphs of which all links were used, and of the first iterations until
their graphs have `KEPT_LINKS` links together."""


class Flow:
    """G'(k) of one strategy and seed, for iterations 0 .. K-1.

    `graph(k)` is the physical graph G(k), if possible the same object for the same links. `fired` is v_i(k),
    (iterations, devices). `recorded(k)` holds the links that were used, (links, 2). Default: the links that Alg. 1
    uses.
    """

    def __init__(
        self,
        graph: Callable[[int], Graph],
        fired: Flags,
        recorded: Callable[[int], Ints] | None = None,
        *,
        exchange_at_start: bool = False,
    ) -> None:
        self.graph, self.fired, self._exchange_at_start = lru_cache(2)(graph), fired, exchange_at_start
        self.iterations, self.devices = fired.shape
        self.used_links = recorded or self.links_by_rule
        self._whole_matrix = lru_cache(KEPT_GRAPHS)(lambda graph: mixing_matrix(graph, graph.all_links))
        self._kept: dict[int, csr_array] = {}
        self._room = KEPT_LINKS

    def physical_links(self, k: int) -> Ints:
        """Return E(k), (links, 2)."""
        return self.graph(k).links

    def links_by_rule(self, k: int) -> Ints:
        """Return the links that Events 1 and 2 use at iteration k, (links, 2)."""
        links: Ints = self.graph(k).links[self._rule(k)]
        return links

    def _rule(self, k: int) -> Flags:
        """Return for each link of E(k) whether one of its ends fired, or the link was not in E(k-1)."""
        graph, fired = self.graph(k), self.fired[k]
        i, j = graph.links.T
        new = graph.new_since(self.graph(k - 1)) if k else self._exchange_at_start
        used: Flags = fired[i] | fired[j] | new
        return used

    def _used(self, k: int) -> tuple[Flags, Ints]:
        """Return for each link of E(k) whether it was used, and the codes of used links that are not in E(k)."""
        graph, ends = self.graph(k), np.asarray(self.used_links(k), dtype=np.int64)
        codes = np.maximum(ends[:, 0], ends[:, 1]) * self.devices + np.minimum(ends[:, 0], ends[:, 1])
        places = np.minimum(np.searchsorted(graph.codes, codes), len(graph.codes) - 1)
        there = graph.codes[places] == codes if len(graph.codes) else np.zeros(len(codes), dtype=bool)
        used = np.zeros(len(graph.links), dtype=bool)
        used[places[there]] = True
        return used, codes[~there]

    def matrix(self, k: int) -> csr_array:
        """Return P(k): the same object for all iterations that use all links of the same graph."""
        if k not in self._kept:
            graph, (used, _) = self.graph(k), self._used(k)
            matrix = self._whole_matrix(graph) if used.all() else mixing_matrix(graph, used)
            self._room -= len(used)
            if self._room < 0:
                return matrix
            self._kept[k] = matrix
        return self._kept[k]

    def stray_links(self, k: int) -> Ints:
        """Return the links at which the recorded use differs from that of Alg. 1 on E(k), (links, 2)."""
        used, not_there = self._used(k)
        stray = np.concatenate([self.graph(k).codes[used != self._rule(k)], not_there])
        return np.column_stack([stray % self.devices, stray // self.devices])
