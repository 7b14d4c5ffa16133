"""How much of a run `efhc theory` looks at: what was asked for, or what is quick."""

from __future__ import annotations

from typing import NamedTuple

from efhc.experiments.config.experiment import Experiment
from efhc.learning.data import Dataset
from efhc.learning.models import LeastSquares, ModuleModel

POINTS = 40
"""Iterations at which the models are looked at, where nothing else is asked for."""
QUICK = 15.0
"""Processor seconds that may be spent, by the estimates below, without being asked for."""
ITERATION, ITERATION_OF_NETWORK, LOOK = 12e-9, 360e-9, 1.4e-9
"""Seconds per parameter and device in an iteration, and per parameter and sample in a look at a model."""
OPTIMUM_LOOKS = {"direct": 4, "iterative": 200}
"""Looks at a model that it takes to find w*."""
NOISE_SAMPLES = 500
"""Samples per device from which the gradient noise is estimated, unless everything is asked for."""


class Effort(NamedTuple):
    """How much is looked at."""

    replay: bool
    """Whether the run is made again."""
    optimum: bool
    """Whether w* is looked for."""
    noise_samples: int | None
    """Samples per device from which the noise is estimated; None for all."""

    @classmethod
    def of(cls, experiment: Experiment, data: Dataset, points: int, replay: bool | None, *, kept: bool) -> Effort:
        """What was asked for, or what is quick."""
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
