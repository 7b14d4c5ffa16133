"""Trials: each runs some values for more and more iterations as long as they are among the best.

Finished trials are kept in a journal, in Optuna's format.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from efhc import __version__
from efhc.base.errors import EfhcError, InputError
from efhc.base.saving import write_safely
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import first_difference, to_tables
from efhc.experiments.runs.events import FollowerFactory
from efhc.experiments.runs.run import Run, Runs
from efhc.experiments.runs.store import Engine, RunStore
from efhc.experiments.runs.tracking import name_of
from efhc.experiments.studies.tune.search import FACTOR, Search, Values

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

JOURNAL = "optuna.journal"
FINAL = 0
"""The number that progress is reported under while the winner is measured on the test samples."""
OF_ZT = -1
"""The number that progress is reported under while ZT is run, of whose time the budget is a share."""


TuneProgress = Callable[[int, Mapping[str, float], int, float], None]
"""Called with a trial, counted from 1 (or `FINAL` or `OF_ZT`), its values, the iterations of its runs, and the share of
these that is done."""


class RunFailed(EfhcError):
    """A run of a trial failed, for example because training diverged. The message is that of the first failure."""


@dataclass(frozen=True)
class TrialRuns:
    """Makes the runs of trials, or finds them in the store."""

    runs: Runs
    store: RunStore
    engine: Engine
    progress: TuneProgress
    followers: Sequence[FollowerFactory] = ()
    names: dict[str, str] = field(default_factory=dict)
    """What trackers call the runs, by key."""

    def curves(self, experiment: Experiment, trial: int, values: Mapping[str, float]) -> pl.DataFrame:
        """Return the curves of all seeds of an experiment. Raises `RunFailed` if a run fails."""
        runs = self.runs.of(experiment)
        shares = dict.fromkeys((run.key for run in runs), 0.0)

        def report(run: Run, share: float) -> None:
            shares[run.key] = share
            self.progress(trial, values, experiment.iterations, sum(shares.values()) / len(shares))

        part = {FINAL: "winner", OF_ZT: "ZT"}.get(trial, f"trial{trial:03d}/{experiment.iterations}")
        self.names.update({run.key: f"{part}/{name_of(run)}" for run in runs})
        failures = self.store.complete(runs, self.engine, report, followers=self.followers)
        if failures:
            raise RunFailed(str(next(iter(failures.values()))))
        return pl.concat(self.store.curve(run) for run in runs)


def run_trial(
    search: Search, number: int, values: Values, trial_runs: TrialRuns, finished: Sequence[FrozenTrial]
) -> FrozenTrial:
    """Run trial `number`, counted from 1, by successive halving.

    After k of K iterations it goes on if its accuracy within

        budget * k / K

    is in the upper third of those of all trials that came so far. Within the whole budget, the trials that spend
    it soonest would look best early on, and one that makes it last to the end would be stopped.

    A trial with a run that fails is a failed trial without an accuracy; the tuning goes on.
    """
    from optuna import create_study
    from optuna.pruners import SuccessiveHalvingPruner
    from optuna.trial import TrialState

    budget = search.budget
    # The study is in memory, and a finished trial goes to the journal: a killed trial leaves nothing to undo.
    pruner = SuccessiveHalvingPruner(min_resource=1, reduction_factor=FACTOR)
    study = create_study(direction="maximize", pruner=pruner)
    study.add_trials(finished)
    study.enqueue_trial(values)
    trial = study.ask(dict(search.distributions))
    state = TrialState.PRUNED
    for rung, iterations in enumerate(search.rungs):
        trial.set_user_attr("iterations", iterations)
        try:
            curves = trial_runs.curves(search.part(values, iterations), number, values)
        except RunFailed as error:
            trial.set_user_attr("error", str(error))
            study.tell(trial, state=TrialState.FAIL)
            return study.trials[-1]
        so_far = budget.accuracies(curves, iterations / search.experiment.iterations)
        trial.report(float(np.mean(so_far)), FACTOR**rung)
        stopped = trial.should_prune()  # called in any case, so that later trials are compared with this one
        if iterations == search.rungs[-1] or budget.is_exceeded(curves):
            state = TrialState.COMPLETE
        if stopped or state is TrialState.COMPLETE:
            break
    accuracies = budget.accuracies(curves)
    trial.set_user_attr("accuracies", accuracies)
    trial.set_user_attr("spent", budget.spent(curves))
    study.tell(trial, float(np.mean(accuracies)) if state is TrialState.COMPLETE else None, state)
    return study.trials[-1]


class TrialJournal:
    """The finished trials in a folder. A journal that does not exist yet is created."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / JOURNAL
        with self._writing():
            self._study = self._open()

    def _open(self) -> Study:
        from optuna import create_study
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

        path = self._path
        # This process holds the folder, so a lock was left by a process that was killed. So was a line without an end,
        # to which the next line would be appended.
        for leftover in path.parent.glob(f"{path.name}.lock*"):
            leftover.unlink()
        if path.exists() and not (content := path.read_bytes()).endswith(b"\n"):
            write_safely(path, content[: content.rfind(b"\n") + 1])
        backend = JournalFileBackend(str(path), JournalFileOpenLock(str(path)))
        try:
            return create_study(
                storage=JournalStorage(backend), study_name="r", direction="maximize", load_if_exists=True
            )
        except (ValueError, KeyError, TypeError) as error:
            advice = "remove it to tune again with the runs that are there"
            raise EfhcError(f"{path} is corrupt ({error}); {advice}") from error

    def finished(self) -> list[FrozenTrial]:
        """Return the finished trials in the order in which they were made."""
        from optuna.trial import TrialState

        done = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
        return self._study.get_trials(deepcopy=False, states=done)

    def add(self, trial: FrozenTrial) -> None:
        """Record a finished trial, in one step."""
        with self._writing():
            self._study.add_trial(trial)

    def check_same(self, identity: dict[str, Any]) -> None:
        """Record what the trials follow from; raise an error if the trials here follow from something else."""
        begun, folder = self._study.user_attrs.get("identity"), self._path.parent
        if begun is None:  # new, or killed before it was written
            with self._writing():
                self._study.set_user_attr("identity", identity)
            return
        if "--on" not in begun:
            by = "was made by an earlier version of efhc, which chose by the test accuracy"
            raise EfhcError(f"the tuning in {folder} {by}; use another --out")
        if difference := first_difference(begun, identity):
            key, old, new = difference
            allowed = f"{old!r}, as that tuning was begun; a changed one needs another --out"
            raise InputError(key, f"{new!r} to go on with {folder}", allowed)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A full disk is one line, not a traceback through Optuna."""
        try:
            yield
        except OSError as error:
            raise EfhcError(f"{self._path} cannot be written ({error.strerror or error})") from error


def identity(search: Search, runs: Runs) -> dict[str, Any]:
    """Return everything that trials follow from: trials of another tuning must not be mixed with them."""
    (run, *_) = runs.of(search.part({one.name: one.first_allowed for one in search.parameters}, 1))
    options = {
        "--budget": str(search.budget),
        "--strategy": search.strategy,
        "--parameter": {one.name: f"{one.low!r}:{one.high!r}" for one in search.parameters},
        "--on": search.on if search.validation is None else f"{search.on}, {search.validation:g}",
    }
    everything: dict[str, Any] = json.loads(
        json.dumps({**to_tables(search.experiment), **options, **run.inputs.checksums, "efhc": __version__})
    )
    return everything


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """Keep Optuna from logging every trial; the caller reports them."""
    from optuna import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)
    try:
        yield
    finally:
        logging.set_verbosity(before)
