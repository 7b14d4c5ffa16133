"""Making one run: the only place where a driver, its observers and what is kept of a run come together."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Event
from typing import Protocol

import numpy as np
import polars as pl

from efhc.core.iteration import State
from efhc.drivers.lockstep import Lockstep
from efhc.drivers.observers import LookAt, Observer, drive
from efhc.drivers.record import Piece, Record
from efhc.drivers.steps import Steps
from efhc.experiments.runs.run import Run
from efhc.learning.backends.backend import ScoresNotFinite
from efhc.scenarios.scenario import Scenario

CHECKPOINT_SECONDS = 30.0


class Stopped(Exception):
    """A run was asked to stop, and did."""


class Keeper(Protocol):
    """Keeps what a run makes, in memory or in a folder."""

    def resume(self, run: Run, initial: State) -> tuple[State, Record] | None:
        """Return the state and the record of the last checkpoint, or None to begin at `initial`."""

    def put_away(self, piece: Piece) -> None:
        """Keep the next iterations of the tables."""

    def checkpoint(self, state: State, record: Record) -> None:
        """Keep the state, so that the run can go on from here."""

    def snapshot(self, state: State) -> None:
        """Keep the models of one iteration for later analysis."""

    def finish(self, state: State, devices: pl.DataFrame) -> None:
        """Complete the run, whose tables have all been put away, with its last state and the table of devices."""


def make_run(
    run: Run,
    scenario: Scenario,
    keeper: Keeper,
    *,
    threads: int = 1,
    observers: Sequence[Observer] = (),
    progress: Callable[[int], None] = lambda done: None,
    stop: Event | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> None:
    """Make a run from its last checkpoint, or from the start, to its end.

    `progress` is called with the number of iterations done. When `stop` is set, the run saves a checkpoint and raises
    `Stopped`. On any other error, too, the iterations that are complete are saved.
    """
    experiment = run.experiment
    (trigger,) = experiment.strategies.values()
    initial = scenario.initial_state()
    state, record = keeper.resume(run, initial) or (initial, Record())
    keeping = _Keeping(keeper, record, state, checkpoint_seconds)
    everyone = [
        _Recording(record, scenario, run, keeping),
        *([_Snapshots(keeper, snapshot_iterations(run))] if experiment.keep_models_every else []),
        keeping,
        *observers,  # one that raises finds the iteration whole
        _Telling(progress, stop or Event(), experiment.iterations),
    ]
    try:
        state = drive(Lockstep(scenario, trigger, threads), state, experiment.iterations, everyone)
    except BaseException:
        keeping.save()  # stopped or failed: whatever is whole is kept
        raise
    keeper.put_away(record.take())
    keeper.finish(state, devices_table(scenario, run.seed))


class _Recording(Observer):
    """Records every iteration, and evaluates the models after those that the experiment says."""

    def __init__(self, record: Record, scenario: Scenario, run: Run, keeping: _Keeping) -> None:
        self._record, self._scenario, self._experiment, self._keeping = record, scenario, run.experiment, keeping

    def next_look(self, k: int) -> int | None:
        return self._experiment.next_evaluation(k)

    def after(self, steps: Steps, state: State) -> None:
        self._keeping.wait()
        learner = self._scenario.learner
        self._record.add(steps, self._scenario.bandwidths.values, learner.backend.parameters)
        if self._experiment.is_evaluated_after(state.k):
            try:
                self._record.add_accuracies(*learner.accuracies(state.models, state.local))
            except ScoresNotFinite as error:
                raise error.about(f"after iteration {state.k - 1}") from error


class _Snapshots(LookAt):
    """Keeps the models of given iterations."""

    def __init__(self, keeper: Keeper, iterations: Sequence[int]) -> None:
        super().__init__(iterations)
        self._keeper = keeper

    def look(self, state: State) -> None:
        self._keeper.snapshot(state)


def snapshot_iterations(run: Run) -> list[int]:
    """Return the iterations whose models are kept, with `keep_models_every`."""
    every, iterations = run.experiment.keep_models_every or run.experiment.iterations, run.experiment.iterations
    return [*range(0, iterations, every), iterations]


class _Keeping(Observer):
    """Puts full pieces away, and makes a checkpoint every few seconds."""

    def __init__(self, keeper: Keeper, record: Record, state: State, seconds: float) -> None:
        self._keeper, self._record, self._seconds = keeper, record, seconds
        self._whole: State | None = state
        """The latest state whose iterations have all been recorded and evaluated."""
        self._saved_at = time.monotonic()

    def wait(self) -> None:
        """Save nothing until `after` is called: the latest iterations are being recorded."""
        self._whole = None

    def after(self, steps: Steps, state: State) -> None:
        self._whole = state
        if time.monotonic() - self._saved_at > self._seconds:
            self.save()
        elif self._record.is_large:
            self._keeper.put_away(self._record.take())

    def save(self) -> None:
        """Make a checkpoint of the latest whole iteration, if there is one."""
        if self._whole is not None and self._whole.k > 0:
            self._keeper.checkpoint(self._whole, self._record)
        self._saved_at = time.monotonic()


class _Telling(Observer):
    """Reports the number of iterations done, and stops the run when `stop` is set."""

    def __init__(self, progress: Callable[[int], None], stop: Event, iterations: int) -> None:
        self._progress, self._stop, self._iterations = progress, stop, iterations

    def begin(self, state: State) -> None:
        self._tell(state)

    def after(self, steps: Steps, state: State) -> None:
        self._tell(state)

    def _tell(self, state: State) -> None:
        self._progress(state.k)
        if self._stop.is_set() and state.k < self._iterations:
            raise Stopped


def devices_table(scenario: Scenario, seed: int) -> pl.DataFrame:
    """Return the bandwidth, number of samples and labels of each device, one row per device."""
    labels = scenario.learner.data.y_train
    rows = [
        (seed, device, bandwidth, len(part), np.unique(labels[part]).tolist())
        for device, (bandwidth, part) in enumerate(zip(scenario.bandwidths.values, scenario.learner.parts, strict=True))
    ]
    schema = {
        "seed": pl.Int64(),
        "device": pl.Int32(),
        "bandwidth": pl.Float64(),
        "samples": pl.Int64(),
        "labels": pl.List(pl.Int32),
    }
    return pl.DataFrame(rows, schema=schema, orient="row")
