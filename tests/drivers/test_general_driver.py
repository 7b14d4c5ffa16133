"""The driver of all strategies: what it raises, what it leaves, and what it does not look at in advance."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

import efhc
from efhc.core.state import Diverged
from efhc.drivers.general import GeneralLockstep, driver_for
from efhc.drivers.lockstep import Lockstep
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.runs.draw import draw_scenario
from efhc.experiments.runs.run import Runs

STRATEGIES = ("entrywise", "one-way", "choco", "sparq", "beer", "d2", "dsgt", "relay", "matcha", "central")


def scenario_of(**fields):
    experiment = Experiment(devices=6, iterations=20, seeds=0, network=efhc.Ring(), **fields)
    return draw_scenario(experiment, Runs().inputs(experiment).data, 0)


def copy_of(state):
    memory = {name: array.copy() for name, array in state.memory.items()}
    return state._replace(models=state.models.copy(), last_broadcast=state.last_broadcast.copy(), memory=memory)


def assert_equal(state, other):
    assert state.k == other.k
    assert np.array_equal(state.models, other.models)
    assert np.array_equal(state.last_broadcast, other.last_broadcast)
    assert state.memory.keys() == other.memory.keys()
    assert all(np.array_equal(state.memory[name], other.memory[name]) for name in state.memory)


class Interrupted:
    """A backend that is interrupted in its n-th call, once."""

    def __init__(self, backend, calls, error):
        self._backend, self._left, self._error = backend, calls, error

    def __getattr__(self, name):
        return getattr(self._backend, name)

    def grads(self, *arguments):
        self._left -= 1
        if self._left == 0:
            raise self._error
        return self._backend.grads(*arguments)


@pytest.mark.parametrize("kind", STRATEGIES)
@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("out of memory")], ids=["interrupt", "error"])
def test_what_is_raised_between_two_iterations_leaves_all_those_before_it(kind, error):
    strategy = Experiment(strategies={"S": kind}).strategies["S"]
    scenario = scenario_of()
    whole = GeneralLockstep(scenario, strategy)
    expected, _ = whole.advance(whole.initial_state(), 4)
    expected = copy_of(expected)

    driver = GeneralLockstep(scenario, strategy)
    driver._backend = Interrupted(scenario.learner.backend, 5, error)
    state, steps = driver.advance(driver.initial_state(), 10)
    assert (state.k, len(steps)) == (4, 4)
    with pytest.raises(type(error)):
        driver.advance(state, 10)
    assert_equal(state, expected)
    state, _ = driver.advance(state, 6)
    others, _ = whole.advance(whole.advance(whole.initial_state(), 4)[0], 6)
    assert_equal(state, others)


@pytest.mark.parametrize("kind", ["entrywise", "one-way", "d2"])
def test_an_iteration_that_diverges_changes_nothing(kind):
    strategy = Experiment(strategies={"S": kind}).strategies["S"]
    scenario = scenario_of(step_size=efhc.Constant(value=1e25), model=efhc.LeastSquares())
    driver = GeneralLockstep(scenario, strategy)
    state = driver.initial_state()
    for _ in range(20):
        before = copy_of(state)
        try:
            state, _ = driver.advance(state, 1)
        except Diverged:
            break
    else:
        pytest.fail("it did not diverge")
    assert_equal(state, before)


def test_only_what_differs_from_the_papers_form_has_the_general_driver():
    scenario = scenario_of()
    for kind in ("ef-hc", "gt", "zt", "rg", "never", "periodic", {"kind": "composed", "trigger": "always"}):
        strategy = Experiment(strategies={"S": kind}).strategies["S"]
        assert isinstance(driver_for(scenario, strategy), Lockstep)
        assert isinstance(driver_for(scenario, strategy, loss=0.5), GeneralLockstep)
    for kind in STRATEGIES:
        assert isinstance(driver_for(scenario, Experiment(strategies={"S": kind}).strategies["S"]), GeneralLockstep)


@pytest.mark.parametrize("kind", ["ef-hc", "gt", "zt", "rg", "never", "periodic"])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_the_general_law_of_the_papers_strategies_is_the_papers(kind, precision):
    strategy = Experiment(strategies={"S": kind}).strategies["S"]
    scenario = scenario_of(precision=precision, exchange_at_start=True)
    papers, general = driver_for(scenario, strategy), GeneralLockstep(scenario, strategy)
    expected, steps = papers.advance(scenario.initial_state(), 20)
    state, others = general.advance(general.initial_state(), 20)
    assert np.array_equal(steps.fired, others.fired)
    assert np.array_equal(steps.used, others.used)
    tolerance = 1e-6 if precision == "float32" else 1e-14
    assert np.allclose(state.models, expected.models, rtol=tolerance, atol=tolerance)
    bandwidths, parameters = scenario.bandwidths.values, scenario.learner.backend.parameters
    times = steps.transmission_times(bandwidths, parameters)
    assert np.allclose(times, others.transmission_times(bandwidths, parameters), rtol=1e-12)


class Watching(efhc.Strategy):
    """Fires by what it has seen so far."""

    memory: ClassVar = {"asked": efhc.Memory(dtype="int64")}

    def fires(self, seen, memory):
        memory["asked"] += 1
        assert (memory["asked"] == seen.k + 1).all()  # asked once per iteration, in order
        return seen.losses > np.median(seen.losses)


def test_a_trigger_that_looks_is_asked_when_the_iteration_is_made():
    driver = GeneralLockstep(scenario_of(), Watching())
    state, steps = driver.advance(driver.initial_state(), 20)
    assert (state.memory["own/asked"] == state.k).all()
    assert np.array_equal(steps.fired, steps.losses > np.median(steps.losses, axis=1, keepdims=True))
