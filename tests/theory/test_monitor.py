"""What a monitor tells of a run while it goes, against looking at all windows afterwards."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from efhc.core.graph import Graph
from efhc.core.schedules import Constant, Diminishing
from efhc.experiments.studies.theory_monitor import Monitor
from efhc.network.topologies import GraphList, StaticGraph
from efhc.theory.connectivity import Flow, least_broadcast_window, least_connected_window
from tests.theory.drawn import ALTERNATING, PATH, connected, flows

SMALL = Constant(value=0.01)
PHYSICAL, BROADCASTS, INFORMATION = "assump:conn-(a)", "assump:conn-(b)", "proposition:conn"


def used_by_rule(flow, k):
    graph, links = flow.graph(k), {tuple(link) for link in flow.links_by_rule(k).tolist()}
    return np.array([tuple(link) in links for link in graph.links.tolist()], dtype=bool)


def watch(flow, window, step_size=SMALL, smoothness=None, first=0):
    """Everything that is told from iteration `first` on."""
    monitor = Monitor(flow.devices, window, step_size, smoothness, first)
    told = []
    for k in range(first, flow.iterations):
        news = monitor.look(k, flow.graph(k), flow.fired[k], used_by_rule(flow, k))
        assert all(check.iteration == k and check.verdict == "broken" for check in news)
        told += news
    assert len({check.label for check in told}) == len(told)  # once each
    return told


def when(told):
    return {check.label: check.iteration for check in told}


def fires(period, iterations=12, devices=3):
    fired = np.zeros((iterations, devices), dtype=bool)
    fired[::period] = True
    return fired


# Windows


@given(flows(), st.integers(1, 14), st.integers(0, 5))
def test_each_is_told_at_the_first_window_that_shows_it(flow, window, first):
    first = min(first, flow.iterations - 1)
    holds = {
        PHYSICAL: lambda k, end: connected([flow.physical_links(s) for s in range(k, end)], flow.devices),
        BROADCASTS: lambda k, end: flow.fired[k:end].any(axis=0).all(),
        INFORMATION: lambda k, end: connected([flow.links_by_rule(s) for s in range(k, end)], flow.devices),
    }
    expected = {}
    for label, in_window in holds.items():
        ends = range(first + window, flow.iterations + 1)
        if (broken := next((end for end in ends if not in_window(end - window, end)), None)) is not None:
            expected[label] = broken - 1
    told = watch(flow, window, first=first)
    assert when(told) == expected
    for check in told:
        begin = check.iteration - window + 1
        if check.label == BROADCASTS:
            assert not flow.fired[begin : check.iteration + 1, check.device].any()
        else:
            assert check.device is None
        assert (check.reason, check.values) == ("demanded", {"window": window})


@given(flows())
def test_a_run_within_its_windows_is_not_complained_about(flow):
    needed = max(
        least_connected_window(flow.physical_links, flow.iterations, flow.devices).length,
        least_broadcast_window(flow.fired).length,
        least_connected_window(flow.links_by_rule, flow.iterations, flow.devices).length,
    )
    if needed <= flow.iterations:
        assert watch(flow, int(needed)) == []
        assert needed == 1 or watch(flow, int(needed) - 1) != []
    assert watch(flow, flow.iterations + 1) == []


def test_starting_late_gives_a_full_window():
    flow = Flow(StaticGraph(PATH).graph, np.zeros((12, 3), dtype=bool))
    assert when(watch(flow, 4, first=5)) == {BROADCASTS: 8, INFORMATION: 8}
    assert watch(flow, 4, first=9) == []
    assert watch(Flow(ALTERNATING.graph, fires(3)), 4, first=7) == []


# Step sizes


def test_step_sizes_above_the_limit():
    flow = Flow(StaticGraph(PATH).graph, fires(1))
    told = watch(flow, 2, Constant(value=0.13), smoothness=1.0)
    assert [check[:2] for check in told] == [("step-size-limit", "proposition:nonIncreasing")]
    assert told[0].iteration == 0
    assert (told[0].reason, told[0].values) == ("above-all", {"alpha": 0.13, "limit": 0.125})
    assert watch(flow, 2, Constant(value=0.125), smoothness=1.0) == []
    assert watch(flow, 2, Constant(value=0.13)) == []
    # 0.2 / (1 + k) is above 1/16 up to k = 2: told at the first of them, whichever that is
    falling = Diminishing(initial=0.2, power=1.0)
    assert when(watch(flow, 2, falling, smoothness=2.0)) == {"proposition:nonIncreasing": 0}
    assert when(watch(flow, 2, falling, smoothness=2.0, first=2)) == {"proposition:nonIncreasing": 2}
    assert watch(flow, 2, falling, smoothness=2.0, first=3) == []


@pytest.mark.parametrize("bad", [0.02, 0.0, -0.01, float("nan")])
def test_step_sizes_that_increase_or_are_not_positive(bad):
    flow = Flow(StaticGraph(PATH).graph, fires(1))
    told = watch(flow, 2, lambda k: bad if k == 4 else 0.01)
    assert when(told) == {"assump:stepsizes": 4}
    assert told[0].reason == ("rises" if bad > 0 else "not-positive")
    assert told[0].device is None


# Weights


def bad_graph(weight):
    """A path whose weights are not Metropolis'."""
    graph = Graph.of(3, [(0, 1), (1, 2)])
    vars(graph)["metropolis_weights"] = np.full(2, weight)
    return graph


@pytest.mark.parametrize(("weight", "device"), [(0.5, 1), (-0.1, 0), (0.0, 0), (float("nan"), 0)])
def test_weights_of_a_graph_that_comes(weight, device):
    graphs = GraphList([PATH, PATH, PATH, bad_graph(weight), PATH, bad_graph(weight)], hold_last=True)
    (told,) = watch(Flow(graphs.graph, fires(1)), 2)
    assert told[:2] == ("weights", "assump:weights-(a)")
    assert (told.iteration, told.device) == (3, device)
