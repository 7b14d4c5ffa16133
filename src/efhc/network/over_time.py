"""A network over time is a function of k: `graph(k)` may be asked in any order and answers the same each time."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

import numpy as np

from efhc.base.errors import InputError
from efhc.base.policy import Policy
from efhc.core.graph import Graph
from efhc.core.randomness import Randomness


class GraphsOverTime(Protocol):
    """The physical graphs G(0), G(1), ..."""

    def graph(self, k: int) -> Graph:
        """G(k). Iterations with the same links may return the same object."""
        ...


class Network(Policy, ABC):
    """A network that a config can name."""

    @abstractmethod
    def over_time(self, devices: int, randomness: Randomness) -> GraphsOverTime:
        """The graphs on `devices` devices."""


class StaticGraph:
    """G(k) = G."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def graph(self, k: int) -> Graph:
        return self._graph

    @property
    def recurring(self) -> list[Graph]:
        """The graphs that come again and again for ever."""
        return [self._graph]


class GraphList:
    """G(k) from a list of graphs, which is repeated, or whose last one is held."""

    def __init__(self, graphs: list[Graph], *, hold_last: bool = False) -> None:
        self._graphs, self._hold_last = graphs, hold_last

    def graph(self, k: int) -> Graph:
        last = len(self._graphs) - 1
        return self._graphs[min(k, last) if self._hold_last else k % (last + 1)]

    @property
    def recurring(self) -> list[Graph]:
        """The graphs that come again and again for ever."""
        return self._graphs[-1:] if self._hold_last else self._graphs


class DrawnGraphs:
    """Graphs drawn iteration by iteration. Each thread keeps its last two: an iteration looks at G(k-1) and G(k).

    `draw` returns G(k) anew. Threads may call it for different k at the same time.
    """

    def __init__(self, draw: Callable[[int], Graph]) -> None:
        self._draw, self._of_thread = draw, threading.local()

    def graph(self, k: int) -> Graph:
        recent: dict[int, Graph] = getattr(self._of_thread, "recent", {})
        if k not in recent:
            recent = {kept: graph for kept, graph in recent.items() if kept == k - 1}
            recent[k] = self._draw(k)
            self._of_thread.recent = recent
        return recent[k]


class CheckedGraphs:
    """The graphs of a network of the user's own, each checked when it first comes: compiled loops check no index."""

    def __init__(self, network: GraphsOverTime, devices: int) -> None:
        self._network, self._devices = network, devices
        self._checked: object = None

    def graph(self, k: int) -> Graph:
        """Return G(k). Raises `InputError` unless it is a graph of all devices as `Graph.of` makes them."""
        graph = self._network.graph(k)
        if graph is not self._checked:
            self._check(graph, k)
            self._checked = graph
        return graph

    def _check(self, graph: object, k: int) -> None:
        allowed = f"an efhc.Graph of {self._devices} devices, made by Graph.of(devices, pairs)"
        if not isinstance(graph, Graph) or not isinstance(graph.links, np.ndarray) or graph.links.ndim != 2:
            raise InputError("network", f"a {type(graph).__name__} at k = {k}", allowed)
        if graph.devices != self._devices:
            raise InputError("network", f"a graph of {graph.devices} devices at k = {k}", allowed)
        sound = graph.links.dtype.kind in "iu" and (np.diff(graph.codes) > 0).all()
        if not sound or (graph.links < 0).any() or (graph.links[:, 0] >= graph.links[:, 1]).any():
            raise InputError("network", f"a graph whose links are not sorted and distinct at k = {k}", allowed)
        if graph.links.size and graph.links.max() >= self._devices:
            raise InputError("network", f"a link to device {graph.links.max()} at k = {k}", allowed)
