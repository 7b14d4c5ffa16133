"""Graphs that stay as they are. A new one is a `Topology` with a `kind`, in any file of this folder."""

from __future__ import annotations

import sys
from abc import abstractmethod
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from efhc.base.arrays import Floats, Ints
from efhc.base.errors import InputError
from efhc.base.inputs import memory_of_machine
from efhc.base.registry import Family
from efhc.core.graph import Graph
from efhc.core.randomness import Purpose, Randomness
from efhc.network.over_time import GraphsOverTime, Network, StaticGraph

End = Annotated[int, Field(ge=0)]


class Topology(Network):
    """A way to draw one graph."""

    @abstractmethod
    def graph(self, devices: int, randomness: Randomness) -> Graph:
        """The graph on `devices` devices."""

    def over_time(self, devices: int, randomness: Randomness) -> GraphsOverTime:
        """A topology is a network that never changes."""
        return StaticGraph(self.graph(devices, randomness))


class DrawnTopology(Topology):
    """A random graph, drawn again until it is connected, if that is asked."""

    connected: bool = True
    """Draw again until the graph is connected."""
    attempts: int = Field(default=10_000, ge=1)
    """Largest number of draws."""

    @abstractmethod
    def draw(self, devices: int, stream: np.random.Generator) -> Graph:
        """One draw, connected or not."""

    def graph(self, devices: int, randomness: Randomness) -> Graph:
        for attempt in range(self.attempts):
            graph = self.draw(devices, randomness.stream(Purpose.TOPOLOGY, attempt))
            if graph.is_connected or not self.connected:
                return graph
        what = f"no connected graph on {devices} devices in {self.attempts} draws"
        allowed = "parameters that make a denser graph, more attempts, or connected = false"
        raise InputError("connected", what, allowed, f"{what}. Use {allowed}.")


BYTES_PER_PAIR = 50
"""Memory that a list of all pairs of devices takes while a graph is made of it, per pair."""


def check_memory(devices: int) -> None:
    """Raise `InputError` if this machine has too little memory for a list of all pairs of devices."""
    needed = BYTES_PER_PAIR * devices * (devices - 1) // 2
    if needed > (there_is := memory_of_machine()):
        given = f"a list of all pairs of {devices} devices, {needed / 1e9:.0f} GB"
        raise InputError(
            "kind", given, f"fewer devices, or a sparse network; there are {there_is / 1e9:.0f} GB of memory"
        )


FEW_POINTS = 128
"""Number of points up to which it is faster to compare all pairs than to build a tree."""


def links_within(positions: Floats, radius: float) -> Ints:
    """Return all pairs of points that are at most `radius` apart, (pairs, 2)."""
    if len(positions) <= FEW_POINTS:
        pairs = np.column_stack(np.triu_indices(len(positions), 1))
        apart = positions[pairs[:, 0]] - positions[pairs[:, 1]]
        near: Ints = pairs[(apart * apart).sum(axis=1) <= radius * radius]
        return near
    from scipy.spatial import cKDTree

    return cKDTree(positions).query_pairs(radius, output_type="ndarray")


class Geometric(DrawnTopology):
    """Random geometric: points uniform in the unit square, a link where two are at most `radius` apart."""

    kind: Literal["geometric"] = "geometric"
    radius: float = Field(default=0.4, gt=0)
    """Largest distance of two linked devices."""

    def draw(self, devices: int, stream: np.random.Generator) -> Graph:
        return Graph.of(devices, links_within(stream.random((devices, 2)), self.radius))


class ErdosRenyi(DrawnTopology):
    """Each pair is linked with the same probability."""

    kind: Literal["erdos-renyi"] = "erdos-renyi"
    probability: float = Field(default=0.4, ge=0, le=1)
    """Probability of each link."""

    def draw(self, devices: int, stream: np.random.Generator) -> Graph:
        check_memory(devices)
        # One coin per pair in the order (1,0), (2,0), (2,1) ...: a further device tosses only further coins.
        later, earlier = np.tril_indices(devices, -1)
        linked = stream.random(len(later)) < self.probability
        return Graph.of(devices, np.column_stack([earlier, later])[linked])


class InternetAS(DrawnTopology):
    """The Internet's autonomous systems (Elmokashfi et al. 2010), networkx `random_internet_as_graph`.

    networkx documents it for 1000 to 10000 nodes; 10 and 30, as in the paper, also work.
    """

    kind: Literal["internet-as"] = "internet-as"
    LEAST: ClassVar[int] = 7
    """With fewer, networkx makes more nodes than asked."""

    def draw(self, devices: int, stream: np.random.Generator) -> Graph:
        import networkx as nx

        if devices < self.LEAST:
            raise InputError("kind", f"internet-as on {devices} devices", f"at least {self.LEAST} devices")
        drawn = nx.random_internet_as_graph(devices, seed=int(stream.integers(2**32)))
        return Graph.of(devices, drawn.edges)


class Ring(Topology):
    """Each device is linked to the next, the last to the first."""

    kind: Literal["ring"] = "ring"

    def graph(self, devices: int, randomness: Randomness) -> Graph:
        return Graph.of(devices, [(i, (i + 1) % devices) for i in range(devices) if devices > 1])


class Grid(Topology):
    """A rectangle of devices, each linked to those beside, above and below; a torus has no border."""

    kind: Literal["grid"] = "grid"
    rows: int | None = Field(default=None, ge=1)
    """Number of rows. Default: as close to a square as possible."""
    torus: bool = False
    """Whether the first and last device of each row and column are linked too."""

    def graph(self, devices: int, randomness: Randomness) -> Graph:
        import networkx as nx

        rows = self.rows or max(r for r in range(1, int(devices**0.5) + 1) if devices % r == 0)
        if devices % rows:
            raise InputError("rows", rows, f"a divisor of the number of devices, {devices}")
        grid = nx.grid_2d_graph(rows, devices // rows, periodic=self.torus)
        number = {node: row_major for row_major, node in enumerate(sorted(grid))}
        return Graph.of(devices, [(number[a], number[b]) for a, b in grid.edges if a != b])


class Star(Topology):
    """All devices are linked to one in the middle."""

    kind: Literal["star"] = "star"
    center: int = Field(default=0, ge=0)
    """The device in the middle."""

    def graph(self, devices: int, randomness: Randomness) -> Graph:
        if self.center >= devices:
            raise InputError("center", self.center, f"a device, 0 to {devices - 1}")
        return Graph.of(devices, [(self.center, i) for i in range(devices) if i != self.center])


class Complete(Topology):
    """Every device is linked to every other."""

    kind: Literal["complete"] = "complete"

    def graph(self, devices: int, randomness: Randomness) -> Graph:
        check_memory(devices)
        return Graph.of(devices, np.column_stack(np.tril_indices(devices, -1)))


class GivenLinks(Topology):
    """A list of links, `links = [[0, 1], [1, 2]]`; in Python also a networkx graph."""

    kind: Literal["links"] = "links"
    links: tuple[Annotated[tuple[End, End], Field(strict=False)], ...] = Field(strict=False)
    """Pairs of devices, each link once."""
    nodes: int | None = Field(default=None, ge=1)
    """Number of devices that the list is for; others are refused. Default: any number."""

    def graph(self, devices: int, randomness: Randomness) -> Graph:
        if self.nodes not in (None, devices):
            raise InputError("nodes", self.nodes, f"the number of devices, {devices}")
        for i, j in self.links:
            if i == j or max(i, j) >= devices:
                raise InputError("links", f"[{i}, {j}]", f"two different devices, 0 to {devices - 1}")
        return Graph.of(devices, self.links)


def given_links(given: Any) -> Any:
    """Return the table of a networkx graph, which Python users may pass as a network; other values as they are."""
    nx = sys.modules.get("networkx")  # a caller with such a graph has imported it
    if nx is None or not isinstance(given, nx.Graph):
        return given
    names = list(given)
    numbered = all(isinstance(name, int | np.integer) for name in names)
    number = {name: int(name) if numbered else order for order, name in enumerate(names)}
    return {"kind": "links", "links": [[number[a], number[b]] for a, b in given.edges], "nodes": len(names)}


TOPOLOGIES = Family(Topology, ("efhc.network",), ("graph",), default="geometric", from_python=given_links)
AnyTopology = Annotated[Topology, TOPOLOGIES]
