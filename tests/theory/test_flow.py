"""The information flow: links by Events 1 and 2, their weights, and a real simulation's links against both."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import efhc
from efhc.core.graph import Graph
from efhc.drivers.steps import Steps
from efhc.network.topologies import GraphList, StaticGraph
from efhc.theory.connectivity import Flow
from tests.theory.drawn import ALTERNATING, PATH, flows, nobody, recorded


def firing(iterations, *events, devices=3):
    """v_i(k) from pairs (k, i)."""
    fired = nobody(iterations, devices)
    for event in events:
        fired[event] = True
    return fired


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


def test_links_at_the_start_count_as_new_if_said_so():
    assert by_rule(Flow(ALTERNATING.graph, nobody(3), exchange_at_start=True)) == [[[0, 1]], [[1, 2]], [[0, 1]]]
    assert by_rule(Flow(StaticGraph(PATH).graph, nobody(2), exchange_at_start=True)) == [[[0, 1], [1, 2]], []]


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


# Links that should not be


def test_a_link_that_there_is_not():
    flow = Flow(StaticGraph(PATH).graph, firing(1, (0, 1)), recorded([(0, 1), (0, 2), (1, 2)]))
    assert flow.stray_links(0).tolist() == [[0, 2]]
    # as many links as there are, and one of them another one
    flow = Flow(StaticGraph(PATH).graph, firing(1, (0, 1)), recorded([(0, 2), (1, 2)]))
    assert flow.stray_links(0).tolist() == [[0, 1], [0, 2]]


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


# A real run


@pytest.mark.parametrize(
    ("network", "exchange_at_start"),
    [(efhc.RandomLinks(), False), (efhc.Geometric(radius=0.6), True), (efhc.Geometric(radius=0.6), False)],
    ids=["random-links", "static-exchange-at-start", "static"],
)
def test_links_of_a_simulation(network, exchange_at_start):
    result = efhc.simulate(
        devices=6,
        iterations=12,
        seeds=(0,),
        evaluate_every=6,
        network=network,
        step_size=efhc.Constant(value=0.1),
        exchange_at_start=exchange_at_start,
        strategies={"some": efhc.EventTriggered(r=400.0), "none": efhc.Never(), "all": efhc.ZeroThreshold()},
    )
    changes = {
        row["iteration"]: Graph.of(6, list(zip(row["link_from"], row["link_to"], strict=True)))
        for row in result.network.to_dicts()
    }
    physical = GraphList([changes[max(at for at in changes if at <= k)] for k in range(12)])
    used = []
    for strategy in ("some", "none", "all"):
        events = result.events.filter(pl.col("strategy") == strategy).to_dicts()
        fired = np.array([np.isin(np.arange(6), row["fired"]) for row in events])
        links = [list(map(list, zip(row["link_from"], row["link_to"], strict=True))) for row in events]
        flow = Flow(physical.graph, fired, exchange_at_start=exchange_at_start)
        assert by_rule(flow) == links
        kept = Flow(physical.graph, fired, recorded(*links), exchange_at_start=exchange_at_start)
        assert all(len(kept.stray_links(k)) == 0 for k in range(12))
        used.append(sum(map(len, links)))
    some, none, everything = used
    assert none < some < everything
    assert (none > 0) == (exchange_at_start or isinstance(network, efhc.RandomLinks))
