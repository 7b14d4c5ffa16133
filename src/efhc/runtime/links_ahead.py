"""The devices that an experiment links a device to, in all iterations of a run in lockstep."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from efhc.base.errors import InputError
from efhc.core.graph import Graph
from efhc.network.over_time import GraphsOverTime

LOOK_AHEAD = 2000
"""Number of iterations that are always examined. Later ones are examined until their links connect all devices."""


@dataclass(frozen=True)
class LinksAhead:
    """The links of one device in G(0), ..., G(K-1)."""

    device: int
    reachable: frozenset[int]
    """The devices that messages of this one can reach, over the links of all iterations. It is one of them itself."""
    linked: dict[int, range]
    """By neighbour, the iterations from the first to the last in which the two are linked. If not all iterations were
    looked at, the range goes on to the end of the run."""

    @classmethod
    def of(cls, network: GraphsOverTime, devices: int, device: int, iterations: int) -> LinksAhead:
        """Look at the graphs of a run."""
        linked: dict[int, range] = {}
        links: set[tuple[int, int]] = set()
        graph, whole, is_connected, looked_at = None, Graph.of(devices, []), devices == 1, iterations
        for k in range(iterations):
            before, graph = graph, network.graph(k)
            if graph is before:
                continue
            if k >= LOOK_AHEAD and is_connected:
                looked_at = k
                break
            if before is not None:
                linked |= {ended: range(linked[ended].start, k) for ended in neighbours_in(before, device)}
            for neighbour in neighbours_in(graph, device):
                linked[neighbour] = range(linked[neighbour].start if neighbour in linked else k, iterations)
            if not is_connected and not links.issuperset(found := set(map(tuple, graph.links.tolist()))):
                links |= found
                whole = Graph.of(devices, links)
                is_connected = whole.is_connected
        if looked_at < iterations:
            linked = {neighbour: range(when.start, iterations) for neighbour, when in linked.items()}
        reachable = np.flatnonzero(whole.parts == whole.parts[device])
        return cls(device, frozenset(reachable.tolist()), linked)

    def check_table(self, table: Collection[int], k: int = 0) -> None:
        """Raise `InputError` unless all neighbours of iteration k and of later ones are in a table of neighbours."""
        for neighbour, when in sorted(self.linked.items()):
            if neighbour not in table and k < when.stop:
                is_ahead = k <= when.start
                raise self._missing(neighbour, f"iteration {when.start}" if is_ahead else "iterations yet to be made")

    def check_iteration(self, table: Collection[int], k: int, neighbours: Collection[int]) -> None:
        """Raise `InputError` unless these neighbours of iteration k, which may not have been looked at, are there."""
        for neighbour in neighbours:
            if neighbour not in table:
                raise self._missing(neighbour, f"iteration {k}")

    def _missing(self, neighbour: int, when: str) -> InputError:
        given = f"a list without device {neighbour}, to which the experiment links device {self.device} in {when}"
        return InputError("neighbours", given, "all devices to which this one is linked in any iteration")


def neighbours_in(graph: Graph, device: int) -> list[int]:
    """Return the neighbours of a device, ascending."""
    rows = graph.rows
    own: list[int] = rows.neighbours[rows.starts[device] : rows.starts[device + 1]].tolist()
    return own
