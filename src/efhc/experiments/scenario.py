"""From the experiment to one seed's draw of everything."""

from __future__ import annotations

import numpy as np

from efhc.core.arrays import Floats
from efhc.core.errors import InputError, within
from efhc.core.randomness import Coins, Randomness
from efhc.experiments.config import Experiment
from efhc.learning.backends import backend_for
from efhc.learning.data import Dataset
from efhc.learning.learner import Learner
from efhc.simulation.lockstep import Scenario


def load_data(experiment: Experiment) -> Dataset:
    """The experiment's data set; the same for every seed."""
    with within("data"):
        return experiment.data.load(experiment.precision)


def draw_scenario(experiment: Experiment, data: Dataset, seed: int, threads: int = 1) -> Scenario:
    """What `seed` draws. Strategies have no part in it."""
    randomness, devices = Randomness(seed), experiment.devices
    with within("network"):
        network = experiment.network.over_time(devices, randomness)
    with within("bandwidths"):
        bandwidths = experiment.bandwidths.draw(devices, randomness)
    with within("partition"):
        parts = experiment.partition.split(data, devices, randomness)
    backend = backend_for(experiment.model, data, randomness, experiment.backend, experiment.device, threads)
    learner = Learner(backend, data, parts, experiment.batch_size, randomness)
    with np.errstate(over="ignore"):
        if not np.isfinite(backend.parameters / bandwidths.values).all():
            smallest = bandwidths.values.min()
            raise InputError("bandwidths", smallest, "bandwidths for which the time n / b_i is a finite number")

    def initial_models() -> Floats:
        with within("initial_models"):
            return experiment.initial_models.models(experiment.model, data, devices, randomness)

    return Scenario(
        network=network,
        bandwidths=bandwidths,
        learner=learner,
        initial_models=initial_models,
        coins=Coins(randomness, devices),
        step_size=experiment.step_size,
        threshold_decay=experiment.threshold_decay or experiment.step_size,
        exchange_at_start=experiment.exchange_at_start,
    )
