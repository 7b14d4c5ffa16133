"""Graphs of the literature that change in every iteration: one-peer exponential, Base-(k+1), random peers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Literal, NamedTuple, Self

import numpy as np
from pydantic import Field

from efhc.base.arrays import Floats, Ints
from efhc.base.errors import InputError
from efhc.core.graph import Graph
from efhc.core.randomness import Purpose, Randomness
from efhc.network.topologies import DrawnGraphs, GraphList, GraphsOverTime, Network, StaticGraph, most_neighbours


class OnePeerExponential(Network):
    """In iteration k devices i and i XOR 2^t average, t = k modulo tau, where 2^tau is the least power of two >= m.

    For m = 2^tau, tau iterations in which all links are used average all models exactly. Otherwise a device whose
    partner does not exist rests. The one-peer exponential graph (Ying, Yuan, Chen, Hu, Pan and Yin, "Exponential Graph
    is Provably Efficient for Decentralized Deep Training", NeurIPS 2021) sends from i to i + 2^t modulo m. This is its
    undirected version, also called one-peer hypercube; links have weight 1/2.
    """

    kind: Literal["one-peer-exponential"] = "one-peer-exponential"

    def over_time(self, devices: int, randomness: Randomness) -> GraphsOverTime:
        here, graphs = np.arange(devices), []
        for t in range(max((devices - 1).bit_length(), 1)):
            there = here ^ (1 << t)
            pairs = np.column_stack([here, there])[(here < there) & (there < devices)]
            graphs.append(Graph.of(devices, pairs))
        return sequence_of(graphs)


class RandomPeers(Network):
    """In every iteration each device draws `peers` others; the links are those of all draws.

    Epidemic Learning, EL-Local (de Vos, Farhadkhani, Guerraoui, Kermarrec, Pires and Sharma, "Epidemic Learning:
    Boosting Decentralized Learning with Randomized Communication", NeurIPS 2023), sends from i to those that i has
    drawn, and each device averages what has come. This is its undirected version: a link serves both ways with the
    Metropolis weights, so mixing keeps the mean model, and a device has 2 peers neighbours on average, less those that
    drew each other.
    """

    kind: Literal["random-peers"] = "random-peers"
    peers: int = Field(default=1, ge=1)
    """s: number of others that each device draws in an iteration, below the number of devices."""

    def over_time(self, devices: int, randomness: Randomness) -> GraphsOverTime:
        if self.peers >= devices:
            raise InputError("peers", self.peers, most_neighbours(devices))
        here = np.arange(devices)

        def draw(k: int) -> Graph:
            stream = randomness.stream(Purpose.LINKS, k)
            others: Ints = np.empty((devices, self.peers), dtype=np.int64)
            for n, most in enumerate(
                range(devices - 1 - self.peers, devices - 1)
            ):  # Floyd's sampling without repetition
                one = stream.integers(most + 1, size=devices)
                others[:, n] = np.where((others[:, :n] == one[:, None]).any(axis=1), most, one)
            others += others >= here[:, None]
            return Graph.of(devices, np.column_stack([np.repeat(here, self.peers), others.ravel()]))

        return DrawnGraphs(draw)


class BaseGraph(Network):
    """The Base-(k+1) Graph: a sequence of graphs that averages all models exactly, for any m, with few peers at a time.

    Takezawa, Sato, Bao, Niwa and Yamada, "Beyond Exponential Graph: Communication-Efficient Topologies for
    Decentralized Learning via Finite-time Convergence", NeurIPS 2023. With k = `peers`, P(k) of the sequence multiply
    to (1/m) 11^T if all links are used. m = p q, where p is the largest divisor of m whose prime factors are at most
    k + 1; p groups of q devices average by the simple graph below, then q groups of p devices by the hypercube:

        hypercube    p = n_1 n_2 ... n_L with factors of at most k + 1, as few as possible; in step l, devices average
                     that differ in digit l only (k-peer Hyper-Hypercube)
        simple       q = a_1 (k+1)^p_1 + ... + a_L (k+1)^p_L, p_1 > ... > p_L, in sets V_1, ..., V_L of these sizes.
                     Each set averages; then each device of V_l+1, ..., V_L averages with one device of each of the a_l
                     parts of V_l, with weights |V_l| / (|V_l| + ... + |V_L|) / a_l; then each part of V_l averages

    The simple graph on all m is taken where it is shorter. 25 devices take 9, 6, 5 and 2 steps for k = 1, 2, 3 and 4.
    Where the weights differ from the Metropolis weights the network runs in lockstep only.
    """

    kind: Literal["base-graph"] = "base-graph"
    peers: int = Field(default=1, ge=1)
    """k: largest number of neighbours of a device in an iteration."""

    def over_time(self, devices: int, randomness: Randomness) -> GraphsOverTime:
        steps = base_steps(devices, self.peers)
        graphs = [Graph.of(devices, step.pairs, step.weights) for step in steps] or [Graph.of(devices, [])]
        if all(graph.own_weights is None or (graph.weights == graph.metropolis_weights).all() for graph in graphs):
            graphs = [Graph(devices, graph.links) for graph in graphs]
        return sequence_of(graphs)


def sequence_of(graphs: list[Graph]) -> GraphsOverTime:
    """Return the graphs, one after the other and again."""
    return GraphList(graphs) if len(graphs) > 1 else StaticGraph(graphs[0])


# The Base-(k+1) Graph. Below, `sets` are device numbers, (sets, devices of each): all sets do the same at a time.


class Step(NamedTuple):
    """The links of one iteration, and w_ij of each."""

    pairs: Ints
    weights: Floats

    @classmethod
    def of_all(cls, steps: Iterable[Self]) -> Self:
        """Return the links of several steps, which take place at the same time."""
        none = np.empty((0, 2), dtype=np.int64), np.empty(0)
        pairs, weights = zip(none, *steps, strict=True)
        return cls(np.concatenate(pairs), np.concatenate(weights))

    @classmethod
    def averaging(cls, sets: Ints) -> Self:
        """Return the step in which each set averages: links between all of it, each of weight 1 / size."""
        i, j = np.triu_indices(size := sets.shape[1], 1)
        pairs = np.stack([sets[:, i], sets[:, j]], axis=2).reshape(-1, 2)
        return cls(pairs, np.full(len(pairs), 1.0 / max(size, 1)))


def base_steps(devices: int, peers: int) -> list[Step]:
    """Return the steps of the Base-(k+1) Graph, k: `peers`."""
    smooth = 1
    for factor in range(2, min(peers + 1, devices) + 1):
        while devices // smooth % factor == 0:
            smooth *= factor
    groups = np.arange(devices).reshape(smooth, -1)
    product = simple_steps(groups, peers) + hypercube_steps(groups.T, peers)
    if 1 < smooth < devices and len(simple := simple_steps(groups.reshape(1, -1), peers)) < len(product):
        return simple
    return product


def hypercube_steps(sets: Ints, peers: int) -> list[Step]:
    """Return the steps that average each set, whose size has no prime factor above `peers` + 1."""
    factors = fewest_factors(sets.shape[1], peers + 1)
    assert factors is not None
    digits = sets.reshape(len(sets), *factors)
    return [
        Step.averaging(np.moveaxis(digits, axis, -1).reshape(-1, factor))
        for axis, factor in enumerate(factors, start=1)
    ]


@lru_cache
def fewest_factors(number: int, largest: int) -> tuple[int, ...] | None:
    """Return as few factors of a number as possible, none above `largest`, in descending order; None if impossible."""
    if number <= max(largest, 1):
        return (number,) if number > 1 else ()
    found = None
    for factor in range(largest, 1, -1):
        rest = fewest_factors(number // factor, factor) if number % factor == 0 else None
        if rest is not None and (found is None or len(rest) + 1 < len(found)):
            found = (factor, *rest)
    return found


def simple_steps(sets: Ints, peers: int) -> list[Step]:
    """Return the steps of the simple graph, which average each set."""
    base, size, start = peers + 1, sets.shape[1], 0
    if fewest_factors(size, base) is not None:
        return hypercube_steps(sets, peers)
    part = 1
    while part * base <= size:
        part *= base
    V: list[Ints] = []  # V_1, V_2, ...: (sets, a_l, (k+1)^p_l)
    while start < size:
        if count := (size - start) // part:
            V.append(sets[:, start : start + count * part].reshape(len(sets), count, part))
        start, part = start + count * part, part // base
    whole = [hypercube_steps(one.reshape(len(sets), -1), peers) for one in V]
    parts = [hypercube_steps(one.reshape(-1, one.shape[2]), peers) for one in V]
    last = len(V) - 1
    if V[last].shape[2] == 1:
        parts[last] = whole[last]  # its parts are single devices
    steps = [Step.of_all(those[n % len(those)] for those in whole if those) for n in range(len(whole[0]))]
    for n in range(1 + len(parts[0])):
        now = [exchange_step(V[n:], base)] if n < last else []
        since = [(n - min(order + 1, last), those) for order, those in enumerate(parts)]  # V_l has been reached
        steps.append(Step.of_all([*now, *(those[m % len(those)] for m, those in since if m >= 0 and those)]))
    return steps


def exchange_step(V: list[Ints], base: int) -> Step:
    """Return the step in which the devices of V_2, V_3, ... average with one of each part of V_1.

    The others of V_1, which are equal if nothing was learned in between, average in groups of `base` meanwhile.
    """
    first, later = V[0], np.concatenate([one.reshape(len(one), -1) for one in V[1:]], axis=1)
    sets, count, size = first.shape
    reached = later.shape[1]
    partners = first[:, :, :reached]
    pairs = np.stack([np.broadcast_to(later[:, None], partners.shape), partners], axis=-1).reshape(-1, 2)
    weight = count * size / (count * size + reached) / count
    idle = first[:, :, reached:].reshape(sets, -1)
    full = idle.shape[1] // base * base
    groups = Step.averaging(idle[:, :full].reshape(-1, base)), Step.averaging(idle[:, full:])
    return Step.of_all([Step(pairs, np.full(len(pairs), weight)), *groups])
