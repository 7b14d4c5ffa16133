"""Personal models against plain loops that share no code, on every driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import independent as own
import numpy as np
import pytest
from test_nodes_agree import ended_lines

import efhc
from efhc.core.randomness import Randomness
from efhc.drivers.event_driven.simulator import Simulator
from efhc.drivers.general import driver_for
from efhc.drivers.observers import drive
from efhc.experiments.nodes.launch import launch
from efhc.experiments.runs.draw import draw_scenario, load_data
from efhc.scenarios.personal import personalized

DEVICES, ITERATIONS, SEED, ALPHA = 5, 20, 3, 0.05
FEATURES, CLASSES = 64, 10
WEIGHTS = CLASSES * FEATURES
FIELDS: dict[str, Any] = {
    "data": "digits",
    "model": efhc.Softmax(l2=0.01),
    "devices": DEVICES,
    "iterations": ITERATIONS,
    "evaluate_every": 10,
    "seeds": [SEED],
    "network": efhc.Geometric(radius=0.6),
    "precision": "float64",
    "step_size": efhc.Constant(value=ALPHA),
    "threshold_decay": efhc.Constant(value=0.1),
}
TRIGGERS = {"EF-HC": efhc.EventTriggered(r=20.0), "ZT": efhc.ZeroThreshold()}


def strategy(name: str, **personal: Any) -> Any:
    plain = TRIGGERS[name]
    return type(plain)(**{**dict(plain), "personal": personal})


def problem_of(scenario: Any) -> own.Problem:
    data = scenario.learner.data
    x, x_test = data.inputs(data.x_train), data.inputs(data.x_test)
    return own.Problem(
        x, data.y_train, x_test, data.y_test, [part.tolist() for part in scenario.learner.parts],
        scenario.initial_models(), own.static(scenario.network.graph(0).links.tolist()),
        scenario.bandwidths.values, scenario.bandwidths.nominal, own.constant(ALPHA), own.constant(0.1), ITERATIONS,
        model="softmax", l2=0.01,
    )  # fmt: skip


def gradients_of(problem: own.Problem, models: np.ndarray) -> np.ndarray:
    return np.array([
        own.loss_and_gradient(models[i], problem.x[part], problem.y[part], problem)[1]
        for i, part in enumerate(problem.parts)
    ])  # fmt: skip


def with_own_columns(problem: own.Problem, trigger: own.Trigger, shared: slice) -> tuple[np.ndarray, int]:
    """Alg. 1 for the shared columns, and SGD for all others. Returns W(K), and the number of messages."""
    w, m = problem.start.copy(), len(problem.parts)
    links, announced, messages = problem.graph(0), problem.start[:, shared].copy(), 0
    degree = [sum(i in link for link in links) for i in range(m)]
    n = w[0, shared].size
    for k in range(problem.iterations):
        drift = [float(np.sqrt(1 / n) * np.linalg.norm(w[i, shared] - announced[i])) for i in range(m)]
        fired = [i for i in range(m) if trigger(i, k, drift[i])]
        after = w - ALPHA * gradients_of(problem, w)
        for i in fired:
            announced[i] = w[i, shared]
        for i, j in sorted(links):
            if i in fired or j in fired:
                step = (w[j, shared] - w[i, shared]) / (1 + max(degree[i], degree[j]))
                after[i, shared] += step
                after[j, shared] -= step
                messages += 2
        w = after
    return w, messages


@pytest.mark.parametrize("name", TRIGGERS)
@pytest.mark.parametrize(
    ("personal", "shared"), [({"share": "weight"}, slice(0, WEIGHTS)), ({"keep": "w*"}, slice(WEIGHTS, None))]
)
def test_shared_columns_are_mixed_and_the_others_are_trained_alone(name, personal, shared):
    given = efhc.Experiment(**FIELDS, batch_size="full", strategies={name: strategy(name, **personal)})
    problem = problem_of(draw_scenario(given, load_data(given), SEED))
    trigger = own.ef_hc(problem, 20.0) if name == "EF-HC" else own.zero_threshold
    expected, messages = with_own_columns(problem, trigger, shared)
    assert messages > 0
    result = efhc.simulate(given)
    kept = np.delete(expected, np.arange(WEIGHTS + CLASSES)[shared], axis=1)
    np.testing.assert_allclose(result.models[name, SEED], expected[:, shared], rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(result.local[name, SEED]["personal/model"], kept, rtol=1e-9, atol=1e-11)
    scores = [
        own.scores(w, problem.x_test, CLASSES).argmax(axis=1) == problem.y_test
        for w in (*expected, expected.mean(axis=0))
    ]
    last = result.metrics.drop_nulls("accuracy").tail(1)
    assert last["accuracy"].item() == pytest.approx(np.mean(scores[:-1]), abs=1e-9)
    assert last["mean_model_accuracy"].item() == pytest.approx(np.mean(scores[-1]), abs=1e-9)
    assert 2 * result.events["link_from"].list.len().sum() == messages


def test_a_whole_strategy_sees_what_is_shared():
    fields = FIELDS | {"batch_size": "full", "initial_models": "per-device"}
    given = efhc.Experiment(**fields, strategies={"central": efhc.CentralSGD(personal={"keep": "bias"})})
    problem = problem_of(draw_scenario(given, load_data(given), SEED))
    expected = problem.start.copy()
    for _ in range(ITERATIONS):
        gradients = gradients_of(problem, expected)
        expected[:, WEIGHTS:] -= ALPHA * gradients[:, WEIGHTS:]
        expected[:, :WEIGHTS] = (expected - ALPHA * gradients)[:, :WEIGHTS].mean(axis=0)
    result = efhc.simulate(given)
    np.testing.assert_allclose(result.models["central", SEED], expected[:, :WEIGHTS], rtol=1e-9, atol=1e-11)
    own_biases = result.local["central", SEED]["personal/model"]
    np.testing.assert_allclose(own_biases, expected[:, WEIGHTS:], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("local", [{"kind": "adam", "steps": 3}, {"kind": "momentum", "steps": 2, "weight_decay": 0.1}])
def test_where_nothing_is_sent_it_makes_no_difference_what_is_shared(local):
    """So alpha(k), the number of gradients so far, and what the local step remembers are those of shared parameters."""
    fields = FIELDS | {"step_size": efhc.Diminishing(initial=0.05, timescale=2.0), "iterations": 6}
    alone = {"local": local, "trigger": {"kind": "never"}}
    strategies = {"whole": efhc.Composed(**alone), "own": efhc.Composed(**alone, personal={"keep": "bias"})}
    result = efhc.simulate(**fields, strategies=strategies)
    together = np.hstack([result.models["own", SEED], result.local["own", SEED]["personal/model"]])
    np.testing.assert_allclose(together, result.models["whole", SEED], rtol=1e-9, atol=1e-11)


def ditto(problem: own.Problem, trigger: own.Trigger, proximal: float) -> np.ndarray:
    """v_i beside the models of a run without personal ones."""
    v = problem.start.copy()
    for w in own.run(problem, trigger).models[:-1]:
        v = v - ALPHA * (gradients_of(problem, v) + proximal * (v - w))
    return v


@pytest.mark.parametrize("proximal", [0.0, 0.7])
@pytest.mark.parametrize("name", TRIGGERS)
def test_ditto_trains_a_second_model_that_is_drawn_to_the_shared_one(name, proximal):
    fields = FIELDS | {"batch_size": "full"}
    given = efhc.Experiment(**fields, strategies={name: strategy(name, kind="ditto", proximal=proximal)})
    result, without = efhc.simulate(given), efhc.simulate(**fields, strategies={name: TRIGGERS[name]})
    problem = problem_of(draw_scenario(given, load_data(given), SEED))
    trigger = own.ef_hc(problem, 20.0) if name == "EF-HC" else own.zero_threshold
    expected = ditto(problem, trigger, proximal)
    v = result.local[name, SEED]["personal/model"]
    np.testing.assert_allclose(v, expected, rtol=1e-9, atol=1e-11)
    assert np.array_equal(result.models[name, SEED], without.models[name, SEED])
    if proximal == 0:
        alone = efhc.simulate(**fields, strategies={"never": efhc.Never()})
        np.testing.assert_allclose(v, alone.models["never", SEED], rtol=1e-9, atol=1e-11)
    last, plain = (one.metrics.drop_nulls("accuracy").tail(1) for one in (result, without))
    right = [(own.scores(w, problem.x_test, CLASSES).argmax(axis=1) == problem.y_test).mean() for w in v]
    assert last["accuracy"].item() == pytest.approx(np.mean(right), abs=1e-9)
    same = ["mean_model_accuracy", "mean_model_own_accuracy", "transmission_time", "train_loss", "consensus_error"]
    assert last.select(same).equals(plain.select(same))


def test_fine_tuned_models_are_scored_and_the_run_is_unchanged():
    fields = FIELDS | {
        "batch_size": "full",
        "partition": efhc.LabelsPerDevice(),
        "step_size": efhc.Constant(value=1e-3),
    }
    tuned = {"kind": "fine-tuned", "steps": 4, "step_size": 0.3}
    given = efhc.Experiment(**fields, strategies={"ZT": strategy("ZT", **tuned)})
    result, without = efhc.simulate(given), efhc.simulate(**fields, strategies={"ZT": TRIGGERS["ZT"]})
    assert np.array_equal(result.models["ZT", SEED], without.models["ZT", SEED])
    assert result.events.equals(without.events)
    problem = problem_of(draw_scenario(given, load_data(given), SEED))
    models = result.models["ZT", SEED]
    for _ in range(4):
        models = models - 0.3 * gradients_of(problem, models)
    right = [(own.scores(w, problem.x_test, CLASSES).argmax(axis=1) == problem.y_test).mean() for w in models]
    last, plain = (one.metrics.drop_nulls("accuracy").tail(1) for one in (result, without))
    assert last["accuracy"].item() == pytest.approx(np.mean(right), abs=1e-9)
    assert last["own_accuracy"].item() > plain["own_accuracy"].item()
    assert last["mean_model_accuracy"].item() == plain["mean_model_accuracy"].item()


# Drivers

TORCH: dict[str, Any] = {"model": efhc.MLP(hidden=(6,)), "backend": "loop", "precision": "float32", "batch_size": 4}
HALF_STEPS = {"mixing": {"kind": "half-steps"}, "trigger": {"kind": "coin", "probability": 0.5}}
CASES: dict[str, tuple[dict[str, Any], Callable[[Any], Any]]] = {
    "own head": ({"keep": "3.*"}, lambda personal: efhc.EventTriggered(r=20.0, personal=personal)),
    "shared body": ({"share": ["1.*"]}, lambda personal: efhc.ZeroThreshold(personal=personal)),
    "ditto": ({"kind": "ditto", "proximal": 0.5}, lambda personal: efhc.EventTriggered(r=20.0, personal=personal)),
    "fine-tuned": ({"kind": "fine-tuned", "steps": 3}, lambda personal: efhc.ZeroThreshold(personal=personal)),
    "own head, three steps of Adam, a codec": (
        {"keep": "3.*"},
        lambda personal: efhc.Composed(
            local={"kind": "adam", "steps": 3, "clip": 0.5}, codec={"kind": "levels", "bits": 3}, personal=personal,
            **HALF_STEPS,
        ),
    ),
    "ditto with momentum and drift correction": (
        {"kind": "ditto"},
        lambda personal: efhc.Composed(local={"kind": "corrected", "momentum": 0.5}, personal=personal, **HALF_STEPS),
    ),
}  # fmt: skip


def drawn(case: str, **more: Any) -> tuple[efhc.Experiment, Any, Any]:
    pytest.importorskip("torch")
    personal, make = CASES[case]
    made = make(personal)
    given = efhc.Experiment(**{**FIELDS, **TORCH, "strategies": {"S": made}, **more})
    return given, personalized(draw_scenario(given, load_data(given), SEED), made, "S"), made


@pytest.mark.parametrize("backend", ["loop", "stacked", "compiled"])
@pytest.mark.parametrize("case", CASES)
def test_drivers_agree_to_the_last_bit(case, backend):
    _, scenario, made = drawn(case, backend=backend)
    driver = driver_for(scenario, made)
    state = drive(driver, driver.initial_state(), ITERATIONS, [])
    clocks = efhc.EventDriven(links="instant", compute={"seconds": 0.5}, network_seconds=0.5, sample_seconds=1e9)
    simulator = Simulator(scenario, made, clocks, ITERATIONS, Randomness(SEED))
    while not simulator.is_over:
        simulator.advance()
    assert simulator.models.tobytes() == state.models.tobytes()
    assert simulator.local.keys() == state.local.keys()
    for name, rows in state.local.items():
        assert simulator.local[name].tobytes() == rows.tobytes()
        assert not (rows == drawn(case)[1].initial_state().local[name]).all() or name == "personal/momentum"
    if case == "fine-tuned":
        assert state.local == {}
    else:
        assert "personal/model" in state.local


def test_event_driven_runs_send_what_is_shared_and_no_more():
    clocks = efhc.EventDriven(sample_seconds=20.0)
    for case, share in (("shared body", 64 * 6 + 6), ("ditto", 6 * 64 + 6 + 70)):
        given, scenario, _ = drawn(case, driver=clocks)
        assert scenario.learner.backend.parameters == share
        result = efhc.simulate(given)
        committed = result.exchanges.filter(outcome="committed")
        assert len(committed) > 0
        assert set(committed["bytes"]) == {2 * 4 * share}
        assert result.timeline["bytes"][-1] == result.exchanges["bytes"].sum()


def test_lockstep_counts_the_bits_of_what_is_shared():
    given, scenario, _ = drawn("shared body")
    result, graph = efhc.simulate(given), scenario.network.graph(0)
    shared, b = 64 * 6 + 6, scenario.bandwidths.values
    per_iteration = shared / b[graph.degrees > 0]  # ZT: each device sends its model to all neighbours
    spent = result.metrics["transmission_time_total"][-1]
    assert spent == pytest.approx(ITERATIONS * per_iteration.sum() / DEVICES)
    coded = efhc.Composed(codec={"kind": "levels", "bits": 3}, personal={"share": "1.*"}, **HALF_STEPS)
    alone = efhc.Composed(codec={"kind": "levels", "bits": 3}, **HALF_STEPS)
    bits = [
        efhc.simulate(given.model_copy(update={"strategies": {"S": one}})).metrics["bits"].sum()
        for one in (coded, alone)
    ]
    assert 0 < bits[0] < bits[1] * (shared + 40) / (shared + 70)


def test_what_is_personal_stays_a_function_of_the_devices_own_data():
    given, scenario, made = drawn("own head", strategies={"S": efhc.Never(personal={"keep": "3.*"})})
    made = given.strategies["S"]
    parts = draw_scenario(given, load_data(given), SEED).learner.parts
    swapped = [parts[0], *parts[2:], parts[1]]
    other = personalized(draw_scenario(given, load_data(given), SEED, parts=swapped), made, "S")
    first, second = (
        drive(driver, driver.initial_state(), ITERATIONS, []).local["personal/model"]
        for driver in (driver_for(scenario, made), driver_for(other, made))
    )
    assert np.array_equal(first[0], second[0])
    assert not np.array_equal(first[1], second[1])


def test_a_device_that_starts_anew_has_its_first_personal_model_again():
    _, scenario, _ = drawn("own head")
    from efhc.drivers.event_driven.gradients import Gradients

    gradients = Gradients(scenario, scenario.device_reader())
    start = {name: rows.copy() for name, rows in gradients.local.items()}
    gradients.at([1, 2], [0, 0], scenario.initial_models()[[1, 2]])
    changed = gradients.local["personal/model"]
    assert (changed[[1, 2]] != start["personal/model"][[1, 2]]).any(axis=1).all()
    gradients.forget_local(1)
    assert np.array_equal(changed[1], start["personal/model"][1])
    assert np.array_equal(changed[0], start["personal/model"][0])


@pytest.mark.slow
@pytest.mark.parametrize("case", ["own head", "ditto", "own head, three steps of Adam, a codec"])
def test_two_real_nodes_make_the_same_and_send_nothing_personal(tmp_path, case):
    pytest.importorskip("cryptography")
    given, scenario, made = drawn(case, devices=2, network=efhc.Complete(), backend="compiled")
    result = launch(given, tmp_path / "out", keep_nodes=True)
    together = efhc.simulate(given)
    for name, table in together.tables.items():
        assert result.tables[name].equals(table), name
    pair = "S", SEED
    assert result.models[pair].tobytes() == together.models[pair].tobytes()
    for name, rows in together.local[pair].items():
        assert result.local[pair][name].tobytes() == rows.tobytes()
    ended = ended_lines(tmp_path / "out" / "nodes")
    if made.kind != "composed":
        used = result.events["link_from"].list.len().sum()
        assert used > 0
        shared = scenario.learner.backend.parameters
        assert sum(line["model_bytes_sent"] for line in ended) == 2 * 4 * shared * used
