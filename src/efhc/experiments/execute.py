"""Running an experiment: every seed, every strategy, with checkpoints, into a run directory or into memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import polars as pl
from threadpoolctl import threadpool_limits

from efhc.core.arrays import Floats, Ints
from efhc.experiments.config import Experiment
from efhc.experiments.config_files import build_experiment
from efhc.experiments.result import Result
from efhc.experiments.run_directory import RunDirectory
from efhc.experiments.scenario import draw_scenario, load_data
from efhc.learning.data import Dataset
from efhc.simulation.lockstep import Scenario, lockstep
from efhc.simulation.record import Record, list_column


class Progress(Protocol):
    """Told after every iteration, and of those that a resumed run need not do again."""

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
    **fields: Any,
) -> Result:
    """Run an experiment, given as one object or by its fields: `simulate(devices=20, network=Ring())`.

    With `out` it is kept in a run directory, and with `resume` one that was stopped there is brought to its end,
    bit for bit as if it had never stopped.
    """
    experiment = build_experiment({**(dict(experiment) if experiment else {}), **fields})
    data = load_data(experiment)
    for seed in experiment.seeds:  # whatever is wrong shows before anything is written
        draw_scenario(experiment, data, seed)
    if out is None:
        return _run_all(Runner(experiment, None, progress, checkpoint_seconds), data)

    directory = RunDirectory.start(Path(out), experiment, data.sha256, resume=resume)
    with directory.session():
        if directory.is_complete:
            result = Result.load(directory.path)
        else:
            runner = Runner(directory.load_experiment(), directory, progress, checkpoint_seconds)
            result = _run_all(runner, data)
            for name in ("metrics", "events", "network", "devices"):
                directory.save_table(name, getattr(result, name))
            directory.save_models(result.models)
        directory.finish()
    figure = directory.path / "figures" / "comparison.png"
    if not figure.exists():
        result.plot(figure)
    return result


def _run_all(runner: Runner, data: Dataset) -> Result:
    """Every seed, every strategy, one after the other."""
    experiment = runner.experiment
    records: dict[tuple[str, int], Record] = {}
    models: dict[tuple[str, int], Floats] = {}
    networks, devices = [], []
    # BLAS with several threads is slower on matrices this small, and its rounding depends on their number.
    with threadpool_limits(limits=1):
        for seed in experiment.seeds:
            scenario = draw_scenario(experiment, data, seed)
            networks.append(_physical_links(scenario, experiment.iterations, seed))
            devices.append(_devices(scenario, seed))
            for strategy in experiment.strategies:
                models[strategy, seed], records[strategy, seed] = runner.run(scenario, strategy, seed)

    def joined(table: Callable[[Record], pl.DataFrame]) -> pl.DataFrame:
        return pl.concat(
            table(record).select(pl.lit(strategy).alias("strategy"), pl.lit(seed, pl.Int64).alias("seed"), pl.all())
            for (strategy, seed), record in records.items()
        )

    metrics, events = joined(Record.metrics), joined(Record.events)
    return Result(experiment, metrics, events, pl.concat(networks), pl.concat(devices), models)


@dataclass(frozen=True)
class Runner:
    """Runs one strategy on one seed, from its checkpoint if it has one."""

    experiment: Experiment
    directory: RunDirectory | None
    progress: Progress
    checkpoint_seconds: float

    def run(self, scenario: Scenario, strategy: str, seed: int) -> tuple[Floats, Record]:
        """The final models and the record of the way there."""
        checkpoint = self.directory.load_checkpoint(strategy, seed) if self.directory else None
        state, record = checkpoint or (scenario.initial_state(), Record())
        self.progress(strategy, seed, state.k)
        steps = lockstep(scenario, self.experiment.strategies[strategy], state)
        saved_at = time.monotonic()
        try:
            while state.k < self.experiment.iterations:
                next_state, step = next(steps)
                record.add(next_state, step, scenario.learner, evaluate=self.experiment.is_evaluated(step.k))
                state = next_state
                self.progress(strategy, seed, state.k)
                if self.directory and time.monotonic() - saved_at > self.checkpoint_seconds:
                    self.directory.save_checkpoint(strategy, seed, state, record)
                    saved_at = time.monotonic()
        finally:  # done, stopped or failed: what there is, is kept
            if self.directory and state.k > 0:
                record.keep(state.k)
                self.directory.save_checkpoint(strategy, seed, state, record)
        return state.models, record


def _physical_links(scenario: Scenario, iterations: int, seed: int) -> pl.DataFrame:
    """The links of G(k), one row for each k at which they changed."""
    changes: dict[int, Ints] = {}
    for k in range(iterations):
        before, now = scenario.graphs(k)
        if k == 0 or (before is not now and not np.array_equal(before.links, now.links)):
            changes[k] = now.links.astype(np.int32)
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
