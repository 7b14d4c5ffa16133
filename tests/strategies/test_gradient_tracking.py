from __future__ import annotations

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
from efhc.strategies.gradient_tracking import GradientTracking


@given(graphs(), st.integers(0, 2**32))
def test_all_devices_at_once_move_like_the_plain_loops(graph, seed):
    problem, start = Quadratics.draw(graph.devices, 3, seed), start_of(graph.devices, 3, seed)
    got = last_models(run(GradientTracking(), lambda k: graph, start, problem.gradients, 10))
    want = plain.gradient_tracking(graph.neighbours(), list(start), problem.gradient, 0.1, 10)
    assert np.allclose(got, want, rtol=0, atol=1e-12)


@settings(max_examples=40)
@given(changing_graphs(), st.integers(0, 2**32))
def test_trackers_follow_the_mean_gradient_and_mixing_never_moves_the_mean(several, seed):
    problem, start = Quadratics.draw(several[0].devices, 3, seed), start_of(several[0].devices, 3, seed)
    for step in run(GradientTracking(), lambda k: several[k // 3], start, problem.gradients, 9):
        trackers = step.before["correction"] + step.gradients
        assert np.allclose(trackers.mean(axis=0), step.gradients.mean(axis=0), rtol=0, atol=1e-12)
        want = step.models.mean(axis=0) - 0.1 * step.gradients.mean(axis=0)
        assert np.allclose(step.moved.models.mean(axis=0), want, rtol=0, atol=1e-12)


def test_converges_linearly_to_the_optimum_with_a_constant_step_where_gradient_descent_stalls():
    graph, problem = ring(8), Quadratics.draw(8, 3, 0)
    start = start_of(8, 3, 0)
    distances = [
        problem.distance(step.moved.models)
        for step in run(GradientTracking(), lambda k: graph, start, problem.gradients, 400)
    ]
    assert distances[199] < 0.1 * distances[99]
    assert distances[299] / distances[199] == pytest.approx(distances[199] / distances[99], rel=0.5)
    assert distances[-1] < 1e-8
    stalled = [problem.distance(decentralized_gradient_descent(graph, problem, start, k, 0.1)) for k in (400, 800)]
    assert min(stalled) > 0.01
    assert stalled[1] == pytest.approx(stalled[0], rel=1e-3)


@pytest.mark.parametrize(("dtype", "bits"), [(np.float32, 32), (np.float64, 64)])
def test_two_models_are_sent_per_iteration_and_none_by_a_device_without_neighbours(dtype, bits):
    graph, problem = Graph.of(4, [(0, 1), (1, 2)]), Quadratics.draw(4, 5, 0)
    start = start_of(4, 5, 0, shared=True, dtype=dtype)
    for step in run(GradientTracking(), lambda k: graph, start, problem.gradients, 3):
        assert step.moved.bits.tolist() == [2 * (8 + bits * 5)] * 3 + [0]
        alone = step.models[3] - dtype(0.1) * step.gradients[3]
        assert np.allclose(step.moved.models[3], alone, rtol=1e-6)
