"""Your own network from a file: an edge list, GraphML, or one edge list per iteration."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal
from xml.etree import ElementTree

from efhc.base.errors import InputError
from efhc.base.inputs import InputFile, read_json, read_text
from efhc.core.graph import Graph
from efhc.core.randomness import Randomness
from efhc.network.over_time import GraphList, GraphsOverTime, Network
from efhc.network.topologies import Topology


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
                given = f"{line.strip()!r} ({self.path.name}, line {number})"
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
        graphs = [
            checked_graph(
                devices, [(i, j, f"{self.path.name}, iteration {k}, link {n}") for n, (i, j) in enumerate(links)]
            )
            for k, links in enumerate(self._lists())
        ]
        return GraphList(graphs, hold_last=self.at_end == "hold")

    def _lists(self) -> list[list[tuple[int, int]]]:
        allowed = "a JSON list with, for each iteration, a list of [i, j] pairs"
        lists = read_json(self.path, allowed)
        if not isinstance(lists, list) or not lists:
            raise InputError("path", f"{self.path}, which is no list of iterations", allowed)
        for k, links in enumerate(lists):
            if not isinstance(links, list):
                raise InputError("path", f"{links!r} (iteration {k})", allowed)
            for link in links:
                if not (isinstance(link, list) and len(link) == 2 and all(type(end) is int for end in link)):
                    raise InputError("path", f"{link!r} (iteration {k})", allowed)
        return lists
