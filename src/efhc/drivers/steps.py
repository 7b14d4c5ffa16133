"""What a driver did in a few iterations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from efhc.base.arrays import Flags, Floats
from efhc.core.cost import transmission_time
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

    def __len__(self) -> int:
        return len(self.fired)

    @cached_property
    def used(self) -> Flags:
        """v_ij: new at the first iteration, or with an end that fired; (iterations, links)."""
        i, j = self.graph.links.T
        used: Flags = self.fired[:, i] | self.fired[:, j]
        used[0] |= self.graph.new_since(self.previous_graph)
        return used

    def transmission_times(self, bandwidths: Floats, parameters: int) -> Floats:
        """The transmission time of each iteration."""
        return transmission_time(self.graph, self.used, bandwidths, parameters)
