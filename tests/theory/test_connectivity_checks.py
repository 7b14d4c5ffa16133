"""Verdicts on weights and windows, and Proposition `proposition:conn` as a law."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings

from efhc.core.graph import Graph
from efhc.network.topologies import GraphList, StaticGraph
from efhc.theory.checks import check_connectivity, check_flow
from efhc.theory.connectivity import Connectivity, Flow, Window, connectivity
from efhc.theory.findings import Certainty, Check
from tests.theory.drawn import ALTERNATING, PATH, everyone, flows, nobody, recorded

CERTAIN, COINS, CHANGING_LINKS = Certainty(), Certainty(firing=False), Certainty(links=False)
LINK, NONE = Graph.of(2, [(0, 1)]), Graph.of(2, [])


def every(period, iterations, devices):
    fired = nobody(iterations, devices)
    fired[::period] = True
    return fired


def lengths(found):
    return tuple(window.length for window in found)


# Windows of a flow, by hand


def test_a_static_graph_where_nobody_fires():
    found = connectivity(Flow(StaticGraph(PATH).graph, nobody(8)))
    assert found == (Window(1), Window(9, device=0), Window(9, device=0))
    assert [window.is_censored(8) for window in found] == [False, True, True]
    certain = connectivity(Flow(StaticGraph(PATH).graph, nobody(8)), never_fires=True)
    assert certain == (Window(1), Window(math.inf), Window(9, device=0))
    assert (certain.promised, certain.sufficient) == (math.inf, math.inf)


def test_new_links_alone_connect():
    """Nobody fires; every link is new whenever it comes, but at k = 0, unless that is said to count."""
    found = connectivity(Flow(ALTERNATING.graph, nobody(8), exchange_at_start=True))
    assert lengths(found) == (2, 9, 2)
    found = connectivity(Flow(ALTERNATING.graph, nobody(8)))
    assert lengths(found) == (2, 9, 3)
    assert found.observed.witness == 0  # nothing, then (1,2)


def test_a_union_that_is_not_connected():
    flow = Flow(StaticGraph(Graph.of(3, [(0, 1)])).graph, everyone(4))
    assert connectivity(flow) == (Window(5, device=2), Window(1, device=0), Window(5, device=2))
    found = connectivity(flow, cut_off=2)
    assert found == (Window(math.inf, device=2), Window(1, device=0), Window(math.inf, device=2))
    assert found.promised == found.sufficient == math.inf


# The proposition as a law


@given(flows(least_devices=2))
@settings(max_examples=200)
def test_proposition_conn(flow):
    found = connectivity(flow)
    assert found.observed.length >= found.physical.length  # who is used is there
    assert found.sufficient <= found.promised
    for enough in (found.promised, found.sufficient, found.physical.length + found.broadcast.length - 1):
        if enough <= flow.iterations:
            assert found.observed.length <= enough
    *_, promise = check_connectivity(found, flow.iterations, CERTAIN)
    assert promise.verdict != "broken"
    known = not any(window.is_censored(flow.iterations) for window in found[:2])
    if found.promised <= flow.iterations and known:
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


@given(flows(least_devices=2))
def test_flows_by_the_rule_are_sound(flow):
    weights, rule = check_flow(flow)
    assert (weights.label, weights.verdict) == ("assump:weights", "held")
    assert weights.values == {"iterations": flow.iterations}
    assert rule == Check("links-used", "alg:efhc", "held", "by-rule")


def test_a_flow_with_a_link_too_many():
    flow = Flow(StaticGraph(PATH).graph, nobody(3), recorded([], [], [(1, 2)]))
    weights, rule = check_flow(flow)
    assert weights.verdict == "held"  # a link that there is may be used
    assert rule[:4] == ("links-used", "alg:efhc", "broken", "stray")
    assert (rule.iteration, rule.device) == (2, 1)
    assert rule.values == {"i": 1, "j": 2}


@pytest.mark.parametrize("sound", [0, 1, 2])
@pytest.mark.parametrize("links", [[(0, 1), (1, 2), (0, 2)], [(1, 2), (0, 2)], [(0, 2)]])
def test_a_flow_with_a_link_that_there_is_not(links, sound):
    """However many sound iterations come before, and however many links it is among."""
    all_links = recorded(*[[(0, 1), (1, 2)]] * sound, links)
    weights, rule = check_flow(Flow(StaticGraph(PATH).graph, everyone(sound + 1), all_links))
    assert rule[:4] == ("links-used", "alg:efhc", "broken", "stray")
    assert (rule.iteration, rule.device) == (sound, 0)
    assert weights[:4] == ("weights", "assump:weights-(a)", "broken", "ignored")
    assert (weights.iteration, weights.device) == (sound, 0)


# Verdicts: windows


def judged(flow, certainty=CERTAIN, **known):
    """Of a flow, the checks of its physical graph, its broadcasts and its information flow."""
    return check_connectivity(connectivity(flow, **known), flow.iterations, certainty)


@pytest.mark.parametrize("certainty", [CERTAIN, COINS, CHANGING_LINKS], ids=["certain", "coins", "links"])
def test_windows_that_are_finite_hold_where_the_config_makes_them_certain(certainty):
    physical, broadcast, promise = judged(Flow(ALTERNATING.graph, everyone(6)), certainty)
    by_links = physical[:4] == ("physical-graph", "assump:conn-(a)", "held where looked", "chance")
    by_coins = broadcast[:4] == ("broadcasts", "assump:conn-(b)", "held where looked", "coins")
    assert (not by_links, not by_coins) == certainty
    assert by_links or physical[2:4] == ("held", "window")
    assert by_coins or broadcast[2:4] == ("held", "window")
    assert physical.values == {"B1": 2, "iterations": 6}
    assert broadcast.values == {"B2": 1, "iterations": 6}
    verdict = "held" if certainty.flow else "held where looked"
    assert promise[:4] == ("information-flow", "proposition:conn", verdict, "window")
    values = {"promised": 4, "observed": 2, "iterations": 6, "observed_censored": False}
    assert promise.values == values | ({} if certainty.flow else {"expected": True})
    words = promise.sentence
    assert ("expected from" in words) == ("promised" not in words) == (not certainty.flow)


@pytest.mark.parametrize("certainty", [CERTAIN, COINS], ids=["certain", "coins"])
def test_a_device_that_is_silent_for_the_whole_run(certainty):
    """Ten iterations do not show that B2 is infinite, neither by coins of 1e-4 nor by a high threshold."""
    fired = everyone(10)
    fired[:, 1] = False
    physical, broadcast, promise = judged(Flow(StaticGraph(PATH).graph, fired), certainty)
    assert physical.verdict == "held"
    assert broadcast[:4] == ("broadcasts", "assump:conn-(b)", "not checkable", "censored")
    assert broadcast.values == {"B2": 11, "iterations": 10, "since": 0, "silent": 1}
    assert (promise.verdict, promise.reason) == ("not checkable", "censored")  # and yet:
    assert promise.values["observed"] == 1
    assert (promise.iteration, promise.device) == (None, None)


def test_a_strategy_by_which_nobody_ever_fires():
    _, broadcast, promise = judged(Flow(StaticGraph(PATH).graph, nobody(6)), never_fires=True)
    assert broadcast[:4] == ("broadcasts", "assump:conn-(b)", "broken", "never-fires")
    assert (promise.verdict, promise.reason) == ("not checkable", "no-windows")


def test_a_device_that_is_cut_off():
    """In this run: nobody knows what links come later, unless that is known of the network."""
    flow = Flow(StaticGraph(Graph.of(3, [(0, 1)])).graph, everyone(4))
    physical, _, promise = judged(flow, CHANGING_LINKS)
    assert (physical.verdict, physical.reason) == ("not checkable", "censored")
    assert physical.values == {"B1": 5, "iterations": 4, "since": 0}
    assert (promise.verdict, promise.reason) == ("not checkable", "censored")
    physical, broadcast, promise = judged(flow, cut_off=2)
    assert physical[:4] == ("physical-graph", "assump:conn-(a)", "broken", "never-connected")
    assert (physical.iteration, physical.device) == (None, 2)
    assert broadcast.verdict == "held"
    assert (promise.verdict, promise.values["observed"]) == ("not checkable", math.inf)


# Windows that the end of the run cuts off


def test_a_network_that_is_cut_for_good_is_not_held():
    """A ring for 20 iterations, then device 3 alone for ever: nobody knows whether B1 is 381, or infinite."""
    ring, cut = Graph.of(4, [(0, 1), (1, 2), (2, 3), (3, 0)]), Graph.of(4, [(0, 1), (1, 2), (2, 0)])
    flow = Flow(lambda k: ring if k < 20 else cut, everyone(400, 4))
    physical, broadcast, promise = judged(flow)
    assert (physical.verdict, physical.reason) == ("not checkable", "censored")
    assert physical.values == {"B1": 381, "iterations": 400, "since": 20}
    assert broadcast.verdict == "held"
    assert (promise.verdict, promise.reason) == ("not checkable", "censored")
    assert promise.values["observed_censored"]


def test_a_network_that_is_connected_again_in_time_is_held():
    whole, cut = Graph.of(3, [(0, 1), (1, 2)]), Graph.of(3, [(0, 1)])
    physical, _, _ = judged(Flow(lambda k: cut if 5 <= k < 9 else whole, everyone(20)))
    assert (physical.verdict, physical.values["B1"]) == ("held", 5)
    # cut again at the end, but for no longer than was seen before
    physical, _, _ = judged(Flow(lambda k: cut if 5 <= k < 9 or k >= 17 else whole, everyone(20)))
    assert (physical.verdict, physical.values["B1"]) == ("held", 5)


def broadcasts(*silent, iterations=8):
    """The check of three devices that fire all the time, but for (device, first, last)."""
    fired = everyone(iterations)
    for device, first, last in silent:
        fired[first : last + 1, device] = False
    return judged(Flow(StaticGraph(PATH).graph, fired))[1]


def test_a_device_that_was_silent_and_fires_again():
    for silent, length in (
        ([(1, 4, 6)], 4),
        ([(1, 0, 6)], 8),  # up to the last iteration, not in it
        ([(1, 2, 4), (0, 6, 7)], 4),  # one is silent in the end, but not for longer than was seen before
        ([(1, 1, 2), (0, 6, 7)], 3),
    ):
        found = broadcasts(*silent)
        assert (found.verdict, found.values["B2"]) == ("held", length)


@given(flows(least_devices=2))
def test_who_is_silent_in_the_end_is_named(flow):
    found = connectivity(flow)
    length, witness, device = found.broadcast
    check = judged(flow)[1]
    assert check.values["B2"] == length
    assert (check.reason == "censored") == found.broadcast.is_censored(flow.iterations)
    if check.reason == "censored":
        assert not flow.fired[witness:, device].any()
        assert check.values["silent"] == device
        assert check.values["since"] == witness == flow.iterations - length + 1


def test_a_promise_that_is_given():
    """As for windows that are the largest of several runs: B1 of one and B2 of another promise nothing together."""
    found = Connectivity(Window(2), Window(4, witness=1, device=0), Window(7, witness=2))
    assert found.promised == 8
    *windows, promise = check_connectivity(found, 20, CERTAIN)
    assert (promise.verdict, promise.reason) == ("held", "window")
    *same, promise = check_connectivity(found, 20, CERTAIN, 6)
    assert same == windows
    assert (promise.verdict, promise.reason) == ("broken", "longer")
    assert (promise.values["promised"], promise.values["observed"]) == (6, 7)
    assert promise.iteration == 2
    assert check_connectivity(found, 20, CERTAIN, math.inf)[-1].verdict == "not checkable"


@pytest.mark.parametrize("observed", [Window(math.inf, device=0), Window(2, witness=0), Window(1)])
def test_a_promise_longer_than_the_run_is_vacuous(observed):
    promise = check_connectivity(Connectivity(Window(1), Window(3), observed), 4, CERTAIN)[-1]
    assert promise[:4] == ("information-flow", "proposition:conn", "not checkable", "vacuous")
    assert promise.values["promised"] == 5
    assert promise.iteration is None
    assert check_connectivity(Connectivity(Window(1), Window(3), Window(1)), 5, CERTAIN)[-1].verdict == "held"


def test_a_promise_that_is_broken():
    """Everyone fires and nothing is recorded as used until iteration 4: not what Alg. 1 does."""
    flow = Flow(StaticGraph(LINK).graph, everyone(8, 2), lambda k: LINK.links if k in {0, 5} else NONE.links)
    found = connectivity(flow)
    assert found.observed == Window(5, witness=1)
    promise = check_connectivity(found, 8, CERTAIN)[-1]
    assert promise[:4] == ("information-flow", "proposition:conn", "broken", "longer")
    assert (promise.values["promised"], promise.values["observed"]) == (3, 5)
    assert promise.iteration == 1
