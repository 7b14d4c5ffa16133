"""Strategies that make their iterations themselves: each follows the pseudocode and the promises of its paper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import plain_strategies as plain
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import graphs
from quadratic_runs import (
    Quadratics,
    changing_graphs,
    decentralized_gradient_descent,
    last_models,
    ring,
    run,
    start_of,
)

from efhc.core.graph import Graph
from efhc.strategies.parts.spanning_tree import links_in_tree
from efhc.strategies.whole import BITS_OF_COUNT, Beer, CentralSGD, GradientTracking, RelaySGD


class PartOfTheDifference:
    """Sends a share of each coordinate's difference: a compression that is continuous, so that rounding stays small."""

    BITS = 17

    def __init__(self, share: float) -> None:
        self.share = share

    def send(self, model, known, threshold):
        return known + self.share * (model - known), self.BITS


def tree_of(graph: Graph) -> list[set[int]]:
    return Graph.of(graph.devices, graph.links[links_in_tree(graph)]).neighbours()


PLAIN: dict[str, tuple[Callable[[float, float], Any], Callable[..., Any]]] = {
    "dsgt": (
        lambda share, rate: GradientTracking(),
        lambda graph, x, g, share, rate: plain.gradient_tracking(graph.neighbours(), x, g, 0.1, 10),
    ),
    "beer": (
        lambda share, rate: Beer(rate=rate, codec=PartOfTheDifference(share)),
        lambda graph, x, g, share, rate: plain.beer(graph.neighbours(), x, g, lambda d: share * d, rate, 0.1, 10),
    ),
    "relay": (
        lambda share, rate: RelaySGD(),
        lambda graph, x, g, share, rate: plain.relay(tree_of(graph), x, g, 0.1, 10),
    ),
    "central": (lambda share, rate: CentralSGD(), lambda graph, x, g, share, rate: plain.central(x, g, 0.1, 10)),
}
"""By kind: the strategy, and ten iterations of its pseudocode, for a share of the difference and a rate."""


@pytest.mark.parametrize("kind", PLAIN)
@given(graphs(), st.integers(0, 2**32), st.floats(0.1, 1.0), st.floats(0.1, 1.0), st.booleans())
def test_all_devices_at_once_move_like_the_plain_loops(kind, graph, seed, share, rate, shared):
    problem, start = Quadratics.draw(graph.devices, 3, seed), start_of(graph.devices, 3, seed, shared)
    strategy, loops = PLAIN[kind]
    got = last_models(run(strategy(share, rate), lambda k: graph, start, problem.gradients, 10))
    want = loops(graph, list(start), problem.gradient, share, rate)
    assert np.allclose(got, want, rtol=0, atol=1e-12)


def test_signs_are_sent_as_in_the_plain_loops():
    graph, problem, start = ring(6), Quadratics.draw(6, 5, 1), start_of(6, 5, 1)
    got = last_models(run(Beer(), lambda k: graph, start, problem.gradients, 10))

    def sign(difference):
        return np.abs(difference).mean() * np.sign(difference)

    want = plain.beer(graph.neighbours(), list(start), problem.gradient, sign, 0.8, 0.1, 10)
    assert np.allclose(got, want, rtol=0, atol=1e-12)


@settings(max_examples=60)
@given(changing_graphs(), st.integers(0, 2**32), st.sampled_from([None, "sign", "full", "levels", "top-k"]))
def test_trackers_follow_the_mean_gradient_and_mixing_never_moves_the_mean(several, seed, codec):
    """Of DSGT (no codec) and BEER."""
    problem, start = Quadratics.draw(several[0].devices, 3, seed), start_of(several[0].devices, 3, seed)
    strategy, rounding = (Beer(codec=codec), 1e-11) if codec else (GradientTracking(), 1e-12)
    for step in run(strategy, lambda k: several[k // 3], start, problem.gradients, 9):
        trackers = step.before["correction"] + step.gradients
        assert np.allclose(trackers.mean(axis=0), step.gradients.mean(axis=0), rtol=0, atol=rounding)
        want = step.models.mean(axis=0) - 0.1 * step.gradients.mean(axis=0)
        assert np.allclose(step.moved.models.mean(axis=0), want, rtol=0, atol=rounding)


class Convergence(NamedTuple):
    strategy: Any
    parameters: int
    iterations: int
    step_size: float
    decades: tuple[int, ...]
    """Iterations at which the distance from the optimum is less than a tenth of that at the one before."""


CONVERGENCE = {
    "dsgt": Convergence(GradientTracking(), 3, 400, 0.1, (99, 199, 299)),
    "beer": Convergence(Beer(rate=0.3), 5, 1500, 0.03, (299, 599, 899)),
    "relay": Convergence(RelaySGD(), 3, 700, 0.1, (99, 199, 299)),
}


@pytest.mark.parametrize("kind", CONVERGENCE)
def test_converges_linearly_to_the_optimum_with_a_constant_step_where_gradient_descent_stalls(kind):
    strategy, parameters, iterations, alpha, decades = CONVERGENCE[kind]
    graph, problem, start = ring(8), Quadratics.draw(8, parameters, 0), start_of(8, parameters, 0)
    steps = run(strategy, lambda k: graph, start, problem.gradients, iterations, alpha)
    distances = np.array([problem.distance(step.moved.models) for step in steps])
    shares = distances[list(decades[1:])] / distances[list(decades[:-1])]
    assert shares.max() < 0.1
    assert kind == "beer" or shares[1] == pytest.approx(shares[0], rel=0.5)
    assert distances[-1] < 1e-8
    stalled = [problem.distance(decentralized_gradient_descent(graph, problem, start, k, alpha)) for k in (1500, 3000)]
    assert min(stalled) > (1e-3 if kind == "beer" else 0.01)
    assert stalled[1] == pytest.approx(stalled[0], rel=1e-3)


# What is sent


def test_gradient_tracking_sends_two_models_per_iteration_and_none_from_a_device_without_neighbours():
    graph, problem = Graph.of(4, [(0, 1), (1, 2)]), Quadratics.draw(4, 5, 0)
    for dtype, bits in ((np.float32, 32), (np.float64, 64)):
        start = start_of(4, 5, 0, shared=True, dtype=dtype)
        for step in run(GradientTracking(), lambda k: graph, start, problem.gradients, 3):
            assert step.moved.bits.tolist() == [2 * (8 + bits * 5)] * 3 + [0]
            alone = step.models[3] - dtype(0.1) * step.gradients[3]
            assert np.allclose(step.moved.models[3], alone, rtol=1e-6)


def test_beer_with_one_start_pays_only_for_the_messages_and_not_for_a_device_without_neighbours():
    graph, problem = Graph.of(4, [(0, 1), (1, 2)]), Quadratics.draw(4, 5, 0)
    strategy = Beer(codec=PartOfTheDifference(0.5))
    for step in run(strategy, lambda k: graph, start_of(4, 5, 0, shared=True), problem.gradients, 3):
        assert step.moved.bits.tolist() == [2 * PartOfTheDifference.BITS] * 4  # both ways over two links


@pytest.mark.parametrize(("dtype", "number"), [(np.float32, 32), (np.float64, 64)])
def test_beer_sends_in_full_once_what_a_neighbour_cannot_know(dtype, number):
    few, more = Graph.of(4, [(0, 1), (1, 2)]), Graph.of(4, [(0, 1), (1, 2), (1, 3)])
    problem, strategy = Quadratics.draw(4, 5, 0), Beer(codec=PartOfTheDifference(0.5))
    graph_at = {0: few, 1: few, 2: more, 3: more}.__getitem__
    steps = list(run(strategy, graph_at, start_of(4, 5, 0, dtype=dtype), problem.gradients, 4))
    messages = 2 * PartOfTheDifference.BITS
    assert steps[0].moved.bits.tolist() == [messages + 8 + number * 5] * 4  # own starts: the models of all ends
    assert steps[1].moved.bits.tolist() == [messages] * 4
    is_new = {(1, 3), (3, 1)}
    ends = zip(more.directed.sender.tolist(), more.directed.receiver.tolist(), strict=True)
    assert steps[2].moved.bits.tolist() == [messages + 2 * (8 + number * 5) * (end in is_new) for end in ends]
    assert steps[3].moved.bits.tolist() == [messages] * 6


def test_relay_sends_a_model_and_a_count_in_each_direction_of_the_tree_and_nothing_over_other_links():
    graph, problem = Graph.of(5, [(0, 1), (1, 2), (0, 2), (2, 3)]), Quadratics.draw(5, 7, 0)
    start = start_of(5, 7, 0, shared=True, dtype=np.float32)
    for step in run(RelaySGD(), lambda k: graph, start, problem.gradients, 3):
        of_link = np.where(links_in_tree(graph), 8 + 32 * 7 + BITS_OF_COUNT, 0)
        assert step.moved.bits.tolist() == of_link[graph.directed.link].tolist()


# The ceiling


@pytest.mark.parametrize("devices", [3, 7, 10])
def test_without_a_gradient_a_shared_single_precision_model_stays_as_it_is(devices):
    start = start_of(devices, 50, 0, shared=True, dtype=np.float32)
    (step,) = run(CentralSGD(), lambda k: Graph.of(devices, []), start, np.zeros_like, 1)
    assert np.array_equal(step.moved.models, start)
