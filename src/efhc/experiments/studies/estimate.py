"""How long runs will take on this machine: a few iterations and one evaluation of each kind of run are timed.
Of an event-driven run, the first virtual seconds are.

Runs are of one kind if they differ in their seed, in the links of their network or in how the data are split only.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from efhc.drivers.general import driver_for
from efhc.drivers.observers import drive
from efhc.drivers.record import Record, Recording
from efhc.drivers.settings import LockstepDriver
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import to_tables
from efhc.experiments.runs.draw import draw_scenario
from efhc.experiments.runs.event_driven_run import simulator_of
from efhc.experiments.runs.moments import Moments
from efhc.experiments.runs.run import Run
from efhc.experiments.runs.tables import EVENT_DRIVEN, driver_of
from efhc.scenarios.personal import personalized
from efhc.scenarios.scenario import Scenario

PROCESSOR_SECONDS = 0.5
"""The least time for which the iterations of each kind of run are timed."""


class Estimate(NamedTuple):
    """The processor time that runs will take."""

    seconds: float
    """Seconds of one core."""
    runs: int

    def on_cores(self, cores: int) -> float:
        """Seconds on the wall if each core makes one run after the other."""
        return self.seconds / max(1, min(cores, self.runs))


def estimate(runs: Iterable[Run]) -> Estimate:
    """Time every kind of run for a moment, and add up."""
    kinds: dict[str, list[Run]] = {}
    for run in runs:
        kinds.setdefault(_kind(run.experiment), []).append(run)
    seconds = sum(len(alike) * _seconds_of(alike[0]) for alike in kinds.values())
    return Estimate(seconds, sum(map(len, kinds.values())))


def _kind(experiment: Experiment) -> str:
    tables = to_tables(experiment)
    tables |= {"seeds": [], "partition": {}, "network": tables["network"].get("kind")}
    return json.dumps(tables, sort_keys=True, default=str)


def _seconds_of(run: Run) -> float:
    """Return the processor seconds of a whole run, on one core."""
    experiment = run.experiment
    if driver_of(experiment) == EVENT_DRIVEN.driver:
        simulator = simulator_of(run, _scenario_of(run), 1)

        def advance() -> float:
            simulator.advance()
            return simulator.progress

        return _seconds_per_unit(advance, 1.0)
    scenario = _scenario_of(run)
    iteration, evaluation = _timed(run, scenario)
    moments = Moments(experiment, scenario)
    evaluations = sum(1 for _ in moments.planned) + moments.at_budgets
    return experiment.iterations * iteration + evaluations * evaluation


def _scenario_of(run: Run) -> Scenario:
    scenario = draw_scenario(run.experiment, run.data, run.seed, 1)
    return personalized(scenario, next(iter(run.experiment.strategies.values())), run.strategy)


def _timed(run: Run, scenario: Scenario) -> tuple[float, float]:
    """Return the processor seconds of one iteration and of one evaluation of a run in lockstep, on one core."""
    experiment, settings = run.experiment, run.experiment.driver
    assert isinstance(settings, LockstepDriver)
    (strategy,) = experiment.strategies.values()
    driver, recording = driver_for(scenario, strategy, 1, settings.loss or 0.0), Recording(scenario, Record())
    state = driver.initial_state()

    def iterate() -> int:
        nonlocal state
        until = min(2 * state.k + 2, experiment.iterations)  # more and more at once, as in a long run
        state = drive(driver, state, until, [recording])
        return state.k

    calls = itertools.count()

    def evaluate() -> int:
        scenario.learner.evaluate(state.models, state.local)
        return next(calls)

    return _seconds_per_unit(iterate, experiment.iterations), _seconds_per_unit(evaluate)


def _seconds_per_unit(advance: Callable[[], float], end: float = math.inf) -> float:
    """Return the processor seconds per unit of progress.

    `advance` makes some progress and returns all of it so far, up to `end`. Its first call, which compiles and
    prepares, is not timed.
    """
    first = reached = advance()
    used = 0.0
    while used < PROCESSOR_SECONDS and reached < end:
        started = time.process_time()
        reached = advance()
        used += time.process_time() - started
    return used / max(1e-9, reached - first)
