"""The driver of all strategies against the law in plain loops, over every combination of parts that has a meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import plain_law as plain
import pytest
from compositions import NETWORKS, Case, PlainRun, cases
from hypothesis import given, settings

from efhc.core.graph import Graph
from efhc.drivers.general import GeneralLockstep

ITERATIONS = 8


def follow(case: Case, iterations: int, tolerance: float) -> None:
    """Make every iteration twice, by the driver and in plain loops, and compare all that there is to compare."""
    scenario, (strategy, witness) = case.scenario(), case.witnessed()
    driver, loops = GeneralLockstep(scenario, strategy, loss=case.loss), PlainRun(case, scenario)
    state = driver.initial_state()
    for k in range(iterations):
        graph = scenario.graphs(k)[1]
        state, steps = driver.advance(state, 1)
        done = loops.step(witness.active, witness.weights, witness.lost) if witness else loops.step()
        assert (state.k, len(steps)) == (k + 1, 1)
        assert set(np.flatnonzero(steps.fired[0]).tolist()) == done.fired
        assert bits_by_pair(graph, steps.bits[0]) == done.bits
        compare(state, loops, graph, tolerance)


def bits_by_pair(graph: Graph, bits: np.ndarray) -> dict[plain.Pair, int]:
    pairs = zip(graph.directed.sender.tolist(), graph.directed.receiver.tolist(), strict=True)
    return dict(zip(pairs, bits.tolist(), strict=True))


def compare(state: Any, loops: PlainRun, graph: Graph, tolerance: float) -> None:
    devices, strategy = loops.devices, loops.strategy
    everyone = range(len(devices.models))
    wanted = {"models": (state.models, devices.models)}
    if strategy.mixing == "estimates" and strategy.per == "link":
        pairs = list(zip(graph.directed.sender.tolist(), graph.directed.receiver.tolist(), strict=True))
        told = [e for e, pair in enumerate(pairs) if pair not in devices.unknown]
        if told:
            wanted["estimates"] = state.memory["estimates"][told], [devices.known[pairs[e]] for e in told]
    else:
        wanted["x_hat"] = state.last_broadcast, [devices.known[i, i] for i in everyone]
    if strategy.momentum:
        wanted["m"] = state.memory["momentum"], devices.momenta
    if strategy.correction:
        wanted["h"] = state.memory["correction"], devices.corrections
    if strategy.budget is not None:
        wanted["credit"] = state.memory["credit"], devices.credit
    for name, (found, expected) in wanted.items():
        np.testing.assert_allclose(found, np.array(expected), rtol=tolerance, atol=tolerance, err_msg=name)


@given(cases())
def test_the_driver_follows_the_plain_law(case):
    follow(case, ITERATIONS, 1e-10)


@given(cases())
@settings(max_examples=settings().max_examples // 3)
def test_in_single_precision_a_step_is_that_of_the_law_up_to_rounding(case):
    follow(case._replace(fields={**case.fields, "precision": "float32"}), 1, 1e-5)


PAPERS = {"kind": "norm", "r": 600.0, "rho": "own"}
ONE_WAY = {"kind": "estimates", "rate": 1.0, "per": "device", "when": "sent"}
WHOLE = {
    "entrywise": {
        "local": {"kind": "corrected", "correction": 0.1, "momentum": 0.0},
        "trigger": {"kind": "entrywise", "r": 1000.0},
        "codec": {"kind": "levels", "bits": 3},
        "mixing": {"kind": "estimates", "rate": 0.25, "per": "device", "when": "always"},
    },
    "entrywise with momentum and losses": {
        "local": {"kind": "corrected", "correction": 0.01, "momentum": 0.9},
        "trigger": {"kind": "entrywise", "r": 1000.0},
        "codec": {"kind": "levels", "bits": 3},
        "mixing": {"kind": "estimates", "rate": 0.25, "per": "link", "when": "always"},
    },
    "EF-HC one-way": {
        "local": {"kind": "corrected", "correction": 0.3, "momentum": 0.0},
        "trigger": PAPERS,
        "mixing": ONE_WAY,
    },
    "EF-HC with momentum": {
        "local": {"kind": "momentum", "momentum": 0.9},
        "trigger": PAPERS,
        "mixing": {"kind": "exchange"},
    },
}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", WHOLE)
def test_those_that_are_built_in_follow_it_for_long(name, network):
    fields: dict[str, Any] = {
        "devices": 6,
        "network": NETWORKS[network],
        "model": {"kind": "softmax"},
        "partition": {"kind": "labels"},
        "batch_size": 4,
        "precision": "float64",
        "initial_models": {"kind": "shared"},
    }
    if "losses" in name:
        fields["driver"] = {"kind": "lockstep", "loss": 0.2}
    follow(Case({"links": {"kind": "all"}, **WHOLE[name]}, fields), 60, 1e-9)


@pytest.mark.slow  # torch is imported
@pytest.mark.parametrize("name", ["entrywise with momentum and losses", "EF-HC one-way"])
def test_networks_follow_it_too(name):
    fields: dict[str, Any] = {
        "devices": 5,
        "network": NETWORKS["random links"],
        "model": {"kind": "mlp", "hidden": [3]},
        "partition": {"kind": "iid"},
        "batch_size": 4,
        "precision": "float64",
    }
    if "losses" in name:
        fields["driver"] = {"kind": "lockstep", "loss": 0.2}
    follow(Case({"links": {"kind": "all"}, **WHOLE[name]}, fields), 10, 1e-9)
