"""Graphs of the literature have the degrees and spectra that their papers or closed forms give."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.sparse import coo_array
from scipy.sparse.linalg import eigsh

from efhc.base.errors import InputError
from efhc.core.graph import Graph
from efhc.core.mixing import mixing_matrix
from efhc.core.randomness import Randomness
from efhc.network.sparse_graphs import Dumbbell, Exponential, RandomRegular, SmallWorld
from efhc.network.topologies import Grid, Topology

SEED = Randomness(7)


def spectrum(graph: Graph) -> np.ndarray:
    """Return the eigenvalues of the matrix of Metropolis weights, in ascending order."""
    return np.linalg.eigvalsh(mixing_matrix(graph, graph.all_links).toarray())


@pytest.mark.parametrize("topology", [RandomRegular(), SmallWorld(), SmallWorld(rewiring=0.9)], ids=repr)
def test_drawn_graphs_are_connected_simple_and_functions_of_their_seed(topology: Topology):
    drawn = []
    for seed in range(4):
        graph = topology.graph(20, Randomness(seed))
        assert graph.is_connected
        assert (np.diff(graph.codes) > 0).all()
        assert np.array_equal(graph.links, topology.graph(20, Randomness(seed)).links)
        drawn.append(graph.codes.tobytes())
    assert len(set(drawn)) == 4


# Exponential


@given(devices=st.integers(1, 200))
def test_exponential_neighbours_are_powers_of_two_away_either_way(devices: int):
    graph = Exponential().graph(devices, SEED)
    hops = {(sign << t) % devices for t in range(8) if 1 << t < devices for sign in (1, -1)}
    for i, neighbours in enumerate(graph.neighbours()):
        assert neighbours == {(i + hop) % devices for hop in hops}


@pytest.mark.parametrize("tau", range(1, 9))
def test_a_power_of_two_has_2_tau_minus_1_neighbours(tau: int):
    assert set(Exponential().graph(1 << tau, SEED).degrees.tolist()) == {2 * tau - 1}


@pytest.mark.parametrize("devices", [8, 25, 64])
def test_the_spectrum_of_the_exponential_graph_is_that_of_a_circulant_matrix(devices: int):
    hops = {(sign << t) % devices for t in range(7) if 1 << t < devices for sign in (1, -1)}
    angles = 2 * np.pi * np.outer(np.arange(devices), sorted(hops)) / devices
    expected = np.sort((1 + np.cos(angles).sum(axis=1)) / (1 + len(hops)))
    np.testing.assert_allclose(spectrum(Exponential().graph(devices, SEED)), expected, atol=1e-12)


# Torus


@pytest.mark.parametrize(("devices", "rows"), [(25, 5), (64, 8), (12, 3)])
def test_the_spectrum_of_a_torus_is_that_of_two_rings(devices: int, rows: int):
    up, across = (2 * np.cos(2 * np.pi * np.arange(n) / n) for n in (rows, devices // rows))
    expected = np.sort(((1 + up[:, None] + across) / 5).ravel())
    np.testing.assert_allclose(spectrum(Grid(rows=rows, torus=True).graph(devices, SEED)), expected, atol=1e-12)


# Random regular


@given(devices=st.integers(2, 16), degree=st.integers(1, 15), seed=st.integers(0, 1000))
@settings(deadline=None)
def test_every_device_has_the_degree_or_the_graph_does_not_exist(devices: int, degree: int, seed: int):
    topology = RandomRegular(degree=degree, connected=False)
    if degree < devices and degree * devices % 2 == 0:
        graph = topology.graph(devices, Randomness(seed))
        assert set(graph.degrees.tolist()) == {degree}
        assert (np.diff(graph.codes) > 0).all()
    else:
        with pytest.raises(InputError) as caught:
            topology.graph(devices, Randomness(seed))
        assert caught.value.field == "degree"


def test_all_regular_graphs_of_six_devices_are_about_equally_likely():
    counts = Counter(
        RandomRegular(degree=2, connected=False).graph(6, Randomness(seed)).codes.tobytes() for seed in range(2100)
    )
    assert len(counts) == 70  # 60 hexagons and 10 pairs of triangles
    assert max(counts.values()) < 3 * min(counts.values()) + 20


def test_random_regular_graphs_have_nearly_the_largest_gap_that_their_degree_allows():
    i, j = RandomRegular(degree=4).graph(1000, SEED).links.T
    adjacency = coo_array((np.ones(4000), (np.r_[i, j], np.r_[j, i]))).tocsr()
    second = eigsh(adjacency, 2, which="LA", return_eigenvectors=False).min()
    assert abs(second - 2 * np.sqrt(3)) < 0.1  # Friedman: 2 (d - 1)^(1/2) in the limit


# Small world


def test_a_small_world_without_rewiring_is_a_ring_of_near_ones_and_keeps_its_links_with_it():
    lattice = SmallWorld(neighbours=4, rewiring=0).graph(30, SEED)
    assert lattice.neighbours()[0] == {1, 2, 28, 29}
    kept = []
    for seed in range(40):
        graph = SmallWorld(neighbours=4, rewiring=0.3).graph(30, Randomness(seed))
        assert len(graph.links) == 60
        kept.append(1 - graph.new_since(lattice).mean())
    assert abs(np.mean(kept) - 0.7) < 0.05
    assert (
        spectrum(SmallWorld(rewiring=0.3).graph(100, SEED))[-2] < spectrum(SmallWorld(rewiring=0).graph(100, SEED))[-2]
    )


def test_links_that_find_no_other_end_stay():
    assert len(SmallWorld(neighbours=4, rewiring=1).graph(5, SEED).links) == 10


# Dumbbell


@given(devices=st.integers(2, 30), between=st.integers(0, 28))
def test_a_dumbbell_is_two_cliques_and_a_path(devices: int, between: int):
    if devices < between + 2:
        with pytest.raises(InputError) as caught:
            Dumbbell(between=between).graph(devices, SEED)
        assert caught.value.field == "between"
        return
    graph, clique = Dumbbell(between=between).graph(devices, SEED), (devices - between) // 2
    first = devices - between - clique
    assert first - clique in (0, 1)
    assert graph.is_connected
    assert len(graph.links) == first * (first - 1) // 2 + clique * (clique - 1) // 2 + between + 1
    if clique > 1:
        expected = [first - 1] * (first - 1) + [first] + [2] * between + [clique] + [clique - 1] * (clique - 1)
        assert graph.degrees.tolist() == expected


@pytest.mark.parametrize("clique", [4, 10, 25])
def test_the_gap_of_a_dumbbell_is_that_of_its_one_link(clique: int):
    gap = 1 - spectrum(Dumbbell().graph(2 * clique, SEED))[-2]
    most = 2 / (clique * (clique + 1))
    assert most / 2 < gap <= most * (1 + 1e-9)


# All


@pytest.mark.parametrize("topology", [Exponential(), RandomRegular(), SmallWorld(), Grid(torus=True)], ids=repr)
def test_a_hundred_thousand_devices(topology: Topology):
    graph = topology.graph(100_000, SEED)
    assert graph.is_connected
    assert graph.degrees.mean() == (34 if isinstance(topology, Exponential) else 4)


@pytest.mark.parametrize(
    ("topology", "devices", "field"),
    [
        (RandomRegular(degree=3), 9, "degree"),
        (RandomRegular(degree=4), 4, "degree"),
        (RandomRegular(degree=1, attempts=3), 10, "degree"),
        (RandomRegular(), 1, "degree"),
        (SmallWorld(), 4, "neighbours"),
        (SmallWorld(), 1, "neighbours"),
        (SmallWorld(neighbours=2, rewiring=1, attempts=1), 2000, "neighbours"),
        (Dumbbell(), 1, "between"),
        (Dumbbell(), 1_000_000, "kind"),
        (RandomRegular(degree=999_998), 1_000_000, "kind"),
    ],
    ids=str,
)
def test_what_does_not_exist_is_refused_in_one_line(topology: Topology, devices: int, field: str):
    with pytest.raises(InputError) as caught:
        topology.graph(devices, SEED)
    assert caught.value.field == field
    assert "at most 0" not in str(caught.value)
    assert "below 1" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("settings", [{"neighbours": 3}, {"neighbours": 0}, {"rewiring": 1.1}])
def test_a_small_world_out_of_range_is_refused(settings: dict[str, float]):
    with pytest.raises(ValidationError):
        SmallWorld(**settings)
