"""How much of a run `efhc theory` looks at: what was asked for, or what is quick."""

from __future__ import annotations

from typing import NamedTuple

from efhc.experiments.config.experiment import Experiment
from efhc.learning.data import Dataset
from efhc.learning.models import LeastSquares, ModuleModel

POINTS = 40
"""The default number of iterations at which models are looked at."""
QUICK = 15.0
"""The processor seconds that one part of the check may take without being asked for, by the estimates below."""
ITERATION, ITERATION_OF_NETWORK, LOOK = 12e-9, 360e-9, 1.4e-9
"""Processor seconds per parameter and device for an iteration of a linear model and of a network; and per parameter and
sample for a look at a linear model."""
OPTIMUM_LOOKS = {"direct": 4, "iterative": 200}
"""The number of looks at a model that finding w* costs."""
NOISE_SAMPLES = 500
"""The number of samples per device from which the gradient noise is estimated if there is much data."""


class Effort(NamedTuple):
    """How much of a run is looked at."""

    replay: bool
    """Whether the run is made again."""
    optimum: bool
    """Whether w* is looked for."""
    noise_samples: int | None
    """The number of samples per device from which the noise is estimated. None: all samples, which is exact."""

    @classmethod
    def of(cls, experiment: Experiment, data: Dataset, points: int, replay: bool | None, *, kept: bool) -> Effort:
        """Return everything if `replay` is True, else what is quick. `kept`: whether the run kept models on its way."""
        if replay:
            return cls(True, True, None)
        seeds, runs = len(experiment.seeds), len(experiment.seeds) * len(experiment.strategies)
        parameters, samples = experiment.model.parameters(data), len(data.y_train)
        network = isinstance(experiment.model, ModuleModel)
        each = ITERATION_OF_NETWORK if network else ITERATION
        look_at = LOOK * parameters * samples * (each / ITERATION)
        again = runs * (each * experiment.devices * parameters * experiment.iterations + points * look_at)
        direct = isinstance(experiment.model, LeastSquares)
        optimum = seeds * OPTIMUM_LOOKS["direct" if direct else "iterative"] * look_at
        quick = again <= QUICK and not kept and replay is None
        return cls(quick, optimum <= QUICK, None if points * runs * look_at <= QUICK else NOISE_SAMPLES)
