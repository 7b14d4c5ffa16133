"""Looking at the models that a run visited, by making the run again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from efhc.base.arrays import Flags, Floats, Ints
from efhc.core.state import State
from efhc.drivers.lockstep import Lockstep
from efhc.drivers.observers import LookAt, drive
from efhc.drivers.steps import Steps
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.studies.theory_problem import SeedProblem
from efhc.scenarios.scenario import Scenario
from efhc.theory.check.outcome import Check
from efhc.theory.constants.measured import Measured, look
from efhc.theory.constants.problem import Curvature


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


class _Looks(LookAt):
    """Measures at the models of one run, and notes who fired."""

    def __init__(self, look_at: Ints, of: SeedProblem, shape: tuple[int, int], done: Callable[[], None]) -> None:
        super().__init__(look_at.tolist())
        self.fired: Flags = np.zeros(shape, dtype=bool)
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

    def after(self, steps: Steps, state: State) -> None:
        self.fired[steps.k : steps.k + len(steps)] = steps.fired
        super().after(steps, state)


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
    if visits.fired is None:
        return not_made("not-made-again")
    if (differs := (visits.fired != recorded).any(axis=1)).any():
        k = int(np.argmax(differs))
        device = int(np.argmax(visits.fired[k] != recorded[k]))
        return Check("same-run", "alg:efhc", "broken", "fires-otherwise", {}, k, device)
    if final is None:
        return Check("same-run", "alg:efhc", "held", "fires-as-recorded")
    if np.array_equal(np.asarray(visits.models), final):
        return Check("same-run", "alg:efhc", "held", "same")
    return Check("same-run", "alg:efhc", "broken", "ends-otherwise", {}, len(recorded))
