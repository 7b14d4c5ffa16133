"""Laws of every combination of parts, whatever is compressed, lost or paid for."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from compositions import Case, cases
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import assert_same_state, copied
from resuming import assert_same_bits_if_stopped_after

import efhc
from efhc.drivers.general import GeneralLockstep
from efhc.experiments.runs.run import Runs
from efhc.scenarios.scenario import Scenario

ITERATIONS = 8
SOME = settings(max_examples=settings().max_examples // 4)
"""A quarter of the examples, where each of them takes longer."""


def states_of(case: Case, scenario: Scenario, most: int = 1, threads: int = 1) -> list[Any]:
    """Copies of the states between calls of `advance`."""
    driver = GeneralLockstep(scenario, case.strategy(), threads=threads, loss=case.loss)
    state = driver.initial_state()
    states = [copied(state)]
    while state.k < ITERATIONS:
        state, _ = driver.advance(state, min(most, ITERATIONS - state.k))
        states.append(copied(state))
    return states


def stepped(case: Case, scenario: Scenario, state: Any) -> np.ndarray:
    """y_i = x_i - alpha (mu gate_i m_i + g_i - h_i), up to what a link that has gone takes back of two h."""
    backend, gradients = scenario.learner.backend, np.empty_like(state.models)
    backend.grads(state.models, scenario.reader().batch(state.k), state.local, gradients)
    mu = case.parts["local"].get("momentum", 0.0)
    m, h = state.memory.get("momentum", 0.0), state.memory.get("correction", 0.0)
    gate, degrees = np.ones((len(gradients), 1)), scenario.graphs(state.k)[1].degrees
    if "steps" in state.memory:
        gate[degrees > 0, 0] = np.minimum(1, state.memory["steps"][degrees > 0] / degrees[degrees > 0])
    return state.models - scenario.step_size(state.k) * (mu * gate * m + gradients - h)


# What is conserved


@given(cases())
def test_mixing_never_moves_the_mean(case):
    scenario = case.scenario()
    states = states_of(case, scenario)
    for before, after in pairwise(states):
        y = stepped(case, scenario, before)
        mixed = after.models - y
        scale = max(1.0, np.abs(y).max())
        assert np.abs(mixed.sum(axis=0)).max() <= 1e-13 * len(y) * scale


@given(cases().filter(lambda case: case.parts["local"]["kind"] == "corrected"))
def test_the_corrections_of_all_devices_add_up_to_zero(case):
    for state in states_of(case, case.scenario()):
        h = state.memory["correction"]
        assert np.abs(h.sum(axis=0)).max() <= 1e-12 * max(np.abs(h).sum(), 1.0)


LONG = [
    {"kind": "exchange"},
    {"kind": "half-steps", "rate": 0.25},
    {"kind": "estimates", "rate": 0.5, "when": "sent"},
]


@pytest.mark.parametrize("mixing", LONG, ids=str)
def test_over_a_long_run_in_single_precision_the_corrections_add_up_to_rounding(mixing):
    parts = {"local": {"kind": "corrected", "correction": 0.1}, "trigger": {"kind": "norm"}, "mixing": mixing}
    case = Case(parts, {"devices": 6, "batch_size": 4, "partition": {"kind": "labels"}})
    scenario = case.scenario()
    driver = GeneralLockstep(scenario, case.strategy())
    state = driver.initial_state()
    while state.k < 2000:
        state, _ = driver.advance(state, 2000 - state.k)
    h = state.memory["correction"].astype(np.float64)
    assert 0.01 < np.abs(h).max() < 10
    assert np.abs(h.sum(axis=0)).max() < 2e-5 * np.abs(h).max()


@given(cases(lossy=True))
def test_lost_messages_do_not_move_the_mean_either(case):
    """Over all iterations: without gradients the mean is at the end what it was at first."""
    scenario = case.scenario(step_size=lambda k: 1e-300, threshold_decay={"kind": "diminishing"})
    first, *_, last = states_of(case, scenario)
    assert np.abs(last.models.mean(axis=0) - first.models.mean(axis=0)).max() < 1e-13


@given(cases())
@SOME
def test_without_gradients_models_do_not_move_apart(case):
    """Mixing with weights of Metropolis is an average, so the spread of what was sent exactly cannot grow.

    Half-steps use what was known before as well. So the spread may grow for a while, but not above what it was.
    """
    exact = {**case.parts, "codec": {"kind": "full"}, "trigger": {"kind": "always"}, "local": {"kind": "sgd"}}
    assume("budget" not in case.parts)
    case = case._replace(parts=exact, fields={name: v for name, v in case.fields.items() if name != "driver"})
    scenario = case.scenario(step_size=lambda k: 1e-300)
    spreads = [np.square(state.models - state.models.mean(axis=0)).sum() for state in states_of(case, scenario)]
    if exact["mixing"]["kind"] == "half-steps":
        assert max(spreads) <= spreads[0] * (1 + 1e-12) + 1e-30
    else:
        assert all(b <= a * (1 + 1e-12) + 1e-30 for a, b in pairwise(spreads))


# What does not matter


@given(cases(), st.integers(2, ITERATIONS))
@SOME
def test_neither_threads_nor_cuts_change_a_bit(case, most):
    whole = states_of(case, case.scenario())[-1]
    assert_same_state(states_of(case, case.scenario(), most)[-1], whole)
    assert_same_state(states_of(case, case.scenario(threads=2), most, threads=2)[-1], whole)


@given(cases(), st.integers(1, ITERATIONS - 1))
@SOME
def test_resumed_after_any_iteration_a_run_has_the_same_bits(tmp_path_factory, case, k):
    experiment = case.experiment(data=efhc.Digits(), test_samples=50, seeds=(case.seed,))
    (run,) = Runs().of(experiment)
    assert_same_bits_if_stopped_after(k, run, tmp_path_factory.mktemp("runs"))


# What is sent


def test_every_message_gets_lost_with_the_same_probability_independently_of_the_others():
    sgd = {"local": {"kind": "sgd"}, "trigger": {"kind": "always"}}
    corrected = {"local": {"kind": "corrected"}, "trigger": {"kind": "norm"}}
    fields = {"devices": 6, "batch_size": 4, "network": {"kind": "ring"}, "driver": {"kind": "lockstep", "loss": 0.3}}
    seen = []
    for parts in (sgd, corrected):
        exchange = {**parts, "mixing": {"kind": "exchange"}, "links": {"kind": "all"}}
        case = Case(exchange, {**fields, "partition": {"kind": "iid"}})
        scenario, (strategy, witness) = case.scenario(), case.witnessed()
        driver = GeneralLockstep(scenario, strategy, loss=0.3)
        state, lost = driver.initial_state(), []
        pairs = [(i, (i + step) % 6) for i in range(6) for step in (1, -1)]
        for _ in range(500):
            state, _ = driver.advance(state, 1)
            lost.append([pair in witness.lost for pair in pairs])
        seen.append(np.array(lost))
    assert np.array_equal(*seen)  # all strategies meet the same losses
    draws = seen[0]
    deviation = np.sqrt(0.3 * 0.7 / 500)
    assert np.abs(draws.mean(axis=0) - 0.3).max() < 5 * deviation
    correlations = np.corrcoef(np.hstack([draws[1:], draws[:-1]]).T) - np.eye(2 * len(pairs))
    assert np.abs(correlations).max() < 5 / np.sqrt(499)


# What is paid


SPENDING = {
    "exchange": {"mixing": {"kind": "exchange"}},
    "estimates": {"mixing": {"kind": "estimates"}},
    "half-steps": {"mixing": {"kind": "half-steps"}},
    "levels": {"mixing": {"kind": "half-steps"}, "codec": {"kind": "levels", "bits": 3}},
    "single links": {"mixing": {"kind": "half-steps"}, "links": {"kind": "sampled", "probability": 0.99}},
}


@given(st.sampled_from(sorted(SPENDING)), st.floats(0.01, 1.0), st.integers(4, 8), st.integers(0, 99))
@SOME
def test_a_budget_is_never_overspent_and_all_but_a_message_is_spent(name, share, devices, seed):
    share = share / 5 if name == "levels" else share  # their messages are short, and all could be paid for
    parts = {**SPENDING[name], "trigger": {"kind": "always"}, "budget": {"share": share}}
    shared = {"initial_models": {"kind": "shared"}, "partition": {"kind": "iid"}}
    fields = {"devices": devices, "batch_size": 4, **shared}
    case = Case({"local": {"kind": "sgd"}, **parts}, fields, seed)
    scenario = case.scenario()
    graph, n = scenario.graphs(0)[1], scenario.learner.backend.parameters
    driver = GeneralLockstep(scenario, case.strategy())
    state, spent, largest = driver.initial_state(), np.zeros(devices), 0.0
    for k in range(30):
        state, steps = driver.advance(state, 1)
        paid = np.bincount(graph.directed.sender, steps.bits[0], devices) / graph.degrees
        spent, largest = spent + paid, max(largest, paid.max())
        assert (spent <= share * 32 * n * (k + 1) * (1 + 1e-12)).all()
    if largest:
        assert (spent > share * 32 * n * 30 - largest - share * 32 * n).all()
