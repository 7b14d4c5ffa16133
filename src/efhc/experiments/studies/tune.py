"""Tuning r: the threshold scale of EF-HC (or GT) that reaches the best accuracy within a budget.

The folder of a tuning:

optuna.journal   the finished trials, as Optuna keeps them
runs/            every run, found again by its key
trials.csv       a row per trial
tuned.toml       the complete config, with the best r
tuning.png/.pdf  accuracy against r

The next r follows from the finished trials alone, and a trial is noted down in one step, when it is finished. So a
tuning that is killed, at any moment, and begun again ends with the same table, byte for byte.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import polars as pl

from efhc import __version__
from efhc.base.errors import EfhcError, InputError
from efhc.base.inputs import read_bytes, sha256
from efhc.base.saving import UNFINISHED, lock, write_safely
from efhc.core.triggers import EventTriggered, GlobalThreshold
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import first_difference, input_files, to_tables, to_toml
from efhc.experiments.runs.store import Engine, Run, Runs, RunStore
from efhc.report.claims.intervals import interval
from efhc.report.claims.panels import accuracy_at
from efhc.report.figures import save_figure
from efhc.report.figures.tuning_figure import tuning_figure

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

COLUMNS = {"transmission_time": "transmission_time_total", "broadcasts": "broadcasts_total"}
"""What a budget may be of, and the column of a run's curve that adds it up."""

FACTOR = 3
"""Successive halving: one in so many trials goes on, for so many times the iterations."""

DECADES = 2
"""Left out, the range goes as far to both sides of the file's r."""

JOURNAL, RUNS = "optuna.journal", "runs"
TRIALS, TUNED, FIGURES = "trials.csv", "tuned.toml", ("tuning.png", "tuning.pdf")


@dataclass(frozen=True)
class Budget:
    """How much may be spent: total transmission time, or broadcasts of all devices together."""

    kind: str
    """A key of `COLUMNS`."""
    amount: float

    @classmethod
    def parse(cls, text: str) -> Budget:
        """transmission_time=500 or broadcasts=2000"""
        kind, _, number = (part.strip() for part in text.partition("="))
        try:
            amount = float(number)
        except ValueError:
            amount = math.nan
        if kind not in COLUMNS or not (0 < amount < math.inf):
            allowed = "transmission_time=T or broadcasts=N, a positive number"
            raise InputError("--budget", repr(text), allowed)
        return cls(kind, amount)

    def __str__(self) -> str:
        return f"{self.kind}={self._number}"

    @property
    def words(self) -> str:
        """2000 broadcasts"""
        return f"{self._number} broadcasts" if self.kind == "broadcasts" else f"transmission time {self._number}"

    @property
    def _number(self) -> int | float:
        return int(self.amount) if self.amount.is_integer() else self.amount

    def accuracies(self, curves: pl.DataFrame, share: float = 1.0) -> list[float]:
        """Each seed's accuracy when it has spent this share of the budget; if it never does, at its end."""
        # What panels read off against transmission time is read off against what the budget is of.
        against = curves.with_columns(pl.col(COLUMNS[self.kind]).alias("transmission_time_total"))
        return accuracy_at(against, share * self.amount)["accuracy"].to_list()

    def spent(self, curves: pl.DataFrame) -> list[float]:
        """How much of it each seed has spent."""
        totals = curves.group_by("seed", maintain_order=True).agg(pl.col(COLUMNS[self.kind]).max()).to_series(1)
        return [min(float(total), self.amount) for total in totals]

    def is_exceeded(self, curves: pl.DataFrame) -> bool:
        """Whether every seed has spent more: iterations to come cannot change the accuracies any more."""
        return bool((curves.group_by("seed").agg(pl.col(COLUMNS[self.kind]).max()).to_series(1) > self.amount).all())


class TuneProgress(Protocol):
    """Told how far a trial has got."""

    def __call__(self, trial: int, r: float, iterations: int, share: float) -> None:
        """Of trial number `trial`, counted from 1, this share of its runs over so many iterations is done."""


def _silent(trial: int, r: float, iterations: int, share: float) -> None:
    pass


def tune(
    experiment: Experiment,
    budget: Budget,
    out: Path,
    engine: Engine,
    *,
    strategy: str | None = None,
    trials: int = 20,
    low: float | None = None,
    high: float | None = None,
    progress: TuneProgress = _silent,
    warn: Callable[[str], None] = lambda text: None,
) -> Tuning:
    """Search r between `low` and `high` until `trials` are finished, those counted that are in `out` already.

    `strategy` is the name of the one to tune; left out, it is the first of kind "ef-hc". Left out, the range is the
    file's r / 100 to r * 100.
    """
    _require_optuna()
    if trials < 1:
        raise InputError("--trials", trials, "at least 1")
    search = Search.of(experiment, budget, strategy, low, high)
    runs, store = Runs(), RunStore(out / RUNS, warn)
    identity = _identity(search, runs)
    _prepare(out)
    with lock(out / ".lock"), _quiet():
        journal = _open_journal(out / JOURNAL)
        _check_same(journal, identity, out)
        while len(finished := _finished(journal)) < trials:
            trial = Trial(search, len(finished) + 1, search.next_r(finished), runs, store, engine, progress)
            journal.add_trial(trial.run(finished))
        tuning = Tuning(search, _table(search, finished))
        tuning.save(out)
    return tuning


@dataclass(frozen=True)
class Search:
    """What is tuned, for what, and where r is looked for."""

    experiment: Experiment
    strategy: str
    policy: EventTriggered | GlobalThreshold
    """The strategy as it is in the file."""
    budget: Budget
    low: float
    high: float

    @classmethod
    def of(
        cls, experiment: Experiment, budget: Budget, strategy: str | None, low: float | None, high: float | None
    ) -> Search:
        """With the strategy and the range that follow from the experiment where they are left out."""
        name, policy = _tunable(experiment, strategy)
        r = policy.r
        if r == 0 and (low is None or high is None):
            raise InputError("--low and --high", f"none, and r = 0 for {name}", "the range of r to search, above 0")
        low = r / 10**DECADES if low is None else low
        high = r * 10**DECADES if high is None else high
        if not 0 < low < math.inf:
            raise InputError("--low", low, "a positive number")
        if not low < high < math.inf:
            raise InputError("--high", high, f"a number above --low, which is {low:g}")
        return cls(experiment, name, policy, budget, float(low), float(high))

    def with_r(self, r: float) -> Experiment:
        """The experiment with r set, all else as it was."""
        return self._with({**self.experiment.strategies, self.strategy: self.policy.model_copy(update={"r": r})})

    def part(self, r: float, iterations: int) -> Experiment:
        """The tuned strategy alone, for so many iterations."""
        return self._with({self.strategy: self.policy.model_copy(update={"r": r})}, iterations=iterations)

    def _with(self, strategies: dict[str, Any], **fields: int) -> Experiment:
        return self.experiment.model_copy(update={"strategies": strategies, **fields})

    @cached_property
    def rungs(self) -> list[int]:
        """The iterations of successive halving: about K/9, K/3, and K.

        The first two are multiples of the interval between evaluations, so that what is evaluated in a short run is
        the beginning of what is evaluated in a longer one. Where that leaves nothing to evaluate, there are fewer.
        """
        K, every = self.experiment.iterations, self.experiment.evaluate_every
        shorter = {round(K / FACTOR**power / every) * every for power in (1, 2)}
        return [*sorted(iterations for iterations in shorter if 0 < iterations < K), K]

    @cached_property
    def first(self) -> list[float]:
        """What is tried first: the file's own r, then points that cover the range, from the middle outwards."""
        own = self.policy.r
        spread = [self._rounded(r) for r in np.geomspace(self.low, self.high, 5)[[2, 1, 3, 0, 4]]]
        points = [own] if self.low <= own <= self.high else []
        return points + [r for r in spread if not any(math.isclose(r, point, rel_tol=1e-3) for point in points)]

    def next_r(self, finished: Sequence[FrozenTrial]) -> float:
        """A function of the finished trials: asked again, the answer is the same."""
        if len(finished) < len(self.first):
            return self.first[len(finished)]
        from optuna import create_study
        from optuna.samplers import TPESampler

        # `first` has looked everywhere once, so no random points are needed before.
        sampler = TPESampler(seed=len(finished), n_startup_trials=len(self.first))
        study = create_study(direction="maximize", sampler=sampler)
        study.add_trials(finished)
        return self._rounded(study.ask().suggest_float("r", self.low, self.high, log=True))

    def _rounded(self, r: float) -> float:
        """More than four digits would say more than accuracies do."""
        return min(max(float(f"{r:.4g}"), self.low), self.high)


def _tunable(experiment: Experiment, name: str | None) -> tuple[str, EventTriggered | GlobalThreshold]:
    """The strategy of this name, or the first of kind "ef-hc"."""
    strategies = experiment.strategies
    with_r = {key: policy for key, policy in strategies.items() if isinstance(policy, EventTriggered | GlobalThreshold)}
    if name is None:
        for key, policy in with_r.items():
            if isinstance(policy, EventTriggered):
                return key, policy
        allowed = "one of kind ef-hc, or --strategy with the name of one of kind gt"
        raise InputError("strategies", f"{', '.join(strategies)}, none of kind ef-hc", allowed)
    if name not in with_r:
        given = f"{name}, which has no r" if name in strategies else name
        raise InputError("--strategy", given, ", ".join(with_r) or "a strategy of kind ef-hc or gt")
    return name, with_r[name]


@dataclass(frozen=True)
class Trial:
    """One r, run for more and more iterations as long as it is among the best."""

    search: Search
    number: int
    """Counted from 1."""
    r: float
    runs: Runs
    store: RunStore
    engine: Engine
    progress: TuneProgress

    def run(self, finished: Sequence[FrozenTrial]) -> FrozenTrial:
        """Successive halving: after k of K iterations it goes on if its accuracy within

            budget * k / K

        is in the upper third of those of all trials that came so far. Within the whole budget, those that spend it
        soonest would look best early on, and one that makes it last to the end would be stopped.
        """
        from optuna import create_study
        from optuna.distributions import FloatDistribution
        from optuna.pruners import SuccessiveHalvingPruner
        from optuna.trial import TrialState

        search, budget = self.search, self.search.budget
        # In memory, and moved to the journal when done: a trial that is killed leaves nothing that has to be undone.
        pruner = SuccessiveHalvingPruner(min_resource=1, reduction_factor=FACTOR)
        study = create_study(direction="maximize", pruner=pruner)
        study.add_trials(finished)
        study.enqueue_trial({"r": self.r})
        trial = study.ask({"r": FloatDistribution(search.low, search.high, log=True)})
        state = TrialState.PRUNED
        for rung, iterations in enumerate(search.rungs):
            curves = self._curves(iterations)
            so_far = budget.accuracies(curves, iterations / search.experiment.iterations)
            trial.report(float(np.mean(so_far)), FACTOR**rung)
            stopped = trial.should_prune()  # asked in any case, so that later trials are held against this one
            if iterations == search.rungs[-1] or budget.is_exceeded(curves):
                state = TrialState.COMPLETE
            if stopped or state is TrialState.COMPLETE:
                break
        accuracies = budget.accuracies(curves)
        trial.set_user_attr("iterations", iterations)
        trial.set_user_attr("accuracies", accuracies)
        trial.set_user_attr("spent", budget.spent(curves))
        study.tell(trial, float(np.mean(accuracies)) if state is TrialState.COMPLETE else None, state)
        return study.trials[-1]

    def _curves(self, iterations: int) -> pl.DataFrame:
        """The curves of all seeds, from the store or else made."""
        runs = self.runs.of(self.search.part(self.r, iterations))
        shares = dict.fromkeys((run.key for run in runs), 0.0)

        def tell(run: Run, share: float) -> None:
            shares[run.key] = share
            self.progress(self.number, self.r, iterations, sum(shares.values()) / len(shares))

        self.store.complete(runs, self.engine, tell)
        return pl.concat(self.store.curve(run) for run in runs)


@dataclass(frozen=True, eq=False)
class Tuning:
    """What came of it."""

    search: Search
    table: pl.DataFrame
    """A row per trial: trial, r, iterations (as far as it was run), accuracy within the budget with its 95 % interval
    over seeds (low, high), spent (of the budget), state (complete or pruned), and the accuracy of each seed."""

    @cached_property
    def _best(self) -> dict[str, Any]:
        # The first trial is always complete. Of equals, the one that spends least.
        complete = self.table.filter(state="complete")
        return complete.sort("accuracy", "spent", "trial", descending=[True, False, False]).row(0, named=True)

    @property
    def best_r(self) -> float:
        """The r of the complete trial with the best accuracy."""
        return float(self._best["r"])

    @property
    def best_accuracy(self) -> float:
        """Its accuracy within the budget, the mean over seeds."""
        return float(self._best["accuracy"])

    @property
    def experiment(self) -> Experiment:
        """The experiment with the best r, all else as it was."""
        return self.search.with_r(self.best_r)

    @property
    def advice(self) -> str | None:
        """One line, if the best r is the smallest or the largest that was tried."""
        tried = self.table["r"].unique().sort().to_list()
        if len(tried) == 1 or self.best_r not in {tried[0], tried[-1]}:
            return None
        below = self.best_r == tried[0]
        which, where, option = ("smallest", "below", "--low") if below else ("largest", "above", "--high")
        return f"r = {self.best_r:g} is the {which} that was tried; a better one may lie {where}: try another {option}"

    def save(self, out: Path) -> None:
        """trials.csv, tuned.toml, tuning.png and tuning.pdf"""
        write_safely(out / TRIALS, self.table.write_csv().encode())
        write_safely(out / TUNED, to_toml(self.experiment).encode())
        title = f"{self.search.strategy}: accuracy within {self.search.budget.words}"
        figure = tuning_figure(self.table, self.best_r, title)
        for name in FIGURES:
            save_figure(figure, out / name)


def _table(search: Search, finished: Sequence[FrozenTrial]) -> pl.DataFrame:
    rows = []
    for number, trial in enumerate(finished, start=1):
        accuracies = np.array(trial.user_attrs["accuracies"])
        _, low, high = interval(accuracies)
        row = {
            "trial": number,
            "r": trial.params["r"],
            "iterations": trial.user_attrs["iterations"],
            "accuracy": float(np.mean(accuracies)),
            "low": float(low),
            "high": float(high),
            "spent": float(np.mean(trial.user_attrs["spent"])),
            "state": trial.state.name.lower(),
        }
        per_seed = {
            f"seed {seed}": float(value) for seed, value in zip(search.experiment.seeds, accuracies, strict=True)
        }
        rows.append(row | per_seed)
    return pl.DataFrame(rows).fill_nan(None)  # one seed has no interval


# The journal


def _prepare(out: Path) -> None:
    """A folder for it, in which nothing else is kept."""
    ours = {RUNS, TRIALS, TUNED, *FIGURES, ".lock"}
    try:
        out.mkdir(parents=True, exist_ok=True)
        names = {path.name for path in out.iterdir() if not path.name.endswith(UNFINISHED)}
    except (OSError, ValueError) as error:
        raise InputError("--out", f"{str(out)[:60]} ({error})", "a folder that can be written") from None
    if any(not name.startswith(JOURNAL) for name in names - ours):  # beside the journal there may be its lock
        allowed = "a new or empty directory, or that of the same tuning to go on with it"
        raise InputError("--out", f"{out}, which holds other files", allowed)


def _open_journal(path: Path) -> Study:
    """The study in the journal; a new one if there is none."""
    from optuna import create_study
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    # Nobody else is here: a lock was left by a process that was killed, and so was a line without an end, which the
    # next would be appended to.
    for leftover in path.parent.glob(f"{path.name}.lock*"):
        leftover.unlink()
    if path.exists() and not (content := path.read_bytes()).endswith(b"\n"):
        write_safely(path, content[: content.rfind(b"\n") + 1])
    backend = JournalFileBackend(str(path), JournalFileOpenLock(str(path)))
    try:
        return create_study(storage=JournalStorage(backend), study_name="r", direction="maximize", load_if_exists=True)
    except (ValueError, KeyError, TypeError) as error:
        raise EfhcError(f"{path} is corrupt ({error}); remove it to tune again with the runs that are there") from error


def _finished(journal: Study) -> list[FrozenTrial]:
    from optuna.trial import TrialState

    return journal.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))


def _identity(search: Search, runs: Runs) -> dict[str, Any]:
    """All that trials follow from: those of another tuning are not to be mixed with them."""
    (run, *_) = runs.of(search.part(search.low, 1))
    files = {name: sha256(read_bytes(path, name)) for name, path in input_files(search.experiment).items()}
    asked = {"--budget": str(search.budget), "--strategy": search.strategy, "--low": search.low, "--high": search.high}
    checksums = {"data_sha256": dict(run.data.sha256), "input_sha256": files}
    identity: dict[str, Any] = json.loads(
        json.dumps({**to_tables(search.experiment), **asked, **checksums, "efhc": __version__})
    )
    return identity


def _check_same(journal: Study, identity: dict[str, Any], out: Path) -> None:
    begun = journal.user_attrs.get("identity")
    if begun is None:  # new, or killed before it was written
        journal.set_user_attr("identity", identity)
    elif difference := first_difference(begun, identity):
        key, old, new = difference
        allowed = f"{old!r}, as that tuning was begun; a changed one needs another --out"
        raise InputError(key, f"{new!r} to go on with {out}", allowed)


def _require_optuna() -> None:
    try:
        import optuna  # noqa: F401
    except ModuleNotFoundError:
        raise EfhcError("tuning needs Optuna: pip install 'efhc[tune]'") from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna tells of every trial; here the caller does."""
    from optuna import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)
    try:
        yield
    finally:
        logging.set_verbosity(before)
