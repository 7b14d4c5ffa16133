"""How long runs will take on this machine: a few iterations and one evaluation of each kind of run are timed.
Of an event-driven run, the first virtual seconds are.

Runs are of one kind if they differ in their seed, in the links of their network or in how the data are split only.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from efhc.drivers.event_driven.settings import LockstepDriver
from efhc.drivers.general import driver_for
from efhc.drivers.observers import drive
from efhc.drivers.record import Record, Recording
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import to_tables
from efhc.experiments.runs.draw import draw_scenario
from efhc.experiments.runs.event_driven_run import simulator_of
from efhc.experiments.runs.run import Run
from efhc.experiments.runs.tables import EVENT_DRIVEN, driver_of

PROCESSOR_SECONDS = 0.5
"""The least time for which the iterations of each kind of run are timed."""


class Estimate(NamedTuple):
    """The processor time that runs will take."""

    iterations: float
    """Seconds of one core, for all iterations."""
    evaluations: float
    """Seconds of one core, for all evaluations."""
    runs: int

    @property
    def seconds(self) -> float:
        """Seconds of one core."""
        return self.iterations + self.evaluations

    def on_cores(self, cores: int) -> float:
        """Seconds on the wall if each core makes one run after the other."""
        return self.seconds / max(1, min(cores, self.runs))


def estimate(runs: Iterable[Run]) -> Estimate:
    """Time every kind of run for a moment, and add up."""
    of_iterations = of_evaluations = 0.0
    kinds: dict[str, list[Run]] = {}
    for run in runs:
        kinds.setdefault(_kind(run.experiment), []).append(run)
    for alike in kinds.values():
        run = alike[0]
        if driver_of(run.experiment) == EVENT_DRIVEN.driver:
            of_iterations += len(alike) * _event_driven_seconds(run)
            continue
        iteration, evaluation = _timed(run)
        of_iterations += len(alike) * run.experiment.iterations * iteration
        of_evaluations += len(alike) * _evaluations(run.experiment) * evaluation
    return Estimate(of_iterations, of_evaluations, sum(map(len, kinds.values())))


def _kind(experiment: Experiment) -> str:
    tables = to_tables(experiment)
    tables |= {"seeds": [], "partition": {}, "network": tables["network"].get("kind")}
    return json.dumps(tables, sort_keys=True, default=str)


def _evaluations(experiment: Experiment) -> int:
    """Return how many times a run evaluates its models."""
    return sum(map(experiment.is_evaluated_after, range(1, experiment.iterations + 1)))


def _timed(run: Run) -> tuple[float, float]:
    """Return the processor seconds of one iteration and of one evaluation of a run, on one core."""
    experiment, settings = run.experiment, run.experiment.driver
    assert isinstance(settings, LockstepDriver)
    scenario = draw_scenario(experiment, run.data, run.seed, 1)
    (strategy,) = experiment.strategies.values()
    driver, recording = driver_for(scenario, strategy, 1, settings.loss or 0.0), Recording(scenario, Record())
    state = drive(driver, driver.initial_state(), min(2, experiment.iterations), [recording])  # compiles
    first, made, used = state.k, 1, 0.0
    while used < PROCESSOR_SECONDS and state.k < experiment.iterations:
        started = time.process_time()
        state = drive(driver, state, min(state.k + made, experiment.iterations), [recording])
        used += time.process_time() - started
        made *= 2
    return used / max(1, state.k - first), _seconds_per_call(
        lambda: scenario.learner.accuracies(state.models, state.local)
    )


def _event_driven_seconds(run: Run) -> float:
    """Return the processor seconds of a whole run, on one core, evaluations included."""
    simulator = simulator_of(run, draw_scenario(run.experiment, run.data, run.seed, 1), 1)
    simulator.advance()  # compiles
    first, used = simulator.progress, 0.0
    while used < PROCESSOR_SECONDS and not simulator.is_over:
        started = time.process_time()
        simulator.advance()
        used += time.process_time() - started
    return used / max(1e-9, simulator.progress - first)


def _seconds_per_call(work: Callable[[], object]) -> float:
    """Return the processor seconds of a call, after a first one that compiles and prepares."""
    work()
    calls, started = 0, time.process_time()
    while (used := time.process_time() - started) < PROCESSOR_SECONDS:
        work()
        calls += 1
    return used / calls
