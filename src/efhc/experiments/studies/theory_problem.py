"""The learning problem of each seed, with its constants."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from efhc.base.errors import EfhcError
from efhc.core.randomness import Randomness
from efhc.experiments.config.experiment import Experiment
from efhc.scenarios.scenario import Scenario
from efhc.theory.constants.problem import Curvature, Optimum, Problem, problem_for


class SeedProblem(NamedTuple):
    """The learning problem that one seed draws."""

    problem: Problem
    curvature: Curvature
    optimum: Optimum | None

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        scenario: Scenario,
        seed: int,
        *,
        optimum: bool = True,
        noise_samples: int | None = None,
    ) -> SeedProblem:
        """Return the problem, its constants at the mean of the initial models, and w* if `optimum` is set."""
        learner = scenario.learner
        draws = Randomness(seed)  # of mini-batches to measure the noise by, where it has to be sampled
        problem = problem_for(
            experiment.model,
            learner.data,
            learner.parts,
            experiment.batch_size,
            learner.backend,
            draws,
            noise_samples,
        )
        start = scenario.initial_models().mean(axis=0, dtype=np.float64)
        try:
            minimiser = problem.optimum() if optimum else None
        except EfhcError:  # it could not be found as closely as is demanded: the rest can be checked without it
            minimiser = None
        return cls(problem, problem.curvature(start), minimiser)
