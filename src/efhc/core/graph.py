"""The physical network at one iteration: who is in radio reach of whom."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from efhc.base.arrays import Flags, Floats, Ints

FEW_DEVICES = 256
"""Number of devices up to which the models of all fit into the cache in any order."""


class Adjacency(NamedTuple):
    """The neighbours of device i are neighbours[starts[i] : starts[i + 1]], over the links of the same place."""

    starts: Ints
    neighbours: Ints
    link_of: Ints
    order: Ints
    """All devices, neighbours close to each other: in this order, models are still in the cache when needed again."""


class Directed(NamedTuple):
    """Every link twice, once in each direction, sorted by sender, then receiver, as in `Adjacency.neighbours`."""

    sender: Ints
    receiver: Ints
    link: Ints
    """The number of the link."""
    back: Ints
    """The place of the same link in the other direction."""


@dataclass(frozen=True, eq=False)
class Graph:
    """An undirected graph on devices 0 .. m-1.

    `links` has one row (i, j), i < j, per link, sorted by j, then i: a device that is added later has its links last.
    """

    devices: int
    links: Ints
    own_weights: Floats | None = None
    """w_ij of each link, for graphs whose papers demand others than the Metropolis weights. Lockstep only."""

    @classmethod
    def of(
        cls, devices: int, pairs: Iterable[tuple[int, int]] | Ints, weights: Sequence[float] | Floats | None = None
    ) -> Graph:
        """The graph with these pairs as links; order, direction and repetition do not matter.

        `weights` has w_ij of each pair, above 0 and together below 1 at every device. Default: the Metropolis weights.
        """
        ends = np.array(pairs if isinstance(pairs, np.ndarray) else list(pairs), dtype=np.int64).reshape(-1, 2)
        if ends.size and (ends.min() < 0 or ends.max() >= devices or (ends[:, 0] == ends[:, 1]).any()):
            raise ValueError(f"links join two different devices of 0..{devices - 1}")
        codes, first = np.unique(ends.max(axis=1) * devices + ends.min(axis=1), return_index=True)
        links = np.column_stack([codes % devices, codes // devices])
        if weights is None:
            return cls(devices, links)
        if (given := np.asarray(weights, dtype=np.float64)).shape != (len(ends),):
            raise ValueError(f"{len(ends)} pairs need as many weights")
        graph = cls(devices, links, given[first])
        if not graph.has_sound_weights:
            raise ValueError("weights are above 0, and together below 1 at every device")
        return graph

    @property
    def has_sound_weights(self) -> bool:
        """Whether the graph's own weights, if it has any, are above 0 and together below 1 at every device."""
        own = self.own_weights
        if own is None:
            return True
        if own.shape != (len(self.links),) or not (own > 0).all():
            return False
        return bool((np.bincount(self.links.ravel(), np.repeat(own, 2), self.devices) < 1).all())

    @cached_property
    def degrees(self) -> Ints:
        """d_i: the number of neighbours of each device."""
        return np.bincount(self.links.ravel(), minlength=self.devices)

    @cached_property
    def metropolis_weights(self) -> Floats:
        """beta_ij = min(1/(1+d_i), 1/(1+d_j)) for each link."""
        i, j = self.links.T
        beta: Floats = 1.0 / (1.0 + np.maximum(self.degrees[i], self.degrees[j]))
        return beta

    @cached_property
    def weights(self) -> Floats:
        """w_ij of each link: the graph's own, or the Metropolis weights."""
        return self.metropolis_weights if self.own_weights is None else self.own_weights

    @cached_property
    def all_links(self) -> Flags:
        """Every link."""
        return np.ones(len(self.links), dtype=bool)

    @cached_property
    def rows(self) -> Adjacency:
        """The same links device by device."""
        i, j = self.links.T
        numbers = np.arange(len(i))
        here, there, link_of = np.concatenate([i, j]), np.concatenate([j, i]), np.concatenate([numbers, numbers])
        by_device = np.lexsort((there, here))
        starts = np.concatenate([[0], np.cumsum(self.degrees)])
        return Adjacency(starts, there[by_device], link_of[by_device], self._near_each_other())

    @cached_property
    def directed(self) -> Directed:
        """The links in both directions."""
        rows = self.rows
        sender = np.repeat(np.arange(self.devices), self.degrees)
        # The place of (j, i) among all places, which are sorted by sender and then receiver.
        back = np.searchsorted(sender * self.devices + rows.neighbours, rows.neighbours * self.devices + sender)
        return Directed(sender, rows.neighbours, rows.link_of, back)

    def _near_each_other(self) -> Ints:
        if self.devices <= FEW_DEVICES:
            return np.arange(self.devices)
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import reverse_cuthill_mckee

        i, j = self.links.T
        matrix = coo_array((np.ones(2 * len(i)), (np.r_[i, j], np.r_[j, i])), shape=(self.devices, self.devices))
        order: Ints = reverse_cuthill_mckee(matrix.tocsr(), symmetric_mode=True).astype(np.int64)
        return order

    @cached_property
    def codes(self) -> Ints:
        """One number per link, in ascending order: j m + i."""
        codes: Ints = self.links[:, 1] * self.devices + self.links[:, 0]
        return codes

    def has_links_of(self, other: Graph) -> bool:
        """Whether the two graphs have the same links."""
        return other is self or np.array_equal(other.links, self.links)

    def new_since(self, previous: Graph) -> Flags:
        """For each link, whether `previous` did not have it."""
        if previous is self:
            return np.zeros(len(self.links), dtype=bool)
        if not len(previous.links):
            return np.ones(len(self.links), dtype=bool)
        place = np.searchsorted(previous.codes, self.codes)  # both ascend
        found: Flags = previous.codes[np.minimum(place, len(previous.codes) - 1)] == self.codes
        return ~found

    @cached_property
    def parts(self) -> Ints:
        """The connected part of each device, named after the lowest device in it.

        In each round, every part takes the lowest label among the parts that its links lead to, until no link has two
        labels at its ends.
        """
        lowest, (i, j) = np.arange(self.devices), self.links.T
        while (lowest[i] != lowest[j]).any():
            here, there = lowest[i], lowest[j]
            np.minimum.at(lowest, here, there)
            np.minimum.at(lowest, there, here)
            while not np.array_equal(further := lowest[lowest], lowest):
                lowest = further
        return lowest

    @property
    def is_connected(self) -> bool:
        """Whether every device can reach every other."""
        return bool((self.parts == 0).all())

    def neighbours(self) -> list[set[int]]:
        """The same graph as one set of neighbours per device."""
        sets: list[set[int]] = [set() for _ in range(self.devices)]
        for i, j in self.links.tolist():
            sets[i].add(j)
            sets[j].add(i)
        return sets
