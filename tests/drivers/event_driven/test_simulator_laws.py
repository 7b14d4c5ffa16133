"""The laws off lockstep, computed from models and gradients alone, in runs with every fault there is.

sum    sum_i w_i(t) = sum_i w_i(0) - sum alpha g + committed steps that one end has made and the other has not
hull   without gradients, each coordinate stays between its least and its greatest start value
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from simulated import simulator_of, tiny

import efhc
from efhc.core.device_state import is_idle
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
        assert difference == pytest.approx(timeline[-1][-1], abs=1e-9), f"at second {simulator.now}"
    assert looked > 20
    assert "unresolved" not in {row[8] for row in simulator.record.exchanges}
    if all(is_idle(device) for device in simulator.devices):
        assert timeline[-1][-1] == 0.0  # at rest
    return simulator


@pytest.mark.parametrize("seed", [*range(12), 235])
def test_the_sum_of_all_models_is_kept_under_faults(seed):
    simulator = assert_sum_law(faults(seed), seed)
    steps = [(device, k) for device, k, *_ in simulator.record.steps]
    assert len(set(steps)) == len(steps) == 5 * 25  # each step is made once, whatever crashed


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 300))
def test_the_sum_of_all_models_is_kept_under_more_faults(seed):
    assert_sum_law(faults(seed), seed)


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
@pytest.mark.parametrize("seed", range(6))
def test_without_gradients_models_stay_among_the_first_ones(seed, journal):
    churn = {"leave_every": 15.0, "join_after": 2.0, "absent": (4,)}
    assert_hull_law(faults(seed, journal, churn=churn, give_up_seconds=5.0, seconds=40.0), seed)


@pytest.mark.slow
@pytest.mark.parametrize("journal", ["keep", "lose"])
@pytest.mark.parametrize("seed", range(100, 200))
def test_without_gradients_models_stay_among_the_first_ones_in_more_runs(seed, journal):
    churn = {"leave_every": 15.0, "join_after": 2.0, "absent": (4,)}
    assert_hull_law(faults(seed, journal, churn=churn, give_up_seconds=5.0, seconds=40.0), seed)
