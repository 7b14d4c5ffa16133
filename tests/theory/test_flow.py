"""The information flow: links by Events 1 and 2, their weights, and a real simulation's links against both."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from efhc.core.graph import Graph
from efhc.drivers.steps import Steps
from efhc.network.topologies import GraphList, StaticGraph
from efhc.theory.connectivity import Flow
from tests.theory.drawn import PATH, flows, nobody, recorded


def by_rule(flow):
    return [flow.links_by_rule(k).tolist() for k in range(flow.iterations)]


def metropolis(devices, physical, used):
    """P entry by entry: p_ij = min(1/(1+d_i), 1/(1+d_j)) on used links, d of all physical ones."""
    degree = [sum(i in link for link in physical) for i in range(devices)]
    P = np.zeros((devices, devices))
    for i, j in used:
        P[i, j] = P[j, i] = min(1 / (1 + degree[i]), 1 / (1 + degree[j]))
    for i in range(devices):
        P[i, i] = 1 - P[i].sum()
    return P


# Links by Events 1 and 2


def test_used_links_are_those_recorded_or_those_by_the_rule():
    assert Flow(StaticGraph(PATH).graph, nobody(1), recorded([(0, 1)])).used_links(0).tolist() == [[0, 1]]
    assert Flow(StaticGraph(PATH).graph, nobody(1)).used_links(0).tolist() == []


@given(flows())
def test_links_by_rule_are_those_that_a_step_uses(flow):
    nothing = np.empty((1, 0))
    for k, fired in enumerate(flow.fired):
        graph = flow.graph(k)
        at_start = Graph.of(flow.devices, []) if flow._exchange_at_start else graph
        previous = flow.graph(k - 1) if k else at_start
        used = Steps(k, previous, graph, fired[None], nothing, nothing).used[0]
        assert flow.links_by_rule(k).tolist() == graph.links[used].tolist()


# Weights


@given(flows())
def test_matrix_entry_by_entry(flow):
    reverse = Flow(flow.graph, flow.fired, lambda k: flow.used_links(k)[::-1, ::-1])  # recorded in any order
    for k in [*range(flow.iterations), 0]:
        expected = metropolis(flow.devices, flow.physical_links(k).tolist(), flow.used_links(k).tolist())
        for either in (flow, reverse):
            assert np.allclose(either.matrix(k).toarray(), expected, rtol=0, atol=1e-15)


def test_one_object_for_all_links_of_one_graph():
    a, b = PATH, Graph.of(3, [(0, 2)])
    flow = Flow(GraphList([a, b]).graph, np.ones((6, 3), dtype=bool))
    assert flow.matrix(0) is flow.matrix(2) is flow.matrix(4)
    assert flow.matrix(1) is flow.matrix(3) is flow.matrix(5)
    assert flow.matrix(0) is not flow.matrix(1)


@given(flows(), st.data())
def test_strays_are_what_was_changed(flow, data):
    k = data.draw(st.integers(0, flow.iterations - 1))
    pairs = [(i, j) for j in range(flow.devices) for i in range(j)]
    changed = set(data.draw(st.lists(st.sampled_from(pairs), unique=True) if pairs else st.just([])))
    due = {tuple(link) for link in flow.links_by_rule(k).tolist()}
    other = Flow(
        flow.graph,
        flow.fired,
        lambda _: np.array(sorted(due ^ changed), dtype=np.int64).reshape(-1, 2),
        exchange_at_start=flow._exchange_at_start,
    )
    assert {tuple(link) for link in other.stray_links(k).tolist()} == changed
