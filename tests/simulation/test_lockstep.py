"""The driver in the default precision against Alg. 1 in plain loops, and its laws over many iterations."""

from __future__ import annotations

import numpy as np
import pytest

import efhc
from efhc.core.reference import reference_iteration
from efhc.experiments.config import Experiment
from efhc.experiments.scenario import draw_scenario, load_data
from efhc.simulation.lockstep import lockstep

NETWORKS = {
    "static": efhc.Geometric(),
    "random links": efhc.RandomLinks(up_probability=0.4),
    "waypoint": efhc.RandomWaypoint(radius=0.4, slowest=0.02, fastest=0.1),
    "rotating": efhc.Rotating(period=3),
}


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("exchange_at_start", [False, True])
@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("strategy", ["EF-HC", "RG"])
def test_lockstep_follows_the_reference(kind, strategy, exchange_at_start, precision):
    experiment = Experiment(
        network=NETWORKS[kind], precision=precision, exchange_at_start=exchange_at_start, model=efhc.Softmax()
    )
    scenario = draw_scenario(experiment, load_data(experiment), seed=3)
    trigger = experiment.strategies[strategy]
    models = last_broadcast = list(scenario.initial_models)
    tolerance = 1e-5 if precision == "float32" else 1e-12
    mean = scenario.initial_models.mean(axis=0, dtype=np.float64)
    links_seen = set()
    for state, step in lockstep(scenario, trigger):
        previous, graph = scenario.graphs(step.k)
        gradients, _ = scenario.learner.gradients(np.stack(models), step.k)
        thresholds = trigger.thresholds(step.k, scenario.threshold_decay(step.k), scenario.bandwidths, scenario.coins)
        models, last_broadcast, fired, used = reference_iteration(
            models,
            last_broadcast,
            graph.neighbours(),
            previous.neighbours(),
            thresholds.tolist(),
            lambda i, _w, G=gradients: G[i],
            np.dtype(precision).type(scenario.step_size(step.k)),
        )
        mean = mean - scenario.step_size(step.k) * gradients.mean(axis=0, dtype=np.float64)
        assert set(np.flatnonzero(step.fired)) == fired
        assert set(map(tuple, step.links_used.tolist())) == used
        assert np.allclose(state.models, models, rtol=tolerance, atol=tolerance)
        assert np.allclose(state.models.mean(axis=0, dtype=np.float64), mean, atol=tolerance)
        assert state.models.dtype == precision
        links_seen.add(len(used))
        if state.k == 40:
            break
    assert len(links_seen) > 1 or kind == "rotating"  # where every link is new every time


def test_the_mean_model_stays_where_gradients_put_it_over_a_long_run_in_single_precision():
    experiment = Experiment(strategies={"ZT": efhc.ZeroThreshold()}, step_size=lambda k: 0.0)
    scenario = draw_scenario(experiment, load_data(experiment), seed=0)
    before = scenario.initial_models.mean(axis=0, dtype=np.float64)
    for state, _ in lockstep(scenario, efhc.ZeroThreshold()):
        if state.k == 1000:
            break
    assert np.abs(state.models.mean(axis=0, dtype=np.float64) - before).max() < 1e-5
    assert np.abs(state.models - before).max() < 1e-4  # and all devices agree
