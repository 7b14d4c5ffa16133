"""The learning problem of each seed, how much of a run is measured, and measuring the models that it visited."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import Any, NamedTuple

import numpy as np

from efhc.base.arrays import Flags, Floats, Ints
from efhc.base.errors import EfhcError
from efhc.core.randomness import Randomness
from efhc.core.state import State
from efhc.drivers.lockstep import Lockstep
from efhc.drivers.observers import LookAt, drive
from efhc.drivers.steps import Steps
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.runs.engines.local import wait_for_all
from efhc.learning.data import Dataset
from efhc.learning.models import LeastSquares, ModuleModel
from efhc.scenarios.scenario import Scenario
from efhc.theory.check.outcome import Check
from efhc.theory.constants.measured import Measured, look
from efhc.theory.constants.problem import Curvature, Optimum, Problem, problem_for

ReportProgress = Callable[[str, float], None]
"""Called with the name of the current work and the share of all work that is finished."""


@dataclass
class Work:
    """How much of all work is finished. `progress` is called after every change."""

    total: float
    progress: ReportProgress
    done: float = 0.0
    what: str = ""
    lock: Any = field(default_factory=Lock)

    def begin(self, what: str) -> None:
        """Name the work that follows."""
        self.what = what
        self.progress(what, min(1.0, self.done / self.total))

    def finish(self, amount: float = 1.0) -> None:
        """Count `amount` of the total as finished."""
        with self.lock:
            self.done += amount
            self.progress(self.what, min(1.0, self.done / self.total))


def in_parallel(
    pool: ThreadPoolExecutor,
    work: Callable[..., Any],
    items: Iterable[tuple[Any, ...]],
    done: Callable[[], None] = lambda: None,
) -> list[Any]:
    """Return `work(*item)` for each item, in their order; the calls run in the threads of `pool`.

    `done` is called after each of them.
    """

    def call(item: tuple[Any, ...]) -> Any:
        result = work(*item)
        done()
        return result

    futures = [pool.submit(copy_context().run, call, item) for item in items]
    wait_for_all(pool, futures, Event())
    return [future.result() for future in futures]


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


POINTS = 40
"""The default number of iterations at which models are measured."""
QUICK = 15.0
"""Processor seconds, as estimated below, up to which a part of the check is done by default."""
ITERATION, ITERATION_OF_NETWORK, LOOK = 12e-9, 360e-9, 1.4e-9
"""Processor seconds per parameter and device for an iteration of a linear model and of a network; and per parameter and
sample for a look at a linear model."""
OPTIMUM_LOOKS = {"direct": 4, "iterative": 200}
"""The number of looks at a model that finding w* costs."""
NOISE_SAMPLES = 500
"""The number of samples per device from which the gradient noise is estimated if there is much data."""


class Effort(NamedTuple):
    """How much of a run is measured."""

    replay: bool
    """Whether the run is made again."""
    optimum: bool
    """Whether w* is computed."""
    noise_samples: int | None
    """The number of samples per device from which the noise is estimated. None: all samples, which is exact."""

    @classmethod
    def of(cls, experiment: Experiment, data: Dataset, points: int, replay: bool | None, *, kept: bool) -> Effort:
        """Return the full effort if `replay` is True, else what is quick. `kept`: whether the run kept models."""
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


class Visits(NamedTuple):
    """What was measured at the models of one run."""

    measured: Measured
    curvature: Curvature
    fired: Flags | None = None
    """Who fired, (iterations, devices), if the run was made again."""
    models: Floats | None = None
    """The last models, if the run was made again."""


def spread(iterations: int, points: int) -> Ints:
    """Return at most `points` of the numbers 0 .. `iterations`, including both ends, evenly spaced in log k."""
    evenly = np.geomspace(1, iterations, max(points - 1, 2)).round().astype(np.int64)
    return np.unique(np.concatenate([[0], evenly]))


def thinned(iterations: Iterable[int], points: int) -> Ints:
    """Return at most `points` of the given iterations, evenly spaced in log k."""
    every = np.array(sorted(iterations), dtype=np.int64)
    if len(every) <= points:
        return every
    wanted = spread(int(every[-1]), points)
    nearest = np.abs(every[None, :] - wanted[:, None]).argmin(axis=1)
    return np.unique(every[nearest])


class FiringLooks(LookAt):
    """Notes at every iteration who fired, (iterations, devices), and looks at the models of some."""

    def __init__(self, look_at: Iterable[int], shape: tuple[int, int]) -> None:
        super().__init__(look_at)
        self.fired: Flags = np.zeros(shape, dtype=bool)

    def after(self, steps: Steps, state: State) -> None:
        self.fired[steps.k : steps.k + len(steps)] = steps.fired
        super().after(steps, state)


class _Looks(FiringLooks):
    """Measures at the models of one run."""

    def __init__(self, look_at: Ints, of: SeedProblem, shape: tuple[int, int], done: Callable[[], None]) -> None:
        super().__init__(look_at.tolist(), shape)
        self.rows: list[tuple[float, ...]] = []
        self.curvature = of.curvature
        self._of, self._done = of, done
        middle_and_end = {int(look_at[len(look_at) // 2]), int(look_at[-1])}
        self._curved_at = middle_and_end if of.curvature.known == "estimate" else set()

    def look(self, state: State) -> None:
        self.rows.append(look(state.models, self._of.problem, self._of.optimum))
        if state.k in self._curved_at:
            here = self._of.problem.curvature(state.models.mean(axis=0, dtype=np.float64))
            self.curvature = Curvature.worst([self.curvature, here])
        self._done()


def replay_run(
    experiment: Experiment,
    scenario: Scenario,
    strategy: str,
    look_at: Ints,
    of: SeedProblem,
    threads: int = 1,
    done: Callable[[], None] = lambda: None,
) -> Visits:
    """Make the run of one strategy in a scenario, and measure at its models at the iterations `look_at`.

    `done` is called after each of them.
    """
    looks = _Looks(look_at, of, (experiment.iterations, experiment.devices), done)
    lockstep = Lockstep(scenario, experiment.strategies[strategy], threads)
    state = drive(lockstep, scenario.initial_state(), int(look_at[-1]), [looks])
    return Visits(Measured.of_rows(looks.rows), looks.curvature, looks.fired, state.models)


def not_made(reason: str) -> Check:
    """Return the check of a run that was not made again."""
    return Check("same-run", "alg:efhc", "not checkable", reason)


def same_run(visits: Visits, recorded: Flags, final: Floats | None) -> Check:
    """Check that a run that was made again fires as recorded and ends with the same models."""
    assert visits.fired is not None
    if (differs := (visits.fired != recorded).any(axis=1)).any():
        k = int(np.argmax(differs))
        device = int(np.argmax(visits.fired[k] != recorded[k]))
        return Check("same-run", "alg:efhc", "broken", "fires-otherwise", {}, k, device)
    if final is None:
        return Check("same-run", "alg:efhc", "held", "fires-as-recorded")
    if np.array_equal(np.asarray(visits.models), final):
        return Check("same-run", "alg:efhc", "held", "same")
    return Check("same-run", "alg:efhc", "broken", "ends-otherwise", {}, len(recorded))
