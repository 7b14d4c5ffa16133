"""What tests of the theory share: small networks and flows by hand, and what hypothesis draws."""

from __future__ import annotations

import independent_theory as own
import networkx as nx
import numpy as np
from hypothesis import strategies as st

from efhc.core.graph import Graph
from efhc.network.topologies import GraphList
from efhc.theory.bounds import Constants
from efhc.theory.connectivity import Flow

PATH = Graph.of(3, [(0, 1), (1, 2)])
ALTERNATING = GraphList([Graph.of(3, [(0, 1)]), Graph.of(3, [(1, 2)])])


def everyone(iterations, devices=3):
    return np.ones((iterations, devices), dtype=bool)


def nobody(iterations, devices=3):
    return np.zeros((iterations, devices), dtype=bool)


def recorded(*links):
    """Links used per iteration, as a run records them."""
    return lambda k: np.array(links[k], dtype=np.int64).reshape(-1, 2)


def union(links, devices):
    """All links of several iterations in one graph."""
    graph = nx.Graph()
    graph.add_nodes_from(range(devices))
    for now in links:
        graph.add_edges_from(np.asarray(now).tolist())
    return graph


def connected(links, devices):
    return nx.is_connected(union(links, devices))


@st.composite
def flows(draw, least_devices=1):
    """Links that come and go, now and then or all the time; devices that fire periodically, or at any time."""
    devices, iterations = draw(st.integers(least_devices, 4)), draw(st.integers(1, 30))
    pairs = np.array([(i, j) for j in range(devices) for i in range(j)], dtype=np.int64).reshape(-1, 2)
    everything = 2 ** len(pairs) - 1
    change = st.one_of(*[st.just(0)] * draw(st.integers(0, 3)), st.integers(0, everything))
    masks = [draw(st.integers(0, everything))]
    for flips in draw(st.lists(change, max_size=iterations - 1)):
        masks.append(masks[-1] ^ flips)
    bits = (np.array(masks)[:, None] >> np.arange(len(pairs))) & 1
    graphs = GraphList([Graph(devices, pairs[up]) for up in bits.astype(bool)])
    if draw(st.booleans()):
        who = draw(st.lists(st.integers(0, 2**devices - 1), min_size=iterations, max_size=iterations))
        fired = ((np.array(who)[:, None] >> np.arange(devices)) & 1).astype(bool)
    else:
        together = draw(st.sampled_from([1, devices]))
        periods = draw(st.lists(st.integers(1, 7), min_size=together, max_size=together))
        phases = draw(st.lists(st.integers(0, 6), min_size=together, max_size=together))
        fired = np.broadcast_to((np.arange(iterations)[:, None] + phases) % periods == 0, (iterations, devices))
    return Flow(graphs.graph, fired, exchange_at_start=draw(st.booleans()))


def zero_or(least, most):
    return st.one_of(st.just(0.0), st.floats(least, most))


@st.composite
def numbers(draw, convex=True):
    """The constants of the assumptions, for the implementation that was written from the paper alone."""
    L = draw(st.floats(0.1, 20))
    return own.Numbers(
        m=draw(st.integers(2, 30)),
        L=L,
        mu=draw(st.floats(0.1, 1)) * L if convex else None,
        delta=draw(zero_or(1e-3, 5)),
        sigma=draw(zero_or(1e-3, 5)),
        rho=draw(zero_or(1e-3, 0.97)),
        B=draw(st.integers(1, 8)),
        dependent=draw(st.booleans()),
    )


def ours(n):
    """The same constants for efhc."""
    return Constants(n.m, n.L, n.mu or 0.0, n.delta, n.sigma**2, n.B, n.rho, n.dependent)
