"""Contractions: by hand, their laws, and Lanczos against singular values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import graphs

from efhc.core.graph import Graph
from efhc.core.mixing import mixing_matrix
from efhc.network.topologies import links_within
from efhc.theory import contractions
from efhc.theory.contractions import window_contractions

PATH = Graph.of(3, [(0, 1), (1, 2)])


@pytest.fixture(params=["dense", "lanczos"])
def either_way(request, monkeypatch):
    """Small matrices by both methods."""
    if request.param == "lanczos":
        monkeypatch.setattr(contractions, "DENSE_DEVICES", 0)


def product(matrices):
    """P(k:s) = P(k) ... P(s); `matrices` are P(s), ..., P(k)."""
    return np.linalg.multi_dot([np.eye(matrices[0].shape[0]), *(P.toarray() for P in reversed(matrices))])


def contraction(matrices):
    """rho(P(k:s) - J), the contraction of one window."""
    (value,) = window_contractions(matrices.__getitem__, len(matrices), len(matrices), threads=1).values
    return float(value)


def spectral_radius(matrices):
    return float(np.abs(np.linalg.eigvals(product(matrices) - 1 / matrices[0].shape[0])).max())


def everyone(graph):
    return mixing_matrix(graph, np.ones(len(graph.links), dtype=bool))


def complete(devices):
    return Graph.of(devices, [(i, j) for j in range(devices) for i in range(j)])


def alternating():
    """Links (0,1) and (1,2) by turns: two graphs, so beta = 1/2."""
    return [everyone(Graph.of(3, [(0, 1)])), everyone(Graph.of(3, [(1, 2)]))]


def lanczos(matrices):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contractions, "DENSE_DEVICES", 0)
        return contraction(matrices)


def union_is_connected(graph, used):
    return Graph(graph.devices, graph.links[np.any(used, axis=0)]).is_connected


@st.composite
def windows(draw, most=5):
    """A graph, and for each of some iterations which of its links are used."""
    graph = draw(graphs())
    flags = st.lists(st.booleans(), min_size=len(graph.links), max_size=len(graph.links))
    used = np.array(draw(st.lists(flags, min_size=1, max_size=most)), dtype=bool)
    return graph, used, [mixing_matrix(graph, row) for row in used]


def sporadic(devices, radius, iterations, part=0.3, seed=0):
    """P(k) of a random geometric graph, connected, of which some links are used."""
    rng = np.random.default_rng(seed)
    graph = Graph.of(devices, links_within(rng.random((devices, 2)), radius))
    return [mixing_matrix(graph, rng.random(len(graph.links)) < part) for _ in range(iterations)]


# By hand


@pytest.mark.usefixtures("either_way")
def test_rho_of_the_lemma_is_the_norm_and_cannot_be_the_spectral_radius():
    matrices = alternating()
    P = product(matrices)
    assert P.tolist() == [[0.5, 0.5, 0], [0.25, 0.25, 0.5], [0.25, 0.25, 0.5]]
    assert contraction(matrices) == pytest.approx(1 / 2, abs=1e-14)
    assert spectral_radius(matrices) == pytest.approx(1 / 4, abs=1e-14)
    W = np.array([[1.0], [1.0], [-2.0]])  # its mean is 0
    assert np.linalg.norm(P @ W) == pytest.approx(np.linalg.norm(W) / 2)


def path(devices):
    return Graph.of(devices, [(i, i + 1) for i in range(devices - 1)])


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (Graph.of(1, []), 0),  # one device agrees with itself
        (Graph.of(2, []), 1),
        (PATH, 2 / 3),
        *((complete(devices), 0) for devices in (2, 3, 40, 200)),
        *((path(devices), 1 - 2 / 3 * (1 - np.cos(np.pi / devices))) for devices in (20, 300)),
    ],
    ids=lambda value: f"{value.devices}" if isinstance(value, Graph) else "",
)
@pytest.mark.usefixtures("either_way")
def test_one_graph_contracts_by_its_second_eigenvalue(graph, expected):
    P = everyone(graph)
    assert contraction([P]) == pytest.approx(expected, abs=1e-12)
    assert contraction([P] * 7) == pytest.approx(expected**7, abs=1e-12)
    assert (contraction([P]) == 1) == (expected == 1)


# Laws


@given(windows())
def test_contraction_is_between_spectral_radius_and_one(problem):
    graph, used, matrices = problem
    value = contraction(matrices)
    assert 0 <= value <= 1
    assert value >= spectral_radius(matrices) - 1e-12
    if union_is_connected(graph, used):
        assert value < 1
    else:
        assert value == 1


@given(windows())
def test_lanczos_agrees_with_singular_values(problem):
    _, _, matrices = problem
    assert lanczos(matrices) == pytest.approx(contraction(matrices), abs=1e-8)


@given(windows(), st.integers(0, 2**32 - 1))
def test_consensus_error_falls_by_the_contraction_at_least(problem, seed):
    _, _, matrices = problem
    W = np.random.default_rng(seed).standard_normal((matrices[0].shape[0], 3))
    spread = np.linalg.norm(W - W.mean(axis=0))
    after = np.linalg.norm(product(matrices) @ W - W.mean(axis=0))
    assert after <= contraction(matrices) * spread + 1e-12


@pytest.mark.parametrize(
    ("devices", "radius", "part", "count", "error"),
    [(40, 0.3, 0.3, 1, 1e-8), (150, 0.2, 0.3, 12, 1e-8), (300, 0.12, 1.0, 2, 1e-8), (60, 0.5, 0.8, 60, 1e-13)],
)
def test_lanczos_agrees_with_singular_values_on_larger_networks(devices, radius, part, count, error):
    matrices = sporadic(devices, radius, count, part)
    dense = np.linalg.norm(product(matrices) - 1 / devices, 2)
    assert lanczos(matrices) == pytest.approx(dense, abs=error)


# All windows of a run


class Counted:
    """How many windows were worked out."""

    def __init__(self, monkeypatch):
        self.windows = 0
        norms = contractions._norms

        def counted(stack, firsts, window, threads):
            self.windows += len(firsts)
            return norms(stack, firsts, window, threads)

        monkeypatch.setattr(contractions, "_norms", counted)


@pytest.mark.parametrize("window", [1, 2, 3, 7, 20])
@pytest.mark.parametrize(("devices", "radius"), [(6, 0.9), (40, 0.4)])
def test_windows_one_by_one(devices, radius, window, monkeypatch):
    matrices = sporadic(devices, radius, 20)
    monkeypatch.setattr(contractions, "ENTRIES_AT_ONCE", 1500)  # several parts
    monkeypatch.setattr(contractions, "WINDOWS_AT_ONCE", 4)
    found = window_contractions(matrices.__getitem__, 20, window)
    assert found.window == window
    assert found.starts.tolist() == list(range(20 - window + 1))
    assert found.of == 20 - window + 1
    assert len(found.starts) == found.of
    norms = [np.linalg.norm(product(matrices[k : k + window]) - 1 / devices, 2) for k in found.starts]
    assert found.values.tolist() == pytest.approx(norms, abs=1e-8)
    assert found.largest == found.values.max()
    assert found.values[found.largest_at] == found.largest


def test_threads_do_not_change_a_bit(monkeypatch):
    monkeypatch.setattr(contractions, "ENTRIES_AT_ONCE", 6000)
    matrices = sporadic(50, 0.3, 30)
    one, three = (window_contractions(matrices.__getitem__, 30, 4, threads=threads) for threads in (1, 3))
    assert (one.values == three.values).all()


def test_window_longer_than_the_run():
    found = window_contractions(sporadic(6, 0.9, 3).__getitem__, 3, 4)
    assert (len(found.starts), len(found.values), found.of) == (0, 0, 0)
    assert len(found.starts) == found.of


def test_windows_of_the_same_matrices_are_worked_out_once(monkeypatch):
    matrices, counted = sporadic(40, 0.3, 7), Counted(monkeypatch)
    found = window_contractions(lambda k: matrices[k % 7], 100, 5)
    assert counted.windows == 7
    assert len(found.starts) == found.of
    assert (found.values[7:] == found.values[:-7]).all()
    P = everyone(PATH)
    assert window_contractions(lambda k: P, 1000, 3).values == pytest.approx(np.full(998, (2 / 3) ** 3))
    assert counted.windows == 8


def test_matrices_made_anew_each_time_are_told_apart(monkeypatch):
    """They may be at the same address one after the other."""
    rng = np.random.default_rng(0)
    used = rng.random((50, 2)) < 0.5
    counted = Counted(monkeypatch)
    found = window_contractions(lambda k: mixing_matrix(PATH, used[k]), 50, 2)
    assert counted.windows == 49
    expected = [contraction([mixing_matrix(PATH, used[k]), mixing_matrix(PATH, used[k + 1])]) for k in range(49)]
    assert found.values.tolist() == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize(("devices", "radius"), [(6, 0.9), (40, 0.4)])
def test_limited_work(devices, radius, monkeypatch):
    matrices = sporadic(devices, radius, 100)
    every = window_contractions(matrices.__getitem__, 100, 5)
    counted = Counted(monkeypatch)
    least = window_contractions(matrices.__getitem__, 100, 5, most_work=0)
    assert least.starts.tolist() == list(range(0, 96, 5))
    assert counted.windows == 20
    assert least.of == 96
    assert len(least.starts) < least.of
    work = contractions._Turns(matrices.__getitem__, np.array([P.nnz for P in matrices]), devices, 5, 1).work(
        np.array([12])
    )
    some = window_contractions(matrices.__getitem__, 100, 5, most_work=float(work.sum() / 2))
    assert len(some.starts) < some.of
    assert 20 < len(some.starts) < 96
    assert set(range(0, 96, 5)) < set(some.starts.tolist())
    assert np.diff(some.starts).max() <= 5
    for limited in (least, some):
        assert limited.values.tolist() == pytest.approx(every.values[limited.starts].tolist(), abs=1e-14)
        assert limited.largest <= every.largest


def test_a_network_in_parts_contracts_nothing():
    P = everyone(Graph.of(40, [(i, i + 1) for i in range(39) if i != 20]))
    found = window_contractions(lambda k: P.copy(), 30, 4, most_work=0)
    assert found.largest == 1
    assert found.largest_at == 0
    assert (found.values == 1).all()
