"""The driver against Alg. 1 in plain loops, and its laws over many iterations."""

from __future__ import annotations

import re
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import efhc
from efhc.base.errors import InputError
from efhc.core.randomness import Randomness
from efhc.core.state import Diverged, State
from efhc.drivers import lockstep
from efhc.drivers.agreement import difference_from_reference
from efhc.drivers.lockstep import PaperLockstep
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.runs.draw import draw_scenario, load_data
from efhc.learning.backends import backend_for
from efhc.learning.backends.backend import ArraysBackend

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
def test_stretches_and_single_iterations_are_the_reference_too(model, batch_size):
    """The same run in compiled stretches, and iteration by iteration as large models are run, on several threads."""
    experiment, scenario = scenario_of(precision="float64", model=model, batch_size=batch_size)
    oracle = ArraysBackend(model, scenario.learner.data)
    trigger = experiment.strategies["EF-HC"]
    assert difference_from_reference(scenario, trigger, 70, oracle) < 1e-11
    assert difference_from_reference(scenario, trigger, 70, oracle, threads=2, fuse_up_to=0) < 1e-11


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
    driver, state = PaperLockstep(scenario, efhc.Never()), scenario.initial_state()
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
        driver, state = PaperLockstep(scenario, experiment.strategies["EF-HC"]), scenario.initial_state()
        fired = []
        while state.k < 300:
            state, steps = driver.advance(state, min(most, 300 - state.k))
            fired.append(steps.fired)
        assert state.k == 300
        ends.append((state.models, state.last_broadcast, np.concatenate(fired)))
    for other in ends[1:]:
        for one, same in zip(ends[0], other, strict=True):
            assert np.array_equal(one, same)


def test_a_large_model_takes_the_same_bits_on_any_number_of_threads():
    ends = []
    for threads in (1, 3):
        experiment = Experiment(devices=23, partition=efhc.IID())
        scenario = draw_scenario(experiment, load_data(experiment), 0, threads)
        driver = PaperLockstep(scenario, experiment.strategies["EF-HC"], threads, fuse_up_to=0)
        state = scenario.initial_state()
        while state.k < 30:
            state, steps = driver.advance(state)
        ends.append((state.models, steps.consensus_errors))
    assert np.array_equal(ends[0][0], ends[1][0])
    assert np.array_equal(ends[0][1], ends[1][1])


def test_the_mean_model_stays_where_gradients_put_it_over_a_long_run_in_single_precision():
    _, scenario = scenario_of(seed=0, strategies={"ZT": efhc.ZeroThreshold()}, step_size=lambda k: 0.0)
    before = scenario.initial_models().mean(axis=0, dtype=np.float64)
    driver, state = PaperLockstep(scenario, efhc.ZeroThreshold()), scenario.initial_state()
    while state.k < 1000:
        state, _ = driver.advance(state, 1000 - state.k)
    assert np.abs(state.models.mean(axis=0, dtype=np.float64) - before).max() < 1e-5
    assert np.abs(state.models - before).max() < 1e-4  # and all devices agree


@pytest.mark.parametrize("fuse_up_to", [0, lockstep.IN_CACHE])
@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_where_training_diverges_the_state_is_left_as_it_was(fuse_up_to, model):
    experiment, scenario = scenario_of(model=model, step_size=lambda k: 1e-3 if k < 5 else 1e38)
    driver = PaperLockstep(scenario, experiment.strategies["ZT"], fuse_up_to=fuse_up_to)
    state = scenario.initial_state()
    while state.k < 5:
        state, _ = driver.advance(state, 5 - state.k)
    diverged = None
    for _ in range(7):
        before = state.k, state.models.copy(), state.last_broadcast.copy()
        try:
            state, _ = driver.advance(state, 50)
        except Diverged as error:
            diverged = error
        if diverged:
            assert state.k == before[0] == diverged.k
            assert np.array_equal(state.models, before[1])
            assert np.array_equal(state.last_broadcast, before[2])
    assert re.match(r"training diverged at iteration \d+: the (loss|model|consensus error) of", str(diverged))
    assert 5 <= state.k < 12
    assert np.isfinite(state.models).all()
    assert np.isfinite(state.last_broadcast).all()


@pytest.mark.parametrize("fuse_up_to", [0, lockstep.IN_CACHE])
def test_a_state_that_was_used_up_is_refused(fuse_up_to):
    experiment, scenario = scenario_of()
    driver = PaperLockstep(scenario, experiment.strategies["EF-HC"], fuse_up_to=fuse_up_to)
    first = scenario.initial_state()
    state = first
    for most in (1, 2, 2):  # an odd number of swaps, and even ones
        before = state
        state, _ = driver.advance(before, most)
        for used_up in (first, before, state._replace(k=state.k - 1), before._replace(k=state.k)):
            if used_up.models is not state.models or used_up.k != state.k:
                with pytest.raises(ValueError, match="used up"):
                    driver.advance(used_up)


@pytest.mark.parametrize("fuse_up_to", [0, lockstep.IN_CACHE])
def test_a_copy_of_a_state_may_be_gone_back_to(fuse_up_to):
    experiment, scenario = scenario_of()
    driver = PaperLockstep(scenario, experiment.strategies["EF-HC"], fuse_up_to=fuse_up_to)
    state, _ = driver.advance(scenario.initial_state(), 3)
    kept = State(state.k, state.models.copy(), state.last_broadcast.copy())
    ends = []
    for again in (state, kept):
        state = again
        while state.k < 20:
            state, _ = driver.advance(state, 20 - state.k)
        ends.append((state.models.copy(), state.last_broadcast.copy()))
    assert np.array_equal(ends[0][0], ends[1][0])
    assert np.array_equal(ends[0][1], ends[1][1])


@pytest.mark.parametrize("fuse_up_to", [0, lockstep.IN_CACHE])
@pytest.mark.parametrize("writeable", [True, False])
def test_one_array_for_both_and_arrays_that_cannot_be_written_to_are_copied(writeable, fuse_up_to):
    experiment, scenario = scenario_of()
    trigger, models = experiment.strategies["ZT"], scenario.initial_models()
    want, _ = PaperLockstep(scenario, trigger).advance(scenario.initial_state())
    models.flags.writeable = writeable
    driver, state = PaperLockstep(scenario, trigger, fuse_up_to=fuse_up_to), State(0, models, models)
    for k in range(4):
        state, _ = driver.advance(state)
        if k == 0:
            assert np.array_equal(state.models, want.models)
    plain, end = PaperLockstep(scenario, trigger), scenario.initial_state()
    for _ in range(4):
        end, _ = plain.advance(end)
    assert np.array_equal(state.models, end.models)
    assert np.array_equal(state.last_broadcast, end.last_broadcast)


def test_runs_that_share_a_scenario_do_not_disturb_each_other():
    """Two threads at different iterations of one scenario, against each strategy alone."""
    experiment, scenario = scenario_of(network=NETWORKS["waypoint"])

    def end(strategy, scenario):
        driver, state = PaperLockstep(scenario, experiment.strategies[strategy]), scenario.initial_state()
        while state.k < 600:
            state, _ = driver.advance(state, 600 - state.k)
        return state.models

    strategies = ["EF-HC", "RG", "ZT", "RG"]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda strategy: end(strategy, scenario), strategies))
    for strategy, models in zip(strategies, together, strict=True):
        assert np.array_equal(models, end(strategy, scenario_of(network=NETWORKS["waypoint"])[1]))


class OwnStrategy:
    def __init__(self, thresholds):
        self._thresholds = thresholds

    def thresholds(self, k, gamma, bandwidths, coins):
        return self._thresholds


@pytest.mark.parametrize(
    ("thresholds", "found"),
    [
        (np.full(10, np.nan), "NaN"),
        ([1.0] * 9 + [np.nan], "NaN"),
        (np.ones(9), r"float64 of shape \(9,\)"),
        (np.ones((10, 1)), r"float64 of shape \(10, 1\)"),
        (np.ones(10, complex), "complex128"),
        (["a"] * 10, "<U1"),
        (np.ones(10, bool), "bool"),
        (None, "object"),
        ([[1.0], [1.0, 2.0]], "NumPy cannot read"),
    ],
)
def test_thresholds_that_are_not_numbers_for_all_devices_name_the_strategy(thresholds, found):
    _, scenario = scenario_of()
    with pytest.raises(InputError, match=f"^strategy OwnStrategy: cannot use .*{found}") as error:
        PaperLockstep(scenario, OwnStrategy(thresholds)).advance(scenario.initial_state())
    assert "\n" not in str(error.value)


def test_a_strategy_may_give_one_threshold_for_all_and_whole_numbers():
    _, scenario = scenario_of()
    ends = []
    for thresholds in (0, np.zeros(10, int), np.float32(0), [0.0] * 10):
        state, steps = PaperLockstep(scenario, OwnStrategy(thresholds)).advance(scenario.initial_state())
        assert steps.fired.all()
        ends.append(state.models)
    assert all(np.array_equal(ends[0], other) for other in ends[1:])


@pytest.mark.parametrize("fuse_up_to", [0, 10**9])
def test_a_run_holds_three_arrays_and_a_batch(fuse_up_to):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (2000, 784), dtype=np.uint8), np.arange(2000) % 10
    experiment = Experiment(data=efhc.Dataset(x, y, x, y), devices=200, partition=efhc.IID(), batch_size=8)
    scenario = draw_scenario(experiment, load_data(experiment), 0)
    one_array = 200 * 7850 * 4
    warm = PaperLockstep(scenario, experiment.strategies["ZT"], fuse_up_to=fuse_up_to)
    warm.advance(scenario.initial_state())  # compiling needs memory too
    del warm
    tracemalloc.start()
    driver = PaperLockstep(scenario, experiment.strategies["ZT"], fuse_up_to=fuse_up_to)
    state = scenario.initial_state()
    for _ in range(3):
        state, _ = driver.advance(state)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 3 * one_array <= peak < 3.5 * one_array


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize(("backend", "other"), [("compiled", "loop"), ("stacked", "loop"), ("loop", "stacked")])
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


@pytest.mark.parametrize("strategy", ["EF-HC", "ZT", "RG"])
def test_iterations_in_the_cache_and_in_passes_have_the_same_bits(strategy):
    experiment, scenario = scenario_of()
    found = []
    for fuse_up_to in (lockstep.IN_CACHE, 0):
        driver = PaperLockstep(scenario, experiment.strategies[strategy], 2, fuse_up_to=fuse_up_to)
        state, told = driver.initial_state(), []
        while state.k < 40:
            state, steps = driver.advance(state, 40 - state.k)
            told += zip(steps.fired, steps.losses, steps.consensus_errors, strict=True)
        found.append((state.models.copy(), state.last_broadcast.copy(), told))
    (models, last_broadcast, told), (others, their_last, others_told) = found
    assert np.array_equal(models, others)
    assert np.array_equal(last_broadcast, their_last)
    for mine, theirs in zip(told, others_told, strict=True):
        assert all(np.array_equal(one, other) for one, other in zip(mine, theirs, strict=True))
