"""The laws off lockstep, computed from models and gradients alone, in runs with every fault there is.

sum    sum_i w_i(t) = sum_i w_i(0) - sum alpha g + committed steps that one end has made and the other has not
hull   without gradients, each coordinate stays between its least and its greatest start value

Half-steps:

sum    sum_i x_i(t) = sum_i x_i(0) - sum alpha (g - h) + steps that the sender has made and the receiver has not
h      sum_i h_i(t) = l d of those of them whose link is up: a link that goes down takes back what it has taught
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from simulated import simulator_of, tiny

import efhc
from efhc.drivers.event_driven.half_step_links import HalfStepLinks
from efhc.experiments.runs.draw import draw_scenario, load_data


class LinearLoss:
    """A model of one's own: the loss of a sample is w . z with z = (x, -x, 1, -1), whatever its label.

    Its gradient is the mean z of the batch at every w, so that sums of gradients are known without looking at models.
    """

    def parameters(self, data: Any) -> int:
        return 4

    def initial(self, data: Any, stream: np.random.Generator) -> np.ndarray:
        return stream.uniform(-1, 1, 4)

    def scores(self, w: np.ndarray, x: np.ndarray) -> np.ndarray:
        return x @ w[..., None, :2] + w[..., None, 2:]

    def loss_and_gradient(self, w: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        gradient = np.concatenate([x, -x, np.ones_like(x), -np.ones_like(x)], axis=-1).mean(axis=-2)
        return (w * gradient).sum(axis=-1), gradient


def faults(seed: int, journal: str = "keep", **fields: Any) -> efhc.EventDriven:
    """Any mixture of faults that the settings can describe."""
    drawn = random.Random(seed)
    links = drawn.choice([efhc.PerLink, efhc.SharedLinks])(
        latency=drawn.choice([0.0, 0.1, 0.5]),
        jitter=drawn.choice([0.0, 0.3]),
        loss=drawn.choice([0.0, 0.1, 0.3]),
        when_lost=drawn.choice(["resend", "drop"]),
        rates=drawn.choice([
            efhc.ConstantRates(),
            efhc.MarkovRates(good_seconds=3.0, bad_seconds=1.0, bad_share=drawn.choice([0.0, 0.2])),
        ]),
    )  # fmt: skip
    churn = efhc.ChurnRates(
        journal=journal,
        start=drawn.choice(["fresh", "copy"]),
        crash_every=8.0,
        restart_after=1.0,
        **fields.pop("churn", {}),
    )
    known: dict[str, Any] = {
        "links": links,
        "churn": churn,
        "compute": efhc.LognormalCompute(median=0.7, sigma=0.8, device_sigma=0.5),
        "network_seconds": 2.5,
        "patience_seconds": 1.5,
        "give_up_seconds": 1e6,
        "sample_seconds": 0.3,
        "bandwidth": drawn.choice(["true", "measured"]),
    }
    return efhc.EventDriven(**known | fields)


def network(seed: int) -> Any:
    return [efhc.Complete(), efhc.RandomLinks(topology=efhc.Complete(), up_probability=0.6), efhc.Rotating()][seed % 3]


STRATEGIES = [efhc.ZeroThreshold(), efhc.EventTriggered(r=0.2), efhc.RandomizedGossip(probability=0.5)]


def assert_sum_law(driver: efhc.EventDriven, seed: int, **fields: Any) -> Any:
    """At every sample. Returns the simulator after its run."""
    known = {"model": LinearLoss(), "iterations": 25, "bandwidths": [2, 4, 4, 8, 16], "network": network(seed)}
    strategy = {"S": STRATEGIES[seed // 3 % 3]}
    experiment = tiny(5, links=None, driver=driver, strategies=strategy, **known | fields)
    scenario = draw_scenario(experiment, load_data(experiment), seed)
    simulator = simulator_of(experiment, seed, scenario=scenario)
    reader, x = scenario.device_reader(), scenario.learner.data.x_train
    expected, made, looked = scenario.initial_models().sum(axis=0), 0, 0
    while not simulator.is_over:
        simulator.advance()
        steps, timeline = simulator.record.steps, simulator.record.timeline
        for device, k, *_ in steps[made:]:
            z = x[reader.samples(device, k)].mean()
            expected = expected - scenario.step_size(k) * np.array([z, -z, 1.0, -1.0])
        made, looked = len(steps), looked + 1
        difference = np.linalg.norm(simulator.models.sum(axis=0) - expected)
        assert difference == pytest.approx(timeline[-1]["imbalance"], abs=1e-9), f"at second {simulator.now}"
    assert looked > 20
    assert "unresolved" not in {row[8] for row in simulator.record.exchanges}
    if all(device.is_idle for device in simulator.devices):
        assert timeline[-1]["imbalance"] == 0.0  # at rest
    return simulator


def more(seeds: range) -> list[Any]:
    """Seeds for `make check` only."""
    return [pytest.param(seed, marks=pytest.mark.slow) for seed in seeds]


@pytest.mark.parametrize("seed", [*range(12), 235, *more(range(100, 160))])
def test_the_sum_of_all_models_is_kept_under_faults(seed):
    simulator = assert_sum_law(faults(seed), seed)
    steps = [(device, k) for device, k, *_ in simulator.record.steps]
    assert len(set(steps)) == len(steps) == 5 * 25  # each step is made once, whatever crashed


def assert_hull_law(driver: efhc.EventDriven, seed: int) -> None:
    experiment = tiny(5, network(seed), [2, 4, 4, 8, 16], driver=driver, step_size=lambda k: 0.0)
    simulator = simulator_of(experiment, seed)
    first = simulator.models
    low, high = first.min(axis=0) - 1e-12, first.max(axis=0) + 1e-12
    while not simulator.is_over:
        simulator.advance()
        assert (low <= simulator.models).all(), f"at second {simulator.now}"
        assert (simulator.models <= high).all(), f"at second {simulator.now}"
    assert simulator.now == 40.0


@pytest.mark.parametrize("journal", ["keep", "lose"])
@pytest.mark.parametrize("seed", [*range(6), *more(range(100, 130))])
def test_without_gradients_models_stay_among_the_first_ones(seed, journal):
    churn = {"leave_every": 15.0, "join_after": 2.0, "absent": (4,)}
    assert_hull_law(faults(seed, journal, churn=churn, give_up_seconds=5.0, seconds=40.0), seed)


# Half-steps


HALF_STEPS = [
    efhc.OneWay(r=0.0, correction=0.0),
    efhc.Entrywise(r=0.01, correction=0.0, bits=2),
    efhc.OneWay(r=0.05),
    efhc.Entrywise(r=0.01, momentum=0.9),
    efhc.Composed(
        trigger={"kind": "coin", "probability": 0.5},
        local={"kind": "adam", "correction": 0.1, "steps": 2},
        codec={"kind": "levels", "bits": 4},
        mixing={"kind": "half-steps", "rate": 1.0, "guard": "degree"},
    ),
    efhc.Paced(r=0.01, momentum=0.0),
    efhc.Paced(r=0.01, links="all", window=2, pacing=None),
    efhc.Composed(
        trigger={"kind": "coin", "probability": 0.5},
        local="corrected",
        mixing={"kind": "half-steps", "rate": 1.0, "settle": True, "most_steps": 8},
    ),
]


class Books:
    """What a run of half-steps has moved, seen from outside."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.descended: np.ndarray = np.zeros(4)
        """sum alpha (u - h)"""
        self.cut_off: np.ndarray = np.zeros(4)
        """The steps of frames that only the sender had made when their link went down."""
        patch.setattr(HalfStepLinks, "part", self._noting_cuts(HalfStepLinks.part))
        patch.setattr(HalfStepLinks, "_descent", self._noting_descent(HalfStepLinks._descent))

    def _noting_cuts(self, right: Any) -> Any:
        def noting(links: Any, run: Any, number: int, neighbour: int) -> None:
            for i, j in ((number, neighbour), (neighbour, number)):
                if number in run.devices[neighbour].links:  # the first of the two ends to notice
                    self.cut_off = self.cut_off + one_sided(run, i, j)[0]
            right(links, run, number, neighbour)

        return noting

    def _noting_descent(self, right: Any) -> Any:
        def noting(links: Any, devices: list[Any], x: Any, gradients: Any, alphas: list[float], gates: Any) -> Any:
            down = right(links, devices, x, gradients, alphas, gates)
            self.descended = self.descended + (np.array(alphas)[:, None] * down).sum(axis=0)
            return down

        return noting


def one_sided(run: Any, i: int, j: int) -> tuple[np.ndarray, np.ndarray]:
    """d and l d of the frames from device i to j that only i has counted in, summed."""
    end, other = run.devices[i].links.get(j), run.devices[j].links.get(i)
    moved, learned = np.zeros(4), np.zeros(4)
    for frame, *_ in [] if end is None else end.pending:
        if other is None or other.last_received < frame.number:
            before, after = end.version(frame.number - 1), end.version(frame.number)
            is_settling = after.moved is not None
            step = after.moved - before.moved if is_settling else frame.weight * (end.pending_known_here - after.known)
            moved, learned = moved + step, learned + frame.learning * step
    if end is not None and end.pending:
        assert moved == pytest.approx(end.steps_after(-1 if other is None else other.last_received), abs=1e-12)
    return moved, learned


def assert_half_steps_sum_law(driver: efhc.EventDriven, seed: int, patch: pytest.MonkeyPatch) -> Any:
    """At every sample. Returns the simulator after its run."""
    books, strategy = Books(patch), HALF_STEPS[seed // 3 % len(HALF_STEPS)]
    known = {"model": LinearLoss(), "iterations": 25, "bandwidths": [200, 400, 400, 800, 1600]}
    experiment = tiny(5, links=None, driver=driver, strategies={"S": strategy}, network=network(seed), **known)
    scenario = draw_scenario(experiment, load_data(experiment), seed)
    simulator = simulator_of(experiment, seed, scenario=scenario)
    reader, x = scenario.device_reader(), scenario.learner.data.x_train
    first, gradients, made, looked = scenario.initial_models().sum(axis=0), np.zeros(4), 0, 0
    while not simulator.is_over:
        simulator.advance()
        steps, timeline = simulator.record.steps, simulator.record.timeline
        for device, k, *_ in steps[made:]:
            z = x[reader.samples(device, k)].mean()
            gradients = gradients + scenario.step_size(k) * np.array([z, -z, 1.0, -1.0])
        made, looked = len(steps), looked + 1
        pairs = [one_sided(simulator, i, j) for i in range(5) for j in range(5) if i != j]
        under_way, untaught = (np.sum(found, axis=0) for found in zip(*pairs, strict=True))
        expected = first - books.descended + books.cut_off
        assert simulator.models.sum(axis=0) - expected == pytest.approx(under_way, abs=1e-9), f"at {simulator.now}"
        assert np.linalg.norm(under_way) == pytest.approx(timeline[-1]["imbalance"], abs=1e-9)
        if strategy.parts().local == efhc.SGD():
            assert books.descended == pytest.approx(gradients, abs=1e-9)
        h = simulator._links._rows.arrays.get("correction", np.zeros((5, 4)))
        assert h.sum(axis=0) == pytest.approx(untaught, abs=1e-9), f"at {simulator.now}"
    assert looked > 20
    assert {row[8] for row in simulator.record.exchanges} >= {"committed"}
    if all(device.is_idle for device in simulator.devices):
        assert timeline[-1]["imbalance"] == 0.0  # at rest
    return simulator


@pytest.mark.parametrize("seed", [*range(3 * len(HALF_STEPS)), *more(range(96, 168))])
def test_half_steps_keep_the_sum_of_all_models_under_faults(seed, monkeypatch):
    simulator = assert_half_steps_sum_law(faults(seed), seed, monkeypatch)
    steps = [(device, k) for device, k, *_ in simulator.record.steps]
    assert len(set(steps)) == len(steps) == 5 * 25  # each step is made once, whatever crashed


def test_half_steps_that_only_lose_messages_report_nothing_unresolved(monkeypatch):
    driver = efhc.EventDriven(
        links=efhc.SharedLinks(latency=0.3, loss=0.3, when_lost="drop"),
        compute=efhc.LognormalCompute(median=0.7),
        sample_seconds=0.3,
    )
    simulator = assert_half_steps_sum_law(driver, 0, monkeypatch)
    assert {row[8] for row in simulator.record.exchanges} == {"committed"}
    assert simulator.record.timeline[-1]["imbalance"] == 0.0
    assert simulator.warnings == []
