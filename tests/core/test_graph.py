from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import graphs

from efhc.core.graph import Graph


@given(graphs())
def test_graph_agrees_with_networkx(graph):
    other = nx.Graph()
    other.add_nodes_from(range(graph.devices))
    other.add_edges_from(graph.links.tolist())
    assert graph.degrees.tolist() == [d for _, d in sorted(other.degree)]
    assert graph.is_connected == nx.is_connected(other)
    assert graph.parts.tolist() == [min(nx.node_connected_component(other, i)) for i in range(graph.devices)]
    assert graph.neighbours() == [set(other[i]) for i in range(graph.devices)]


@pytest.mark.parametrize("devices", [1, 2, 2000])
def test_a_long_way_round_is_one_part(devices):
    """The links are in no order that helps."""
    way = np.random.default_rng(0).permutation(devices)
    path = Graph.of(devices, np.column_stack([way[:-1], way[1:]]))
    assert path.is_connected
    assert Graph.of(devices + 1, path.links).parts.tolist() == [0] * devices + [devices]


@given(graphs(6), graphs(6))
def test_new_links_are_those_that_were_not_there(graph, previous):
    new = {tuple(link) for link in graph.links[graph.new_since(previous)].tolist()}
    assert new == {tuple(x) for x in graph.links.tolist()} - {tuple(x) for x in previous.links.tolist()}


@given(graphs(5), st.randoms())
def test_order_direction_and_repetition_do_not_matter(graph, random):
    pairs = [(j, i) if random.random() < 0.5 else (i, j) for i, j in graph.links.tolist()] * 2
    random.shuffle(pairs)
    assert np.array_equal(Graph.of(5, pairs).links, graph.links)


def test_a_later_device_has_its_links_last():
    links = Graph.of(4, [(2, 3), (0, 3), (1, 2), (0, 1)]).links.tolist()
    assert links == [[0, 1], [1, 2], [0, 3], [2, 3]]


@pytest.mark.parametrize("pair", [(0, 3), (-1, 0), (1, 1)])
def test_impossible_links_are_refused(pair):
    with pytest.raises(ValueError, match="two different devices"):
        Graph.of(3, [pair])
