"""What is known of the physical links after a run: a finite run alone cannot tell what comes later."""

from __future__ import annotations

from typing import NamedTuple

from efhc.network.changing import RandomLinks
from efhc.network.over_time import GraphList, GraphsOverTime, Network, StaticGraph
from efhc.theory.connectivity.windows import RecentLinks


class FutureLinks(NamedTuple):
    """The physical links of all iterations to come."""

    by_chance: bool
    """Whether nothing is known of them: they are drawn at random, devices move, or the network is one of your own."""
    cut_off: int | None = None
    """A device that is cut off from the rest for good."""


def future_links(network: GraphsOverTime, policy: Network, iterations: int) -> FutureLinks:
    """Return what is known of the links after a run of `iterations`.

    `network` holds the graphs that `policy` made.
    """
    if isinstance(policy, RandomLinks) and policy.up_probability in (0, 1):
        network = StaticGraph(network.graph(0))
    if not isinstance(network, StaticGraph | GraphList):
        return FutureLinks(by_chance=True)
    recurring = network.recurring
    together = RecentLinks(recurring[0].devices)
    for graph in recurring:
        together.add(0, graph.links)
    cut_off = together.cut_off()
    # A list whose last graph is held may still be before its end: then the run saw nothing of the cut.
    reached = any(network.graph(iterations - 1) is graph for graph in recurring)
    return FutureLinks(by_chance=False, cut_off=int(cut_off[0]) if len(cut_off) and reached else None)
