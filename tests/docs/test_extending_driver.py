"""The compute model and the link model of examples/own_clocks.py do what docs/extending.md says."""

from __future__ import annotations

import json
import math
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

import efhc
from efhc.core.randomness import Randomness
from efhc.drivers.event_driven.compute import draw_compute_times
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import build_experiment, to_toml

DOCS = Path(__file__).parents[2] / "docs"


def configs(document: str, word: str) -> list[str]:
    found = re.findall(r"```toml\n(.*?)```", (DOCS / document).read_text(), re.DOTALL)
    return [block for block in found if word in block]


@pytest.fixture
def experiment() -> Experiment:
    (config,) = configs("extending.md", "own_clocks.py:Stragglers")
    return build_experiment(tomllib.loads(config), DOCS.parent)


def test_the_config_of_the_page_reads_back_the_same(experiment: Experiment):
    assert to_toml(build_experiment(tomllib.loads(to_toml(experiment)))) == to_toml(experiment)


def test_some_steps_are_slow(experiment: Experiment):
    clock = draw_compute_times(experiment.driver.compute, 4, Randomness(1))
    times = np.array([[clock.seconds(device, k) for k in range(200)] for device in range(4)])
    assert set(times.ravel()) == {1.0, 10.0}
    assert abs((times == 10.0).mean() - 0.1) < 0.05


def test_the_satellite_delivers_when_it_passes(experiment: Experiment):
    links = experiment.driver.links.transfers(np.array([10.0, 100.0]), Randomness(1))
    links.send(5.0, 0, 1, 100.0, 1)
    links.send(5.0, 1, 0, 100.0, 2)
    links.send(29.0, 0, 1, 100.0, 3)
    links.send(29.0, 0, 1, 100.0, 4)
    links.cancel(29.0, 4)
    kept = json.loads(json.dumps(links.state()))
    assert links.next_time() == 30.0
    assert links.take(30.0) == [efhc.Notice(1, "arrived"), efhc.Notice(2, "arrived")]
    assert links.next_time() == 60.0
    assert links.cut(40.0, 1, 0) == [3]
    assert links.next_time() == math.inf
    links.restore(kept)
    assert links.take(60.0) == [efhc.Notice(ticket, "arrived") for ticket in (1, 2, 3)]


def test_the_driver_of_the_configuration_page_is_valid():
    (config,) = configs("configuration.md", "[driver]")
    driver = build_experiment(tomllib.loads(config)).driver
    assert isinstance(driver, efhc.EventDriven)
    assert driver.churn.absent == (8, 9)
