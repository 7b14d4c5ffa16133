"""Contractions: by hand, their laws, and Lanczos against singular values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import graphs
from scipy.linalg import eigh_tridiagonal

from efhc.core.graph import Graph
from efhc.core.mixing import mixing_matrix
from efhc.network.topologies import links_within
from efhc.theory.connectivity import contractions, network_loops
from efhc.theory.connectivity.contractions import contraction, product, spectral_radius, window_contractions

PATH = Graph.of(3, [(0, 1), (1, 2)])


@pytest.fixture(params=["dense", "lanczos"])
def either_way(request, monkeypatch):
    """Small matrices by both methods."""
    if request.param == "lanczos":
        monkeypatch.setattr(contractions, "DENSE_DEVICES", 0)


def side_by_side(matrices):
    return contractions._side_by_side(matrices, np.array([P.nnz for P in matrices]), matrices[0].shape[0])


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
def test_two_devices():
    assert contraction([everyone(Graph.of(2, [(0, 1)]))]) == pytest.approx(0, abs=1e-15)
    assert contraction([everyone(Graph.of(2, []))]) == 1


@pytest.mark.usefixtures("either_way")
def test_one_device_agrees_with_itself():
    assert contraction([everyone(Graph.of(1, []))]) == 0


@pytest.mark.usefixtures("either_way")
def test_path_of_three_devices():
    P = everyone(PATH)
    assert P.toarray() == pytest.approx(np.array([[2, 1, 0], [1, 1, 1], [0, 1, 2]]) / 3)
    assert contraction([P]) == pytest.approx(2 / 3, abs=1e-14)
    assert contraction([P, P]) == pytest.approx(4 / 9, abs=1e-14)
    assert spectral_radius([P, P]) == pytest.approx(4 / 9, abs=1e-14)  # a power of one matrix is symmetric


@pytest.mark.usefixtures("either_way")
def test_rho_of_the_lemma_is_the_norm_and_cannot_be_the_spectral_radius():
    matrices = alternating()
    P = product(matrices)
    assert P.tolist() == [[0.5, 0.5, 0], [0.25, 0.25, 0.5], [0.25, 0.25, 0.5]]
    assert contraction(matrices) == pytest.approx(1 / 2, abs=1e-14)
    assert spectral_radius(matrices) == pytest.approx(1 / 4, abs=1e-14)
    W = np.array([[1.0], [1.0], [-2.0]])  # its mean is 0
    assert np.linalg.norm(P @ W) == pytest.approx(np.linalg.norm(W) / 2)


def test_product_is_in_the_order_of_iterations():
    first, then = alternating()
    assert (product([first, then]) == then.toarray() @ first.toarray()).all()
    assert not (product([first, then]) == product([then, first])).all()


@pytest.mark.parametrize("devices", [3, 8, 40, 200])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.usefixtures("either_way")
def test_complete_graph_agrees_at_once(devices, count):
    assert contraction([everyone(complete(devices))] * count) == pytest.approx(0, abs=1e-14)


@pytest.mark.parametrize("devices", [20, 300])
@pytest.mark.usefixtures("either_way")
def test_long_path_has_its_eigenvalues_in_closed_form(devices):
    P = everyone(Graph.of(devices, [(i, i + 1) for i in range(devices - 1)]))
    slowest = 1 - 2 / 3 * (1 - np.cos(np.pi / devices))
    assert contraction([P]) == pytest.approx(slowest, abs=1e-12)
    assert contraction([P] * 7) == pytest.approx(slowest**7, abs=1e-12)


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


@given(windows(), st.data())
def test_contraction_is_submultiplicative(problem, data):
    _, _, matrices = problem
    cut = data.draw(st.integers(0, len(matrices)))
    parts = [part for part in (matrices[:cut], matrices[cut:]) if part]
    assert contraction(matrices) <= np.prod([contraction(part) for part in parts]) + 1e-12


@pytest.mark.parametrize(("devices", "radius", "part"), [(40, 0.3, 0.3), (150, 0.2, 0.3), (300, 0.12, 1.0)])
@pytest.mark.parametrize("count", [1, 2, 12])
def test_lanczos_agrees_with_singular_values_on_larger_networks(devices, radius, part, count):
    matrices = sporadic(devices, radius, count, part)
    dense = np.linalg.norm(product(matrices) - 1 / devices, 2)
    assert lanczos(matrices) == pytest.approx(dense, abs=1e-8)


def test_small_contractions_of_long_windows():
    matrices = sporadic(60, 0.5, 60, part=0.8)
    assert lanczos(matrices) == pytest.approx(np.linalg.norm(product(matrices) - 1 / 60, 2), abs=1e-13)


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
    found = window_contractions(matrices.__getitem__, 20, window)
    assert found.window == window
    assert found.starts.tolist() == list(range(20 - window + 1))
    assert found.of == 20 - window + 1
    assert found.complete
    expected = [contraction(matrices[k : k + window]) for k in found.starts]
    assert found.values.tolist() == pytest.approx(expected, abs=1e-13)
    assert found.largest == found.values.max()
    assert found.values[found.largest_at] == found.largest


def test_threads_do_not_change_a_bit(monkeypatch):
    monkeypatch.setattr(contractions, "ENTRIES_AT_ONCE", 6000)
    matrices = sporadic(50, 0.3, 30)
    one, three = (window_contractions(matrices.__getitem__, 30, 4, threads=threads) for threads in (1, 3))
    assert (one.values == three.values).all()


def test_more_windows_at_once_than_fit(monkeypatch):
    monkeypatch.setattr(contractions, "WINDOWS_AT_ONCE", 4)
    matrices = sporadic(6, 0.9, 30)
    found = window_contractions(matrices.__getitem__, 30, 3)
    assert found.values.tolist() == pytest.approx([contraction(matrices[k : k + 3]) for k in range(28)], abs=1e-14)


def test_window_longer_than_the_run():
    found = window_contractions(sporadic(6, 0.9, 3).__getitem__, 3, 4)
    assert (len(found.starts), len(found.values), found.of) == (0, 0, 0)
    assert found.complete


@pytest.mark.parametrize("window", [1, 3, 10])
def test_static_network_is_worked_out_once(window, monkeypatch):
    P = everyone(PATH)
    counted = Counted(monkeypatch)
    found = window_contractions(lambda k: P, 1000, window)
    assert counted.windows == 1
    assert found.complete
    assert found.values == pytest.approx(np.full(1001 - window, (2 / 3) ** window))


def test_periodic_network_is_worked_out_once_per_phase(monkeypatch):
    matrices = sporadic(40, 0.3, 7)
    counted = Counted(monkeypatch)
    found = window_contractions(lambda k: matrices[k % 7], 100, 5)
    assert counted.windows == 7
    assert found.complete
    assert (found.values[7:] == found.values[:-7]).all()


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
    assert not least.complete
    work = contractions._Turns(matrices.__getitem__, np.array([P.nnz for P in matrices]), devices, 5, 1).work(
        np.array([12])
    )
    some = window_contractions(matrices.__getitem__, 100, 5, most_work=float(work.sum() / 2))
    assert not some.complete
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


# What is compiled does what its Python text says


def as_text(kernel, *arguments):
    return kernel.py_func(*arguments)


def as_compiled(kernel, *arguments):
    return kernel(*arguments)


@pytest.fixture(params=[as_compiled, as_text], ids=["compiled", "text"])
def call(request):
    return request.param


def test_joined(call):
    first, then = alternating()
    for matrices, expected in [([first], False), ([then], False), ([first, then], True), ([everyone(PATH)], True)]:
        assert call(network_loops.joined, *side_by_side(matrices)) == expected
    ends_first = everyone(Graph.of(5, [(0, 4), (1, 3), (2, 4), (3, 4)]))
    assert call(network_loops.joined, *side_by_side([ends_first]))


def test_four_columns_at_once(call):
    matrices = sporadic(9, 0.9, 5)
    stack = side_by_side(matrices)
    x, y = np.random.default_rng(0).normal(size=(2, 9, 4))
    call(network_loops.mix_lanes, stack.starts[2], stack.columns, stack.entries, x, y)
    assert y == pytest.approx(matrices[2] @ x)
    firsts = np.array([0, 1, 2, 2])
    call(network_loops.mix_window, *stack, 1, firsts, 2, x, y)
    assert y == pytest.approx(np.column_stack([(matrices[1] @ x)[:, :2], x[:, 2:]]))
    call(network_loops.centre, x)
    assert x.mean(axis=0) == pytest.approx(np.zeros(4), abs=1e-15)
    squares = np.empty(4)
    both, _ = call(network_loops.there_and_back, *stack, firsts, 2, x, np.empty((9, 4)), y, squares)
    for lane, first in enumerate(firsts):
        A = product(matrices[first : first + 2]) - 1 / 9
        assert both[:, lane] == pytest.approx(A.T @ A @ x[:, lane], abs=1e-14)
        assert squares[lane] == pytest.approx(np.sum((A @ x[:, lane]) ** 2))


@pytest.mark.parametrize("count", [1, 2, 30])
def test_largest_eigenvalue_of_a_tridiagonal_matrix(call, count):
    rng = np.random.default_rng(count)
    diagonal, beside = rng.random(count), 0.3 * rng.random(count)
    values, vectors = eigh_tridiagonal(diagonal, beside[:-1])
    theta, last = call(network_loops.top_pair, diagonal, beside, count, 0.0)
    assert theta == pytest.approx(values[-1], abs=1e-15)
    assert last == pytest.approx(abs(vectors[-1, -1]), rel=1e-6)
    assert call(network_loops.above_all, values[-1] + 1e-9, diagonal, beside, count)
    assert not call(network_loops.above_all, values[-1] - 1e-9, diagonal, beside, count)
    assert not call(network_loops.above_all, values[0] - 1e-9, diagonal, beside, count)


def test_windows_side_by_side(call):
    matrices = [*sporadic(9, 0.9, 8, part=0.8), *[everyone(Graph.of(9, []))] * 2]
    firsts, groups = np.arange(9), np.array([0, 4, 7, 9])
    seed = np.linspace(-1, 1, 9) ** 3
    norms, steps = np.empty(9), np.empty(9, np.int64)
    arguments = (*side_by_side(matrices), firsts, groups, 2, seed, 50, 1e-9, 1e-14, norms, steps)
    call(network_loops.window_norms, *arguments, 0, 3)
    assert norms.tolist() == pytest.approx([contraction(matrices[k : k + 2]) for k in range(9)], abs=1e-12)
    assert (norms[:7] < 1).all()
    assert norms[8] == 1
    assert ((steps > 0) == (norms < 1)).all()
