"""The compiled loops of the theory against their own text, run by Python."""

from __future__ import annotations

import numpy as np
import pytest

from efhc.core.graph import Graph
from efhc.core.mixing import mixing_matrix
from efhc.theory.connectivity import network_loops


@pytest.fixture(params=["compiled", "text"])
def call(request, monkeypatch):
    if request.param == "compiled":
        return lambda kernel, *arguments: kernel(*arguments)
    for name in ("root", "entry"):
        monkeypatch.setattr(network_loops, name, getattr(network_loops, name).py_func)
    return lambda kernel, *arguments: kernel.py_func(*arguments)


def test_the_tree_of_the_most_recent_links(call):
    tree, spare, parents = np.zeros((3, 3), np.int64), np.zeros((3, 3), np.int64), np.empty(4, np.int64)
    size = call(network_loops.strongest_tree, np.array([[0, 1], [1, 2], [0, 2]]), 0, tree, 0, spare, parents)
    assert (size, spare[:size].tolist()) == (2, [[0, 1, 0], [1, 2, 0]])
    size = call(network_loops.strongest_tree, np.array([[2, 3], [0, 2]]), 1, spare, size, tree, parents)
    assert (size, tree.tolist()) == (3, [[2, 3, 1], [0, 2, 1], [0, 1, 0]])
    size = call(network_loops.strongest_tree, np.empty((0, 2), np.int64), 2, tree, size, spare, parents)
    assert (size, spare.tolist()) == (3, tree.tolist())


def test_sound_weights(call):
    graph = Graph.of(4, [(0, 1), (1, 2), (2, 3), (0, 3), (0, 2)])
    used = np.array([True, False, True, True, False])
    P = mixing_matrix(graph, used)

    def sound(entries: np.ndarray, links: np.ndarray, *, demand: bool = True) -> bool:
        arguments = P.indptr, P.indices, entries, links, demand, 1e-9, np.empty(4)
        return bool(call(network_loops.weights_are_sound, *arguments))

    assert sound(P.data, graph.links[used])
    assert not sound(P.data, graph.links)
    assert sound(P.data, graph.links, demand=False)
    assert not sound(P.data, graph.links[used][1:])
    for place in range(len(P.data)):
        for spoilt in (-P.data[place], np.nan, P.data[place] + 0.01, 0.0):
            entries = P.data.copy()
            entries[place] = spoilt
            assert not sound(entries, graph.links[used])
