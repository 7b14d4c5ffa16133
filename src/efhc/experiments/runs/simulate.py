"""Running an experiment: every strategy with every seed, in memory or in a run directory."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from efhc.base.errors import InputError
from efhc.base.extras import require
from efhc.base.inputs import using_inputs
from efhc.drivers.observers import ObserverFactory
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.field_types import shows_settings
from efhc.experiments.config.files import build_experiment, to_tables
from efhc.experiments.runs.directory import OWN_RUNS, RunDirectory
from efhc.experiments.runs.draw import check_driver, check_strategies, draw_scenario
from efhc.experiments.runs.engines.local import LocalEngine
from efhc.experiments.runs.keeping import CHECKPOINT_SECONDS
from efhc.experiments.runs.live.followers import FollowerFactory
from efhc.experiments.runs.live.notebook_bar import notebook_bar
from efhc.experiments.runs.live.tracking import tracking
from efhc.experiments.runs.resources import plan
from efhc.experiments.runs.result import Result, collect, result_in_memory
from efhc.experiments.runs.run import Run, Runs
from efhc.experiments.runs.store import Engine, Failures, MemoryStore, Progress, RunStore
from efhc.experiments.runs.tables import require_lockstep
from efhc.learning.data import NpzFile
from efhc.learning.models import ModuleModel
from efhc.network.topologies import DrawnTopology


class RunProgress(Protocol):
    """Called after every few iterations, and once for the iterations that a resumed run already has."""

    def __call__(self, strategy: str, seed: int, done: int) -> None:
        """`done` iterations of this strategy and seed are done."""


def _silent(strategy: str, seed: int, done: int) -> None:
    pass


@shows_settings
def simulate(
    experiment: Experiment | None = None,
    *,
    out: Path | str | None = None,
    resume: bool = False,
    store: Path | str | None = None,
    engine: Engine | None = None,
    jobs: int | None = None,
    progress: RunProgress | None = None,
    observers: ObserverFactory | None = None,
    followers: FollowerFactory | Sequence[FollowerFactory] = (),
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    warn: Callable[[str], None] = warnings.warn,
    **fields: Any,
) -> Result:
    """Run an experiment, given as one object or by its fields: `simulate(devices=20, network=Ring())`.

    Parameters
    ----------
    experiment
        The experiment. `fields` change it; without it they change the defaults.
    out
        The run directory to keep the result in. Default: the result is in memory only.
    resume
        Go on with the run that was stopped in `out`. On the same machine with the same packages, the result is bit for
        bit what it would have been. Without a run in `out`, a new one is begun.
    store
        A folder of single runs. Runs that are there are not made again, and those that are made stay there.
        Default: a folder within `out`, which is removed in the end.
    engine
        Where runs are made, with its own number of cores. Default: `jobs` cores of this machine.
    jobs
        The number of cores to use. Default: all.
    progress
        Called with strategy, seed and number of iterations done; of an event-driven run, that share of `iterations`.
        Default: a notebook shows a bar if runs take longer than two seconds.
    observers
        Creates an observer for every run: see `efhc.drivers.observers`. For the driver `lockstep` only.
    followers
        Creates a follower for every run, which hears of it while it is made: see
        `efhc.experiments.runs.live.followers`. One factory, or several.
    checkpoint_seconds
        The time between two checkpoints of the default engine.
    warn
        Called with one line about each problem that does not stop the experiment.
    **fields
        Fields of `Experiment`.

    Returns
    -------
    Result
        A run that fails, because training diverges, is listed in `Result.failed`, and the others are not affected.

    Raises
    ------
    EfhcError
        If a setting cannot be used, or if every run fails.

    """
    experiment = build_experiment({**(dict(experiment) if experiment else {}), **fields})
    if observers is not None:
        require_lockstep(experiment, "an observer")
    if isinstance(experiment.model, ModuleModel):
        require("deep")
    directory = None if out is None else RunDirectory(Path(out))
    data = directory.data_of(experiment) if directory else None
    if data is not None:
        experiment = experiment.model_copy(update={"data": NpzFile(path=data.path)})
    asked = Runs([data] if data is not None else [])
    runs, inputs = asked.of(experiment), asked.inputs(experiment)  # those of all strategies, by their own names
    if directory and directory.is_begun:
        directory.check_may_go_on(experiment, resume=resume)
        if directory.is_complete:  # only read: it may lie where nothing can be written
            directory.check_same(experiment, inputs.checksums)
            return _finished(directory, experiment, runs)
    in_memory = directory is None
    plan(experiment, inputs.data, jobs, len(runs), keeps_models=in_memory)
    if directory and store is not None and Path(store).absolute().is_relative_to(directory.path.absolute()):
        raise InputError("--store", store, "a folder outside of --out")
    if directory:
        to_tables(experiment)  # what cannot be named is refused before anything is written
    _check(runs, warn)
    engine = engine or LocalEngine(jobs, in_memory, checkpoint_seconds)
    factories = [followers] if callable(followers) else followers
    if directory is None:
        memory = MemoryStore(warn)
        unique = {run.key: run for run in runs}
        with tracking([experiment], None, warn) as logged, _told(progress, factories, experiment) as (tell, told):
            everyone = [*told, *logged]
            failures = engine.make(list(unique.values()), memory, _each(runs, tell), observers, everyone)
        _report(runs, failures, warn)
        return result_in_memory(experiment, inputs, runs, memory, failures)

    with directory.locked():
        directory.begin(experiment, inputs.checksums, resume=resume)
        if directory.is_complete:  # another process has finished it meanwhile
            return _finished(directory, experiment, runs)
        directory.keep_data(data)
        experiment = directory.in_the_order_begun(experiment)
        names = list(experiment.strategies)
        runs.sort(key=lambda run: (experiment.seeds.index(run.seed), names.index(run.strategy)))
        elsewhere = None if store is None else Path(store)
        with directory.session(elsewhere):
            kept = RunStore(elsewhere or directory.path / OWN_RUNS, warn, with_models=True)
            logging, telling = tracking([experiment], directory.path, warn), _told(progress, factories, experiment)
            with engine.session(), logging as logged, telling as (tell, told):
                everyone = [*told, *logged]
                failures = kept.complete(runs, engine, _each(runs, tell), observers, everyone)
            _report(runs, failures, warn)
            collect(directory, runs, kept, failures)
        _remove_runs(directory, runs)
    return Result.in_directory(experiment, directory)


def _finished(directory: RunDirectory, experiment: Experiment, runs: list[Run]) -> Result:
    """Return the result of a directory that is complete."""
    _remove_runs(directory, runs)  # if it was killed before they were removed
    return Result.in_directory(directory.in_the_order_begun(experiment), directory)


def _remove_runs(directory: RunDirectory, runs: list[Run]) -> None:
    """Remove the single runs within a complete directory, and nothing else that lies there."""
    folder = directory.path / OWN_RUNS
    for run in runs:
        shutil.rmtree(folder / run.key, ignore_errors=True)
        with suppress(OSError):
            (folder / f".{run.key}.lock").unlink()
    with suppress(OSError):
        folder.rmdir()


def _check(runs: list[Run], warn: Callable[[str], None]) -> None:
    """Draw all that every seed determines, so that errors are raised before anything is written."""
    one_of = {run.seed: run for run in runs}
    with using_inputs(runs[0].inputs.files):
        for run in one_of.values():
            scenario = draw_scenario(run.whole, run.data, run.seed)
            scenario.initial_models()
            check_driver(run.whole, scenario, run.seed)
            check_strategies(run.whole, scenario)
            graph = scenario.network.graph(0)
            drawn_so = isinstance(run.whole.network, DrawnTopology)  # with connected = false
            if graph is scenario.network.graph(1) and not graph.is_connected and not drawn_so:
                warn(f"seed {run.seed}: the network is not connected, so that some devices never hear of others")


@contextmanager
def _told(
    progress: RunProgress | None, factories: Sequence[FollowerFactory], experiment: Experiment
) -> Iterator[tuple[RunProgress, Sequence[FollowerFactory]]]:
    """Yield who hears how far runs are, and who creates their followers: those given or, in a notebook, a bar, too."""
    if progress is not None:
        yield progress, factories
        return
    runs = len(experiment.seeds) * len(experiment.strategies)
    with notebook_bar(runs, runs * experiment.iterations) as overview:
        if overview is None:
            yield _silent, factories
        else:
            yield overview.progress_of(experiment.iterations), [*factories, overview.follower]


def _each(runs: list[Run], progress: RunProgress) -> Progress:
    """Report a run under each of its names: two strategies of the same kind and parameters are one run."""
    names: dict[str, list[Run]] = {}
    for run in runs:
        names.setdefault(run.key, []).append(run)

    def tell(run: Run, share: float) -> None:
        for named in names[run.key]:
            progress(*named.pair, round(share * run.experiment.iterations))

    return tell


def _report(runs: list[Run], failures: Failures, warn: Callable[[str], None]) -> None:
    """Raise the first failure if every run failed; else warn of each."""
    failed = {run.key: failures[run.key] for run in runs if run.key in failures}
    if len(failed) == len({run.key for run in runs}):
        raise next(iter(failed.values()))
    for error in failed.values():
        warn(str(error))
