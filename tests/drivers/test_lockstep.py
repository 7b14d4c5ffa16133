"""The driver against Alg. 1 in plain loops, and its laws over many iterations."""

from __future__ import annotations

import re
import tracemalloc

import numpy as np
import pytest

import efhc
from efhc.core.iteration import Diverged
from efhc.core.randomness import Randomness
from efhc.drivers import lockstep
from efhc.drivers.agreement import difference_from_reference
from efhc.drivers.lockstep import Lockstep
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.runs.draw import draw_scenario, load_data
from efhc.learning.backends import backend_for
from efhc.learning.backends.numpy_backend import ArraysBackend

NETWORKS = {
    "static": efhc.Geometric(),
    "random links": efhc.RandomLinks(up_probability=0.4),
    "waypoint": efhc.RandomWaypoint(radius=0.4, slowest=0.02, fastest=0.1),
    "rotating": efhc.Rotating(period=3),
}
MODELS = [efhc.SVM(), efhc.Softmax(), efhc.LeastSquares()]


def scenario_of(seed: int = 3, **fields):
    experiment = Experiment(**fields)
    return experiment, draw_scenario(experiment, load_data(experiment), seed)


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("exchange_at_start", [False, True])
@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("strategy", ["EF-HC", "RG"])
@pytest.mark.parametrize("backend", ["linear", "arrays"])
def test_lockstep_follows_the_reference(kind, strategy, exchange_at_start, precision, backend):
    experiment, scenario = scenario_of(
        network=NETWORKS[kind],
        precision=precision,
        exchange_at_start=exchange_at_start,
        model=efhc.Softmax(),
        backend=backend,
    )
    oracle = ArraysBackend(experiment.model, scenario.learner.data)
    difference = difference_from_reference(scenario, experiment.strategies[strategy], 40, oracle)
    assert difference < (1e-5 if precision == "float32" else 1e-12)


@pytest.mark.parametrize("batch_size", [1, 5, 16, "full"])
@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_stretches_and_single_iterations_are_the_reference_too(monkeypatch, model, batch_size):
    """The same run in compiled stretches, and iteration by iteration as large models are run, on several threads."""
    experiment, scenario = scenario_of(precision="float64", model=model, batch_size=batch_size)
    oracle = ArraysBackend(model, scenario.learner.data)
    trigger = experiment.strategies["EF-HC"]
    assert difference_from_reference(scenario, trigger, 70, oracle) < 1e-11
    monkeypatch.setattr(lockstep, "IN_CACHE", 0)
    assert difference_from_reference(scenario, trigger, 70, oracle, threads=2) < 1e-11


@pytest.mark.parametrize("backend", ["linear", "arrays"])
@pytest.mark.parametrize("l2", [0.0, 0.1])
def test_least_squares_with_full_batches_reach_the_closed_form_of_ridge_regression(backend, l2):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 4)), np.arange(60) % 3
    z = np.column_stack([x, np.ones(60)])
    hessian = z.T @ z / 60 + l2 * np.eye(5)
    solution = np.linalg.solve(hessian, z.T @ np.eye(3)[y] / 60)  # (features + 1, classes)
    _, scenario = scenario_of(
        data=efhc.Dataset(x, y, x, y),
        model=efhc.LeastSquares(l2=l2),
        devices=1,
        network=efhc.Ring(),
        partition=efhc.IID(),
        batch_size="full",
        step_size=efhc.Constant(value=1 / np.linalg.eigvalsh(hessian)[-1]),
        precision="float64",
        backend=backend,
    )
    driver, state = Lockstep(scenario, efhc.Never()), scenario.initial_state()
    while state.k < 200:
        state, steps = driver.advance(state, 200 - state.k)
    want = np.concatenate([solution[:-1].T.ravel(), solution[-1]])
    np.testing.assert_allclose(state.models[0], want, atol=1e-12)
    least = np.square(z @ solution - np.eye(3)[y]).sum() / 120 + l2 / 2 * np.square(solution).sum()
    assert steps.losses[-1, 0] == pytest.approx(least)


@pytest.mark.parametrize("kind", NETWORKS)
def test_how_many_iterations_are_made_at_once_does_not_change_a_bit(kind):
    experiment, scenario = scenario_of(network=NETWORKS[kind])
    ends = []
    for most in (1, 7, 1000):
        driver, state = Lockstep(scenario, experiment.strategies["EF-HC"]), scenario.initial_state()
        fired = []
        while state.k < 300:
            state, steps = driver.advance(state, min(most, 300 - state.k))
            fired.append(steps.fired)
        assert state.k == 300
        ends.append((state.models, state.last_broadcast, np.concatenate(fired)))
    for other in ends[1:]:
        for one, same in zip(ends[0], other, strict=True):
            assert np.array_equal(one, same)


def test_a_large_model_takes_the_same_bits_on_any_number_of_threads(monkeypatch):
    monkeypatch.setattr(lockstep, "IN_CACHE", 0)
    ends = []
    for threads in (1, 3):
        experiment = Experiment(devices=23, partition=efhc.IID())
        scenario = draw_scenario(experiment, load_data(experiment), 0, threads)
        driver, state = Lockstep(scenario, experiment.strategies["EF-HC"], threads), scenario.initial_state()
        while state.k < 30:
            state, steps = driver.advance(state)
        ends.append((state.models, steps.consensus_errors))
    assert np.array_equal(ends[0][0], ends[1][0])
    assert np.array_equal(ends[0][1], ends[1][1])


def test_the_mean_model_stays_where_gradients_put_it_over_a_long_run_in_single_precision():
    _, scenario = scenario_of(seed=0, strategies={"ZT": efhc.ZeroThreshold()}, step_size=lambda k: 0.0)
    before = scenario.initial_models().mean(axis=0, dtype=np.float64)
    driver, state = Lockstep(scenario, efhc.ZeroThreshold()), scenario.initial_state()
    while state.k < 1000:
        state, _ = driver.advance(state, 1000 - state.k)
    assert np.abs(state.models.mean(axis=0, dtype=np.float64) - before).max() < 1e-5
    assert np.abs(state.models - before).max() < 1e-4  # and all devices agree


@pytest.mark.parametrize("in_cache", [0, lockstep.IN_CACHE])
@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_where_training_diverges_the_state_is_left_as_it_was(monkeypatch, in_cache, model):
    monkeypatch.setattr(lockstep, "IN_CACHE", in_cache)
    experiment, scenario = scenario_of(model=model, step_size=lambda k: 1e-3 if k < 5 else 1e38)
    driver, state = Lockstep(scenario, experiment.strategies["ZT"]), scenario.initial_state()
    while state.k < 5:
        state, _ = driver.advance(state, 5 - state.k)
    for _ in range(7):
        try:
            state, _ = driver.advance(state, 50)
        except Diverged as error:
            message = str(error)
    assert re.match(r"training diverged at iteration \d+: the (loss|model) of device \d+ is not finite", message)
    assert 5 <= state.k < 12
    assert np.isfinite(state.models).all()
    assert np.isfinite(state.last_broadcast).all()


@pytest.mark.parametrize("in_cache", [0, 10**9])
def test_a_run_holds_three_arrays_and_a_batch(monkeypatch, in_cache):
    monkeypatch.setattr(lockstep, "IN_CACHE", in_cache)
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (2000, 784), dtype=np.uint8), np.arange(2000) % 10
    experiment = Experiment(data=efhc.Dataset(x, y, x, y), devices=200, partition=efhc.IID(), batch_size=8)
    scenario = draw_scenario(experiment, load_data(experiment), 0)
    one_array = 200 * 7850 * 4
    Lockstep(scenario, experiment.strategies["ZT"]).advance(scenario.initial_state())  # compiling needs memory too
    tracemalloc.start()
    driver, state = Lockstep(scenario, experiment.strategies["ZT"]), scenario.initial_state()
    for _ in range(3):
        state, _ = driver.advance(state)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 3 * one_array <= peak < 3.5 * one_array


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize(("backend", "other"), [("stacked", "loop"), ("loop", "stacked")])
def test_networks_follow_the_reference_too(backend, other, precision):
    """With the gradients of the other backend, so that both are held to Alg. 1 and to each other."""
    experiment, scenario = scenario_of(
        model=efhc.MLP(hidden=(8,)),
        devices=5,
        batch_size=4,
        partition=efhc.IID(),
        network=efhc.RandomLinks(up_probability=0.5),
        precision=precision,
        backend=backend,
    )
    oracle = backend_for(experiment.model, scenario.learner.data, Randomness(3), other)
    difference = difference_from_reference(scenario, experiment.strategies["EF-HC"], 30, oracle)
    assert difference < (1e-5 if precision == "float32" else 1e-12)
