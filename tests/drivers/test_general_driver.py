"""The driver of all strategies: what it raises, what it leaves, and what it does not look at in advance."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
from problems import assert_same_state, copied

import efhc
from efhc.core.state import Diverged
from efhc.drivers.general import GeneralLockstep, driver_for
from efhc.drivers.lockstep import PaperLockstep
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.runs.draw import draw_scenario
from efhc.experiments.runs.run import Runs
from efhc.strategies.forms import form_of

STRATEGIES = ("entrywise", "one-way", "choco", "sparq", "beer", "d2", "dsgt", "relay", "matcha", "central")
SEVERAL_STEPS = efhc.Composed(local=efhc.Adam(steps=2, correction=0.1), trigger="always", mixing="half-steps")


def scenario_of(**fields):
    experiment = Experiment(devices=6, iterations=20, seeds=0, network=efhc.Ring(), **fields)
    return draw_scenario(experiment, Runs().inputs(experiment).data, 0)


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


@pytest.mark.parametrize("kind", [*STRATEGIES, SEVERAL_STEPS], ids=[*STRATEGIES, "several local steps"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("out of memory")], ids=["interrupt", "error"])
def test_what_is_raised_between_two_iterations_leaves_all_those_before_it(kind, error):
    strategy = Experiment(strategies={"S": kind}).strategies["S"]
    calls = 2 if strategy == SEVERAL_STEPS else 1
    scenario = scenario_of()
    whole = GeneralLockstep(scenario, strategy)
    expected, _ = whole.advance(whole.initial_state(), 4)
    expected = copied(expected)

    driver = GeneralLockstep(scenario, strategy)
    driver._backend = Interrupted(scenario.learner.backend, 5 * calls, error)
    state, steps = driver.advance(driver.initial_state(), 10)
    assert (state.k, len(steps)) == (4, 4)
    with pytest.raises(type(error)):
        driver.advance(state, 10)
    assert_same_state(state, expected)
    state, _ = driver.advance(state, 6)
    others, _ = whole.advance(whole.advance(whole.initial_state(), 4)[0], 6)
    assert_same_state(state, others)


@pytest.mark.parametrize("kind", ["entrywise", "one-way", "d2"])
def test_an_iteration_that_diverges_changes_nothing(kind):
    strategy = Experiment(strategies={"S": kind}).strategies["S"]
    scenario = scenario_of(step_size=efhc.Constant(value=1e25), model=efhc.LeastSquares())
    driver = GeneralLockstep(scenario, strategy)
    state = driver.initial_state()
    for _ in range(20):
        before = copied(state)
        try:
            state, _ = driver.advance(state, 1)
        except Diverged:
            break
    else:
        pytest.fail("it did not diverge")
    assert_same_state(state, before)


def test_only_what_differs_from_the_papers_form_has_the_general_driver():
    scenario = scenario_of()
    for kind in ("ef-hc", "gt", "zt", "rg", "never", "periodic", {"kind": "composed", "trigger": "always"}):
        strategy = Experiment(strategies={"S": kind}).strategies["S"]
        assert isinstance(driver_for(scenario, strategy), PaperLockstep)
        assert isinstance(driver_for(scenario, strategy, loss=0.5), GeneralLockstep)
    for kind in STRATEGIES:
        assert isinstance(driver_for(scenario, Experiment(strategies={"S": kind}).strategies["S"]), GeneralLockstep)


@pytest.mark.parametrize("kind", ["ef-hc", "gt", "zt", "rg", "never", "periodic"])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_the_general_law_of_the_papers_strategies_has_the_bits_of_the_papers(kind, precision):
    """Also for long: a last bit would decide who fires, sooner or later."""
    strategy = Experiment(strategies={"S": kind}).strategies["S"]
    scenario = scenario_of(precision=precision, exchange_at_start=True)
    papers, general = driver_for(scenario, strategy), GeneralLockstep(scenario, strategy)
    expected, state = scenario.initial_state(), general.initial_state()
    bandwidths, parameters = scenario.bandwidths.values, scenario.learner.backend.parameters
    for _ in range(32):
        expected, steps = papers.advance(expected, 16)
        state, others = general.advance(state, 16)
        assert np.array_equal(steps.fired, others.fired)
        assert np.array_equal(steps.used, others.used)
        assert np.array_equal(steps.losses, others.losses)
        assert np.array_equal(state.models, expected.models)
        assert np.array_equal(state.last_broadcast, expected.last_broadcast)
        times = steps.transmission_times(bandwidths, parameters)
        assert np.allclose(times, others.transmission_times(bandwidths, parameters), rtol=1e-12)
    assert state.k == expected.k == 512


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


# What the user's own code may do


class Remembering(efhc.Strategy):
    """Descends along the mean of this gradient and the last one, which it remembers by assignment."""

    memory: ClassVar = {"last": efhc.Memory(size="model")}

    def step(self, now, models, gradients, memory):
        direction = gradients if now.k == 0 else (gradients + memory["last"]) / 2
        memory["last"] = gradients
        return efhc.Moved(models - models.dtype.type(now.step_size) * direction, np.zeros(len(models)))


def test_what_is_remembered_by_assignment_is_what_was_assigned():
    scenario = scenario_of(precision="float64")
    driver, reader = GeneralLockstep(scenario, Remembering()), scenario.reader()
    state = driver.initial_state()
    x, last = state.models.copy(), None
    for k in range(5):
        gradients = np.empty_like(x)
        scenario.learner.backend.grads(x, reader.batch(k), {}, gradients)
        x = x - scenario.step_size(k) * (gradients if last is None else (gradients + last) / 2)
        last = gradients
        state, _ = driver.advance(state, 1)
        assert np.allclose(state.models, x, rtol=0, atol=1e-12)
        assert np.array_equal(state.memory["own/last"], gradients)


class WithMomentum(efhc.EventTriggered):
    """EF-HC with momentum: a subclass of a built-in strategy that changes its parts."""

    def parts(self):
        return efhc.Parts(super().parts().trigger, local=efhc.QuasiGlobalMomentum())


class Twice(efhc.EventTriggered):
    """EF-HC with twice the threshold: a subclass that changes its thresholds."""

    def thresholds(self, k, gamma, bandwidths, coins):
        return 2 * super().thresholds(k, gamma, bandwidths, coins)


class Both(efhc.Strategy):
    def parts(self):
        return efhc.Parts(self)

    def thresholds(self, k, gamma, bandwidths, coins):
        return np.zeros(len(bandwidths.values))


class Counting(efhc.LevelsCodec):
    """Levels, counted: a subclass of a built-in codec that changes what is sent."""

    calls: ClassVar[list] = []

    def send(self, model, known, threshold):
        self.calls.append(threshold)
        return super().send(model, known, threshold)


def test_a_subclass_of_what_is_built_in_is_used_as_it_is_written():
    assert form_of(WithMomentum()).parts.local.momentum == 0.9
    assert form_of(Twice(r=3.0)).parts.trigger == Twice(r=3.0)
    assert form_of(efhc.EventTriggered(r=3.0)).parts.trigger == efhc.NormTrigger(r=3.0)
    with pytest.raises(efhc.InputError, match="a class with parts and thresholds"):
        form_of(Both())
    strategy = efhc.Composed(trigger="always", codec=Counting(), mixing="estimates")
    driver = GeneralLockstep(scenario_of(), strategy)
    driver.advance(driver.initial_state(), 3)
    assert len(Counting.calls) == 3 * 6


class Codec:
    def __init__(self, answer):
        self._answer = answer

    def send(self, model, known, threshold):
        return self._answer(model, known)


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (lambda model, known: (model, -1), "-1 bits"),
        (lambda model, known: (model, 2.5), "2.5 bits"),
        (lambda model, known: (model[0], 32), "of shape ()"),
        (lambda model, known: (model * np.nan, 32), "NaN"),
        (lambda model, known: 1 / 0, "ZeroDivisionError"),
        (lambda model, known: (known.__iadd__(1), 32), "read-only"),
    ],
)
def test_what_an_own_codec_returns_is_checked(answer, what):
    driver = GeneralLockstep(scenario_of(), efhc.Composed(trigger="always", codec=Codec(answer), mixing="estimates"))
    with pytest.raises(efhc.InputError, match=r"^(codec Codec: |your codec Codec )") as caught:
        driver.advance(driver.initial_state(), 1)
    assert what in str(caught.value)


class Links:
    is_fixed = True

    def __init__(self, answer):
        self._answer = answer

    def choose(self, now):
        return efhc.ChosenLinks(*self._answer(np.ones(len(now.graph.links), dtype=bool)))


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (lambda every: (every[:1],), "of shape (1,)"),
        (lambda every: (every.astype(int),), "int64"),
        (lambda every: (every, 5.0 * every), "from 0 to 1"),
        (lambda every: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_what_an_own_choice_of_links_returns_is_checked(answer, what):
    driver = GeneralLockstep(scenario_of(), efhc.Composed(trigger="always", links=Links(answer)))
    with pytest.raises(efhc.InputError, match=r"^(links Links: |your links Links )") as caught:
        driver.advance(driver.initial_state(), 1)
    assert what in str(caught.value)


def test_a_state_that_was_used_up_is_refused():
    driver = GeneralLockstep(scenario_of(), efhc.Entrywise())
    first = driver.initial_state()
    second, _ = driver.advance(first, 1)
    driver.advance(second, 1)
    with pytest.raises(ValueError, match="used up"):
        driver.advance(first, 1)


@pytest.mark.parametrize("kind", ["one-way", "entrywise", {"kind": "entrywise", "momentum": 0.9}], ids=str)
def test_links_that_come_and_go_do_not_teach_devices_too_much(kind):
    """A link that is back after a long time must not teach the difference of many steps as if it were that of one."""
    strategy = Experiment(strategies={"S": kind}).strategies["S"]
    network = efhc.RandomLinks(up_probability=0.1, topology=efhc.Complete())
    experiment = Experiment(devices=6, seeds=0, network=network, step_size=efhc.Constant(value=0.01))
    scenario = draw_scenario(experiment, Runs().inputs(experiment).data, 0)
    driver = GeneralLockstep(scenario, strategy)
    state = driver.initial_state()
    while state.k < 1000:
        state, steps = driver.advance(state, 1000 - state.k)
    assert steps.consensus_errors[-1] < 10


def test_parts_without_a_codec_send_whole_models():
    class Whole(efhc.Strategy):
        def parts(self):
            return efhc.Parts(efhc.AlwaysTrigger(), mixing=efhc.EstimatesMixing())

    driver = GeneralLockstep(scenario_of(initial_models="shared"), Whole())
    state, steps = driver.advance(driver.initial_state(), 1)
    assert (steps.bits == 8 + 32 * state.models.shape[1]).all()
