"""The information flow of a run: which links carried models at each iteration, and with what weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.sparse import csr_array

from efhc.core.arrays import Flags, Ints
from efhc.core.graph import Graph
from efhc.core.mixing import mixing_matrix

KEPT = 16
"""Matrices of whole graphs that are remembered."""


class Flow:
    """G'(k) of one strategy and seed, iterations 0 .. K-1.

    `graph(k)` is the physical G(k), the same object for the same links if that can be; `fired` is v_i(k), (iterations,
    devices); `recorded(k)` are the links (links, 2) that were used; left out, they are those of Alg. 1.
    """

    def __init__(
        self,
        graph: Callable[[int], Graph],
        fired: Flags,
        recorded: Callable[[int], Ints] | None = None,
        *,
        exchange_at_start: bool = False,
    ) -> None:
        self.graph, self.fired, self._exchange_at_start = graph, fired, exchange_at_start
        self.iterations, self.devices = fired.shape
        self.used_links = recorded or self.links_by_rule
        self._whole: list[tuple[Graph, csr_array]] = []

    def physical_links(self, k: int) -> Ints:
        """E(k)"""
        return self.graph(k).links

    def links_by_rule(self, k: int) -> Ints:
        """The links that Events 1 and 2 use: (i, j) in E(k) where i or j fired, or that were not in E(k-1)."""
        if k > 0:
            previous = self.graph(k - 1)
        graph, fired = self.graph(k), self.fired[k]
        i, j = graph.links.T
        used = fired[i] | fired[j]
        if k > 0:
            used |= graph.new_since(previous)
        elif self._exchange_at_start:
            used[:] = True
        links: Ints = graph.links[used]
        return links

    def matrix(self, k: int) -> csr_array:
        """P(k). One object for iterations that use all links of one graph."""
        graph, links = self.graph(k), self.used_links(k)
        if len(links) < len(graph.links):
            return mixing_matrix(graph, np.isin(self._codes(graph.links), self._codes(links)))
        for known, matrix in self._whole:
            if known is graph:
                return matrix
        matrix = mixing_matrix(graph, np.ones(len(graph.links), dtype=bool))
        self._whole = [(graph, matrix), *self._whole[: KEPT - 1]]
        return matrix

    def stray_links(self, k: int) -> Ints:
        """Links that are used and, by Alg. 1 on E(k), should not be, or the other way round."""
        used, due = self._codes(self.used_links(k)), self._codes(self.links_by_rule(k))
        stray = np.setxor1d(used, due)
        return np.column_stack([stray % self.devices, stray // self.devices])

    def _codes(self, links: Ints) -> Ints:
        ends = np.asarray(links, dtype=np.int64)
        codes: Ints = ends.max(axis=1) * self.devices + ends.min(axis=1)
        return codes
