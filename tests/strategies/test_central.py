from __future__ import annotations

import numpy as np
import plain_strategies as plain
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import graphs
from quadratic_runs import Quadratics, last_models, run, start_of

from efhc.core.graph import Graph
from efhc.strategies.central import CentralSGD


@given(graphs(), st.integers(0, 2**32), st.booleans())
def test_it_is_gradient_descent_on_the_mean_loss(graph, seed, shared):
    problem, start = Quadratics.draw(graph.devices, 3, seed), start_of(graph.devices, 3, seed, shared)
    got = last_models(run(CentralSGD(), lambda k: graph, start, problem.gradients, 10))
    want = plain.central(list(start), problem.gradient, 0.1, 10)
    assert np.allclose(got, want, rtol=0, atol=1e-12)


@given(graphs(), st.integers(0, 2**32), st.sampled_from([np.float32, np.float64]))
def test_all_devices_have_one_model_from_the_first_iteration_on_and_nothing_is_sent(graph, seed, dtype):
    problem, start = Quadratics.draw(graph.devices, 3, seed), start_of(graph.devices, 3, seed, dtype=dtype)
    for step in run(CentralSGD(), lambda k: graph, start, problem.gradients, 3):
        assert (step.moved.models == step.moved.models[0]).all()
        assert step.moved.bits.tolist() == [0] * graph.devices


@pytest.mark.parametrize("devices", [3, 7, 10])
def test_without_a_gradient_a_shared_single_precision_model_stays_as_it_is(devices):
    start = start_of(devices, 50, 0, shared=True, dtype=np.float32)
    (step,) = run(CentralSGD(), lambda k: Graph.of(devices, []), start, np.zeros_like, 1)
    assert np.array_equal(step.moved.models, start)
