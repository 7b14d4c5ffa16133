"""Strategies that make the iterations of all devices at once: centralised SGD, gradient tracking, and relays."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from efhc.base.arrays import Floats, Ints
from efhc.core.arithmetic import Messages
from efhc.core.cost import whole_message_bits
from efhc.core.graph import Graph
from efhc.core.memory import Arrays, Memories, Memory
from efhc.core.mixing import mixing_matrix
from efhc.core.parts import Codec, Moved, Now, Strategy
from efhc.strategies.parts.codecs import AnyCodec, SignCodec
from efhc.strategies.parts.spanning_tree import NO_PARENT, parents_in_tree

if TYPE_CHECKING:
    from scipy.sparse import csr_array


@lru_cache(maxsize=4)
def averaging_matrix(graph: Graph, precision: np.dtype) -> csr_array:
    """W: w_ij = beta_ij on every link of the graph, w_ii = 1 - sum_j w_ij. It is symmetric and doubly stochastic."""
    W: csr_array = mixing_matrix(graph, np.ones(len(graph.links), dtype=bool)).astype(precision)
    return W


def broadcast_bits(graph: Graph, bits: int | Ints) -> Ints:
    """Return the bits that each device sends to all of its neighbours, (m,): none where it has no neighbours."""
    sent: Ints = np.where(graph.degrees > 0, bits, 0)
    return sent


class CentralSGD(Strategy):
    """Centralised SGD, the ceiling: all devices have one model, which descends along the mean gradient.

        x(k+1) = x(k) - alpha(k) (1/m) sum_i g_i(x(k))

    x: the mean of `models`; g_i: `gradients`; alpha(k): `now.step_size`; m: the number of devices. Nothing is sent or
    paid. If devices start apart, x(0) is their mean, and the gradients of k = 0 are at their own models.
    """

    kind: Literal["central"] = "central"

    @np.errstate(over="ignore", invalid="ignore")
    def step(self, now: Now, models: Floats, gradients: Floats, memory: Arrays) -> Moved:
        # The mean of equal rows, in double precision, is that row to the last bit of a single-precision model.
        mean_model, mean_gradient = (rows.mean(axis=0, dtype=np.float64) for rows in (models, gradients))
        one = (mean_model - now.step_size * mean_gradient).astype(models.dtype)
        return Moved(np.tile(one, (len(models), 1)), np.zeros(len(models), dtype=np.int64))


class GradientTracking(Strategy):
    """DSGT (Pu & Nedić, Mathematical Programming 2021): neighbours average their models and their gradient trackers.

        x_i(k+1) = sum_j w_ij (x_j(k) - alpha(k) s_j(k))
        s_i(k+1) = sum_j w_ij s_j(k) + g_i(k+1) - g_i(k),   s_i(0) = g_i(0)

    x: `models`; g: `gradients`; alpha(k): `now.step_size`; w: the Metropolis weights of G(k). The mean of the trackers
    s is the mean gradient, so a constant step leads to the minimum of the mean loss, however different the devices'
    data are. `correction` is c = s - g, whose mean is zero:

        s = c + g,   c <- W s - g

    Every device sends two models per iteration, x - alpha s and s, to all neighbours.
    """

    kind: Literal["dsgt"] = "dsgt"
    memory: ClassVar[Memories] = {"correction": Memory(size="model")}

    @np.errstate(over="ignore", invalid="ignore")
    def step(self, now: Now, models: Floats, gradients: Floats, memory: Arrays) -> Moved:
        W = averaging_matrix(now.graph, models.dtype)
        trackers = memory["correction"] + gradients
        memory["correction"][...] = W @ trackers - gradients
        moved = W @ (models - models.dtype.type(now.step_size) * trackers)
        return Moved(moved, broadcast_bits(now.graph, 2 * whole_message_bits(models)))


class Beer(Strategy):
    """BEER (Zhao et al., NeurIPS 2022): gradient tracking in which only compressed differences are sent.

        V(k)   = V(k-1) + gamma (W - I) G(k-1) + g(k) - g(k-1),   V(0) = g(0)
        G(k)   = G(k-1) + C(V(k) - G(k-1)),                       G(-1) = 0
        x(k+1) = x(k) + gamma (W - I) H(k) - alpha(k) V(k)
        H(k+1) = H(k) + C(x(k+1) - H(k)),                         H(0) = x(0)

    x: `models`; g: `gradients`; alpha(k): `now.step_size`; gamma: `rate`; C: `codec`; V: the trackers, whose mean is
    the mean gradient; H and G: what the neighbours know of x and V; W: the Metropolis weights. `correction` is c = V -
    g, whose mean is zero:

        V = c + g,   c <- V + gamma (W - I) G - g

    Every device sends two messages per iteration, C(V - G) and C(x - H), to all neighbours. As in the authors' code,
    C(V(0)) is sent; unlike the paper, H(0) = x(0). What a new neighbour does not know is sent in full once.
    """

    kind: Literal["beer"] = "beer"
    rate: float = Field(default=0.8, gt=0, le=1)
    """gamma: share of the way to the neighbours per iteration."""
    codec: AnyCodec = Field(default_factory=SignCodec)
    """How the differences are compressed."""
    memory: ClassVar[Memories] = {
        "known_models": Memory(size="model", start="models"),
        "known_trackers": Memory(size="model"),
        "correction": Memory(size="model"),
    }

    @np.errstate(over="ignore", invalid="ignore")
    def step(self, now: Now, models: Floats, gradients: Floats, memory: Arrays) -> Moved:
        H, G, correction = memory["known_models"], memory["known_trackers"], memory["correction"]
        W = averaging_matrix(now.graph, models.dtype)
        alpha, gamma = models.dtype.type(now.step_size), models.dtype.type(self.rate)

        V = correction + gradients
        bits = _send(self.codec, V, G)
        correction[...] = V + gamma * (W @ G - G) - gradients
        moved = models + gamma * (W @ H - H) - alpha * V
        bits += _send(self.codec, moved, H)
        per_link = _with_introductions(now, models, broadcast_bits(now.graph, bits))
        return Moved(moved, per_link, per="link")


def _send(codec: Codec, rows: Floats, known: Floats) -> Ints:
    """Send each device's row; update `known` to what the neighbours know afterwards. Return the bits, (m,)."""
    from efhc.kernels.compiled_arithmetic import CompiledLaw

    devices = np.arange(len(rows))
    messages = Messages(codec, rows, devices, known, np.zeros(len(rows)), devices >= 0)
    known[...], bits = CompiledLaw().send("", messages)
    return bits


def _with_introductions(now: Now, models: Floats, bits: Ints) -> Ints:
    """Return the bits of the messages, and of what was known before if there are ends that did not know it.

    `models` are those of iteration k. Before k = 0 only the models are known; the trackers are zero.
    """
    directed, new = now.graph.directed, now.new_links
    known_in_full = whole_message_bits(models) * (1 if now.k == 0 else 2)
    per_link: Ints = bits[directed.sender] + known_in_full * new[directed.link]
    return per_link


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
