"""One trial: some values, run for more and more iterations as long as it is among the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import polars as pl

from efhc.base.errors import EfhcError
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.runs.live.followers import FollowerFactory
from efhc.experiments.runs.live.tracking import name_of
from efhc.experiments.runs.run import Run, Runs
from efhc.experiments.runs.store import Engine, RunStore
from efhc.experiments.studies.tune.search import FACTOR, Search, Values

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

FINAL = 0
"""The number that progress is reported under while the winner is measured on the test samples."""


OF_ZT = -1
"""The number that progress is reported under while ZT is run, of whose time the budget is a share."""


class TuneProgress(Protocol):
    """Receives how far a trial has got."""

    def __call__(self, trial: int, values: Mapping[str, float], iterations: int, share: float) -> None:
        """Trial `trial`, counted from 1 (or `FINAL` or `OF_ZT`), has done `share` of its runs over `iterations`."""


class RunFailed(EfhcError):
    """A run of a trial failed, for example because training diverged. The message is that of the first failure."""


@dataclass(frozen=True)
class Lab:
    """Makes the runs that trials ask for, or finds them in the store."""

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

        def tell(run: Run, share: float) -> None:
            shares[run.key] = share
            self.progress(trial, values, experiment.iterations, sum(shares.values()) / len(shares))

        part = {FINAL: "winner", OF_ZT: "ZT"}.get(trial, f"trial{trial:03d}/{experiment.iterations}")
        self.names.update({run.key: f"{part}/{name_of(run)}" for run in runs})
        failures = self.store.complete(runs, self.engine, tell, followers=self.followers)
        if failures:
            raise RunFailed(str(next(iter(failures.values()))))
        return pl.concat(self.store.curve(run) for run in runs)


@dataclass(frozen=True)
class Trial:
    """One value of each parameter."""

    search: Search
    number: int
    """Counted from 1."""
    values: Values
    lab: Lab

    def run(self, finished: Sequence[FrozenTrial]) -> FrozenTrial:
        """Run the trial by successive halving: after k of K iterations it goes on if its accuracy within

            budget * k / K

        is in the upper third of those of all trials that came so far. Within the whole budget, the trials that spend
        it soonest would look best early on, and one that makes it last to the end would be stopped.

        A trial with a run that fails is a failed trial without an accuracy; the tuning goes on.
        """
        from optuna import create_study
        from optuna.pruners import SuccessiveHalvingPruner
        from optuna.trial import TrialState

        search, budget = self.search, self.search.budget
        # The study is in memory, and a finished trial goes to the journal: a killed trial leaves nothing to undo.
        pruner = SuccessiveHalvingPruner(min_resource=1, reduction_factor=FACTOR)
        study = create_study(direction="maximize", pruner=pruner)
        study.add_trials(finished)
        study.enqueue_trial(self.values)
        trial = study.ask(dict(search.distributions))
        state = TrialState.PRUNED
        for rung, iterations in enumerate(search.rungs):
            trial.set_user_attr("iterations", iterations)
            try:
                curves = self.lab.curves(search.part(self.values, iterations), self.number, self.values)
            except RunFailed as error:
                trial.set_user_attr("error", str(error))
                study.tell(trial, state=TrialState.FAIL)
                return study.trials[-1]
            so_far = budget.accuracies(curves, iterations / search.experiment.iterations)
            trial.report(float(np.mean(so_far)), FACTOR**rung)
            stopped = trial.should_prune()  # asked in any case, so that later trials are compared with this one
            if iterations == search.rungs[-1] or budget.is_exceeded(curves):
                state = TrialState.COMPLETE
            if stopped or state is TrialState.COMPLETE:
                break
        accuracies = budget.accuracies(curves)
        trial.set_user_attr("accuracies", accuracies)
        trial.set_user_attr("spent", budget.spent(curves))
        study.tell(trial, float(np.mean(accuracies)) if state is TrialState.COMPLETE else None, state)
        return study.trials[-1]
