from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import graphs

from efhc.core.cost import transmission_time
from efhc.drivers.steps import Steps, both_ways


def steps_of(draw, graph, bits=None):
    iterations = 3 if bits is None else len(bits)
    fired = np.array(
        draw(st.lists(st.booleans(), min_size=iterations * graph.devices, max_size=iterations * graph.devices))
    )
    fired = fired.astype(bool).reshape(iterations, graph.devices)
    nothing = np.zeros((iterations, graph.devices))
    return Steps(4, draw(graphs(graph.devices)), graph, fired, nothing, nothing[:, 0], bits)


@given(graphs())
def test_the_two_directions_of_a_link(graph):
    forth, back = both_ways(graph)
    for (i, j), there, here in zip(graph.links.tolist(), forth, back, strict=True):
        assert (graph.directed.sender[there], graph.directed.receiver[there]) == (i, j)
        assert (graph.directed.sender[here], graph.directed.receiver[here]) == (j, i)


@given(st.data(), graphs(), st.integers(1, 10**6))
def test_the_papers_exchange_is_whole_models_in_both_directions(data, graph, parameters):
    paper = steps_of(data.draw, graph)
    spelled_out = Steps(4, graph, graph, paper.fired, paper.losses, paper.consensus_errors, paper.bits_sent(parameters))
    bandwidths = np.linspace(1.0, 7.0, graph.devices)
    assert spelled_out.used.tolist() == paper.used.tolist()
    times = paper.transmission_times(bandwidths, parameters)
    assert times.tolist() == transmission_time(graph, paper.used, bandwidths, parameters).tolist()
    assert spelled_out.transmission_times(bandwidths, parameters) == pytest.approx(times, rel=1e-13)
    for steps in (paper, spelled_out):
        assert steps.device_times(bandwidths, parameters).mean(axis=1) == pytest.approx(times, rel=1e-13)
    on_air = [steps.bits_of_iterations(parameters) for steps in (paper, spelled_out)]
    assert on_air[0] == pytest.approx(on_air[1], rel=1e-13)


@given(st.data(), graphs())
def test_a_link_is_used_if_anything_is_sent_over_it(data, graph):
    senders = data.draw(st.lists(st.booleans(), min_size=2 * len(graph.links), max_size=2 * len(graph.links)))
    steps = steps_of(data.draw, graph, np.array([senders], dtype=np.int64).reshape(1, -1) * 17)
    directed = graph.directed
    sent = {(int(directed.sender[e]), int(directed.receiver[e])) for e in np.flatnonzero(senders)}
    want = [(i, j) in sent or (j, i) in sent for i, j in graph.links.tolist()]
    assert steps.used.tolist() == [want]
