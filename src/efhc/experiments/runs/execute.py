"""Running an experiment: every seed, every strategy, with checkpoints, into a run directory or into memory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock
from typing import Any, Protocol

import numpy as np
import polars as pl
from threadpoolctl import threadpool_limits

from efhc.base.arrays import Floats, Ints
from efhc.core.iteration import State
from efhc.drivers.lockstep import Lockstep
from efhc.drivers.observers import Observer, ObserverFactory, drive
from efhc.drivers.record import Record, list_column
from efhc.drivers.scenario import Scenario
from efhc.drivers.steps import Steps
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import build_experiment
from efhc.experiments.runs.directory import RunDirectory
from efhc.experiments.runs.draw import draw_scenario, load_data
from efhc.experiments.runs.resources import Plan, plan
from efhc.experiments.runs.result import Result
from efhc.learning.data import Dataset


class Progress(Protocol):
    """Told after every few iterations, and of those that a resumed run need not do again."""

    def __call__(self, strategy: str, seed: int, done: int) -> None:
        """`done` iterations of this strategy and seed are done."""


def _silent(strategy: str, seed: int, done: int) -> None:
    pass


def simulate(
    experiment: Experiment | None = None,
    *,
    out: Path | str | None = None,
    resume: bool = False,
    progress: Progress = _silent,
    checkpoint_seconds: float = 30.0,
    jobs: int | None = None,
    watcher: ObserverFactory | None = None,
    **fields: Any,
) -> Result:
    """Run an experiment, given as one object or by its fields: `simulate(devices=20, network=Ring())`.

    With `out` it is kept in a run directory, and with `resume` one that was stopped there is brought to its end,
    bit for bit as if it had never stopped. `jobs` is the number of cores to use; left out, all. `watcher` is told of
    every iteration that is made.
    """
    experiment = build_experiment({**(dict(experiment) if experiment else {}), **fields})
    data = load_data(experiment)
    use = plan(experiment, data, jobs)
    if out is None or not RunDirectory(Path(out)).is_complete:
        for seed in experiment.seeds:  # whatever is wrong shows before anything is written
            draw_scenario(experiment, data, seed).initial_models()
    if out is None:
        return _run_all(Runner(experiment, data, use.threads_per_run, None, progress, checkpoint_seconds, watcher), use)

    directory = RunDirectory.start(Path(out), experiment, data.sha256, resume=resume)
    with directory.session():
        if directory.is_complete:
            result = Result.load(directory.path)
        else:
            experiment = directory.load_experiment()
            threads = use.threads_per_run
            runner = Runner(experiment, data, threads, directory, progress, checkpoint_seconds, watcher)
            result = _run_all(runner, use)
            directory.save_tables(result.tables)
            directory.save_models(result.models)
        directory.finish()
    figure = directory.path / "figures" / "comparison.png"
    if not figure.exists():
        result.plot(figure)
    return result


class Stopped(Exception):
    """A run was asked to stop, and did."""


def run_alone(
    experiment: Experiment,
    data: Dataset,
    out: Path,
    *,
    threads: int = 1,
    progress: Progress = _silent,
    stop: Event | None = None,
    checkpoint_seconds: float = 30.0,
) -> None:
    """One strategy and one seed, for its tables only: `out` becomes a run directory without models and figures.

    Goes on where it was stopped. Several may run at once, in threads of one process.
    """
    directory = RunDirectory.start(out, experiment, data.sha256, resume=True)
    ((strategy,), (seed,)) = experiment.strategies, experiment.seeds
    with directory.session():
        if not directory.is_complete:
            with _drawing:
                scenario = draw_scenario(experiment, data, seed, threads)
            runner = Runner(experiment, data, threads, directory, progress, checkpoint_seconds, stop=stop or Event())
            models, record = runner.run(scenario, strategy, seed)
            if len(record) < experiment.iterations:
                raise Stopped
            pair = strategy, seed
            directory.save_tables(_collected(experiment, {pair: scenario}, {pair: (models, record)}).tables)
        directory.finish()


_drawing = Lock()
"""torch traces modules one at a time only."""


def wait_for_all(pool: ThreadPoolExecutor, runs: Iterable[Future[Any]], stop: Event) -> None:
    """Until all are done. Where one fails, or the user interrupts, `stop` is set and the others end."""
    waiting = set(runs)
    try:
        while waiting:  # not for long: a signal that comes just before a wait is heard only after it
            done, waiting = wait(waiting, timeout=0.2, return_when=FIRST_EXCEPTION)
            for run in done:
                run.result()
    except BaseException:
        stop.set()
        pool.shutdown(cancel_futures=True)
        raise


def _run_all(runner: Runner, use: Plan) -> Result:
    """Every seed, every strategy, several at once. All stop where one fails, or the user interrupts; each is kept."""
    experiment = runner.experiment
    pairs = [(strategy, seed) for seed in experiment.seeds for strategy in experiment.strategies]
    # BLAS with several threads is slower on matrices this small, and its rounding depends on their number.
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(use.runs_at_once, thread_name_prefix="efhc-run") as pool:
        # A scenario for each, so that runs share nothing that changes.
        scenarios = {pair: draw_scenario(experiment, runner.data, pair[1], runner.threads) for pair in pairs}
        runs = {pair: pool.submit(runner.run, scenario, *pair) for pair, scenario in scenarios.items()}
        wait_for_all(pool, runs.values(), runner.stop)
    return _collected(experiment, scenarios, {pair: run.result() for pair, run in runs.items()})


def _collected(
    experiment: Experiment,
    scenarios: Mapping[tuple[str, int], Scenario],
    done: Mapping[tuple[str, int], tuple[Floats, Record]],
) -> Result:
    """The tables of all these runs, by strategy and seed."""

    def joined(tables: Iterable[pl.DataFrame]) -> pl.DataFrame:
        return pl.concat(
            table.select(pl.lit(strategy).alias("strategy"), pl.lit(seed, pl.Int64).alias("seed"), pl.all())
            for (strategy, seed), table in zip(done, tables, strict=True)
        )

    of_seed = {seed: scenario for (_, seed), scenario in scenarios.items()}
    return Result(
        experiment,
        metrics=joined(record.metrics() for _, record in done.values()),
        events=joined(record.events(scenarios[pair]) for pair, (_, record) in done.items()),
        network=pl.concat(_physical_links(drawn, experiment.iterations, seed) for seed, drawn in of_seed.items()),
        devices=pl.concat(_devices(drawn, seed) for seed, drawn in of_seed.items()),
        models={pair: models for pair, (models, _) in done.items()},
    )


@dataclass(frozen=True)
class Runner:
    """Runs one strategy on one seed, from its checkpoint if it has one."""

    experiment: Experiment
    data: Dataset
    threads: int
    directory: RunDirectory | None
    progress: Progress
    checkpoint_seconds: float
    watcher: ObserverFactory | None = None
    stop: Event = field(default_factory=Event)
    """Set when all runs shall come to a stop where they are."""
    telling: Lock = field(default_factory=Lock)
    """Progress is told by one run at a time."""

    def run(self, scenario: Scenario, strategy: str, seed: int) -> tuple[Floats, Record]:
        """The final models and the record of the way there."""
        checkpoint = self.directory.load_checkpoint(strategy, seed) if self.directory else None
        state, record = checkpoint or (scenario.initial_state(), Record(self.experiment.devices))
        lockstep = Lockstep(scenario, self.experiment.strategies[strategy], self.threads)
        recording = _Recording(self, scenario, strategy, seed, record)
        own = [self.watcher(strategy, seed, scenario)] if self.watcher else []
        try:
            state = drive(lockstep, state, self.experiment.iterations, [recording, *own, _Checkpoints(recording)])
        except Stopped:
            state = recording.state
        finally:  # done, stopped or failed: what there is, is kept
            recording.save()
        return state.models, record

    def tell(self, strategy: str, seed: int, done: int) -> None:
        """Tell how far a run has got."""
        with self.telling:
            self.progress(strategy, seed, done)


class _Recording(Observer):
    """Notes down what happens, evaluates when it is time, tells how far it is, and stops when asked to."""

    def __init__(self, runner: Runner, scenario: Scenario, strategy: str, seed: int, record: Record) -> None:
        self.runner, self.strategy, self.seed, self.record = runner, strategy, seed, record
        self._scenario, self.state = scenario, State(0, np.empty((0, 0)), np.empty((0, 0)))

    def next_look(self, k: int) -> int | None:
        return self.runner.experiment.next_evaluation(k)

    def begin(self, state: State) -> None:
        self.state = state
        if self.runner.experiment.is_evaluated_after(state.k) and not self.record.is_evaluated:
            self._evaluate()
        self._go_on()

    def after(self, steps: Steps, state: State) -> None:
        self.state = state  # the one before is used up: an interrupt from here on must not keep it
        learner = self._scenario.learner
        self.record.add(steps, self._scenario.bandwidths.values, learner.backend.parameters)
        if self.runner.experiment.is_evaluated_after(state.k):
            self._evaluate()
        self._go_on()

    def _evaluate(self) -> None:
        self.record.add_accuracies(*self._scenario.learner.accuracies(self.state.models, self.state.local))

    def _go_on(self) -> None:
        self.runner.tell(self.strategy, self.seed, self.state.k)
        if self.runner.stop.is_set() and self.state.k < self.runner.experiment.iterations:
            raise Stopped

    def save(self) -> None:
        """Keep the state in a checkpoint, if there is one to keep and a place for it."""
        if self.runner.directory and len(self.record) == self.state.k > 0:
            self.runner.directory.save_checkpoint(self.strategy, self.seed, self.state, self.record)


class _Checkpoints(Observer):
    """Keeps the state every few seconds."""

    def __init__(self, recording: _Recording) -> None:
        self._recording, self._saved_at = recording, time.monotonic()

    def after(self, steps: Steps, state: State) -> None:
        if time.monotonic() - self._saved_at > self._recording.runner.checkpoint_seconds:
            self._recording.save()
            self._saved_at = time.monotonic()


def _physical_links(scenario: Scenario, iterations: int, seed: int) -> pl.DataFrame:
    """The links of G(k), one row for each k at which they changed."""
    changes: dict[int, Ints] = {}
    for k in range(iterations):
        before, now = scenario.graphs(k)
        if k == 0 or (before is not now and not np.array_equal(before.links, now.links)):
            changes[k] = now.links
    return pl.DataFrame(
        {
            "seed": pl.Series([seed] * len(changes), dtype=pl.Int64),
            "iteration": pl.Series(list(changes), dtype=pl.Int64),
            "link_from": list_column([links[:, 0] for links in changes.values()]),
            "link_to": list_column([links[:, 1] for links in changes.values()]),
        }
    )


def _devices(scenario: Scenario, seed: int) -> pl.DataFrame:
    """Bandwidth, samples and labels of each device."""
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
