from __future__ import annotations

import numpy as np
import pytest

import efhc
from efhc.experiments.config.files import build_experiment

BANDWIDTHS = efhc.Bandwidths(np.array([1.0, 50.0, 5000.0]), 5000.0)


@pytest.mark.parametrize("every", [1, 3, 10])
def test_all_devices_fire_at_the_multiples_of_every_and_at_no_other_time(every):
    strategy = build_experiment({"strategies": {"P": {"kind": "periodic", "every": every}}}).strategies["P"]
    assert strategy == efhc.PeriodicBroadcast(every=every)
    for k in range(31):
        expected = 0.0 if k % every == 0 else np.inf
        assert strategy.thresholds(k, 0.1, BANDWIDTHS, lambda k: np.zeros(3)).tolist() == [expected] * 3


def test_a_run_fires_at_those_iterations():
    strategies = {"P": {"kind": "periodic", "every": 4}}
    result = efhc.simulate(devices=5, iterations=10, seeds=0, strategies=strategies)
    assert result.metrics["fired"].to_list() == [5, 0, 0, 0, 5, 0, 0, 0, 5, 0]
