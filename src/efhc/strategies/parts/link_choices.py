"""Which links may be used in an iteration. In lockstep devices know it without a message, from graph and seed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from efhc.base.policy import Policy
from efhc.base.registry import Family
from efhc.core.parts import ChosenLinks, Now
from efhc.core.uplink import About, redundant_links
from efhc.strategies.parts.matchings import matchings
from efhc.strategies.parts.spanning_tree import links_in_tree


class LinksPolicy(Policy, ABC):
    """A choice of links that a config can name."""

    is_fixed: ClassVar[bool]
    """Whether the links of a graph that stays the same stay the same too."""
    needs_static_graph: ClassVar[bool] = False
    """Whether the graph must stay as it is."""

    @abstractmethod
    def choose(self, now: Now) -> ChosenLinks:
        """Return the links of iteration k."""


class AllLinks(LinksPolicy):
    """All links of G(k)."""

    kind: Literal["all"] = "all"
    is_fixed: ClassVar[bool] = True

    def choose(self, now: Now) -> ChosenLinks:
        return ChosenLinks(np.ones(len(now.graph.links), dtype=bool))


class TreeLinks(LinksPolicy):
    """The links of a spanning tree, breadth-first from the middle of the graph (see `parts.spanning_tree`).

    A graph that changes is refused. A graph in several parts has one tree per part.
    """

    kind: Literal["tree"] = "tree"
    is_fixed: ClassVar[bool] = True
    needs_static_graph: ClassVar[bool] = True

    def choose(self, now: Now) -> ChosenLinks:
        return ChosenLinks(links_in_tree(now.graph))


class SampledLinks(LinksPolicy):
    """Each link of G(k) with the same probability, independently."""

    kind: Literal["sampled"] = "sampled"
    is_fixed: ClassVar[bool] = False
    probability: float = Field(default=0.5, gt=0, le=1)
    """Probability of each link."""

    def choose(self, now: Now) -> ChosenLinks:
        return ChosenLinks(now.random().random(len(now.graph.links)) < self.probability)


class MatchaLinks(LinksPolicy):
    """MATCHA (Wang, Sahu, Yang, Joshi, Kar 2019): random matchings, more often those that connect the graph better.

    The graph is cut into M matchings with Laplacians L_j. Matching j is used with probability p_j, independently; the
    p_j maximise the second-smallest eigenvalue of sum_j p_j L_j subject to

        sum_j p_j <= budget M,   0 <= p_j <= 1

    Used links have the weight alpha that minimises || E[W^T W] - J ||_2, where W = I - alpha sum_j B_j L_j for the
    matchings drawn, B_j in {0, 1}, and J averages all devices (`parts.matchings`, which says what is simpler than in
    the paper). It takes time of order m^3 per graph, so graphs that change often are slow. In a graph in several parts,
    each part averages by itself.
    """

    kind: Literal["matcha"] = "matcha"
    is_fixed: ClassVar[bool] = False
    budget: float = Field(default=0.5, gt=0, le=1)
    """Share of the matchings used on average."""

    def choose(self, now: Now) -> ChosenLinks:
        found = matchings(now.graph, self.budget)
        drawn = now.random().random(len(found.probabilities)) < found.probabilities
        return ChosenLinks(drawn[found.of_link], np.full(len(found.of_link), found.weight))


class BandwidthLinks(LinksPolicy):
    """Slow devices do not use a link if a common neighbour has two better ones (`core.uplink.redundant_links`).

    Each device decides for itself, from what its neighbours say about themselves. All links stay up, and a link is used
    again when a better one is gone. In lockstep, where nothing takes time, every device counts as slow.
    """

    kind: Literal["bandwidth"] = "bandwidth"
    is_fixed: ClassVar[bool] = True
    is_own_choice: ClassVar[bool] = True
    """Whether each device decides for itself."""

    def choose(self, now: Now) -> ChosenLinks:
        graph, rates = now.graph, now.bandwidths.values
        neighbours: list[list[int]] = [[] for _ in range(graph.devices)]
        for i, j in graph.links.tolist():
            neighbours[i].append(j)
            neighbours[j].append(i)
        abouts = [About(float(rates[i]), True, tuple(sorted(those))) for i, those in enumerate(neighbours)]
        quiet = [redundant_links(i, about, {j: abouts[j] for j in about.neighbours}) for i, about in enumerate(abouts)]
        active = np.array([j not in quiet[i] for i, j in graph.links.tolist()], dtype=bool)
        degrees = np.bincount(graph.links[active].ravel(), minlength=graph.devices)
        return ChosenLinks(active, 1.0 / (1.0 + degrees[graph.links].max(axis=1)))


LINKS = Family(LinksPolicy, (__name__,), ("choose",), default="all")
AnyLinkChoice = Annotated[LinksPolicy, LINKS]
