"""A graph that the config itself lists."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from efhc.base.errors import InputError
from efhc.core.graph import Graph
from efhc.core.randomness import Randomness
from efhc.network.topologies import Topology

End = Annotated[int, Field(ge=0)]


class GivenLinks(Topology):
    """The links are listed: `links = [[0, 1], [1, 2]]`. From Python, a networkx graph may stand in its place."""

    kind: Literal["links"] = "links"
    links: tuple[Annotated[tuple[End, End], Field(strict=False)], ...] = Field(strict=False)
    """Pairs of devices, each link once."""
    nodes: int | None = Field(default=None, ge=1)
    """Number of devices that the list is made for; other numbers of devices are refused. Default: any number."""

    def graph(self, devices: int, randomness: Randomness) -> Graph:
        if self.nodes not in (None, devices):
            raise InputError("nodes", self.nodes, f"the number of devices, {devices}")
        for i, j in self.links:
            if i == j or max(i, j) >= devices:
                raise InputError("links", f"[{i}, {j}]", f"two different devices, 0 to {devices - 1}")
        return Graph.of(devices, self.links)
