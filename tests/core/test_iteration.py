"""The laws of one iteration, and all devices at once against Alg. 1 in plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import bandwidths, graphs, graphs_with_used_links, triggers

from efhc.core.arithmetic import PLAIN_LAW, consensus_error, drift
from efhc.core.cost import transmission_time
from efhc.core.graph import Graph
from efhc.core.iteration import iterate
from efhc.core.mixing import mix_and_descend, mixing_matrix
from efhc.core.randomness import Coins, Randomness
from efhc.core.reference import reference_iteration
from efhc.core.state import Diverged, State
from efhc.core.triggers import Bandwidths
from efhc.kernels import compiled_arithmetic as compiled
from efhc.kernels.compiled_arithmetic import InPlaceLaw
from efhc.strategies.paper import EventTriggered, GlobalThreshold, RandomizedGossip


@given(graphs_with_used_links())
def test_mixing_matrix_is_symmetric_and_doubly_stochastic_with_positive_diagonal(problem):
    graph, used = problem
    P = mixing_matrix(graph, used).toarray()
    assert (P == P.T).all()
    assert np.allclose(P.sum(axis=0), 1, atol=1e-15)
    assert np.allclose(P.sum(axis=1), 1, atol=1e-15)
    assert (P >= 0).all()
    assert (P.diagonal() > 0).all()


@given(graphs_with_used_links(), st.integers(0, 2**32))
def test_mixing_leaves_the_mean_model_where_it_is(problem, seed):
    graph, used = problem
    models = np.random.default_rng(seed).normal(size=(graph.devices, 5))
    mixed = mixing_matrix(graph, used) @ models
    assert np.allclose(mixed.mean(axis=0), models.mean(axis=0), atol=1e-14)


@given(graphs_with_used_links(), st.integers(0, 2**32), st.sampled_from([np.float32, np.float64]), st.integers(1, 3))
def test_compiled_mixing_takes_the_memory_of_the_gradients_and_plain_mixing_does_not(problem, seed, dtype, threads):
    graph, used = problem
    rng = np.random.default_rng(seed)
    models, gradients = (rng.normal(size=(graph.devices, 1500)).astype(dtype) for _ in range(2))
    before = models.copy(), gradients.copy()
    want = mixing_matrix(graph, used) @ models - 0.1 * gradients
    plain = mix_and_descend(graph, used, models, gradients, 0.1)
    assert np.array_equal(models, before[0])
    assert np.array_equal(gradients, before[1])
    got = compiled.mix_and_descend(graph, used, models, gradients, 0.1, threads)
    assert got is gradients
    for mixed in (plain, got):
        assert mixed.dtype == dtype
        assert np.allclose(mixed, want, rtol=0, atol=1e-13 if dtype == np.float64 else 1e-5)


@given(graphs(), st.integers(0, 2**32), st.integers(1, 2500))
def test_the_bits_do_not_depend_on_the_number_of_threads(graph, seed, parameters):
    rng = np.random.default_rng(seed)
    models, last, gradients = (rng.normal(size=(graph.devices, parameters)).astype(np.float32) for _ in range(3))
    thresholds = np.ones(graph.devices)
    one, several = (
        iterate(State(0, models, last.copy()), graph, graph, thresholds, gradients.copy(), 0.1, InPlaceLaw(n))
        for n in (1, 3)
    )
    assert np.array_equal(one[0].models, several[0].models)
    assert np.array_equal(one[0].last_broadcast, several[0].last_broadcast)
    assert one[1].consensus_error == several[1].consensus_error


@given(graphs(), st.integers(0, 2**32), st.sampled_from([np.float32, np.float64]), st.data())
def test_an_iteration_changes_nothing_that_it_is_given_and_agrees_with_the_compiled_one(graph, seed, dtype, data):
    rng = np.random.default_rng(seed)
    models, last, gradients = (rng.normal(size=(graph.devices, 5)).astype(dtype) for _ in range(3))
    previous, thresholds = data.draw(graphs(graph.devices)), rng.uniform(0, 3, graph.devices)
    given_arrays = models, last, gradients, thresholds
    before = [array.copy() for array in given_arrays]
    for array in given_arrays:
        array.flags.writeable = False
    state, info = iterate(State(3, models, last), graph, previous, thresholds, gradients, 0.1)
    assert all(np.array_equal(*pair) for pair in zip(given_arrays, before, strict=True))
    assert not any(np.shares_memory(new, old) for new in state[1:3] for old in given_arrays)
    fast = State(3, models.copy(), last.copy())
    fast, fast_info = iterate(fast, graph, previous, thresholds, gradients.copy(), 0.1, InPlaceLaw())
    tolerance = 1e-13 if dtype == np.float64 else 1e-5
    assert fast.k == state.k == 4
    assert np.allclose(fast.models, state.models, rtol=0, atol=tolerance)
    assert np.array_equal(fast.last_broadcast, state.last_broadcast)
    assert np.array_equal(fast_info.fired, info.fired)
    assert np.array_equal(fast_info.used, info.used)
    assert fast_info.consensus_error == pytest.approx(info.consensus_error, rel=tolerance, abs=tolerance)


def test_large_graphs_are_mixed_in_an_order_that_keeps_neighbours_close():
    rng = np.random.default_rng(0)
    shuffled = rng.permutation(400)
    ring = Graph.of(400, [(shuffled[i], shuffled[(i + 1) % 400]) for i in range(400)])
    order = ring.rows.order
    assert sorted(order) == list(range(400))
    place = np.argsort(order)
    assert np.abs(place[ring.links[:, 0]] - place[ring.links[:, 1]]).max() <= 2


@pytest.mark.parametrize("arithmetic", [PLAIN_LAW, InPlaceLaw()], ids=["plain", "compiled"])
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_an_iteration_that_diverges_changes_nothing_and_names_the_device(value, arithmetic):
    graph, models = Graph.of(3, [(0, 1)]), np.arange(6.0).reshape(3, 2)
    state = State(7, models.copy(), models + 1)
    gradients = np.zeros((3, 2))
    gradients[2, 1] = value
    with pytest.raises(Diverged, match=r"^training diverged at iteration 7: the model of device 2 is not finite") as e:
        iterate(state, graph, graph, np.zeros(3), gradients, 0.1, arithmetic)
    assert (e.value.k, e.value.devices) == (7, [2])
    assert np.array_equal(state.models, models)
    assert np.array_equal(state.last_broadcast, models + 1)


@pytest.mark.parametrize("arithmetic", [PLAIN_LAW, InPlaceLaw()], ids=["plain", "compiled"])
def test_no_device_is_blamed_where_only_the_sum_of_squares_overflows(arithmetic):
    pair, models = Graph.of(2, []), np.array([[1e200], [-1e200]])
    with pytest.raises(Diverged, match="iteration 0: the consensus error of the models is too large") as e:
        iterate(State(0, models, models.copy()), pair, pair, np.full(2, np.inf), np.zeros((2, 1)), 0.1, arithmetic)
    assert e.value.devices == []
    assert "device" not in str(e.value)


@given(st.integers(1, 6), st.integers(0, 2**32), st.sampled_from([3, 2000]))
def test_consensus_error_is_the_papers(devices, seed, parameters):
    models = np.random.default_rng(seed).normal(size=(devices, parameters)) + 5
    mean = models.mean(axis=0)
    want = sum(np.linalg.norm(w - mean) ** 2 for w in models)
    assert consensus_error(models) == pytest.approx(want, rel=1e-12, abs=1e-12)
    assert compiled.consensus_error(models) == pytest.approx(want, rel=1e-12, abs=1e-12)


def test_metropolis_weights_of_a_path():
    path = Graph.of(4, [(0, 1), (1, 2), (2, 3)])
    assert path.metropolis_weights.tolist() == [1 / 3, 1 / 3, 1 / 3]
    star = Graph.of(4, [(0, 1), (0, 2), (0, 3)])
    assert star.metropolis_weights.tolist() == [1 / 4] * 3


@given(st.data())
def test_an_iteration_follows_the_reference_on_random_graphs_that_change(data):
    devices = data.draw(st.integers(1, 8))
    sequence = data.draw(st.lists(graphs(devices), min_size=2, max_size=5))
    b, trigger = data.draw(bandwidths(devices)), data.draw(triggers())
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    coins = Coins(Randomness(data.draw(st.integers(0, 2**32))), devices).reader()
    arithmetic = data.draw(st.sampled_from([PLAIN_LAW, InPlaceLaw()]))
    initial = rng.normal(size=(devices, 4))
    last = initial + rng.normal(size=(devices, 4)) * 0.1
    state, models, last_broadcast = State(0, initial.copy(), last.copy()), list(initial), list(last)
    for k, (previous, graph) in enumerate(zip([sequence[0], *sequence], sequence, strict=False)):
        gradients = rng.normal(size=(devices, 4))
        thresholds = trigger.thresholds(k, 0.1 / (1 + k), b, coins)
        mean = state.models.mean(axis=0)
        state, info = iterate(state, graph, previous, thresholds, gradients.copy(), 0.05, arithmetic)
        models, last_broadcast, fired, used = reference_iteration(
            models,
            last_broadcast,
            graph.neighbours(),
            previous.neighbours(),
            thresholds.tolist(),
            lambda i, _w, G=gradients: G[i],
            0.05,
        )
        assert set(np.flatnonzero(info.fired)) == fired
        assert set(map(tuple, graph.links[info.used].tolist())) == used
        assert np.allclose(state.models, models, rtol=1e-12, atol=1e-13)
        assert np.allclose(state.last_broadcast, last_broadcast, rtol=1e-12, atol=1e-13)
        assert np.allclose(state.models.mean(axis=0), mean - 0.05 * gradients.mean(axis=0), atol=1e-13)
    assert state.k == len(sequence)


@given(st.integers(1, 20).flatmap(bandwidths), st.floats(0, 1e3), st.floats(1e-6, 10), st.integers(0, 1000))
def test_thresholds_scale_with_one_over_the_own_bandwidth(b, r, gamma, k):
    personal = EventTriggered(r=r).thresholds(k, gamma, b, np.zeros)
    assert np.allclose(personal * b.values, r * gamma)
    assert np.allclose(GlobalThreshold(r=r).thresholds(k, gamma, b, np.zeros), r * gamma / b.nominal)
    assert np.allclose(GlobalThreshold(r=r, rho="mean").thresholds(k, gamma, b, np.zeros), personal.mean())


def test_a_drift_equal_to_the_threshold_fires():
    models, last = np.array([[3.0, 4.0], [3.0, 4.0]]), np.zeros((2, 2))
    exactly = float(drift(models, last)[0])
    assert exactly == np.sqrt(0.5) * 5
    pair = Graph.of(2, [(0, 1)])
    thresholds = np.array([exactly, np.nextafter(exactly, 9)])
    state, info = iterate(State(0, models, last), pair, pair, thresholds, np.zeros((2, 2)), 0.1)
    assert info.fired.tolist() == [True, False]
    # Device 1 answers the broadcast, and so mixes, but has not broadcast itself.
    assert info.used.tolist() == [True]
    assert (state.last_broadcast == [[3, 4], [0, 0]]).all()


def test_gradient_is_taken_before_mixing():
    pair = Graph.of(2, [(0, 1)])
    models = np.array([[0.0], [2.0]])
    state, _ = iterate(State(0, models, models.copy()), pair, pair, np.zeros(2), 10 * models, 0.1)
    assert state.models.tolist() == [[1.0], [-1.0]]


@given(graphs_with_used_links(), st.data(), st.integers(1, 10_000))
def test_cost_is_the_papers_formula(problem, data, parameters):
    graph, used = problem
    b = data.draw(bandwidths(graph.devices)).values
    m, degree = graph.devices, [len(neighbours) for neighbours in graph.neighbours()]
    total = 0.0
    for i in range(m):
        links = sum(1 for link, u in zip(graph.links.tolist(), used, strict=True) if u and i in link)
        total += links / degree[i] * parameters / b[i] if degree[i] else 0.0
    assert transmission_time(graph, used, b, parameters) == pytest.approx(total / m, rel=1e-12)


def test_cost_of_everything_used_is_the_mean_of_model_size_over_bandwidth():
    graph = Graph.of(3, [(0, 1), (1, 2)])
    assert transmission_time(graph, np.ones(2, bool), np.array([1.0, 2.0, 4.0]), 8) == (8 + 4 + 2) / 3
    assert transmission_time(graph, np.zeros(2, bool), np.array([1.0, 2.0, 4.0]), 8) == 0


def test_randomized_gossip_fires_with_its_probability():
    b = Bandwidths(np.ones(20), 1.0)
    coins = Coins(Randomness(3), 20).reader()

    def share(trigger):
        return np.mean([trigger.thresholds(k, 1.0, b, coins) == 0 for k in range(2000)])

    assert share(RandomizedGossip()) == pytest.approx(1 / 20, abs=0.005)
    assert share(RandomizedGossip(probability=0.7)) == pytest.approx(0.7, abs=0.01)
    assert share(RandomizedGossip(probability=0.0)) == 0
    assert share(RandomizedGossip(probability=1.0)) == 1


@given(graphs_with_used_links(), st.integers(0, 2**32))
def test_single_precision_stays_single_precision(problem, seed):
    graph, _ = problem
    models = np.random.default_rng(seed).normal(size=(graph.devices, 3)).astype(np.float32)
    state, _ = iterate(State(0, models, models.copy()), graph, graph, np.zeros(graph.devices), models.copy(), 0.1)
    assert state.models.dtype == state.last_broadcast.dtype == np.float32
