"""Verdicts on weights and windows, and Proposition `proposition:conn` as a law."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from efhc.core.graph import Graph
from efhc.core.mixing import mixing_matrix
from efhc.network.over_time import GraphList, StaticGraph
from efhc.theory.connectivity import Window
from efhc.theory.findings import Finding
from efhc.theory.flow import Flow
from efhc.theory.network import Connectivity, check_connectivity, check_flow, check_weights, connectivity

PATH = Graph.of(3, [(0, 1), (1, 2)])
ALTERNATING = GraphList([Graph.of(3, [(0, 1)]), Graph.of(3, [(1, 2)])])
LINK, NONE = Graph.of(2, [(0, 1)]), Graph.of(2, [])
GOOD = mixing_matrix(PATH, np.ones(2, dtype=bool))
SKEWED = np.array([[0.5, 0.5, 0], [0, 0.5, 0.5], [0.5, 0, 0.5]])


def everyone(iterations, devices=3):
    return np.ones((iterations, devices), dtype=bool)


def nobody(iterations, devices=3):
    return np.zeros((iterations, devices), dtype=bool)


def every(period, iterations, devices):
    fired = nobody(iterations, devices)
    fired[::period] = True
    return fired


def lengths(found):
    return tuple(window.length for window in found)


def recorded(*links):
    return lambda k: np.array(links[k], dtype=np.int64).reshape(-1, 2)


# Windows of a flow, by hand


def test_one_link_and_everyone_fires():
    found = connectivity(Flow(StaticGraph(LINK).graph, everyone(6, 2)))
    assert found == (Window(1), Window(1, device=0), Window(1))
    assert (found.promised, found.sufficient) == (3, 1)


def test_links_by_turns_and_everyone_fires():
    found = connectivity(Flow(ALTERNATING.graph, everyone(6)))
    assert found == (Window(2), Window(1, device=0), Window(2))
    assert (found.promised, found.sufficient) == (4, 2)


def test_one_link_and_everyone_fires_every_third_iteration():
    found = connectivity(Flow(StaticGraph(LINK).graph, every(3, 9, 2)))
    assert found == (Window(1), Window(3, witness=1, device=0), Window(3, witness=1))
    assert (found.promised, found.sufficient) == (5, 3)


def test_one_device_that_fires_late_is_reached_by_the_others():
    fired = everyone(9)
    fired[:, 2] = every(3, 9, 1)[:, 0]
    assert lengths(connectivity(Flow(StaticGraph(PATH).graph, fired))) == (1, 3, 1)


def test_a_static_graph_where_nobody_fires():
    found = connectivity(Flow(StaticGraph(PATH).graph, nobody(8)))
    assert found == (Window(1), Window(math.inf, device=0), Window(math.inf, device=0))
    assert (found.promised, found.sufficient) == (math.inf, math.inf)


def test_new_links_alone_connect():
    """Nobody fires; every link is new whenever it comes, but at k = 0, unless that is said to count."""
    found = connectivity(Flow(ALTERNATING.graph, nobody(8), exchange_at_start=True))
    assert lengths(found) == (2, math.inf, 2)
    found = connectivity(Flow(ALTERNATING.graph, nobody(8)))
    assert lengths(found) == (2, math.inf, 3)
    assert found.observed.witness == 0  # nothing, then (1,2)


def test_exchange_at_start_connects_a_static_graph_once():
    found = connectivity(Flow(StaticGraph(PATH).graph, nobody(8), exchange_at_start=True))
    assert found.observed == Window(8, witness=1)


def test_a_union_that_is_not_connected():
    found = connectivity(Flow(StaticGraph(Graph.of(3, [(0, 1)])).graph, everyone(4)))
    assert found == (Window(math.inf, device=2), Window(1, device=0), Window(math.inf, device=2))
    assert found.promised == found.sufficient == math.inf


def test_a_single_device():
    found = connectivity(Flow(StaticGraph(Graph.of(1, [])).graph, every(2, 6, 1)))
    assert lengths(found) == (1, 2, 1)


def test_a_single_iteration():
    found = connectivity(Flow(StaticGraph(PATH).graph, everyone(1)))
    assert found == (Window(1), Window(1, device=0), Window(1))


def test_what_is_recorded_is_what_is_observed():
    found = connectivity(Flow(StaticGraph(LINK).graph, everyone(4, 2), recorded([], [(0, 1)], [], [])))
    assert lengths(found) == (1, 1, 3)


# The proposition as a law


@st.composite
def changing_flows(draw):
    """Links that come and go, now and then or all the time; devices that fire periodically, and now and then."""
    devices, iterations = draw(st.integers(2, 4)), draw(st.integers(1, 30))
    pairs = np.array([(i, j) for j in range(devices) for i in range(j)])
    everything = 2 ** len(pairs) - 1
    if draw(st.booleans()):
        masks = draw(st.lists(st.integers(0, everything), min_size=1, max_size=iterations))
    else:
        often = draw(st.integers(0, 3))
        change = st.one_of(*[st.just(0)] * often, st.integers(0, everything))
        masks = [draw(st.integers(0, everything))]
        for flips in draw(st.lists(change, max_size=iterations - 1)):
            masks.append(masks[-1] ^ flips)
    bits = (np.array(masks)[:, None] >> np.arange(len(pairs))) & 1
    graphs = GraphList([Graph(devices, pairs[up]) for up in bits.astype(bool)])
    periods = draw(st.lists(st.integers(1, 7), min_size=devices, max_size=devices))
    phases = draw(st.lists(st.integers(0, 6), min_size=devices, max_size=devices))
    if draw(st.booleans()):
        periods, phases = periods[:1], phases[:1]
    fired = (np.arange(iterations)[:, None] + phases) % periods == 0
    fired = np.broadcast_to(fired, (iterations, devices))
    return Flow(graphs.graph, fired, exchange_at_start=draw(st.booleans()))


@given(changing_flows())
@settings(max_examples=400)
def test_proposition_conn(flow):
    found = connectivity(flow)
    assume(math.isfinite(found.promised))
    assert found.observed.length >= found.physical.length  # who is used is there
    assert found.sufficient <= found.promised
    for enough in (found.promised, found.sufficient, found.physical.length + found.broadcast.length - 1):
        if enough <= flow.iterations:
            assert found.observed.length <= enough
    *_, promise = check_connectivity(found, flow.iterations)
    assert promise.verdict != "broken"
    if found.promised <= flow.iterations:
        assert promise.verdict == "held"


@pytest.mark.parametrize("physical", range(1, 6))
@pytest.mark.parametrize("broadcast", range(1, 8))
def test_no_window_shorter_than_b1_plus_b2_minus_1_is_enough(physical, broadcast):
    """A link that comes, and then stays as long as nobody fires, and then goes as long as it may."""
    period = physical + broadcast - 1
    graphs = GraphList([LINK] * broadcast + [NONE] * (physical - 1))
    fired = nobody(4 * period, 2)
    fired[[k for k in range(4 * period) if not 0 < k % period < broadcast]] = True
    found = connectivity(Flow(graphs.graph, fired))
    assert lengths(found) == (physical, broadcast, period)
    assert found.sufficient - physical < period <= found.sufficient <= found.promised


# Verdicts: weights


def test_weights_that_are_sound():
    assert check_weights([GOOD, GOOD, np.eye(3), GOOD.toarray()]) == Finding(
        "assump:weights",
        "transition weights",
        "held",
        "positive, doubly stochastic and symmetric in all 4 iterations",
    )


def test_weights_from_a_generator():
    assert check_weights(GOOD for _ in range(7)).detail.endswith("all 7 iterations")


@pytest.mark.parametrize(
    ("matrix", "condition", "device"),
    [
        (np.array([[1.0, 0, 0], [0, 0, 1], [0, 1, 0]]), "(a)", 1),
        (np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, np.nan]]), "(a)", 2),
        (np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 0.9]]), "(b)", 2),
        (SKEWED, "(c)", 0),
    ],
)
def test_the_first_broken_matrix_is_named(matrix, condition, device):
    finding = check_weights([GOOD, GOOD, matrix, np.zeros((3, 3))])
    assert finding[:3] == (f"assump:weights-{condition}", "transition weights", "broken")
    assert (finding.iteration, finding.device) == (2, device)


def test_a_matrix_that_is_broken_is_not_taken_for_the_sound_one_before_it():
    assert check_weights([GOOD, SKEWED]).iteration == 1
    assert check_weights([SKEWED, SKEWED]).iteration == 0


@given(changing_flows())
def test_flows_by_the_rule_are_sound(flow):
    weights, rule = check_flow(flow)
    assert (weights.label, weights.verdict) == ("assump:weights", "held")
    assert weights.detail.endswith(f"all {flow.iterations} iterations")
    assert rule == Finding("alg:efhc", "links used", "held", "those of Events 1 and 2 in every iteration")


def test_a_flow_with_a_link_too_many():
    flow = Flow(StaticGraph(PATH).graph, nobody(3), recorded([], [], [(1, 2)]))
    weights, rule = check_flow(flow)
    assert weights.verdict == "held"  # a link that there is may be used
    assert rule[:3] == ("alg:efhc", "links used", "broken")
    assert (rule.iteration, rule.device) == (2, 1)
    assert "1-2" in rule.detail


def test_a_flow_with_a_link_too_few():
    flow = Flow(StaticGraph(PATH).graph, everyone(2), recorded([(0, 1), (1, 2)], [(1, 2)]))
    weights, rule = check_flow(flow)
    assert weights.verdict == "held"
    assert (rule.verdict, rule.iteration, rule.device) == ("broken", 1, 0)


@pytest.mark.parametrize("sound", [0, 1, 2])
@pytest.mark.parametrize("links", [[(0, 1), (1, 2), (0, 2)], [(1, 2), (0, 2)], [(0, 2)]])
def test_a_flow_with_a_link_that_there_is_not(links, sound):
    """However many sound iterations come before, and however many links it is among."""
    all_links = recorded(*[[(0, 1), (1, 2)]] * sound, links)
    weights, rule = check_flow(Flow(StaticGraph(PATH).graph, everyone(sound + 1), all_links))
    assert rule[:3] == ("alg:efhc", "links used", "broken")
    assert (rule.iteration, rule.device) == (sound, 0)
    assert weights == Finding(
        "assump:weights-(a)",
        "transition weights",
        "broken",
        "device 0 gives no weight to a model that it received",
        sound,
        0,
    )


# Verdicts: windows


def test_windows_that_are_finite():
    physical, broadcast, promise = check_connectivity(connectivity(Flow(ALTERNATING.graph, everyone(6))), 6)
    assert physical == Finding("assump:conn-(a)", "physical graph", "held", "B1 = 2")
    assert broadcast == Finding("assump:conn-(b)", "broadcasts", "held", "B2 = 1")
    assert promise == Finding("proposition:conn", "information flow", "held", "B = 4 promised, B = 2 observed")


def test_a_device_that_never_fires():
    fired = everyone(6)
    fired[:, 1] = False
    physical, broadcast, promise = check_connectivity(connectivity(Flow(StaticGraph(PATH).graph, fired)), 6)
    assert physical.verdict == "held"
    assert broadcast[:3] == ("assump:conn-(b)", "broadcasts", "broken")
    assert (broadcast.iteration, broadcast.device) == (None, 1)
    assert "device 1 never fires" in broadcast.detail
    assert promise.verdict == "not checkable"  # and yet:
    assert "B = 1 observed" in promise.detail
    assert (promise.iteration, promise.device) == (None, None)


def test_a_device_that_is_cut_off():
    flow = Flow(StaticGraph(Graph.of(3, [(0, 1)])).graph, everyone(4))
    physical, broadcast, promise = check_connectivity(connectivity(flow), 4)
    assert physical[:3] == ("assump:conn-(a)", "physical graph", "broken")
    assert (physical.iteration, physical.device) == (None, 2)
    assert physical.detail == "the part of device 2 is never connected to the rest"
    assert broadcast.verdict == "held"
    assert promise.verdict == "not checkable"
    assert "never connected" in promise.detail


def broadcasts(*silent, iterations=8):
    """What is said of three devices that fire all the time, but for (device, first, last)."""
    fired = everyone(iterations)
    for device, first, last in silent:
        fired[first : last + 1, device] = False
    return check_connectivity(connectivity(Flow(StaticGraph(PATH).graph, fired)), iterations)[1]


def test_a_device_that_is_silent_in_the_end():
    """Nobody knows for how long it would have been."""
    found = broadcasts((1, 5, 7))
    detail = "B2 = 4, so far: device 1 is silent from iteration 5 to the end"
    assert found == Finding("assump:conn-(b)", "broadcasts", "held", detail)
    # it is the longest gap that counts, whoever else is silent in the end, or was before
    assert broadcasts((1, 5, 7), (0, 6, 7), (2, 1, 2)).detail == detail
    assert broadcasts((2, 7, 7)).detail == "B2 = 2, so far: device 2 is silent from iteration 7 to the end"
    assert broadcasts((2, 1, 7)).detail == "B2 = 8, so far: device 2 is silent from iteration 1 to the end"


def test_a_device_that_was_silent_and_fires_again():
    assert broadcasts((1, 4, 6)).detail == "B2 = 4"
    assert broadcasts((1, 0, 6)).detail == "B2 = 8"  # up to the last iteration, not in it
    # one is silent in the end, but not for longer than was seen before
    assert broadcasts((1, 2, 4), (0, 6, 7)).detail == "B2 = 4"
    assert broadcasts((1, 1, 2), (0, 6, 7)).detail == "B2 = 3"


@given(changing_flows())
def test_who_is_silent_in_the_end_is_named(flow):
    found = connectivity(flow)
    assume(math.isfinite(found.broadcast.length))
    length, witness, device = found.broadcast
    detail = f"B2 = {length:.0f}"
    if length > 1 and witness + length - 1 == flow.iterations:
        assert not flow.fired[witness:, device].any()
        detail += f", so far: device {device} is silent from iteration {witness} to the end"
    assert check_connectivity(found, flow.iterations)[1].detail == detail


def test_a_promise_that_is_given():
    """As for windows that are the largest of several runs: B1 of one and B2 of another promise nothing together."""
    found = Connectivity(Window(2), Window(4, witness=1, device=0), Window(7, witness=2))
    assert found.promised == 8
    *windows, promise = check_connectivity(found, 20)
    assert (promise.verdict, promise.detail) == ("held", "B = 8 promised, B = 7 observed")
    *same, promise = check_connectivity(found, 20, 6)
    assert same == windows
    assert (promise.verdict, promise.detail) == ("broken", "B = 6 promised, B = 7 observed")
    assert promise.iteration == 2
    assert check_connectivity(found, 20, math.inf)[-1].verdict == "not checkable"


def test_a_promise_longer_than_the_run_and_not_yet_seen():
    # Nobody reaches anybody before the run ends: B1 = 1, B2 = 3, 5 promised, of 4 iterations in which nothing is used
    found = Connectivity(Window(1), Window(3), Window(math.inf, device=0))
    promise = check_connectivity(found, 4)[-1]
    assert promise[:3] == ("proposition:conn", "information flow", "not checkable")
    assert "B = 5 promised, never connected" in promise.detail
    assert "no 5 iterations" in promise.detail
    assert promise.iteration is None


def test_a_promise_longer_than_the_run_that_is_kept_already():
    promise = check_connectivity(connectivity(Flow(StaticGraph(LINK).graph, everyone(2, 2))), 2)[-1]
    assert (promise.verdict, promise.detail) == ("held", "B = 3 promised, B = 1 observed")


def test_a_promise_that_is_broken():
    """Everyone fires and nothing is recorded as used until iteration 4: not what Alg. 1 does."""
    flow = Flow(StaticGraph(LINK).graph, everyone(8, 2), lambda k: LINK.links if k in {0, 5} else NONE.links)
    found = connectivity(flow)
    assert found.observed == Window(5, witness=1)
    promise = check_connectivity(found, 8)[-1]
    assert promise[:3] == ("proposition:conn", "information flow", "broken")
    assert promise.detail == "B = 3 promised, B = 5 observed"
    assert promise.iteration == 1


def test_a_promise_that_is_broken_for_ever():
    flow = Flow(StaticGraph(LINK).graph, everyone(3, 2), lambda k: NONE.links)
    promise = check_connectivity(connectivity(flow), 3)[-1]
    assert (promise.verdict, promise.detail) == ("broken", "B = 3 promised, never connected")
    assert promise.iteration == 0
