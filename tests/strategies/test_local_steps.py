"""Local steps: alone they are PyTorch's optimisers, and with neighbours each goes with each link law."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from compositions import Case
from problems import copied

import efhc
from efhc.core.local_steps import LocalStep
from efhc.drivers.general import GeneralLockstep
from efhc.scenarios.scenario import Scenario
from efhc.strategies.composed import LOCAL_STEPS, MIXINGS

FIELDS: dict[str, Any] = {
    "devices": 5,
    "network": {"kind": "geometric", "radius": 0.6},
    "model": {"kind": "softmax"},
    "partition": {"kind": "labels"},
    "batch_size": 4,
    "precision": "float64",
    "initial_models": {"kind": "shared"},
    "step_size": {"kind": "diminishing", "initial": 0.05, "timescale": 10.0},
}
MIXED = {
    "exchange": {"kind": "exchange"},
    "half-steps": {"kind": "half-steps", "rate": 0.5},
    "estimates": {"kind": "estimates", "rate": 0.5, "when": "sent"},
}


def case_of(local: Any, mixing: str, trigger: str, **fields: Any) -> Case:
    parts = {"local": local, "mixing": MIXED[mixing], "trigger": {"kind": trigger}, "links": {"kind": "all"}}
    return Case(parts, {**FIELDS, **fields})


# A device that never sends is an optimiser

OPTIMISERS: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "sgd": ({"kind": "sgd"}, "SGD", {}),
    "weight decay": ({"kind": "sgd", "weight_decay": 0.1}, "SGD", {"weight_decay": 0.1}),
    "heavy-ball": ({"kind": "heavy-ball", "momentum": 0.8}, "SGD", {"momentum": 0.8}),
    "heavy-ball with weight decay": (
        {"kind": "heavy-ball", "weight_decay": 0.1},
        "SGD",
        {"momentum": 0.9, "weight_decay": 0.1},
    ),
    "nesterov": ({"kind": "nesterov"}, "SGD", {"momentum": 0.9, "nesterov": True}),
    "adam": ({"kind": "adam"}, "Adam", {}),
    "adam with other numbers": (
        {"kind": "adam", "beta1": 0.5, "beta2": 0.9, "epsilon": 0.01, "weight_decay": 0.1},
        "Adam",
        {"betas": (0.5, 0.9), "eps": 0.01, "weight_decay": 0.1},
    ),
    "adamw": ({"kind": "adamw"}, "AdamW", {"weight_decay": 0.01}),
    "adamw with much decay": ({"kind": "adamw", "weight_decay": 0.5}, "AdamW", {"weight_decay": 0.5}),
}


def optimised(scenario: Scenario, optimiser: str, options: dict[str, Any], local: dict[str, Any], iterations: int):
    """The models of all devices, each moved by PyTorch with the gradients of its own batches."""
    import torch

    backend, reader, steps = scenario.learner.backend, scenario.reader(), local.get("steps", 1)
    models = [torch.from_numpy(row.copy()) for row in scenario.initial_models()]
    optimisers = [getattr(torch.optim, optimiser)([model], lr=1.0, **options) for model in models]
    for k in range(iterations):
        for s in range(steps):
            x = np.stack([model.numpy() for model in models])
            gradients = np.empty_like(x)
            backend.grads(x, reader.batch(k * steps + s), backend.initial_local(len(x)), gradients)
            for model, gradient, one in zip(models, gradients, optimisers, strict=True):
                clipped = min(1.0, local.get("clip", np.inf) / np.linalg.norm(gradient))
                model.grad = torch.from_numpy(clipped * gradient)
                one.param_groups[0]["lr"] = scenario.step_size(k)
                one.step()
    return np.stack([model.numpy() for model in models])


@pytest.mark.slow  # torch is imported
@pytest.mark.parametrize("extra", [{}, {"clip": 0.5}, {"steps": 3}, {"clip": 0.5, "steps": 2}], ids=str)
@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_device_that_never_sends_is_pytorchs_optimiser(name, extra):
    local, optimiser, options = OPTIMISERS[name]
    local = {**local, **extra}
    for mixing in MIXED:
        case = case_of(local, mixing, "never")
        scenario = case.scenario()
        driver = GeneralLockstep(scenario, case.strategy())
        state, _ = driver.advance(driver.initial_state(), 20)
        wanted = optimised(scenario, optimiser, options, local, state.k)
        assert state.k == 20
        assert np.abs(wanted - scenario.initial_models()).max() > 0.05
        np.testing.assert_allclose(state.models, wanted, rtol=0, atol=1e-12)


# With neighbours

KINDS: dict[str, dict[str, Any]] = {
    "sgd": {"kind": "sgd"},
    "momentum": {"kind": "momentum"},
    "corrected": {"kind": "corrected"},
    "corrected with momentum": {"kind": "corrected", "momentum": 0.9},
    "heavy-ball": {"kind": "heavy-ball"},
    "nesterov": {"kind": "nesterov"},
    "adam": {"kind": "adam"},
    "adamw": {"kind": "adamw"},
    "several steps": {"kind": "adam", "steps": 3},
    "several steps with momentum": {"kind": "momentum", "momentum": 0.9, "steps": 2},
    "clipped and decaying": {"kind": "momentum", "clip": 0.5, "weight_decay": 0.1},
}


def test_every_built_in_local_step_and_link_law_is_among_them():
    assert {local["kind"] for local in KINDS.values()} == LOCAL_STEPS.built_in().keys()
    assert MIXED.keys() == MIXINGS.built_in().keys()


@pytest.mark.parametrize("correction", [None, 0.2])
@pytest.mark.parametrize("network", [{"kind": "geometric", "radius": 0.6}, {"kind": "random-links"}], ids=str)
@pytest.mark.parametrize("mixing", MIXED)
@pytest.mark.parametrize("name", KINDS)
def test_links_move_neither_the_mean_model_nor_the_mean_correction(name, mixing, network, correction):
    """sum_i f_i = 0, where f_i = x_i - y_i, and y_i is where the same state leads if nobody sends anything."""
    local = KINDS[name] if correction is None else {**KINDS[name], "correction": correction}
    sends, silent = (case_of(local, mixing, trigger, network=network) for trigger in ("always", "never"))
    scenario = sends.scenario()
    driver, moved = GeneralLockstep(scenario, sends.strategy()), 0.0
    state = driver.initial_state()
    for _ in range(10):
        alone, _ = GeneralLockstep(scenario, silent.strategy()).advance(copied(state), 1)
        state, _ = driver.advance(state, 1)
        f = state.models - alone.models
        moved = max(moved, np.abs(f).max())
        assert np.abs(f.sum(axis=0)).max() < 1e-13
        if "correction" in state.memory:
            assert np.abs(state.memory["correction"].sum(axis=0)).max() < 1e-12
    assert moved > 1e-3
    assert ("correction" in state.memory) == (local.get("correction", 0) > 0 or local["kind"] == "corrected")
    if "correction" in state.memory:
        assert np.abs(state.memory["correction"]).max() > 1e-3


ON_CLOCKS = [(name, "half-steps") for name in KINDS]
ON_CLOCKS += [(name, "exchange") for name, local in KINDS.items() if local["kind"] != "corrected"]


@pytest.mark.parametrize(("name", "mixing"), ON_CLOCKS)
def test_on_clocks_of_their_own_that_agree_devices_have_the_bits_of_lockstep(name, mixing):
    case = case_of(KINDS[name], mixing, "always", iterations=12, seeds=0, precision="float32")
    together, apart = (
        efhc.simulate(case.experiment(), driver=driver)
        for driver in ({"kind": "lockstep"}, {"kind": "event-driven", "links": "instant"})
    )
    assert np.array_equal(together.models["S", 0], apart.models["S", 0])


class Late(LocalStep):
    """u is the gradient before this one: it remembers the array that it is given, and returns one that it remembers."""

    kind: Literal["late"] = "late"

    @property
    def memory(self):
        return ("last",)

    def direction(self, rows, gradient, moment):
        return rows["last"], {"last": gradient}


@pytest.mark.parametrize("mixing", MIXED)
def test_an_own_local_step_may_remember_the_arrays_that_it_is_given(mixing):
    case = case_of(Late(), mixing, "never")
    scenario = case.scenario()
    driver, backend, reader = GeneralLockstep(scenario, case.strategy()), scenario.learner.backend, scenario.reader()
    state = driver.initial_state()
    x = state.models.copy()
    last = np.zeros_like(x)
    for k in range(6):
        gradients = np.empty_like(x)
        backend.grads(x, reader.batch(k), backend.initial_local(len(x)), gradients)
        x, last = x - scenario.step_size(k) * last, gradients
        state, _ = driver.advance(state, 1)
        np.testing.assert_allclose(state.models, x, rtol=0, atol=1e-13)
        np.testing.assert_allclose(state.memory["last"], last, rtol=0, atol=1e-13)


# What is learned


@pytest.mark.parametrize("name", ["sgd", "heavy-ball", "adam"])
def test_the_drift_correction_brings_devices_together_whatever_the_local_step(name):
    """With one label each and a constant step, devices differ by their gradients for ever, unless h takes that over."""

    def spread(correction: float) -> float:
        local = {**KINDS[name], "correction": correction}
        step = {"kind": "constant", "value": 0.002 if name == "adam" else 0.02}
        case = case_of(local, "half-steps", "always", batch_size="full", step_size=step)
        scenario = case.scenario()
        driver = GeneralLockstep(scenario, case.strategy())
        state = driver.initial_state()
        while state.k < 1500:
            state, steps = driver.advance(state, 1500 - state.k)
        return float(steps.consensus_errors[-1])

    assert spread(0.2) < 0.01 * spread(0.0)
