"""What takes no time may be done at once: the run is the one that the messages make, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

from efhc.core.randomness import Randomness
from efhc.drivers.event_driven.settings import EventDriven
from efhc.drivers.event_driven.simulator import Simulator
from efhc.experiments.config.files import build_experiment
from efhc.experiments.runs.draw import draw_scenario, load_data

ITERATIONS = 30


@pytest.mark.parametrize("links", ["instant", "per-link"])
@pytest.mark.parametrize("compute", ["constant", "lognormal"])
@pytest.mark.parametrize("strategy", ["ef-hc", "zt", "rg", "never"])
@pytest.mark.parametrize("network", ["geometric", "random-links"])
def test_what_is_done_at_once_is_what_the_messages_do(links: str, compute: str, strategy: str, network: str):
    driver = {"kind": "event-driven", "links": links, "compute": compute, "sample_seconds": 7.0, "seconds": 30.0}
    fields = {"iterations": ITERATIONS, "strategies": {"S": strategy}, "seeds": [0], "driver": driver}
    experiment = build_experiment(fields | {"network": network, "test_samples": 20})
    assert isinstance(experiment.driver, EventDriven)  # with `seconds`: a device that has finished answers by messages
    scenario = draw_scenario(experiment, load_data(experiment), 0)

    def simulated(*, by_messages: bool) -> Simulator:
        keep_order = (lambda queue: None) if by_messages else None
        trigger = experiment.strategies["S"]
        simulator = Simulator(scenario, trigger, experiment.driver, ITERATIONS, Randomness(0), reorder=keep_order)
        while not simulator.is_over:
            simulator.advance()
        return simulator

    at_once, by_messages = simulated(by_messages=False), simulated(by_messages=True)
    assert np.array_equal(at_once.models, by_messages.models)
    assert at_once.record.steps == by_messages.record.steps
    for sample, same in zip(at_once.record.timeline, by_messages.record.timeline, strict=True):
        assert sample[:-1] == same[:-1]
        assert sample[-1] == pytest.approx(same[-1], abs=1e-12)  # the imbalance is a sum, in another order
    assert sorted(map(repr, at_once.record.exchanges)) == sorted(map(repr, by_messages.record.exchanges))
