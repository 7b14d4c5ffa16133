"""Decentralized SGD that relays models along a tree instead of averaging neighbours."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from efhc.base.arrays import Floats, Ints
from efhc.core.cost import whole_message_bits
from efhc.core.graph import Graph
from efhc.core.memory import Arrays, Memories, Memory
from efhc.core.parts import Moved, Now, Strategy
from efhc.strategies.parts.spanning_tree import NO_PARENT, parents_in_tree

BITS_OF_COUNT = 32
"""The bits of the number of models in a message."""


class RelaySGD(Strategy):
    """RelaySGD (Vogels et al., NeurIPS 2021): every model reaches every device along a tree, unaltered but late.

        y_i      = x_i(k) - alpha(k) g_i(x_i(k))
        M_ij(k)  = y_i + sum of M_li(k-1) over the neighbours l of i other than j,    M(-1) = 0
        c_ij(k)  = 1   + sum of c_li(k-1) over the same l,                            c(-1) = 0
        x_i(k+1) = (y_i + sum_j M_ji(k)) / (1 + sum_j c_ji(k))

    x: `models`; g: `gradients`; alpha(k): `now.step_size`; M_ij, c_ij: the sum of models and their number that i sends
    to j, over the spanning tree of G(0) from the middle of the graph (`parts.spanning_tree`). In the end x_i is the
    mean of all m models, each as old as the path to it is long; until then of those that have come (the authors' code
    fills in x(0)). Links outside of the tree carry nothing.

    Memory: `parents` of the tree; per device, what it sent `up` to its parent and what came `down` from it, each with
    its count. A graph that changes is refused.
    """

    kind: Literal["relay"] = "relay"
    needs_static_graph: ClassVar[bool] = True
    memory: ClassVar[Memories] = {
        "parents": Memory(dtype="int64", start=NO_PARENT),
        "up": Memory(size="model"),
        "down": Memory(size="model"),
        "up_counts": Memory(dtype="int64"),
        "down_counts": Memory(dtype="int64"),
    }

    @np.errstate(over="ignore", invalid="ignore")
    def step(self, now: Now, models: Floats, gradients: Floats, memory: Arrays) -> Moved:
        if now.k == 0:
            memory["parents"][:] = parents_in_tree(now.graph)
        tree = _Tree(memory["parents"])
        bits = np.zeros(2 * len(now.graph.links), dtype=np.int64)
        bits[_places(tree, now.graph)] = whole_message_bits(models) + BITS_OF_COUNT

        local = models - models.dtype.type(now.step_size) * gradients
        total = tree.relay(local, memory["up"], memory["down"])
        count = tree.relay(np.ones(len(models)), memory["up_counts"], memory["down_counts"])
        return Moved((total / count[:, None]).astype(models.dtype), bits, per="link")


class _Tree:
    """A tree, or several, by the parents of the devices."""

    def __init__(self, parents: Ints) -> None:
        from scipy.sparse import csr_array

        self.children = np.flatnonzero(parents != NO_PARENT)
        """All devices that have a parent."""
        self.parents = parents[self.children]
        ones = np.ones(len(self.children))
        self.of_children = csr_array((ones, (self.parents, self.children)), shape=(len(parents), len(parents)))
        """Its product with one row per device is the sum over each device's children, in double precision."""

    def relay(self, own: Floats, up: np.ndarray, down: np.ndarray) -> Floats:
        """Make one iteration of messages; return each device's own row plus all that it has just received.

        `up` and `down` hold the messages of the last iteration, and then those of this one.
        """
        from_children = self.of_children @ up
        # What came from the other children: in double precision the subtraction costs no digit of a float32 model.
        downward = (own + down + from_children)[self.parents] - up[self.children]
        up[self.children] = (own + from_children)[self.children]
        down[self.children] = downward
        received: Floats = own + self.of_children @ up + down
        return received


def _places(tree: _Tree, graph: Graph) -> Ints:
    """Return the places of the tree's links among the directed links of the graph, both directions of each."""
    directed, m = graph.directed, graph.devices
    wanted = np.concatenate([tree.children * m + tree.parents, tree.parents * m + tree.children])
    places: Ints = np.searchsorted(directed.sender * m + directed.receiver, wanted)
    return places
