from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import graphs
from quadratic_runs import now_at, start_of

from efhc.core.graph import Graph
from efhc.core.memory import begin
from efhc.strategies.parts.spanning_tree import NO_PARENT, links_in_tree, parents_in_tree
from efhc.strategies.whole import RelaySGD


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
