"""Tuning: the values of a strategy's parameters that are best by a measure within a communication budget.

A tuning chooses by validation samples: every device sets aside a share of its own training samples, which no device
trains on. Measures on own data are those on what the device itself set aside, and others those on what all devices did.
The test samples are used once, at the end, to measure the winner. (`on="test"` chooses by them instead, which makes the
winner's value too good to quote.)

The folder of a tuning:

optuna.journal   the finished trials, as Optuna keeps them
runs/            every run, named by its key
trials.csv       one row per trial
tuned.toml       the complete config with the best values, and without a validation split
test.csv         the winner's measure on the test samples, one row per seed
tuning.png/.pdf  the measure against each tuned parameter

The next values follow from the finished trials alone, and a trial is recorded in one step, when it is finished. So a
tuning that is killed at any moment and started again ends with the same files, byte for byte.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from efhc import __version__
from efhc.base.errors import EfhcError, InputError
from efhc.base.extras import importing
from efhc.base.saving import lock, write_safely, writing
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import first_difference, to_tables, to_toml
from efhc.experiments.runs.events import FollowerFactory
from efhc.experiments.runs.experiment_folder import OWN_RUNS, refuse_experiment
from efhc.experiments.runs.run import Run, Runs
from efhc.experiments.runs.store import Engine, RunStore
from efhc.experiments.runs.study import list_runs
from efhc.experiments.runs.tables import require_lockstep
from efhc.experiments.runs.tracking import name_of, tracking
from efhc.experiments.studies.tuning_search import FACTOR, Range, Search, TuningBudget, Values
from efhc.learning.measures import Measure, measure_in, measures_of
from efhc.report.claims.intervals import bounds_words, interval
from efhc.strategies.paper import ZeroThreshold

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

JOURNAL = "optuna.journal"
TRIALS, TUNED, TEST, FIGURES = "trials.csv", "tuned.toml", "test.csv", ("tuning.png", "tuning.pdf")
STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}
FINAL = 0
"""The number that progress is reported under while the winner is measured on the test samples."""
OF_ZT = -1
"""The number that progress is reported under while ZT is run, of whose time the budget is a share."""

TuneProgress = Callable[[int, Mapping[str, float], int, float], None]
"""Called with a trial, counted from 1 (or `FINAL` or `OF_ZT`), its values, the iterations of its runs, and the share of
these that is done."""


def tune(
    experiment: Experiment,
    budget: TuningBudget,
    out: Path,
    engine: Engine,
    *,
    parameters: Sequence[Range] = (Range("r"),),
    strategy: str | None = None,
    trials: int = 20,
    on: str = "validation",
    measure: str | None = None,
    progress: TuneProgress = lambda trial, values, iterations, share: None,
    warn: Callable[[str], None] = lambda text: None,
    followers: Sequence[FollowerFactory] = (),
) -> Tuning:
    """Search the ranges of `parameters` until `trials` are finished, including those already in `out`.

    Nothing is tried twice: the search of whole numbers ends early when all of their values were tried together, and
    `warn` says so. `strategy` is the name of the strategy that has all of the parameters. Default: the first of kind
    "ef-hc", or the only one that has them. A range defaults to a hundredth and a hundred times the experiment's value,
    within the bounds that the strategy declares for it. `on` says which samples trials are judged by: "validation", a
    share of each device's training samples, or "test", and `measure` by what; default: that of the experiment. Each of
    `followers` creates a follower of each run that is made.
    """
    with importing("tune"):
        from optuna import logging
    require_lockstep(experiment, "a tuning")
    if trials < 1:
        raise InputError("--trials", trials, "at least 1")
    search = Search.of(experiment, budget, parameters, strategy=strategy, on=on, measure=measure)
    runs, names = Runs(), dict[str, str]()
    tracked = tracking([experiment], out, warn, name=lambda run: names[run.key])
    identity, chosen = _identity(search, runs), _measure(search, runs)
    refuse_experiment(out)
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)  # Optuna does not log trials, which the caller reports
    try:
        with lock(out / ".lock"), tracked as trackers:
            trial_runs = _TrialRuns(
                runs, RunStore(out / OWN_RUNS, warn), engine, progress, [*trackers, *followers], names
            )
            journal = _Journal(out, identity)
            if budget.kind == "zt":  # evaluated once: only its transmission time is of interest
                changed = {"strategies": {"ZT": ZeroThreshold()}, "evaluate_every": experiment.iterations}
                zt = trial_runs.make_and_read(experiment.model_copy(update=changed), OF_ZT, {})
                search = replace(search, budget=budget.measured_by(zt))
            while len(finished := journal.finished()) < trials:
                if (values := search.next_values(finished)) is None:
                    ranges = (f"{one.name} from {one.low:g} to {one.high:g}" for one in search.parameters)
                    tried = f"all values of {' and '.join(ranges)} were tried"
                    warn(f"{tried}: stopped after {len(finished)} of {trials} trials")
                    break
                journal.add(_run_trial(search, chosen, values, trial_runs, finished))
            tuning = Tuning(search, _table(search, finished, chosen), chosen)
            if search.validation is not None:
                tuning = replace(tuning, test=_test(tuning, trial_runs))
            tuning.save(out)
    finally:
        logging.set_verbosity(verbosity)
    return tuning


@dataclass(frozen=True, eq=False)
class Tuning:
    """The result of a tuning."""

    search: Search
    table: pl.DataFrame
    """One row per trial: trial, the value of each parameter, iterations (as far as it was run), the measure within the
    budget with its `bounds` over seeds (low, high), spent (of the budget), state (complete, pruned or failed), and the
    measure of each seed. A failed trial has no values."""
    measure: Measure
    test: pl.DataFrame | None = None
    """The winner on the test samples, within the budget: seed, the measure, spent. None if that run failed, or if the
    winner was chosen by its test samples."""

    @property
    def ranked(self) -> pl.DataFrame:
        """The trials, the best first; of equals, the one that spends least."""
        better = self.measure.sign * pl.col(self.measure.name)
        return self.table.sort(better, "spent", "trial", descending=[True, False, False], nulls_last=True)

    @cached_property
    def _best(self) -> dict[str, Any]:
        complete = self.ranked.filter(state="complete")
        if complete.is_empty():
            failed = len(self.table.filter(state="failed"))
            advice = "give more --trials, or other ranges in another --out"
            raise EfhcError(f"none of {len(self.table)} trials was completed, and {failed} failed; {advice}")
        return complete.row(0, named=True)

    @property
    def best_values(self) -> Values:
        """The value of each parameter in the best complete trial."""
        return {name: float(self._best[name]) for name in self.search.names}

    @property
    def test_value(self) -> float | None:
        """The winner's measure within the budget on the test samples, the mean over seeds."""
        return None if self.test is None else float(np.mean(self.test[self.measure.name].to_numpy()))

    @property
    def bounds(self) -> str:
        """What low and high are: "95 %", or "min to max" if there are too few seeds for an interval."""
        return bounds_words([len(self.search.experiment.seeds)])

    @property
    def experiment(self) -> Experiment:
        """The experiment with the best values and without a validation split; all else is as it was."""
        return self.search.with_values(self.best_values)

    @property
    def advice(self) -> list[str]:
        """One line for each parameter whose best value is the smallest or the largest that was tried."""
        lines = []
        for one in self.search.parameters:
            best, tried = self.best_values[one.name], self.table[one.name].unique().sort().to_list()
            if len(tried) == 1 or best not in {tried[0], tried[-1]}:
                continue
            which, where = ("smallest", "below") if best == tried[0] else ("largest", "above")
            # Values are rounded to four digits.
            is_end = any(math.isclose(best, end, rel_tol=1e-3) for end in (one.low, one.high))
            lines.append(
                f"{one.name} = {best:g} is the {which} that was tried; a better one may lie {where}: "
                f"try {'a range that goes further' if is_end else 'more trials'}"
            )
        return lines

    def save(self, out: Path) -> None:
        """Write trials.csv, tuned.toml, test.csv, tuning.png and tuning.pdf."""
        from efhc.report.figures import save_figure
        from efhc.report.figures.studies import tuning_figure

        write_safely(out / TRIALS, self.table.write_csv().encode())
        write_safely(out / TUNED, to_toml(self.experiment).encode())
        if self.test is not None:
            write_safely(out / TEST, self.test.write_csv().encode())
        title = f"{self.search.strategy}: {self.search.on} {self.measure.label} within {self.search.budget.words}"
        figure = tuning_figure(self.table, self.best_values, title, self.bounds, self.measure)
        for name in FIGURES:
            save_figure(figure, out / name)


def _table(search: Search, finished: Sequence[FrozenTrial], measure: Measure) -> pl.DataFrame:
    rows = []
    for number, trial in enumerate(finished, start=1):
        facts = trial.user_attrs
        values = np.array(facts.get("values", [np.nan] * len(search.experiment.seeds)))
        _, low, high = interval(values) if "values" in facts else (np.nan, np.nan, np.nan)
        row = {
            "trial": number,
            **{name: trial.params[name] for name in search.names},
            "iterations": facts["iterations"],
            measure.name: float(np.mean(values)),
            "low": float(low),
            "high": float(high),
            "spent": float(np.mean(facts.get("spent", [np.nan]))),
            "state": STATES[trial.state.name],
        }
        per_seed = zip(search.experiment.seeds, values, strict=True)
        rows.append(row | {f"seed {seed}": float(value) for seed, value in per_seed})
    return pl.DataFrame(rows).fill_nan(None)  # one seed has no interval, a failed trial no value


def _test(tuning: Tuning, trial_runs: _TrialRuns) -> pl.DataFrame | None:
    """Measure the winner on the test samples. Returns None if one of its runs fails."""
    search = tuning.search
    try:
        curves = trial_runs.make_and_read(search.final(tuning.best_values), FINAL, tuning.best_values)
    except _RunFailed:
        return None
    values, spent = search.budget.values(curves, tuning.measure), search.budget.spent(curves)
    return pl.DataFrame({"seed": list(search.experiment.seeds), tuning.measure.name: values, "spent": spent})


# Trials


class _RunFailed(EfhcError):
    """A run of a trial failed, for example because training diverged. The message is that of the first failure."""


@dataclass(frozen=True)
class _TrialRuns:
    """Makes the runs of trials, or finds them in the store."""

    runs: Runs
    store: RunStore
    engine: Engine
    progress: TuneProgress
    followers: Sequence[FollowerFactory]
    names: dict[str, str]
    """What trackers call the runs, by key."""
    listed: dict[str, Run] = field(default_factory=dict)
    """The runs of the trials so far, by key."""

    def make_and_read(self, experiment: Experiment, trial: int, values: Mapping[str, float]) -> pl.DataFrame:
        """Make the runs of all seeds of an experiment and return their curves. Raises `_RunFailed` if a run fails."""
        runs = self.runs.of(experiment)
        shares = dict.fromkeys((run.key for run in runs), 0.0)

        def report(run: Run, share: float) -> None:
            shares[run.key] = share
            self.progress(trial, values, experiment.iterations, sum(shares.values()) / len(shares))

        part = {FINAL: "winner", OF_ZT: "ZT"}.get(trial, f"trial{trial:03d}/{experiment.iterations}")
        self.listed.update({run.key: run for run in runs})
        list_runs(self.listed.values(), self.store.folder)
        self.names.update({run.key: f"{part}/{name_of(run)}" for run in runs})
        failures = self.store.make_missing(runs, self.engine, report, followers=self.followers)
        if failures:
            raise _RunFailed(str(next(iter(failures.values()))))
        return pl.concat(self.store.curve(run) for run in runs)


def _run_trial(
    search: Search, measure: Measure, values: Values, trial_runs: _TrialRuns, finished: Sequence[FrozenTrial]
) -> FrozenTrial:
    """Run the trial after the `finished` ones for more and more iterations as long as it is among the best.

    After k of K iterations it goes on if its measure within

        budget * k / K

    is in the upper third of those of all trials that came so far. Within the whole budget, the trials that spend
    it soonest would look best early on, and one that makes it last to the end would be stopped.

    A trial with a run that fails, or without a value within the budget, is a failed trial; the tuning goes on. Where
    lower values are better, Optuna maximizes their negative.
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
            curves = trial_runs.make_and_read(search.part(values, iterations), len(finished) + 1, values)
        except _RunFailed as error:
            trial.set_user_attr("error", str(error))
            study.tell(trial, state=TrialState.FAIL)
            return study.trials[-1]
        so_far = budget.values(curves, measure, iterations / search.experiment.iterations)
        stopped = False
        if np.isfinite(so_far).all():
            trial.report(measure.sign * float(np.mean(so_far)), FACTOR**rung)
            stopped = trial.should_prune()  # called in any case, so that later trials are compared with this one
        if iterations == search.rungs[-1] or budget.is_exceeded(curves):
            state = TrialState.COMPLETE
        if stopped or state is TrialState.COMPLETE:
            break
    values_at_budget = budget.values(curves, measure)
    if not np.isfinite(values_at_budget).all():
        trial.set_user_attr("error", "more than the budget is spent when models are first evaluated")
        study.tell(trial, state=TrialState.FAIL)
        return study.trials[-1]
    trial.set_user_attr("values", values_at_budget)
    trial.set_user_attr("spent", budget.spent(curves))
    final = measure.sign * float(np.mean(values_at_budget))
    study.tell(trial, final if state is TrialState.COMPLETE else None, state)
    return study.trials[-1]


class _Journal:
    """The finished trials in a folder, in Optuna's format. A journal that does not exist yet is created."""

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        """`identity` is what the trials follow from. Raises an error if the trials there follow from something else."""
        from optuna import create_study
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

        self._path = path = folder / JOURNAL
        # This process holds the folder, so a lock was left by a process that was killed. So was a line without an end,
        # to which the next line would be appended.
        for leftover in folder.glob(f"{JOURNAL}.lock*"):
            leftover.unlink()
        with writing(path):
            if path.exists() and not (content := path.read_bytes()).endswith(b"\n"):
                write_safely(path, content[: content.rfind(b"\n") + 1])
            backend = JournalFileBackend(str(path), JournalFileOpenLock(str(path)))
            try:
                storage = JournalStorage(backend)
                self._study = create_study(storage=storage, study_name="r", direction="maximize", load_if_exists=True)
            except (ValueError, KeyError, TypeError) as error:
                advice = "remove it to tune again with the runs that are there"
                raise EfhcError(f"{path} is corrupt ({error}); {advice}") from error
            begun = self._study.user_attrs.get("identity")
            if begun is None:  # new, or killed before it was written
                self._study.set_user_attr("identity", identity)
                return
        if difference := first_difference(begun, identity):
            key, old, new = difference
            problem = f"{folder} holds another tuning ({key} {old!r}, not {new!r}). Choose another --out."
            raise InputError("--out", folder, "another folder", problem)

    def finished(self) -> list[FrozenTrial]:
        """Return the finished trials in the order in which they were made."""
        from optuna.trial import TrialState

        done = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
        return self._study.get_trials(deepcopy=False, states=done)

    def add(self, trial: FrozenTrial) -> None:
        """Record a finished trial, in one step."""
        with writing(self._path):
            self._study.add_trial(trial)


def _measure(search: Search, runs: Runs) -> Measure:
    """Return the measure that trials are judged by. Raises `InputError` if the data cannot give it."""
    values = {one.name: one.low for one in search.parameters}
    for experiment in (search.part(values, 1), search.final(values)):
        for run in runs.of(experiment):
            metrics = run.scenarios.of(run).learner.backend.metrics
    return measure_in(search.measure, measures_of(metrics))


def _identity(search: Search, runs: Runs) -> dict[str, Any]:
    """Return everything that trials follow from: trials of another tuning must not be mixed with them."""
    (run, *_) = runs.of(search.part({one.name: one.low for one in search.parameters}, 1))
    options = {
        "--budget": str(search.budget),
        "--strategy": search.strategy,
        "--parameter": {one.name: f"{one.low!r}:{one.high!r}" for one in search.parameters},
        "--measure": search.measure or "default",
        "--on": search.on if search.validation is None else f"{search.on}, {search.validation:g}",
    }
    identity = {**to_tables(search.experiment), **options, **run.inputs.checksums, "efhc": __version__}
    everything: dict[str, Any] = json.loads(json.dumps(identity))  # as the journal gives it back
    return everything
