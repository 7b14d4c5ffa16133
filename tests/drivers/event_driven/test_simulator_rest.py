"""Runs come to rest: whatever is late or lost, links go on exchanging, and in the end nothing is left in flight."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from efhc.core.randomness import Randomness
from efhc.drivers.event_driven.simulator import Simulator
from efhc.drivers.settings import EventDriven
from efhc.experiments.config.files import build_experiment
from efhc.experiments.runs.draw import draw_scenario, load_data

MOST_PIECES = 400
"""Calls of `advance` within which a run must end: each makes at most 10,000 instants."""


STRATEGIES: dict[str, Any] = {
    "exchange": "zt",
    "entrywise": {"kind": "entrywise", "r": 100.0, "momentum": 0.9},
    "one-way": {"kind": "one-way", "r": 10.0},
    "paced": {"kind": "paced", "links": "all"},
    "settling": {
        "kind": "composed",
        "local": "corrected",
        "codec": {"kind": "levels", "bits": 2},
        "mixing": {"kind": "half-steps", "rate": 0.5, "settle": True, "window": 2},
    },
}


def simulated(seed: int, strategy: Any, **driver) -> Simulator:
    fields = {
        "devices": 5,
        "iterations": 25,
        "seeds": [seed],
        "network": {"kind": "erdos-renyi", "probability": 0.7},
        "bandwidths": {"kind": "uniform", "nominal": 4000.0},
        "strategies": {"S": strategy},
        "test_samples": 10,
        "driver": {"kind": "event-driven", "patience_seconds": 3.0, "sample_seconds": 50.0, **driver},
    }
    experiment = build_experiment(fields)
    assert isinstance(experiment.driver, EventDriven)
    scenario = draw_scenario(experiment, load_data(experiment), seed)
    simulator = Simulator(scenario, experiment.strategies["S"], experiment.driver, 25, Randomness(seed))
    for _ in range(MOST_PIECES):
        if simulator.is_over:
            break
        simulator.advance()
    return simulator


def assert_rest(simulator: Simulator, strategy: str) -> None:
    assert simulator.is_over
    outcomes, devices = {row[8] for row in simulator.record.exchanges}, simulator.devices
    assert simulator.record.timeline[-1]["imbalance"] == 0.0
    if strategy == "exchange":
        assert "unfinished" not in outcomes
        assert all(device.is_idle and not device.steps for device in devices)
        assert not any(link.pending_offer for device in devices for link in device.links.values() if link.up)
        return
    assert outcomes == {"committed"}
    assert all(device.is_idle and device.k == 25 for device in devices)
    for device in devices:
        for neighbour, end in device.links.items():
            other = devices[neighbour].links[device.number]
            assert end.last_sent == other.last_received
            assert np.array_equal(end.known_there, other.known_here)
            assert not end.must_acknowledge
            assert end.moved_by_other is None or np.array_equal(end.versions[-1].moved, other.moved_by_other)
    h = simulator._links._rows.arrays["correction"]
    assert np.abs(h.sum(axis=0)).max() <= 1e-4 * (1 + np.abs(h).max())


COMPUTE = {"kind": "lognormal", "median": 0.5}
LATE = {
    "jitter": {"latency": 0.05, "jitter": 0.1},
    "more jitter than latency": {"latency": 0.01, "jitter": 0.5},
    "lost and sent again": {"latency": 0.2, "loss": 0.1},
    "lost for good": {"latency": 0.1, "loss": 0.3, "when_lost": "drop"},
    "all of it": {"latency": 0.1, "jitter": 0.3, "loss": 0.1, "when_lost": "drop"},
    "rates that fall to 0": {"rates": {"kind": "markov", "good_seconds": 5.0, "bad_seconds": 5.0, "bad_share": 0.0}},
    "as slow as iterations are": {"latency": 1.0, "loss": 0.2, "when_lost": "drop"},
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", ["per-link", "shared"])
@pytest.mark.parametrize("what", LATE)
def test_a_run_with_late_and_lost_messages_comes_to_rest(kind: str, what: str, strategy: str):
    links = {"kind": kind, **LATE[what]}
    assert_rest(simulated(0, STRATEGIES[strategy], links=links, compute=COMPUTE), strategy)


SINCE = {"exchange": 240.0, "paced": 100.0}
"""Paced devices wait long before they send again what was lost."""


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("what", [what for what in LATE if what != "as slow as iterations are"])
def test_every_link_goes_on(what: str, strategy: str):
    links = {"kind": "per-link", **LATE[what]}
    simulator = simulated(3, STRATEGIES[strategy], links=links, compute=COMPUTE, seconds=300.0)
    rows = [row for row in simulator.record.exchanges if row[8] == "committed" and row[1] > SINCE.get(strategy, 200.0)]
    _, i, j = simulator.record.network[0]
    forth, back = set(zip(i, j, strict=True)), set(zip(j, i, strict=True))
    if strategy == "exchange":  # one row for both directions
        assert {tuple(sorted(row[2:4])) for row in rows} == forth
    else:
        assert {row[2:4] for row in rows} == forth | back


CHURN = {
    "crash": {"crash_every": 10.0, "restart_after": 2.0},
    "leave and join": {"leave_every": 15.0, "join_after": 3.0, "start": "copy"},
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("what", CHURN)
@pytest.mark.parametrize("seed", range(4))
def test_a_run_whose_devices_come_and_go_comes_to_an_end(what: str, seed: int, strategy: str):
    slow = {"latency": 0.1, "loss": 0.05} if strategy == "exchange" else {"latency": 1.0, "loss": 0.2}
    links, churn = {"kind": "shared", "jitter": 0.2, "when_lost": "drop", **slow}, {"kind": "rates", **CHURN[what]}
    fields = {"links": links, "churn": churn, "compute": COMPUTE, "give_up_seconds": 20.0}
    simulator = simulated(seed, STRATEGIES[strategy], **fields)
    assert simulator.is_over
    present = [device for number, device in enumerate(simulator.devices) if simulator._membership.present[number]]
    if strategy == "exchange":
        assert all(device.finished for device in present if not device.waits_for_model)
    else:
        assert all(device.k == 25 and device.silent for device in present if device.model is not None)
        assert all(device.is_idle for device in present)
