"""One spanning tree of a graph, which all devices can find for themselves: it depends on nothing but the graph."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from efhc.base.arrays import Flags, Ints, read_only
from efhc.core.graph import Graph

NO_PARENT = -1
"""The parent of a root."""


@lru_cache(maxsize=4)
def parents_in_tree(graph: Graph) -> Ints:
    """Return the parent of each device in a breadth-first spanning tree; `NO_PARENT` for the root.

    News takes as many iterations as the tree is wide, so the tree begins in the middle of the graph: halfway between
    the device that is farthest from the lowest-numbered one and the device that is farthest from that. Ties go to the
    lowest number. A graph in several parts has one tree in each part.
    """
    parents = np.full(graph.devices, NO_PARENT)
    seen = np.zeros(graph.devices, dtype=bool)
    for first in range(graph.devices):
        if not seen[first]:
            found = _breadth_first(graph, _middle(graph, first))
            seen[list(found)] = True
            for device, parent in found.items():
                parents[device] = parent
    tree: Ints = read_only(parents)
    return tree


def links_in_tree(graph: Graph) -> Flags:
    """For each link of the graph, whether it is in the tree of `parents_in_tree`."""
    parents = parents_in_tree(graph)
    i, j = graph.links.T
    inside: Flags = (parents[i] == j) | (parents[j] == i)
    return inside


def _breadth_first(graph: Graph, root: int) -> dict[int, int]:
    """Return the parents of all devices that `root` can reach, in the order in which they are found."""
    starts, neighbours = graph.rows.starts, graph.rows.neighbours
    parents = {root: NO_PARENT}
    order = [root]
    for device in order:  # grows while it is read
        for neighbour in neighbours[starts[device] : starts[device + 1]].tolist():
            if neighbour not in parents:
                parents[neighbour] = device
                order.append(neighbour)
    return parents


def _middle(graph: Graph, first: int) -> int:
    """Return a device halfway along a long shortest path of the part of the graph in which `first` is."""
    one_end = _farthest(_breadth_first(graph, first))
    parents = _breadth_first(graph, one_end)
    path = [_farthest(parents)]
    while parents[path[-1]] != NO_PARENT:
        path.append(parents[path[-1]])
    return path[len(path) // 2]


def _farthest(parents: dict[int, int]) -> int:
    """Return the device with the longest way to the root, the one with the lowest number among equals."""
    depth: dict[int, int] = {}
    for device, parent in parents.items():
        depth[device] = 0 if parent == NO_PARENT else depth[parent] + 1
    return min(depth, key=lambda device: (-depth[device], device))
