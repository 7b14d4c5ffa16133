"""Running an experiment: every strategy with every seed, in memory or in a run directory."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from efhc.base.errors import InputError
from efhc.base.extras import require
from efhc.base.inputs import using_inputs
from efhc.drivers.observers import ObserverFactory
from efhc.experiments.config.experiment import Experiment, shows_settings
from efhc.experiments.config.files import build_experiment, to_tables
from efhc.experiments.runs.draw import check_driver
from efhc.experiments.runs.engines.local import LocalEngine
from efhc.experiments.runs.events import FollowerFactory
from efhc.experiments.runs.experiment_folder import ExperimentFolder
from efhc.experiments.runs.folder import Pair
from efhc.experiments.runs.keeping import CHECKPOINT_SECONDS
from efhc.experiments.runs.progress import RunProgress, notebook_bar
from efhc.experiments.runs.resources import plan
from efhc.experiments.runs.result import Result
from efhc.experiments.runs.run import Run, Runs
from efhc.experiments.runs.store import Engine, Progress, RunStore
from efhc.experiments.runs.tables import require_lockstep
from efhc.experiments.runs.tracking import tracking
from efhc.learning.data import NpzFile
from efhc.learning.models import ModuleModel


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
        A folder of runs. Runs that are there are not made again, and those that are made stay there.
        Default: the folder `runs` within `out`.
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
        Creates a reader of the events of every run, such as a `Follower`: see `efhc.experiments.runs.events`. One
        factory, or several.
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
    if isinstance(experiment, str | Path):
        problem = f"{experiment} is a path. Use efhc.simulate(efhc.load_experiment({str(experiment)!r}))."
        raise InputError("experiment", experiment, "an efhc.Experiment", problem)
    if experiment is None or fields:
        experiment = build_experiment({**(dict(experiment) if experiment else {}), **fields})
    if observers is not None:
        require_lockstep(experiment, "an observer")
    if isinstance(experiment.model, ModuleModel):
        require("deep")
    folder = None if out is None else ExperimentFolder(Path(out))
    data = folder.data_of(experiment) if folder else None
    if data is not None:
        experiment = experiment.model_copy(update={"data": NpzFile.of(experiment.data, data.path)})
    prepared = Runs([data] if data is not None else [])
    runs, inputs = prepared.of(experiment), prepared.inputs(experiment)  # those of all strategies, by their own names
    if folder and folder.is_begun:
        folder.check_may_go_on(experiment, resume=resume)
        if _is_whole(folder, runs):  # only read: it may lie where nothing can be written
            folder.check_same(experiment, inputs.checksums)
            return Result.in_folder(folder.in_the_order_begun(experiment), folder)
    run_plan = plan(experiment, inputs.data, jobs, len({run.key for run in runs}), keeps_models=folder is None)
    if folder and store is not None and Path(store).absolute().is_relative_to(folder.path.absolute()):
        raise InputError("--store", store, "a folder outside of --out")
    if folder:
        to_tables(experiment)  # what cannot be named is refused before anything is written
    _check_first(runs, run_plan.threads_per_run, warn)
    engine = engine or LocalEngine(jobs, checkpoint_seconds)
    readers = [followers] if callable(followers) else followers

    def make(kept: RunStore) -> dict[Pair, str]:
        """Make the runs. Returns why some failed. Raises the first error if every run failed."""
        with (
            tracking([experiment], folder.path if folder else None, warn) as logged,
            notebook_bar(len(runs), len(runs) * experiment.iterations) if progress is None else nullcontext() as bar,
        ):
            report = progress or (bar.progress_of(experiment.iterations) if bar else lambda strategy, seed, done: None)
            shown = [*readers, bar.follower] if bar else readers
            failures = kept.make_missing(runs, engine, _by_name(runs, report), observers, [*shown, *logged])
        if len(failures) == len({run.key for run in runs}):
            raise next(iter(failures.values()))
        for error in failures.values():
            warn(str(error))
        return {run.pair: str(failures[run.key]) for run in runs if run.key in failures}

    if folder is None:
        memory = RunStore(None, warn)
        failed = make(memory)
        made = {run.pair: memory.made[run.key] for run in runs if run.key in memory.made}
        return Result(experiment, made, failed, inputs.checksums)
    with folder.locked():
        if not _is_whole(folder, runs):  # another process may have finished it meanwhile
            elsewhere = None if store is None else Path(store)
            with folder.session(experiment, inputs.checksums, runs, resume=resume, store=elsewhere):
                folder.keep_data(data)
                kept = RunStore(folder.store, warn, with_models=True)
                with engine.session():
                    failed = make(kept)
            folder.finish(failed, kept.warnings)
    return Result.in_folder(folder.in_the_order_begun(experiment), folder)


def _is_whole(folder: ExperimentFolder, runs: list[Run]) -> bool:
    """Return whether an experiment is complete, with all its runs: some may have been removed or damaged since."""
    if not (folder.is_begun and folder.is_complete):
        return False
    store, keys, failed = RunStore(folder.store, with_models=True), folder.keys, folder.failures
    return folder.holds_tables or all(store.holds(run, keys.get(run.pair)) for run in runs if run.pair not in failed)


def _check_first(runs: list[Run], threads: int, warn: Callable[[str], None]) -> None:
    """Draw all that the first seed determines, so that most errors are raised before anything is written."""
    with using_inputs(runs[0].inputs.files):
        scenario = runs[0].scenarios.of(runs[0], threads, warn)
        scenario.initial_models()
        check_driver(runs[0].whole, scenario, runs[0].seed)


def _by_name(runs: list[Run], progress: RunProgress) -> Progress:
    """Report a run under each of its names: two strategies of the same kind and parameters are one run."""
    names: dict[str, list[Run]] = {}
    for run in runs:
        names.setdefault(run.key, []).append(run)

    def report(run: Run, share: float) -> None:
        for named in names[run.key]:
            progress(*named.pair, round(share * run.experiment.iterations))

    return report
