"""What a driver did in a few iterations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from efhc.base.arrays import Flags, Floats, Ints
from efhc.core.cost import (
    airtime_bits,
    device_times,
    exchange_airtime_bits,
    exchange_bits,
    transmission_time,
    transmission_time_of_bits,
)
from efhc.core.graph import Graph


@dataclass(frozen=True, eq=False)
class Steps:
    """What iterations k, k+1, ..., all on one graph, did. Arrays have one row per iteration."""

    k: int
    previous_graph: Graph
    """G(k-1)"""
    graph: Graph
    fired: Flags
    """(iterations, devices)"""
    losses: Floats
    """Each device's loss on its batch at w_i(k), (iterations, devices)."""
    consensus_errors: Floats
    """sum_i ||w_i - w_bar||^2 of the models that each iteration left."""
    bits: Ints | None = None
    """B_ij: bits sent over each directed link, in the order of `Graph.directed`, (iterations, 2 links).

    None: the paper's exchange, in which both ends of every used link send a whole model, 32 n bits.
    """

    def __len__(self) -> int:
        return len(self.fired)

    @cached_property
    def used(self) -> Flags:
        """The links over which anything was sent in either direction, (iterations, links).

        In the paper's exchange, v_ij: new at the first iteration, or with an end that fired.
        """
        if self.bits is not None:
            has_sent = self.bits > 0
            forth, back = both_ways(self.graph)
            return has_sent[:, forth] | has_sent[:, back]
        i, j = self.graph.links.T
        # Row by row in memory, for any number of iterations: how NumPy adds up a row depends on its order.
        used: Flags = np.take(self.fired, i, axis=1) | np.take(self.fired, j, axis=1)
        used[0] |= self.new_links
        return used

    @cached_property
    def new_links(self) -> Flags:
        """The links that were not there before the first iteration, (links,)."""
        return self.graph.new_since(self.previous_graph)

    @property
    def has_other_links(self) -> bool:
        """Whether the graph has other links than the one before."""
        return len(self.graph.links) != len(self.previous_graph.links) or bool(self.new_links.any())

    def transmission_times(self, bandwidths: Floats, parameters: int) -> Floats:
        """The transmission time of each iteration, (iterations,)."""
        if self.bits is None:
            return transmission_time(self.graph, self.used, bandwidths, parameters)
        return transmission_time_of_bits(self.graph, self.bits, bandwidths)

    def device_times(self, bandwidths: Floats, parameters: int) -> Floats:
        """The time for which each device transmitted, (iterations, devices). Its mean is the transmission time."""
        return device_times(self.graph, self.bits_sent(parameters), bandwidths)

    def bits_of_iterations(self, parameters: int) -> Floats:
        """sum_i sum_j B_ij / d_i: the bits on air of all devices, (iterations,). A broadcast counts once."""
        if self.bits is None:
            ends = self.graph.links[np.nonzero(self.used)[1]]
            return exchange_airtime_bits(self.graph.degrees[ends], self.used.sum(axis=1), parameters)
        total: Floats = airtime_bits(self.graph, self.bits).sum(axis=-1)
        return total

    def bits_sent(self, parameters: int) -> Ints:
        """B_ij, also of the paper's exchange, (iterations, 2 links)."""
        return exchange_bits(self.graph, self.used, parameters) if self.bits is None else self.bits


def both_ways(graph: Graph) -> tuple[Ints, Ints]:
    """Return the places of each link (i, j), i < j, among the directed links: of i to j, and of j to i."""
    directed = graph.directed
    back = np.flatnonzero(directed.sender > directed.receiver)  # sorted by j, then i, like the links
    return directed.back[back], back
