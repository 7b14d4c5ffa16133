"""Windows: by hand, and against trying every window."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from efhc.core.graph import Graph
from efhc.theory.connectivity import (
    Connectivity,
    RecentLinks,
    Window,
    least_broadcast_window,
    least_connected_window,
)
from tests.theory.drawn import connected, union

LINK, OTHER = [(0, 1)], [(1, 2)]


def window(links, devices):
    """Of a list of lists of links."""
    return least_connected_window(lambda k: Graph.of(devices, links[k]).links, len(links), devices)


def holds_in_all(holds, iterations, length):
    return all(holds(k, k + length) for k in range(iterations - length + 1))


def brute_force(holds, iterations):
    """The least B such that it holds from k to k + B (excluded) for all k, and all k of a window of B - 1 without."""
    length = next((B for B in range(1, iterations + 1) if holds_in_all(holds, iterations, B)), iterations + 1)
    return length, [k for k in range(iterations - length + 2) if not holds(k, k + length - 1)]


@st.composite
def sequences(draw, most_devices=5, most_iterations=12):
    """The links of some iterations; few or many of them."""
    devices = draw(st.integers(1, most_devices))
    pairs = [(i, j) for j in range(devices) for i in range(j)]
    some = st.lists(st.sampled_from(pairs), max_size=devices, unique=True) if pairs else st.just([])
    return devices, draw(st.lists(some, min_size=1, max_size=most_iterations))


@st.composite
def firings(draw):
    devices = draw(st.integers(1, 4))
    row = st.lists(st.booleans(), min_size=devices, max_size=devices)
    return np.array(draw(st.lists(row, min_size=1, max_size=12)), dtype=bool)


# By hand: physical links


def test_windows_that_the_end_of_the_run_cuts_short_do_not_count():
    # iteration 3 alone, at the end, is no window of two; iterations 3 and 4 are one, of (1,2) and nothing
    assert window([LINK, OTHER, LINK, OTHER], 3) == Window(2, witness=0)
    assert window([LINK, OTHER, LINK, OTHER, []], 3) == Window(3, witness=3)
    assert window([LINK, OTHER, LINK, OTHER, [], []], 3) == Window(4, witness=3)


def test_a_device_that_is_never_reached_is_named():
    assert window([LINK] * 4, 3) == Window(5, device=2)
    assert window([[(1, 2)]] * 4, 3) == Window(5, device=0)
    assert window([[(0, 1)], [(1, 2)], [(0, 4)]], 5) == Window(4, device=3)


def test_direction_order_and_repetition_of_links_do_not_matter():
    links = [np.array([[1, 0], [0, 1]]), np.array([[2, 1], [2, 1], [2, 1]])]
    assert least_connected_window(lambda k: links[k % 2], 6, 3) == Window(2, witness=0)


# By hand: the proposition


def promises(physical, broadcast):
    found = Connectivity(Window(physical), Window(broadcast), Window(1))
    return found.promised, found.sufficient


@pytest.mark.parametrize("lengths", [(math.inf, 1), (1, math.inf), (math.inf, math.inf)])
def test_nothing_is_promised_of_the_infinite(lengths):
    assert promises(*lengths) == (math.inf, math.inf)


@given(st.integers(1, 1000), st.integers(1, 1000))
def test_the_promise_is_the_papers_and_the_proof_needs_no_more(physical, broadcast):
    promised, sufficient = promises(physical, broadcast)
    (blocks,) = (level for level in range(broadcast + 1) if level * physical <= broadcast <= (level + 1) * physical - 1)
    assert promised == (blocks + 2) * physical
    assert sufficient == physical + broadcast - 1 <= promised
    assert promises(float(physical), float(broadcast)) == (promised, sufficient)


# Against all windows


@given(firings())
def test_least_broadcast_window_against_all_windows(fired):
    found = least_broadcast_window(fired)
    length, witnesses = brute_force(lambda k, end: fired[k:end].any(axis=0).all(), len(fired))
    assert found.length == length
    assert found.witness == (0 if length == 1 else witnesses[0])
    own = brute_force(lambda k, end: fired[k:end, found.device].any(), len(fired))[0]
    assert own == length
    assert (length > len(fired)) == (not fired[:, found.device].any())


@given(sequences())
def test_least_connected_window_against_all_windows(given_):
    devices, links = given_
    found = window(links, devices)
    length, witnesses = brute_force(lambda k, end: connected(links[k:end], devices), len(links))
    assert found.length == length
    assert found.witness == (0 if length == 1 else witnesses[0])
    if length > len(links):
        assert found.is_censored(len(links))
        graph = union(links, devices)
        assert len(nx.node_connected_component(graph, found.device)) == min(map(len, nx.connected_components(graph)))
    else:
        assert found.device is None


@given(sequences())
def test_recent_links_from_scratch(given_):
    devices, links = given_
    recent = RecentLinks(devices)
    for k, now in enumerate(links):
        since = recent.add(k, np.array(now, dtype=np.int64).reshape(-1, 2))
        assert since == max((s for s in range(k + 1) if connected(links[s : k + 1], devices)), default=-1)
        parts = list(nx.connected_components(union(links[: k + 1], devices)))
        cut_off = set(recent.cut_off().tolist())
        assert cut_off in parts if len(parts) > 1 else not cut_off
        assert not cut_off or len(cut_off) == min(map(len, parts))


def test_many_devices_at_once():
    # a path that is built link by link, in an order that is not its own: connected only once all links were there
    rng = np.random.default_rng(0)
    order = rng.permutation(199)
    links = np.column_stack([order, order + 1])
    found = least_connected_window(lambda k: links[k % 199][None], 600, 200)
    assert found == Window(199, witness=0)
