"""The driver of all strategies against the law in plain loops, over every combination of parts that has a meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import plain_law as plain
import pytest
from compositions import NETWORKS, Case, PlainRun, cases
from hypothesis import given, settings

import efhc
from efhc.core.graph import Graph
from efhc.drivers.general import GeneralLockstep

ITERATIONS = 8


def follow(case: Case, iterations: int, tolerance: float, built_in: Any = None) -> None:
    """Make every iteration twice, by the driver and in plain loops, and compare all that there is to compare.

    The driver is given the strategy of the case, or one that is built in and shall be the same.
    """
    scenario, (strategy, witness) = case.scenario(), (built_in, None) if built_in else case.witnessed()
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
    if strategy.mixing == "half-steps":
        pairs = list(zip(graph.directed.sender.tolist(), graph.directed.receiver.tolist(), strict=True))
        if "known" in state.memory:
            found = state.memory["known"]
        else:  # one for all neighbours: links that are never used do not count
            mine = [
                e for e, (i, j) in enumerate(pairs) if loops.active is None or (min(i, j), max(i, j)) in loops.active
            ]
            pairs, found = [pairs[e] for e in mine], state.last_broadcast[graph.directed.sender[mine]]
        if pairs:
            wanted["known"] = found, [devices.known[pair] for pair in pairs]
        wanted["steps"] = state.memory["steps"], devices.steps
        if "link_correction" in state.memory and pairs:
            wanted["link_correction"] = (
                state.memory["link_correction"],
                [devices.taught[pair] for pair in pairs],
            )
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


# What is built in, as its paper or the table of strategies in the documentation says it


def estimates(rate: float, when: str = "always", every: int = 1) -> dict[str, Any]:
    return {"kind": "estimates", "rate": rate, "when": when, "every": every}


def half_steps(rate: float) -> dict[str, Any]:
    return {"kind": "half-steps", "rate": rate}


def corrected(correction: float, momentum: float = 0.0) -> dict[str, Any]:
    return {"kind": "corrected", "correction": correction, "momentum": momentum}


THREE_BITS, TENTH = {"kind": "levels", "bits": 3}, {"kind": "top-k", "share": 0.1}
ENTRYWISE = {"trigger": {"kind": "entrywise", "r": 1000.0}, "codec": THREE_BITS}
PAPERS = {"kind": "norm", "r": 250.0}
SGD, MOMENTUM, ALWAYS = {"kind": "sgd"}, {"kind": "momentum", "momentum": 0.9}, {"kind": "always"}

BUILT_IN = {
    "entrywise": (
        efhc.Entrywise(rate=0.125, correction=0.1),
        {**ENTRYWISE, "local": corrected(0.1), "mixing": half_steps(0.125)},
    ),
    "entrywise with momentum": (
        efhc.Entrywise(momentum=0.9, rate=0.125, correction=0.01),
        {**ENTRYWISE, "local": corrected(0.01, 0.9), "mixing": half_steps(0.125)},
    ),
    "entrywise with a budget": (
        efhc.Entrywise(budget={"share": 0.02}, rate=0.5, correction=0.1),
        {**ENTRYWISE, "local": corrected(0.1), "mixing": half_steps(0.5), "budget": {"share": 0.02}},
    ),
    "one-way": (
        efhc.OneWay(r=2500.0, rate=0.5, correction=0.3),
        {"local": corrected(0.3), "trigger": {**PAPERS, "r": 2500.0}, "mixing": half_steps(0.5)},
    ),
    "one-way with levels": (
        efhc.OneWay(r=2500.0, rate=0.5, correction=0.3, bits=3),
        {"local": corrected(0.3), "trigger": {**PAPERS, "r": 2500.0}, "codec": THREE_BITS, "mixing": half_steps(0.5)},
    ),
    "CHOCO-SGD": (
        efhc.ChocoSGD(codec=TENTH, momentum=0.9, rate=0.3),
        {"local": MOMENTUM, "trigger": ALWAYS, "codec": TENTH, "mixing": estimates(0.3)},
    ),
    "SPARQ-SGD": (
        efhc.SparqSGD(codec={"kind": "sign"}, every=3, rate=0.3),
        {
            "local": SGD,
            "trigger": {**PAPERS, "rho": "nominal", "every": 3},
            "codec": {"kind": "sign"},
            "mixing": estimates(0.3, every=3),
        },
    ),
    "D2": (efhc.ExactDiffusion(), {"local": corrected(1.0), "trigger": ALWAYS, "mixing": estimates(1.0)}),
}
FIELDS: dict[str, Any] = {
    "devices": 6,
    "model": {"kind": "softmax"},
    "partition": {"kind": "labels"},
    "batch_size": 4,
    "precision": "float64",
    "initial_models": {"kind": "shared"},
}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", BUILT_IN)
def test_what_is_built_in_follows_its_law_for_long(name, network):
    built_in, parts = BUILT_IN[name]
    case = Case({"links": {"kind": "all"}, **parts}, {**FIELDS, "network": NETWORKS[network]})
    follow(case, 30, 1e-9, built_in)


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_exact_diffusion_is_the_recursion_of_its_paper(rate):
    """x(k+1) = W (2 x(k) - x(k-1) - alpha (g(k) - g(k-1))), which knows of no correction h."""
    case = Case({}, {**FIELDS, "batch_size": "full", "step_size": {"kind": "constant", "value": 0.05}})
    scenario = case.scenario(strategies={"D2": efhc.ExactDiffusion(rate=rate)})
    graph = scenario.graphs(0)[1]
    laplacian = np.zeros((6, 6))
    for (i, j), beta in zip(graph.links.tolist(), graph.metropolis_weights, strict=True):
        laplacian[[i, j], [i, j]] += beta
        laplacian[[i, j], [j, i]] -= beta
    mixing = np.eye(6) - rate * laplacian

    def gradients(models: np.ndarray, k: int) -> np.ndarray:
        found = np.empty_like(models)
        scenario.learner.backend.grads(models, scenario.reader().batch(k), {}, found)
        return found

    driver = GeneralLockstep(scenario, efhc.ExactDiffusion(rate=rate))
    state = driver.initial_state()
    x, before, g_before = state.models.copy(), None, None
    for k in range(25):
        g = gradients(x, k)
        ahead = x - 0.05 * g if before is None else 2 * x - before - 0.05 * (g - g_before)
        x, before, g_before = mixing @ ahead, x, g
        state, _ = driver.advance(state, 1)
        np.testing.assert_allclose(state.models, x, rtol=0, atol=1e-11)


@pytest.mark.slow  # torch is imported
@pytest.mark.parametrize("name", ["entrywise with momentum", "one-way"])
def test_networks_follow_it_too(name):
    fields = {**FIELDS, "network": NETWORKS["random links"], "model": {"kind": "mlp", "hidden": [3]}}
    built_in, parts = BUILT_IN[name]
    follow(Case({"links": {"kind": "all"}, **parts}, fields), 10, 1e-9, built_in)
