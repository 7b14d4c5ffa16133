"""Windows: by hand, and against trying every window."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from efhc.core.graph import Graph
from efhc.theory.connectivity.windows import (
    RecentLinks,
    Window,
    broadcast_gaps,
    least_broadcast_window,
    least_connected_window,
    promised_window,
    sufficient_window,
)

LINK, OTHER = [(0, 1)], [(1, 2)]


def window(links, devices):
    """Of a list of lists of links."""
    return least_connected_window(lambda k: Graph.of(devices, links[k]).links, len(links), devices)


def flags(*columns):
    """v_i(k) from one string per device: "x" where it fires."""
    return np.array([[letter == "x" for letter in column] for column in columns]).T


def connected(links, devices):
    graph = nx.Graph()
    graph.add_nodes_from(range(devices))
    graph.add_edges_from(pair for now in links for pair in now)
    return nx.is_connected(graph)


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


def test_one_link_always():
    assert window([LINK] * 5, 2) == Window(1)


def test_two_links_by_turns():
    assert window([LINK, OTHER] * 4, 3) == Window(2, witness=0)


def test_a_single_iteration():
    assert window([LINK], 2) == Window(1)
    assert window([[]], 2) == Window(2, device=0)


def test_one_device_is_connected():
    assert window([[]] * 3, 1) == Window(1)
    assert window([[]], 1) == Window(1)


@pytest.mark.parametrize(("at", "length", "witness"), [(0, 5, 1), (1, 4, 2), (2, 3, 0), (3, 4, 0), (4, 5, 0)])
def test_a_link_that_appears_once(at, length, witness):
    links = [LINK if k == at else [] for k in range(5)]
    assert window(links, 2) == Window(length, witness)


def test_a_gap_in_the_middle():
    # up, up, down, down, up: every three iterations have the link, iterations 2 and 3 have not
    assert window([LINK, LINK, [], [], LINK], 2) == Window(3, witness=2)


def test_windows_that_the_end_of_the_run_cuts_short_do_not_count():
    # iteration 3 alone, at the end, is no window of two; iterations 3 and 4 are one, of (1,2) and nothing
    assert window([LINK, OTHER, LINK, OTHER], 3) == Window(2, witness=0)
    assert window([LINK, OTHER, LINK, OTHER, []], 3) == Window(3, witness=3)
    assert window([LINK, OTHER, LINK, OTHER, [], []], 3) == Window(4, witness=3)


def test_a_device_that_is_never_reached_is_named():
    assert window([LINK] * 4, 3) == Window(5, device=2)
    assert window([[(1, 2)]] * 4, 3) == Window(5, device=0)
    assert window([[(0, 1)], [(1, 2)], [(0, 4)]], 5) == Window(4, device=3)


def test_of_two_parts_the_smaller_is_the_one_cut_off():
    assert window([[(0, 1), (1, 2)], [(3, 4)]], 5) == Window(3, device=3)


def test_direction_order_and_repetition_of_links_do_not_matter():
    links = [np.array([[1, 0], [0, 1]]), np.array([[2, 1], [2, 1], [2, 1]])]
    assert least_connected_window(lambda k: links[k % 2], 6, 3) == Window(2, witness=0)


def test_small_integers_are_links_too():
    links = [np.array([[0, 1]], dtype=np.int32), np.empty((0, 2), dtype=np.int32)]
    assert least_connected_window(lambda k: links[k % 2], 6, 2) == Window(2, witness=1)


# By hand: broadcasts


def test_everyone_at_every_iteration():
    assert least_broadcast_window(flags("xxxx", "xxxx")) == Window(1, device=0)
    assert broadcast_gaps(flags("xxxx", "xxxx")).tolist() == [1, 1]


def test_every_third_iteration():
    fired = flags("xxxxxxxxx", "x..x..x..")
    assert broadcast_gaps(fired).tolist() == [1, 3]
    assert least_broadcast_window(fired) == Window(3, witness=1, device=1)


def test_before_the_first_broadcast_and_after_the_last_there_are_windows_too():
    assert broadcast_gaps(flags("...x", "x...", ".x..", "..x.")).tolist() == [4, 4, 3, 3]
    assert least_broadcast_window(flags("...x")) == Window(4, witness=0, device=0)
    assert least_broadcast_window(flags("x...")) == Window(4, witness=1, device=0)


def test_b2_is_that_of_the_slowest_device():
    assert least_broadcast_window(flags("x.x.x.", ".x.x.x")) == Window(2, witness=0, device=0)
    assert least_broadcast_window(flags("x.x.x.", "xx..xx", "x.xxx.")) == Window(3, witness=2, device=1)
    # in every single iteration somebody is silent, though each iteration has a broadcast
    assert broadcast_gaps(flags("x.x.x.", ".x.x.x")).tolist() == [2, 2]


def test_a_device_that_never_fires_is_named():
    fired = flags("xxx", "...", "xxx", "...")
    assert broadcast_gaps(fired).tolist() == [1, 4, 1, 4]
    assert least_broadcast_window(fired) == Window(4, device=1)
    assert least_broadcast_window(fired).is_censored(3)  # nobody knows for how long


def test_one_iteration_of_broadcasts():
    assert least_broadcast_window(flags("x", "x")) == Window(1, device=0)
    assert least_broadcast_window(flags("x", ".")) == Window(2, device=1)


# By hand: the proposition


@pytest.mark.parametrize(
    ("physical", "broadcast", "promised", "sufficient"),
    [
        (1, 1, 3, 1),  # l = 1
        (1, 4, 6, 4),  # l = 4
        (2, 1, 4, 2),  # l = 0
        (2, 2, 6, 3),  # l = 1
        (2, 3, 6, 4),  # l = 1
        (2, 4, 8, 5),  # l = 2
        (3, 2, 6, 4),  # l = 0
        (5, 1, 10, 5),  # l = 0
        (5, 6, 15, 10),  # l = 1
        (5, 7, 15, 11),  # l = 1
    ],
)
def test_windows_of_the_proposition(physical, broadcast, promised, sufficient):
    assert promised_window(physical, broadcast) == promised
    assert sufficient_window(physical, broadcast) == sufficient


@pytest.mark.parametrize("window_of", [promised_window, sufficient_window])
def test_nothing_is_promised_of_the_infinite(window_of):
    assert window_of(math.inf, 1) == window_of(1, math.inf) == window_of(math.inf, math.inf) == math.inf


@given(st.integers(1, 1000), st.integers(1, 1000))
def test_the_promise_is_the_papers_and_the_proof_needs_no_more(physical, broadcast):
    promised = promised_window(physical, broadcast)
    (blocks,) = (level for level in range(broadcast + 1) if level * physical <= broadcast <= (level + 1) * physical - 1)
    assert promised == (blocks + 2) * physical
    sufficient = sufficient_window(physical, broadcast)
    assert sufficient == physical + broadcast - 1 <= promised
    assert promised_window(float(physical), float(broadcast)) == promised
    assert sufficient_window(float(physical), float(broadcast)) == sufficient


# Against all windows


@given(sequences())
def test_least_connected_window_against_all_windows(given_):
    devices, links = given_
    found = window(links, devices)
    length, witnesses = brute_force(lambda k, end: connected(links[k:end], devices), len(links))
    assert found.length == length
    assert found.witness == (0 if length == 1 else witnesses[0])
    if length > len(links):
        assert found.is_censored(len(links))
        graph = nx.Graph()
        graph.add_nodes_from(range(devices))
        graph.add_edges_from(pair for now in links for pair in now)
        assert len(nx.node_connected_component(graph, found.device)) == min(map(len, nx.connected_components(graph)))
    else:
        assert found.device is None


@given(firings())
def test_broadcast_gaps_against_all_windows(fired):
    gaps = broadcast_gaps(fired)
    for device, gap in enumerate(gaps):
        assert gap == brute_force(lambda k, end, of=device: fired[k:end, of].any(), len(fired))[0]
    found = least_broadcast_window(fired)
    assert found.length == gaps.max()
    assert found.device is not None
    assert gaps[found.device] == found.length
    assert (found.length > len(fired)) == (not fired[:, found.device].any())
    _, witnesses = brute_force(lambda k, end: fired[k:end].any(axis=0).all(), len(fired))
    assert found.witness == (0 if found.length == 1 else witnesses[0])


@given(sequences())
def test_recent_links_from_scratch(given_):
    devices, links = given_
    recent = RecentLinks(devices)
    for k, now in enumerate(links):
        since = recent.add(k, np.array(now, dtype=np.int64).reshape(-1, 2))
        assert since == max((s for s in range(k + 1) if connected(links[s : k + 1], devices)), default=-1)
        reached = nx.Graph()
        reached.add_nodes_from(range(devices))
        reached.add_edges_from(pair for past in links[: k + 1] for pair in past)
        parts = list(nx.connected_components(reached))
        cut_off = set(recent.cut_off().tolist())
        assert cut_off in parts if len(parts) > 1 else not cut_off
        assert not cut_off or len(cut_off) == min(map(len, parts))


def test_recent_links_may_begin_late_and_skip_iterations():
    recent = RecentLinks(3)
    assert recent.add(100, np.array([[0, 1]])) == -1
    assert recent.cut_off().tolist() == [2]
    assert recent.add(107, np.array([[1, 2]])) == 100
    assert recent.add(109, np.array([[0, 2]])) == 107
    assert recent.cut_off().tolist() == []


def test_many_devices_at_once():
    # a path that is built link by link, in an order that is not its own: connected only once all links were there
    rng = np.random.default_rng(0)
    order = rng.permutation(199)
    links = np.column_stack([order, order + 1])
    found = least_connected_window(lambda k: links[k % 199][None], 600, 200)
    assert found == Window(199, witness=0)
