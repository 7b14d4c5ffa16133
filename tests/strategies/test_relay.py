from __future__ import annotations

import networkx as nx
import numpy as np
import plain_strategies as plain
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import graphs
from quadratic_runs import Quadratics, last_models, now_at, ring, run, start_of

from efhc.core.graph import Graph
from efhc.core.memory import begin
from efhc.strategies.parts.spanning_tree import NO_PARENT, links_in_tree, parents_in_tree
from efhc.strategies.relay import BITS_OF_COUNT, RelaySGD


def tree_of(graph: Graph) -> Graph:
    return Graph.of(graph.devices, graph.links[links_in_tree(graph)])


def as_networkx(graph: Graph) -> nx.Graph:
    drawn = nx.empty_graph(graph.devices)
    drawn.add_edges_from(graph.links.tolist())
    return drawn


@given(graphs())
def test_the_tree_spans_the_graph_by_shortest_paths_from_its_root(graph):
    whole, tree, parents = as_networkx(graph), as_networkx(tree_of(graph)), parents_in_tree(graph)
    assert nx.is_forest(tree)
    assert set(map(frozenset, nx.connected_components(tree))) == set(map(frozenset, nx.connected_components(whole)))
    roots = np.flatnonzero(parents == NO_PARENT)
    assert len(roots) == nx.number_connected_components(whole)
    for root in roots.tolist():
        assert nx.single_source_shortest_path_length(tree, root) == nx.single_source_shortest_path_length(whole, root)


@pytest.mark.parametrize("devices", [2, 5, 8])
def test_the_tree_of_a_path_begins_in_its_middle(devices):
    path = Graph.of(devices, [(i, i + 1) for i in range(devices - 1)])
    (root,) = np.flatnonzero(parents_in_tree(path) == NO_PARENT)
    assert root in nx.center(as_networkx(path))


@given(graphs(), st.integers(0, 2**32))
def test_all_devices_at_once_move_like_the_plain_loops(graph, seed):
    problem, start = Quadratics.draw(graph.devices, 3, seed), start_of(graph.devices, 3, seed)
    got = last_models(run(RelaySGD(), lambda k: graph, start, problem.gradients, 10))
    tree = tree_of(graph).neighbours()
    want = plain.relay(tree, list(start), problem.gradient, 0.1, 10)
    assert np.allclose(got, want, rtol=0, atol=1e-12)


@given(graphs(), st.integers(0, 2**32), st.sampled_from([np.float32, np.float64]))
def test_models_that_stand_still_are_averaged_exactly_after_as_many_iterations_as_the_tree_is_wide(graph, seed, dtype):
    strategy, models = RelaySGD(), start_of(graph.devices, 3, seed, dtype=dtype)
    memory, tree = begin(strategy.memory, graph, models), as_networkx(tree_of(graph))
    parts = [sorted(part) for part in nx.connected_components(tree)]
    width = max(nx.diameter(tree.subgraph(part)) for part in parts)
    for k in range(width + 3):
        moved = strategy.step(now_at(k, graph), models, np.zeros_like(models), memory).models
        for part in parts:
            for i in part:  # a device has heard of all devices that are at most k + 1 links away
                near = list(nx.single_source_shortest_path_length(tree, i, cutoff=k + 1))
                mean = models[near].mean(axis=0, dtype=np.float64)
                assert np.allclose(moved[i], mean, rtol=0, atol=1e-12 if dtype == np.float64 else 1e-6)
    for part in parts:
        mean = models[part].mean(axis=0, dtype=np.float64)
        assert np.allclose(moved[part], mean, rtol=0, atol=1e-12 if dtype == np.float64 else 1e-6)


def test_converges_to_the_optimum_with_a_constant_step_however_different_the_minima():
    graph, problem = ring(8), Quadratics.draw(8, 3, 0)
    steps = list(run(RelaySGD(), lambda k: graph, start_of(8, 3, 0), problem.gradients, 700))
    distances = [problem.distance(step.moved.models) for step in steps]
    assert distances[199] < 0.1 * distances[99]
    assert distances[299] / distances[199] == pytest.approx(distances[199] / distances[99], rel=0.5)
    assert distances[-1] < 1e-8


def test_links_of_the_tree_carry_a_model_and_a_count_in_each_direction_and_other_links_nothing():
    graph, problem = Graph.of(5, [(0, 1), (1, 2), (0, 2), (2, 3)]), Quadratics.draw(5, 7, 0)
    start = start_of(5, 7, 0, shared=True, dtype=np.float32)
    for step in run(RelaySGD(), lambda k: graph, start, problem.gradients, 3):
        of_link = np.where(links_in_tree(graph), 8 + 32 * 7 + BITS_OF_COUNT, 0)
        assert step.moved.bits.tolist() == of_link[graph.directed.link].tolist()
