from __future__ import annotations

import numpy as np
import plain_strategies as plain
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import graphs
from pydantic import ValidationError
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
from efhc.strategies.beer import Beer


class PartOfTheDifference:
    """Sends a share of each coordinate's difference: a compression that is continuous, so that rounding stays small."""

    BITS = 17

    def __init__(self, share: float) -> None:
        self.share = share

    def send(self, model, known, threshold):
        return known + self.share * (model - known), self.BITS


@given(graphs(), st.integers(0, 2**32), st.floats(0.1, 1.0), st.floats(0.1, 1.0))
def test_all_devices_at_once_move_like_the_plain_loops(graph, seed, share, rate):
    problem, start = Quadratics.draw(graph.devices, 3, seed), start_of(graph.devices, 3, seed)
    strategy = Beer(rate=rate, codec=PartOfTheDifference(share))
    got = last_models(run(strategy, lambda k: graph, start, problem.gradients, 10))
    neighbours, compress = graph.neighbours(), lambda difference: share * difference
    want = plain.beer(neighbours, list(start), problem.gradient, compress, rate, 0.1, 10)
    assert np.allclose(got, want, rtol=0, atol=1e-12)


def test_signs_are_sent_as_in_the_plain_loops():
    graph, problem, start = ring(6), Quadratics.draw(6, 5, 1), start_of(6, 5, 1)
    got = last_models(run(Beer(), lambda k: graph, start, problem.gradients, 10))

    def sign(difference):
        return np.abs(difference).mean() * np.sign(difference)

    want = plain.beer(graph.neighbours(), list(start), problem.gradient, sign, 0.8, 0.1, 10)
    assert np.allclose(got, want, rtol=0, atol=1e-12)


@settings(max_examples=40)
@given(changing_graphs(), st.integers(0, 2**32), st.sampled_from(["sign", "full", "levels", "top-k"]))
def test_trackers_follow_the_mean_gradient_and_mixing_never_moves_the_mean(several, seed, codec):
    problem, start = Quadratics.draw(several[0].devices, 3, seed), start_of(several[0].devices, 3, seed)
    for step in run(Beer(codec=codec), lambda k: several[k // 3], start, problem.gradients, 9):
        trackers = step.before["correction"] + step.gradients
        assert np.allclose(trackers.mean(axis=0), step.gradients.mean(axis=0), rtol=0, atol=1e-11)
        want = step.models.mean(axis=0) - 0.1 * step.gradients.mean(axis=0)
        assert np.allclose(step.moved.models.mean(axis=0), want, rtol=0, atol=1e-11)


def test_converges_linearly_to_the_optimum_with_signs_and_a_constant_step_where_gradient_descent_stalls():
    graph, problem = ring(8), Quadratics.draw(8, 5, 0)
    start = start_of(8, 5, 0)
    strategy = Beer(rate=0.3)
    steps = run(strategy, lambda k: graph, start, problem.gradients, 1500, 0.03)
    distances = [problem.distance(step.moved.models) for step in steps]
    assert distances[599] < 0.1 * distances[299]
    assert distances[899] < 0.1 * distances[599]
    assert distances[-1] < 1e-8
    assert problem.distance(decentralized_gradient_descent(graph, problem, start, 1500, 0.03)) > 1e-3


def test_with_one_start_only_the_messages_are_paid_for_and_a_device_without_neighbours_sends_nothing():
    graph, problem = Graph.of(4, [(0, 1), (1, 2)]), Quadratics.draw(4, 5, 0)
    strategy = Beer(codec=PartOfTheDifference(0.5))
    for step in run(strategy, lambda k: graph, start_of(4, 5, 0, shared=True), problem.gradients, 3):
        assert step.moved.bits.tolist() == [2 * PartOfTheDifference.BITS] * 4  # both ways over two links


@pytest.mark.parametrize(("dtype", "number"), [(np.float32, 32), (np.float64, 64)])
def test_what_a_neighbour_cannot_know_is_sent_in_full_once(dtype, number):
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


@pytest.mark.parametrize("rate", [0.0, 1.01, -0.5])
def test_the_rate_is_above_0_and_at_most_1(rate):
    with pytest.raises(ValidationError, match="rate"):
        Beer(rate=rate)
