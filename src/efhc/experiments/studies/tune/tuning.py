"""A whole tuning, from the experiment to the tuned config."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from efhc.base.errors import EfhcError, InputError
from efhc.base.extras import importing
from efhc.base.saving import is_unfinished, lock, write_safely
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import to_toml
from efhc.experiments.runs.events import FollowerFactory
from efhc.experiments.runs.run import Runs
from efhc.experiments.runs.store import Engine, RunStore
from efhc.experiments.runs.tables import require_lockstep
from efhc.experiments.runs.tracking import tracking
from efhc.experiments.studies.tune.budget import TuningBudget
from efhc.experiments.studies.tune.parameters import Range
from efhc.experiments.studies.tune.search import Search, Values
from efhc.experiments.studies.tune.trials import (
    FINAL,
    JOURNAL,
    OF_ZT,
    RunFailed,
    TrialJournal,
    TrialRuns,
    TuneProgress,
    identity,
    quiet_optuna,
    run_trial,
)
from efhc.report.claims.intervals import bounds_words, interval
from efhc.strategies.paper import ZeroThreshold

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

RUNS, TRIALS, TUNED, TEST, FIGURES = "runs", "trials.csv", "tuned.toml", "test.csv", ("tuning.png", "tuning.pdf")
STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}


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
    progress: TuneProgress = lambda trial, values, iterations, share: None,
    warn: Callable[[str], None] = lambda text: None,
    followers: Sequence[FollowerFactory] = (),
) -> Tuning:
    """Search the ranges of `parameters` until `trials` are finished, including those already in `out`.

    Nothing is tried twice: the search of whole numbers ends early when all of their values were tried together, and
    `warn` says so. `strategy` is the name of the strategy that has all of the parameters. Default: the first of kind
    "ef-hc", or the only one that has them. A range defaults to a hundredth and a hundred times the experiment's value,
    within the bounds that the strategy declares for it. `on` says which samples trials are judged by: "validation", a
    share of the training samples, or "test". Each of `followers` creates a follower of each run that is made.
    """
    with importing("tune"):
        import optuna  # noqa: F401
    require_lockstep(experiment, "a tuning")
    if trials < 1:
        raise InputError("--trials", trials, "at least 1")
    search = Search.of(experiment, budget, parameters, strategy=strategy, on=on)
    names: dict[str, str] = {}
    logging = tracking([experiment], out, warn, name=lambda run: names[run.key])
    runs = Runs()
    begun = identity(search, runs)
    _prepare(out)
    with lock(out / ".lock"), quiet_optuna(), logging as trackers:
        trial_runs = TrialRuns(runs, RunStore(out / RUNS, warn), engine, progress, [*trackers, *followers], names)
        journal = TrialJournal(out)
        journal.check_same(begun)
        if budget.needs_zt:
            search = replace(search, budget=budget.measured_by(trial_runs.curves(_zt(experiment), OF_ZT, {})))
        while len(finished := journal.finished()) < trials:
            if (values := search.next_values(finished)) is None:
                ranges = [f"{one.name} from {one.first_allowed:g} to {one.last_allowed:g}" for one in search.parameters]
                words = f"all values of {' and '.join(ranges)} were tried"
                warn(f"{words}: stopped after {len(finished)} of {trials} trials")
                break
            journal.add(run_trial(search, len(finished) + 1, values, trial_runs, finished))
        tuning = Tuning.of(search, finished, trial_runs)
        tuning.save(out)
    return tuning


@dataclass(frozen=True, eq=False)
class Tuning:
    """The result of a tuning."""

    search: Search
    table: pl.DataFrame
    """One row per trial: trial, the value of each parameter, iterations (as far as it was run), accuracy within the
    budget with its `bounds` over seeds (low, high), spent (of the budget), state (complete, pruned or failed), and the
    accuracy of each seed. A failed trial has no accuracies."""
    test: pl.DataFrame | None = None
    """The winner on the test samples, within the budget: seed, accuracy, spent. None if that run failed, or if the
    winner was chosen by its test accuracy, which is `best_accuracy` then."""

    @classmethod
    def of(cls, search: Search, finished: Sequence[FrozenTrial], trial_runs: TrialRuns) -> Tuning:
        """Choose the winner among the finished trials, and measure it on the test samples."""
        tuning = cls(search, _table(search, finished))
        if search.validation is None:
            return tuning
        try:
            curves = trial_runs.curves(search.final(tuning.best_values), FINAL, tuning.best_values)
        except RunFailed:
            return tuning
        columns = {
            "seed": list(search.experiment.seeds),
            "accuracy": search.budget.accuracies(curves),
            "spent": search.budget.spent(curves),
        }
        return cls(search, tuning.table, pl.DataFrame(columns))

    @cached_property
    def _best(self) -> dict[str, Any]:
        complete = self.table.filter(state="complete")
        if complete.is_empty():
            failed = len(self.table.filter(state="failed"))
            advice = "give more --trials, or other ranges in another --out"
            raise EfhcError(f"none of {len(self.table)} trials was completed, and {failed} failed; {advice}")
        # Of equals, the one that spends least.
        return complete.sort("accuracy", "spent", "trial", descending=[True, False, False]).row(0, named=True)

    @property
    def best_values(self) -> Values:
        """The value of each parameter in the complete trial with the best accuracy."""
        return {name: float(self._best[name]) for name in self.search.names}

    @property
    def best_accuracy(self) -> float:
        """Its accuracy within the budget on the samples that it was chosen by, the mean over seeds."""
        return float(self._best["accuracy"])

    @property
    def test_accuracy(self) -> float | None:
        """The winner's accuracy within the budget on the test samples, the mean over seeds."""
        return None if self.test is None else float(np.mean(self.test["accuracy"].to_numpy()))

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
        for name, best in self.best_values.items():
            tried = self.table[name].unique().sort().to_list()
            if len(tried) == 1 or best not in {tried[0], tried[-1]}:
                continue
            which, where = ("smallest", "below") if best == tried[0] else ("largest", "above")
            found = f"{name} = {best:g} is the {which} that was tried; a better one may lie {where}"
            allowed = next(one for one in self.search.parameters if one.name == name)
            ends = (allowed.first_allowed, allowed.last_allowed)
            is_end = any(math.isclose(best, end, rel_tol=1e-3) for end in ends)  # values are rounded to four digits
            lines.append(f"{found}: try {'a range that goes further' if is_end else 'more trials'}")
        return lines

    def save(self, out: Path) -> None:
        """Write trials.csv, tuned.toml, test.csv, tuning.png and tuning.pdf."""
        from efhc.report.figures import save_figure
        from efhc.report.figures.tuning_figure import tuning_figure

        write_safely(out / TRIALS, self.table.write_csv().encode())
        write_safely(out / TUNED, to_toml(self.experiment).encode())
        if self.test is not None:
            write_safely(out / TEST, self.test.write_csv().encode())
        title = f"{self.search.strategy}: {self.search.on} accuracy within {self.search.budget.words}"
        figure = tuning_figure(self.table, self.best_values, title, self.bounds)
        for name in FIGURES:
            save_figure(figure, out / name)


def _table(search: Search, finished: Sequence[FrozenTrial]) -> pl.DataFrame:
    rows = []
    for number, trial in enumerate(finished, start=1):
        facts = trial.user_attrs
        accuracies = np.array(facts.get("accuracies", [np.nan] * len(search.experiment.seeds)))
        _, low, high = interval(accuracies) if "accuracies" in facts else (np.nan, np.nan, np.nan)
        row = {
            "trial": number,
            **{name: trial.params[name] for name in search.names},
            "iterations": facts["iterations"],
            "accuracy": float(np.mean(accuracies)),
            "low": float(low),
            "high": float(high),
            "spent": float(np.mean(facts.get("spent", [np.nan]))),
            "state": STATES[trial.state.name],
        }
        per_seed = zip(search.experiment.seeds, accuracies, strict=True)
        rows.append(row | {f"seed {seed}": float(value) for seed, value in per_seed})
    return pl.DataFrame(rows).fill_nan(None)  # one seed has no interval, a failed trial no accuracy


def _zt(experiment: Experiment) -> Experiment:
    """Return ZT in the same experiment, evaluated once: only its transmission time is of interest."""
    changed = {"strategies": {"ZT": ZeroThreshold()}, "evaluate_every": experiment.iterations}
    return experiment.model_copy(update=changed)


def _prepare(out: Path) -> None:
    """Create the folder of the tuning; a folder in which other things are kept is refused."""
    ours = {RUNS, TRIALS, TUNED, TEST, *FIGURES, ".lock"}
    try:
        out.mkdir(parents=True, exist_ok=True)
        names = {path.name for path in out.iterdir() if not is_unfinished(path)}
    except (OSError, ValueError) as error:
        raise InputError("--out", f"{str(out)[:60]} ({error})", "a folder that can be written") from None
    # Beside the journal there may be its lock, and what trackers have written.
    if JOURNAL not in names and any(not name.startswith(JOURNAL) for name in names - ours):
        allowed = "a new or empty directory, or that of the same tuning to go on with it"
        raise InputError("--out", f"{out}, which holds other files", allowed)
