"""Graphs that change: links that come and go, devices that move, and a schedule that is connected only over time."""

from __future__ import annotations

import threading
from bisect import bisect_right
from typing import Literal, NamedTuple, Self

import numpy as np
from pydantic import ConfigDict, Field, model_validator

from efhc.base.arrays import Floats
from efhc.base.errors import InputError, within
from efhc.core.graph import Graph
from efhc.core.randomness import Purpose, Randomness
from efhc.network.topologies import (
    AnyTopology,
    DrawnGraphs,
    Geometric,
    GraphList,
    GraphsOverTime,
    Network,
    links_within,
)


class OverTopology(Network):
    """A change over time of the links of a topology."""

    model_config = ConfigDict(defer_build=True)  # until all topologies are there

    topology: AnyTopology = Geometric()
    """The graph whose links change; any network that is fixed."""

    def _all_links(self, devices: int, randomness: Randomness) -> Graph:
        with within("topology"):
            return self.topology.graph(devices, randomness)


class RandomLinks(OverTopology):
    """Each link of a topology is up at each iteration with the same probability, independently."""

    kind: Literal["random-links"] = "random-links"
    up_probability: float = Field(default=0.5, ge=0, le=1)
    """Probability that a link is up."""

    def over_time(self, devices: int, randomness: Randomness) -> GraphsOverTime:
        whole = self._all_links(devices, randomness)
        links, own = whole.links, whole.own_weights

        def draw(k: int) -> Graph:
            up = randomness.stream(Purpose.LINKS, k).random(len(links)) < self.up_probability
            return Graph(devices, links[up], None if own is None else own[up])

        return DrawnGraphs(draw)


class Rotating(OverTopology):
    """The links of a random spanning tree of a topology are dealt into `period` sets, of which one is up at a time.

    Every window of `period` iterations has a connected union, and no shorter one does: B1 = `period` exactly.
    """

    kind: Literal["rotating"] = "rotating"
    period: int = Field(default=2, ge=1)
    """Number of iterations after which the links repeat."""

    def over_time(self, devices: int, randomness: Randomness) -> GraphsOverTime:
        import networkx as nx

        if self.period > (most := max(devices - 1, 1)):
            raise InputError("period", self.period, f"at most {most}, the links of a tree on {devices} devices")
        all_links = self._all_links(devices, randomness)
        if not all_links.is_connected:
            raise InputError("topology", "a disconnected graph", "a connected one, to rotate through a spanning tree")
        stream = randomness.stream(Purpose.LINKS)
        weights = stream.random(len(all_links.links)).tolist()
        weighted = nx.Graph()
        weighted.add_weighted_edges_from((i, j, w) for (i, j), w in zip(all_links.links.tolist(), weights, strict=True))
        tree = np.array(list(nx.minimum_spanning_edges(weighted, data=False)), dtype=np.int64).reshape(-1, 2)
        dealt = stream.permutation(tree)
        return GraphList([Graph.of(devices, dealt[first :: self.period]) for first in range(self.period)])


class RandomWaypoint(Network):
    """Devices walk in the unit square from one random point to the next; two are linked while within `radius`."""

    kind: Literal["waypoint"] = "waypoint"
    radius: float = Field(default=0.4, gt=0)
    """Largest distance of two linked devices."""
    slowest: float = Field(default=0.002, gt=1e-9, le=1)
    """Least speed, in sides of the square per iteration."""
    fastest: float = Field(default=0.01, gt=1e-9, le=1)
    """Greatest speed; drawn uniformly for each walk."""
    pause: int = Field(default=0, ge=0, le=10**9)
    """Number of iterations of rest at each point."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.fastest < self.slowest:
            raise ValueError(f"fastest ({self.fastest}) must not be below slowest ({self.slowest})")
        return self

    def over_time(self, devices: int, randomness: Randomness) -> GraphsOverTime:
        return _Walks(self, devices, randomness)


class _Leg(NamedTuple):
    """A straight walk between two points."""

    left_at: float
    arrives_at: float
    origin: Floats
    target: Floats


class _Walks(DrawnGraphs):
    """The walks of all devices, leg by leg, up to the latest iteration so far. All threads share them."""

    def __init__(self, policy: RandomWaypoint, devices: int, randomness: Randomness) -> None:
        super().__init__(lambda k: Graph.of(devices, links_within(self.positions(k), policy.radius)))
        self._policy, self._lock = policy, threading.Lock()
        self._streams = [randomness.stream(Purpose.MOBILITY, i) for i in range(devices)]
        starts = [stream.random(2) for stream in self._streams]
        self._legs = [[_Leg(0.0, -float(policy.pause), at, at)] for at in starts]  # so that all set out at k = 0

    def positions(self, k: int) -> Floats:
        """The points (m, 2) at iteration k."""
        with self._lock:
            for stream, legs in zip(self._streams, self._legs, strict=True):
                while k >= (departure := legs[-1].arrives_at + self._policy.pause):
                    origin, target = legs[-1].target, stream.random(2)
                    speed = stream.uniform(self._policy.slowest, self._policy.fastest)
                    legs.append(
                        _Leg(departure, departure + float(np.linalg.norm(target - origin) / speed), origin, target)
                    )
            now = [legs[bisect_right(legs, float(k), key=lambda leg: leg.left_at) - 1] for legs in self._legs]
        left_at, arrives_at, origins, targets = map(np.array, zip(*now, strict=True))
        walked = np.minimum((k - left_at) / (arrives_at - left_at), 1.0)[:, None]
        positions: Floats = origins + walked * (targets - origins)
        return positions
