"""What bits cost, held to sums over devices and neighbours in plain loops."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import bandwidths, graphs, graphs_with_used_links

from efhc.core.cost import (
    airtime_bits,
    device_times,
    exchange_airtime_bits,
    exchange_bits,
    transmission_time,
    transmission_time_of_bits,
)
from efhc.core.graph import Graph


@st.composite
def graphs_with_bits(draw: st.DrawFn) -> tuple[Graph, np.ndarray]:
    """Any graph, and what was sent over it in some iterations."""
    graph, iterations = draw(graphs()), draw(st.integers(1, 3))
    length = iterations * 2 * len(graph.links)
    bits = draw(st.lists(st.just(0) | st.integers(0, 2**40), min_size=length, max_size=length))
    return graph, np.array(bits, dtype=np.int64).reshape(iterations, 2 * len(graph.links))


@given(st.data(), graphs_with_bits())
def test_a_device_pays_for_its_bits_by_the_share_of_its_neighbours(data, drawn):
    graph, bits = drawn
    b = data.draw(bandwidths(graph.devices)).values
    airtime, times = airtime_bits(graph, bits), device_times(graph, bits, b)
    for row, sent in enumerate(bits.tolist()):
        for i, neighbours in enumerate(graph.neighbours()):
            of_device = [
                Fraction(count, len(neighbours))
                for sender, count in zip(graph.directed.sender.tolist(), sent, strict=True)
                if sender == i
            ]
            assert airtime[row, i] == pytest.approx(float(sum(of_device)), rel=1e-15)
            assert times[row, i] == pytest.approx(float(sum(of_device)) / 32 / b[i], rel=1e-14)
    assert np.allclose(transmission_time_of_bits(graph, bits, b), times.mean(axis=1), rtol=1e-14)


@given(st.data(), graphs_with_used_links(), st.integers(1, 10**7))
def test_whole_models_over_used_links_cost_what_the_papers_exchange_costs(data, drawn, parameters):
    graph, used = drawn
    b = data.draw(bandwidths(graph.devices)).values
    bits = exchange_bits(graph, used, parameters)
    paper = transmission_time(graph, used, b, parameters)
    assert transmission_time_of_bits(graph, bits, b) == pytest.approx(paper, rel=1e-13)
    (airtime,) = exchange_airtime_bits(graph.degrees[graph.links[used]], np.array([used.sum()]), parameters)
    assert airtime == pytest.approx(airtime_bits(graph, bits).sum(), rel=1e-13)


@given(graphs(), st.integers(0, 2**40))
def test_a_broadcast_to_all_neighbours_is_paid_once(graph, bits):
    sent = np.full(2 * len(graph.links), bits)
    assert airtime_bits(graph, sent).tolist() == [bits * (degree > 0) for degree in graph.degrees]
