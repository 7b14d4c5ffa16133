"""Networks over time; graphs that stay as they are: drawn, regular, given by a list of links, or read from a file."""

from __future__ import annotations

import re
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Annotated, Any, ClassVar, Literal, Protocol
from xml.etree import ElementTree

import numpy as np
from pydantic import Field, StrictInt, TypeAdapter, ValidationError

from efhc.base.arrays import Floats, Ints
from efhc.base.errors import InputError
from efhc.base.inputs import InputFile, memory_of_machine, read_json, read_text
from efhc.base.policy import Policy
from efhc.base.registry import Family
from efhc.core.graph import Graph
from efhc.core.randomness import Purpose, Randomness


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


class StaticGraph(GraphList):
    """G(k) = G."""

    def __init__(self, graph: Graph) -> None:
        super().__init__([graph])


class DrawnGraphs:
    """Graphs drawn iteration by iteration. Each thread keeps its last two: an iteration looks at G(k-1) and G(k).

    `draw` returns G(k) anew. Threads may call it for different k at the same time.
    """

    def __init__(self, draw: Callable[[int], Graph]) -> None:
        self._draw, self._of_thread = draw, threading.local()

    def graph(self, k: int) -> Graph:
        recent: dict[int, Graph] = getattr(self._of_thread, "recent", {})
        if k not in recent:
            before = {k - 1: recent[k - 1]} if k - 1 in recent else {}
            recent = self._of_thread.recent = before | {k: self._draw(k)}
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
        if not graph.has_sound_weights or (graph.own_weights is None) != (self._network.graph(0).own_weights is None):
            allowed = "one weight per link, above 0 and together below 1 at every device, in all iterations or in none"
            raise InputError("network", f"a graph with other weights at k = {k}", allowed)
        if graph.links.size and graph.links.max() >= self._devices:
            raise InputError("network", f"a link to device {graph.links.max()} at k = {k}", allowed)


# Graphs that stay as they are


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
    """A random graph. With `connected`, it is drawn again until it is connected."""

    connected: bool = True
    """Draw again until the graph is connected."""
    attempts: int = Field(default=10_000, ge=1)
    """Largest number of draws."""

    DENSER: ClassVar[tuple[str, ...]] = ()
    """The settings that connect the graph better when they are larger. Default: all of its own."""

    @abstractmethod
    def draw(self, devices: int, stream: np.random.Generator) -> Graph:
        """One draw, connected or not."""

    def graph(self, devices: int, randomness: Randomness) -> Graph:
        for attempt in range(self.attempts):
            graph = self.draw(devices, randomness.stream(Purpose.TOPOLOGY, attempt))
            if graph.is_connected or not self.connected:
                return graph
        what = f"no connected graph of {devices} devices in {self.attempts:,} draws"
        own = [name for name in self.DENSER or type(self).model_fields if name not in _NOT_DENSER]
        allowed = "".join(f"a larger {name}, or " for name in own) + "connected = false"
        field = next((name for name in own if name in self.model_fields_set), "connected")
        raise InputError(field, what, allowed, f"{what}. Use {allowed}.")


_NOT_DENSER = ("kind", *DrawnTopology.model_fields)


def most_neighbours(devices: int) -> str:
    """Return in words how many neighbours a device may have."""
    return f"at most {devices - 1}, one less than there are devices" if devices > 1 else "2 devices or more"


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
    """With fewer, networkx makes more nodes than it should."""

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
        here = np.arange(devices if devices > 1 else 0)
        return Graph.of(devices, np.column_stack([here, (here + 1) % devices]))


class Grid(Topology):
    """A rectangle of devices, each linked to those beside, above and below; a torus has no border."""

    kind: Literal["grid"] = "grid"
    rows: int | None = Field(default=None, ge=1)
    """Number of rows. Default: as close to a square as possible."""
    torus: bool = False
    """Whether the first and last device of each row and column are linked too."""

    def graph(self, devices: int, randomness: Randomness) -> Graph:
        rows = self.rows or max(r for r in range(1, int(devices**0.5) + 1) if devices % r == 0)
        if devices % rows:
            raise InputError("rows", rows, f"a divisor of the number of devices, {devices}")
        grid = np.arange(devices).reshape(rows, -1)
        pairs = [(grid[:-1], grid[1:]), (grid[:, :-1], grid[:, 1:])]
        if self.torus:
            pairs += [(grid[-1], grid[0])] * (rows > 1) + [(grid[:, -1], grid[:, 0])] * (grid.shape[1] > 1)
        return Graph.of(devices, np.concatenate([np.column_stack([a.ravel(), b.ravel()]) for a, b in pairs]))


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


# Graphs from files


def checked_graph(devices: int, links: Iterable[tuple[int, int, str]], one_way: bool = False) -> Graph:
    """The graph of (i, j, where it stands in the file), or an error that names the first bad link.

    Each link stands once, or every link in both directions (`one_way`: it must be so). A file that has some links in
    both directions and others in one is taken for a damaged one.
    """
    pairs: dict[tuple[int, int], str] = {}
    for i, j, where in links:
        for end in (i, j):
            if not 0 <= end < devices:
                raise InputError("path", f"device {end} ({where})", f"devices 0 to {devices - 1}")
        if i == j:
            raise InputError("path", f"a self-loop at device {i} ({where})", "links between two different devices")
        if (i, j) in pairs:
            raise InputError("path", f"link {i} {j} twice ({where} and {pairs[i, j]})", "each link once")
        pairs[i, j] = where
    both_ways = one_way or any((j, i) in pairs for i, j in pairs)
    for (i, j), where in pairs.items():
        if both_ways and (j, i) not in pairs:
            raise InputError(
                "path",
                f"an asymmetric list: {i} {j} ({where}) without {j} {i}",
                "each link once, or every link in both directions",
            )
    return Graph.of(devices, pairs)


WHOLE_NUMBER = re.compile(r"[-+]?[0-9]{1,18}")
"""Python's int() takes 0_1 too, and digits of other scripts."""


class FileTopology(Topology):
    """A graph from a file."""

    path: InputFile
    """The file."""
    connected: bool = False
    """Refuse a graph that is not connected."""

    def _checked(self, graph: Graph) -> Graph:
        if self.connected and not graph.is_connected:
            raise InputError("path", f"a disconnected graph in {self.path}", "a connected graph, or connected = false")
        return graph


class EdgeListFile(FileTopology):
    """A text file with one link `i j` per line, devices from 0; `#` starts a comment, and a comma may separate."""

    kind: Literal["edge-list"] = "edge-list"

    def graph(self, devices: int, randomness: Randomness) -> Graph:
        links = []
        for number, line in enumerate(read_text(self.path).splitlines(), start=1):
            words = line.split("#")[0].replace(",", " ").split()
            if not words:
                continue
            if len(words) != 2 or not all(map(WHOLE_NUMBER.fullmatch, words)):
                given = f"{line.strip()[:40]!r} ({self.path.name}, line {number})"
                raise InputError("path", given, "two device numbers a line")
            links.append((int(words[0]), int(words[1]), f"{self.path.name}, line {number}"))
        return self._checked(checked_graph(devices, links))


class GraphMLFile(FileTopology):
    """A GraphML file. Node ids are device numbers, or are numbered in the file's order."""

    kind: Literal["graphml"] = "graphml"

    def graph(self, devices: int, randomness: Randomness) -> Graph:
        import networkx as nx

        try:
            text = read_text(self.path)
            graphs = sum(element.tag.endswith("}graph") for element in ElementTree.fromstring(text).iter())
            graph = nx.parse_graphml(text)
        except (nx.NetworkXError, ElementTree.ParseError, ValueError, KeyError) as error:
            raise InputError("path", f"{self.path} ({error})", "a GraphML file") from error
        if graphs > 1:
            raise InputError("path", f"{graphs} graphs in {self.path}", "a GraphML file with one graph")
        if len(graph) != devices:
            raise InputError("path", f"{len(graph)} nodes in {self.path}", f"one node per device, {devices}")
        names = [str(node) for node in graph]
        numbered = all(name.isascii() and name.isdecimal() for name in names)
        too_long = any(len(name) > 18 for name in names)
        if numbered and (too_long or sorted(map(int, names)) != list(range(devices))):
            raise InputError("path", f"nodes {', '.join(names)[:60]} in {self.path}", f"devices 0 to {devices - 1}")
        number = {
            node: int(name) if numbered else order for order, (node, name) in enumerate(zip(graph, names, strict=True))
        }
        links = [(number[a], number[b], f"{self.path.name}, edge {a}-{b}") for a, b in nx.DiGraph(graph).edges]
        return self._checked(checked_graph(devices, links, one_way=True))


class EdgeSequenceFile(Network):
    """A JSON file with one edge list per iteration, `[[[0, 1], [1, 2]], [], [[0, 2]]]`."""

    kind: Literal["edge-sequence"] = "edge-sequence"
    path: InputFile
    """The file."""
    at_end: Literal["repeat", "hold"] = "repeat"
    """After the last list: start again, or keep the last."""

    def over_time(self, devices: int, randomness: Randomness) -> GraphsOverTime:
        graphs = []
        for k, links in enumerate(self._lists()):
            places = [f"{self.path.name}, iteration {k}, link {n}" for n in range(len(links))]
            graphs.append(checked_graph(devices, [(i, j, place) for (i, j), place in zip(links, places, strict=True)]))
        return GraphList(graphs, hold_last=self.at_end == "hold")

    def _lists(self) -> list[list[tuple[int, int]]]:
        allowed = "a JSON list with, for each iteration, a list of [i, j] pairs"
        try:
            return LINK_LISTS.validate_python(read_json(self.path, allowed))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = f"iteration {first['loc'][0]}" if first["loc"] else f"{self.path}, which is no list of iterations"
            raise InputError("path", f"{first['input']!r} ({place})", allowed) from None


LINK_LISTS = TypeAdapter(Annotated[list[list[tuple[StrictInt, StrictInt]]], Field(min_length=1)])
