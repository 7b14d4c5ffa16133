"""A strategy, a topology and a partition of your own, in one file: `efhc run examples/own-parts.toml`.

The same from Python: `python examples/own_parts.py`.
"""

from __future__ import annotations

import networkx as nx
import numpy as np
from pydantic import Field

import efhc


class Staggered(efhc.Strategy):
    """Device i fires at the iterations k with k % every == i % every, whatever its drift."""

    every: int = Field(default=10, ge=1)
    """Number of iterations between two broadcasts of a device."""

    def thresholds(self, k, gamma, bandwidths, coins):
        devices = np.arange(len(bandwidths.values))
        return np.where(devices % self.every == k % self.every, 0.0, np.inf)


class SmallWorld(efhc.Topology):
    """Watts and Strogatz: a ring in which each device knows its nearest neighbours, some links moved at random."""

    neighbours: int = Field(default=4, ge=2)
    moved: float = Field(default=0.2, ge=0, le=1)
    """Probability with which each link is moved."""

    def graph(self, devices, randomness):
        stream = randomness.stream(efhc.Purpose.TOPOLOGY)
        seed = int(stream.integers(2**31))  # networkx draws from a generator of its own, which this seeds
        return efhc.Graph.of(
            devices, nx.connected_watts_strogatz_graph(devices, self.neighbours, self.moved, seed=seed).edges
        )


class SharedCore(efhc.Partition):
    """Every device holds the same few samples of all labels, and an equal part of the others."""

    shared: int = Field(default=20, ge=0)
    """Number of samples that all devices hold."""

    def split(self, data, devices, randomness):
        order = randomness.stream(efhc.Purpose.PARTITION).permutation(len(data.y_train))
        core, rest = np.split(order, [self.shared])
        return [np.concatenate([core, part]) for part in np.array_split(rest, devices)]


if __name__ == "__main__":
    result = efhc.simulate(
        iterations=100,
        seeds=[0],
        network=SmallWorld(moved=0.1),
        partition=SharedCore(shared=10),
        strategies={"staggered": Staggered(every=5), "EF-HC": efhc.EventTriggered(), "ZT": efhc.ZeroThreshold()},
        out="runs/own-parts",
    )
    print(result.summary())
