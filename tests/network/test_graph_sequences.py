"""Sequences of graphs average exactly where their papers say so, and in as many iterations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import efhc
from efhc.base.errors import InputError
from efhc.core.graph import Graph
from efhc.core.mixing import mixing_matrix
from efhc.core.randomness import Randomness
from efhc.experiments.nodes.node_files import linked_devices
from efhc.network.graph_sequences import BaseGraph, OnePeerExponential, RandomPeers, base_steps, fewest_factors

SEED = Randomness(11)


def product(graphs: list[Graph]) -> np.ndarray:
    """Return ... P(2) P(1) P(0), with all links used."""
    made = np.eye(graphs[0].devices)
    for graph in graphs:
        P = mixing_matrix(graph, graph.all_links)
        assert abs(P - P.T).max() < 1e-15
        assert P.min() >= 0
        assert P.diagonal().min() > 0
        made = P @ made
    return made


# Base-(k+1)


@pytest.mark.parametrize(("peers", "length"), [(1, 9), (2, 6), (3, 5), (4, 2)])
def test_lengths_of_the_paper_for_25_devices(peers: int, length: int):
    graphs = BaseGraph(peers=peers).over_time(25, SEED).recurring
    assert len(graphs) == length
    assert abs(product(graphs) - 1 / 25).max() < 1e-12
    assert abs(product(graphs[:-1]) - 1 / 25).max() > 1e-3


@given(devices=st.integers(1, 130), peers=st.integers(1, 12))
@settings(deadline=None)
def test_a_sequence_averages_exactly_with_so_many_peers_and_from_any_of_its_graphs_on(devices: int, peers: int):
    graphs = BaseGraph(peers=peers).over_time(devices, SEED).recurring
    assert max(graph.degrees.max() for graph in graphs) <= peers
    assert abs(product(graphs) - 1 / devices).max() < 1e-12


@given(devices=st.integers(2, 500), peers=st.integers(1, 8))
def test_a_sequence_is_about_twice_as_long_as_any_could_be_at_most(devices: int, peers: int):
    """After L steps a model can have reached (k+1)^L devices."""
    least, length = np.log(devices) / np.log(peers + 1), len(base_steps(devices, peers))
    assert least - 1e-9 <= length <= 2 * least + 2  # Takezawa et al., Theorem 1


@given(st.integers(1, 3000), st.integers(1, 40))
def test_factors_are_factors_and_as_few_as_can_be(number: int, largest: int):
    found, reached = fewest_factors(number, largest), {1}
    for length in range(12):
        if number in reached:
            assert found is not None
            assert len(found) == length
            assert np.prod(found, dtype=int) == number
            assert max(found, default=1) <= largest
            return
        reached = {one * factor for one in reached for factor in range(2, largest + 1) if number % (one * factor) == 0}
    assert found is None


def test_greedy_factors_are_not_the_fewest():
    assert fewest_factors(216, 8) == (6, 6, 6)  # not (8, 3, 3, 3)


# One-peer exponential


@pytest.mark.parametrize("tau", range(1, 8))
def test_one_peer_exponential_averages_a_power_of_two_exactly_with_weight_one_half(tau: int):
    graphs = OnePeerExponential().over_time(1 << tau, SEED).recurring
    assert len(graphs) == tau
    assert all((graph.weights == 0.5).all() and (graph.degrees == 1).all() for graph in graphs)
    assert abs(product(graphs) - 1 / (1 << tau)).max() < 1e-12
    if tau > 1:
        assert abs(product(graphs[1:]) - 1 / (1 << tau)).max() > 0.1 / (1 << tau)


@given(devices=st.integers(1, 100))
def test_one_peer_exponential_connects_any_number_of_devices_with_one_peer_at_a_time(devices: int):
    graphs = OnePeerExponential().over_time(devices, SEED).recurring
    assert all(graph.degrees.max() <= 1 for graph in graphs)
    assert Graph.of(devices, np.concatenate([graph.links for graph in graphs])).is_connected


# Random peers


def test_random_peers_are_drawn_by_all_uniformly_and_anew():
    devices, peers, rounds = 12, 3, 800
    over_time = RandomPeers(peers=peers).over_time(devices, SEED)
    counts = np.zeros((devices, devices))
    for k in range(rounds):
        graph = over_time.graph(k)
        assert graph.degrees.min() >= peers
        counts[tuple(graph.links.T)] += 1
    p = 1 - (1 - peers / (devices - 1)) ** 2
    shares = counts[np.triu_indices(devices, 1)] / rounds
    assert (abs(shares - p) < 4.5 * np.sqrt(p * (1 - p) / rounds)).all()


@pytest.mark.parametrize("peers", [1, 5, 7])
def test_random_peers_are_a_function_of_seed_and_iteration(peers: int):
    over_time, again = (RandomPeers(peers=peers).over_time(8, SEED) for _ in range(2))
    links = [over_time.graph(k).codes.tolist() for k in range(6)]
    assert [again.graph(k).codes.tolist() for k in (5, 0, 3)] == [links[k] for k in (5, 0, 3)]
    if peers == 7:
        assert all(len(one) == 28 for one in links)  # each draws all others
    else:
        assert len(set(map(tuple, links))) == 6
        assert links != [RandomPeers(peers=peers).over_time(8, Randomness(1)).graph(k).codes.tolist() for k in range(6)]


@pytest.mark.parametrize(("devices", "allowed"), [(3, "at most 2"), (1, "2 devices")])
def test_more_peers_than_there_are_are_refused(devices: int, allowed: str):
    with pytest.raises(InputError, match=allowed) as caught:
        RandomPeers(peers=3).over_time(devices, SEED)
    assert caught.value.field == "peers"


# Weights


def test_a_graph_may_bring_weights_which_follow_its_links():
    graph = Graph.of(4, [(3, 1), (0, 1)], [0.25, 0.5])
    assert graph.links.tolist() == [[0, 1], [1, 3]]
    assert graph.weights.tolist() == [0.5, 0.25]
    assert Graph.of(4, [(3, 1), (0, 1)]).weights.tolist() == [1 / 3, 1 / 3]


@pytest.mark.parametrize("weights", [[0.5], [0.5, 0.5], [0.0, 0.5], [-0.1, 0.5], [float("nan"), 0.1]])
def test_weights_that_would_not_average_are_refused(weights: list[float]):
    with pytest.raises(ValueError, match="weights"):
        Graph.of(3, [(0, 1), (1, 2)], weights)


SMALL: dict[str, Any] = {
    "devices": 7,
    "iterations": 12,
    "seeds": [0],
    "precision": "float64",
    "step_size": {"kind": "constant", "value": 1e-12},
    "evaluate_every": 1,
    "batch_size": 4,
}


@pytest.mark.parametrize(
    "strategy",
    [efhc.ZeroThreshold, lambda: efhc.Composed(trigger="always", mixing="estimates")],
    ids=["exchange", "estimates"],
)
def test_a_run_agrees_after_one_sequence(strategy: Callable[[], Any]):
    network = BaseGraph(peers=1)
    length = len(network.over_time(7, SEED).recurring)
    errors = efhc.simulate(network=network, strategies={"S": strategy()}, **SMALL).metrics["consensus_error"]
    assert errors[length - 1] < 1e-9
    assert errors[length - 2] > 1e-4


def test_weights_of_its_own_run_in_lockstep_only():
    for driver in ("lockstep", "event-driven"):
        efhc.Experiment(network=BaseGraph(peers=1), driver={"kind": driver})  # whether there are any depends on m
    fields = {"iterations": 3, "seeds": [0], "strategies": {"zt": "zt"}, "driver": {"kind": "event-driven"}}
    for network in (BaseGraph(peers=1), OnePeerExponential(), RandomPeers()):
        assert efhc.simulate(network=network, devices=8, **fields)
    with pytest.raises(InputError) as caught:
        efhc.simulate(network=BaseGraph(peers=1), devices=7, **fields)
    assert caught.value.field == "network"


def test_nodes_run_sequences_whose_weights_follow_from_degrees_alone():
    for network in (OnePeerExponential(), BaseGraph(peers=6), RandomPeers()):
        assert linked_devices(network.over_time(7, SEED), 7, 9)[0] >= {1}
    with pytest.raises(InputError) as caught:
        linked_devices(BaseGraph(peers=1).over_time(7, SEED), 7, 9)
    assert caught.value.field == "network"


def test_a_network_of_ones_own_may_have_weights_in_all_iterations_or_in_none():
    class Mine:
        def __init__(self, until: int) -> None:
            self.until = until

        def over_time(self, devices: int, randomness: Randomness) -> Any:
            return self

        def graph(self, k: int) -> Graph:
            return Graph.of(7, [(0, 1), (2, 3)], [0.3, 0.4] if k < self.until else None)

    assert efhc.simulate(network=Mine(99), **SMALL)
    with pytest.raises(efhc.EfhcError, match="k = 5"):
        efhc.simulate(network=Mine(5), **SMALL)
