"""A run that is stopped at any moment and goes on from its checkpoint has the same bits in every table and model."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from simulated import simulator_of, tiny

import efhc
from efhc.core.personal import Ditto
from efhc.drivers.event_driven.checkpoints import to_json
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.runs.draw import draw_scenario, load_data
from efhc.scenarios.personal import personalized

FAULTS: dict[str, Any] = {
    "links": efhc.SharedLinks(
        latency=0.1,
        jitter=0.3,
        loss=0.1,
        when_lost="drop",
        rates=efhc.MarkovRates(good_seconds=3.0, bad_seconds=1.0, bad_share=0.0),
    ),
    "compute": efhc.LognormalCompute(median=0.7, sigma=0.8, device_sigma=0.5),
    "churn": efhc.ChurnRates(
        crash_every=8.0, restart_after=1.0, leave_every=20.0, join_after=2.0, start="copy", absent=(3,)
    ),
    "bandwidth": "measured",
    "network_seconds": 2.5,
    "patience_seconds": 1.5,
    "give_up_seconds": 6.0,
    "sample_seconds": 0.25,
    "seconds": 30.0,
}


def small_network() -> Any:
    """Layers with running statistics, and with noise: both belong to a device and its k."""
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Dropout(0.3), nn.ReLU(), nn.Linear(4, 2))


ADAM = efhc.Composed(
    trigger={"kind": "coin", "probability": 0.5},
    local={"kind": "adam", "correction": 0.1, "steps": 2},
    codec={"kind": "levels", "bits": 4},
    mixing={"kind": "half-steps", "limit": {"kind": "clip", "radius": 1.0}},
)
RUNS: dict[str, Experiment] = {
    "every fault": tiny(
        5,
        efhc.RandomLinks(topology=efhc.Complete(), up_probability=0.7),
        [2, 4, 4, 8, 16],
        strategies={"S": efhc.EventTriggered(r=0.2)},
        driver=efhc.EventDriven(**FAULTS),
    ),
    "every fault, and journals are lost": tiny(
        5,
        efhc.RandomWaypoint(radius=0.6, slowest=0.05, fastest=0.2),
        [2, 4, 4, 8, 16],
        driver=efhc.EventDriven(**FAULTS | {"churn": FAULTS["churn"].model_copy(update={"journal": "lose"})}),
    ),
    "half-steps, every fault": tiny(
        5,
        efhc.RandomLinks(topology=efhc.Complete(), up_probability=0.7),
        [200, 400, 400, 800, 1600],
        strategies={"S": efhc.OneWay(r=0.2, momentum=0.9)},
        driver=efhc.EventDriven(**FAULTS),
    ),
    "half-steps in levels, every fault, and journals are lost": tiny(
        5,
        efhc.RandomWaypoint(radius=0.6, slowest=0.05, fastest=0.2),
        [200, 400, 400, 800, 1600],
        strategies={"S": efhc.Entrywise(r=0.05)},
        driver=efhc.EventDriven(**FAULTS | {"churn": FAULTS["churn"].model_copy(update={"journal": "lose"})}),
    ),
    "half-steps of Adam, latency of 1 s, loss": tiny(
        5,
        efhc.Complete(),
        [200, 400, 400, 800, 1600],
        strategies={"S": ADAM},
        driver=efhc.EventDriven(**FAULTS | {"links": efhc.PerLink(latency=1.0, loss=0.2, when_lost="drop")}),
    ),
    "half-steps without delay": tiny(
        4,
        efhc.Ring(),
        iterations=30,
        strategies={"S": efhc.Entrywise(r=0.05, momentum=0.5, budget={"share": 0.5})},
        driver=efhc.EventDriven(sample_seconds=0.5, links="instant"),
    ),
    "half-steps, layers with noise and statistics": tiny(
        4,
        efhc.Complete(),
        [200, 400, 400, 800],
        model=efhc.Module(module=small_network),
        backend="loop",
        batch_size=4,
        strategies={"S": ADAM},
        driver=efhc.EventDriven(**FAULTS | {"seconds": 12.0}),
    ),
    "links of their own": tiny(
        4,
        efhc.Ring(),
        [2, 4, 4, 8],
        iterations=30,
        driver=efhc.EventDriven(sample_seconds=0.25, links={"latency": 0.2}),
    ),
    "own biases, every fault, and journals are lost": tiny(
        5,
        efhc.Complete(),
        [2, 4, 4, 8, 16],
        strategies={"S": efhc.EventTriggered(r=0.2, personal={"keep": "bias"})},
        driver=efhc.EventDriven(**FAULTS | {"churn": FAULTS["churn"].model_copy(update={"journal": "lose"})}),
    ),
    "Ditto with half-steps of Adam, every fault": tiny(
        5,
        efhc.Complete(),
        [200, 400, 400, 800, 1600],
        strategies={"S": ADAM.model_copy(update={"personal": Ditto(proximal=0.5)})},
        driver=efhc.EventDriven(**FAULTS),
    ),
    "no delay": tiny(4, efhc.Ring(), iterations=30, driver=efhc.EventDriven(sample_seconds=0.5, links="instant")),
    "layers with noise and statistics": tiny(
        4,
        efhc.Complete(),
        [20, 40, 40, 80],
        model=efhc.Module(module=small_network),
        backend="loop",
        batch_size=4,
        driver=efhc.EventDriven(**FAULTS | {"seconds": 12.0}),
    ),
}  # fmt: skip


def tables_of(pieces: list[dict[str, pl.DataFrame]]) -> dict[str, pl.DataFrame]:
    return {name: pl.concat([piece[name] for piece in pieces]) for name in pieces[0]}


def scenario_of(experiment: Experiment) -> Any:
    drawn = draw_scenario(experiment, load_data(experiment), 0)
    return personalized(drawn, experiment.strategies["S"], "S")


def whole_run(experiment: Experiment, scenario: Any) -> Any:
    simulator = simulator_of(experiment, scenario=scenario)
    while not simulator.is_over:
        simulator.advance()
    return simulator


def through_a_file(
    tensors: dict[str, np.ndarray], facts: dict[str, str]
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """What a checkpoint is after it was written and read: equal, and shared with nobody."""
    return {name: values.copy() for name, values in tensors.items()}, json.loads(json.dumps(facts))


@pytest.mark.parametrize("kind", RUNS)
def test_a_run_restored_at_twenty_random_moments_has_the_same_bits(kind):
    experiment = RUNS[kind]
    scenario = scenario_of(experiment)
    whole = whole_run(experiment, scenario)
    local = {name: values.copy() for name, values in whole.local.items()}
    moments = len(whole.record.timeline)
    tables = whole.record.take().tables
    assert len(tables["exchanges"]) > 5
    stops = set(random.Random(7).sample(range(1, moments), 20))

    simulator, pieces, number = simulator_of(experiment, scenario=scenario), [], 0
    while not simulator.is_over:
        simulator.advance()
        number += 1
        if number in stops and not simulator.is_over:
            pieces.append(simulator.record.take().tables)
            checkpoint = through_a_file(*simulator.checkpoint())
            simulator = simulator_of(experiment, scenario=scenario_of(experiment))
            simulator.restore(*checkpoint)
    pieces.append(simulator.record.take().tables)
    assert len(pieces) > 18
    for name, table in tables_of(pieces).items():
        assert_frame_equal(table, tables[name], check_exact=True)
    assert simulator.models.tobytes() == whole.models.tobytes()
    assert simulator.local.keys() == local.keys()
    for name, values in local.items():
        assert simulator.local[name].tobytes() == values.tobytes()
    assert simulator.warnings == whole.warnings
    assert simulator.now == whole.now


def test_a_checkpoint_changes_nothing(tmp_path):
    experiment = RUNS["every fault"]
    scenario = draw_scenario(experiment, load_data(experiment), 0)
    whole, simulator = whole_run(experiment, scenario), simulator_of(experiment, scenario=scenario)
    while not simulator.is_over:
        simulator.advance()
        first, again = simulator.checkpoint(), simulator.checkpoint()
        assert first[1] == again[1]
        assert all(np.array_equal(first[0][name], again[0][name]) for name in first[0])
    assert simulator.models.tobytes() == whole.models.tobytes()
    assert simulator.record.exchanges == whole.record.exchanges


def test_a_checkpoint_of_another_run_is_refused():
    small, large = RUNS["no delay"], RUNS["no delay"].model_copy(update={"precision": "float32"})
    simulator = simulator_of(small)
    simulator.advance()
    with pytest.raises(ValueError, match="not those of this run"):
        simulator_of(large).restore(*simulator.checkpoint())


def test_a_checkpoint_in_another_form_is_refused():
    simulator = simulator_of(RUNS["no delay"])
    tensors, facts = simulator.checkpoint()
    with pytest.raises(ValueError, match="written by another version"):
        simulator.restore(tensors, facts | {"state": to_json({"now": 0.0})[0]})
