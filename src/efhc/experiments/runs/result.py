"""The result of an experiment: tables and models of all its runs, from memory or from a run directory."""

from __future__ import annotations

import re
import shlex
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import count, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import numpy as np
import polars as pl
from pydantic import TypeAdapter, ValidationError

from efhc.base.arrays import ArraysByKey, Floats
from efhc.base.errors import EfhcError, InputError
from efhc.base.extras import require
from efhc.base.inputs import using_inputs
from efhc.base.saving import write_safely
from efhc.drivers.settings import EventDriven
from efhc.experiments.config.experiment import Experiment, StrategyName
from efhc.experiments.config.files import first_difference
from efhc.experiments.runs.draw import draw_scenario
from efhc.experiments.runs.experiment_folder import OWN_RUNS, ExperimentFolder
from efhc.experiments.runs.folder import DamagedError, Pair, RunFolder
from efhc.experiments.runs.run import Runs, without_place
from efhc.experiments.runs.store import KeptRun, StoredRun
from efhc.experiments.runs.tables import EVENT_DRIVEN, LABELS, SCHEMAS, RunTables, tables_of
from efhc.learning.backends.personal import PERSONAL_MODEL
from efhc.learning.data import Dataset, NpzFile
from efhc.learning.measures import Measure, evaluated, measure_of
from efhc.report.figure_data import RUN
from efhc.report.views import State
from efhc.scenarios.personal import personalized

if TYPE_CHECKING:
    from torch import nn

    from efhc.report.figures import Picture, Width
    from efhc.report.summary import SummaryWords
    from efhc.report.tables import ComparisonTable, SettingRuns

T = TypeVar("T")
_STRATEGY_NAME: TypeAdapter[str] = TypeAdapter(StrategyName)


class Result:
    """The tables and final models of an experiment. What comes from a folder is read when it is needed."""

    def __init__(
        self,
        experiment: Experiment,
        runs: Mapping[Pair, KeptRun],
        failed: Mapping[Pair, str],
        checksums: Mapping[str, Mapping[str, str]],
        directory: Path | None = None,
        pairs: Collection[Pair] | None = None,
    ) -> None:
        """`checksums` are those of the data and input files. A run that failed need not be among `runs`.

        `pairs` are the strategies and seeds that have a run. Default: every strategy with every seed.
        """
        self.experiment = experiment
        every = [(strategy, seed) for seed in experiment.seeds for strategy in experiment.strategies]
        pairs = [pair for pair in every if pairs is None or pair in pairs]
        self._runs = {pair: runs[pair] for pair in pairs if pair in runs and pair not in failed}
        self.failed = dict(failed) | {pair: run.problem for pair, run in self._runs.items() if run.problem is not None}
        """The runs that failed, by strategy and seed, and why. They have no rows and no models."""
        self.states: dict[Pair, State] = {
            pair: "failed" if pair in self.failed else self._runs[pair].state if pair in self._runs else "waiting"
            for pair in pairs
        }
        """What has become of each run, by strategy and seed: "waiting", "running", "stopped", "done" or "failed"."""
        self.directory = directory
        """Where the result is kept, if it is."""
        self._checksums = checksums

    @classmethod
    def load(cls, directory: Path | str, *, unfinished: bool = False) -> Result:
        """Return the result in the folder of an experiment; of a study or a store, a `Study` of several results.

        With `unfinished`, the directory may hold an experiment that is being made or was stopped. Then `states` says
        what has become of each run; runs that are complete have everything. Of the others, the tables have all rows up
        to the last checkpoint (one is made every 30 s) or a little further, and `metrics` (or `timeline`) has the
        evaluated rows after that, as the live file has them: iterations between them are missing there. Such runs have
        no `models`, no rows in `devices`, and runs that failed or were not begun have no rows at all. Single runs that
        are kept elsewhere, by `store`, are not found. What changes after the call is not seen.

        Code that the config names ("file.py:Name") is not run, and need not be there: `experiment` can be read, but to
        run it again, load config.toml by `load_experiment`. Raises `InputError` if the directory does not hold a run
        that has finished.
        """
        folder = ExperimentFolder(Path(directory))
        if not folder.is_begun:
            from efhc.experiments.runs.study import Study

            return cast("Result", Study.load(folder.path, unfinished=unfinished))  # most folders are experiments
        if not folder.is_complete and not unfinished:
            raise EfhcError(f"{directory} has not finished; with unfinished=True, you get what is there so far")
        result = cls.in_folder(folder.read_experiment(), folder)
        lost = [pair for pair, state in result.states.items() if state not in ("done", "failed")]
        if lost and not unfinished:
            which = folder.store / folder.keys.get(lost[0], f"the run of {lost[0][0]}, seed {lost[0][1]}")
            raise DamagedError(f"{which} is missing or damaged; resume the experiment to make it again")
        return result

    @classmethod
    def in_folder(cls, experiment: Experiment, folder: ExperimentFolder) -> Result:
        """Return the result of this experiment, which is kept in this folder."""
        failed = folder.failures if folder.is_complete else {}
        checksums = {name: folder.meta.get(name, {}) for name in ("data_sha256", "input_sha256")}
        return cls(experiment, kept_runs(experiment, folder), failed, checksums, folder.path)

    def _table(self, name: str) -> pl.DataFrame:
        """Return a table. Raises `InputError` if runs of this driver do not have it."""
        tables = tables_of(self.experiment)
        if name not in tables.names:
            has = ", ".join(tables.names)
            problem = f"an experiment with the driver {tables.driver} has no such table; it has {has}."
            raise InputError(name, tables.driver, has, problem)
        found = {pair: run.table(name) for pair, run in self._runs.items() if pair not in self.failed}
        labels = tables.labels.get(name, ("seed",))
        empty = {**{label: LABELS[label] for label in labels}, **SCHEMAS[name]}
        parts = _of_table(name, tables, found).values()
        return pl.concat([*parts] or [pl.DataFrame(schema=empty)], how="diagonal_relaxed")

    def rows(self, name: str, strategy: str, seed: int) -> pl.DataFrame:
        self._check_pair(name, strategy, seed)
        return self._runs[strategy, seed].table(name)

    @cached_property
    def metrics(self) -> pl.DataFrame:
        """Of runs in lockstep: one row per strategy, seed and iteration."""
        return self._table("metrics")

    @cached_property
    def events(self) -> pl.DataFrame:
        """Of runs in lockstep: the devices that fired and the links used, a row per strategy, seed and iteration."""
        return self._table("events")

    @cached_property
    def timeline(self) -> pl.DataFrame:
        """Of event-driven runs: accuracies, counts and bytes so far, one row per strategy, seed and sample."""
        return self._table("timeline")

    @cached_property
    def evaluations(self) -> pl.DataFrame:
        """The rows of `metrics` or `timeline` with measures, one per strategy, seed and evaluation.

        An evaluation that consists of several rows has the means of their measures, and all else from the last of them.
        """
        return evaluated(self.timeline if tables_of(self.experiment) is EVENT_DRIVEN else self.metrics)

    @cached_property
    def exchanges(self) -> pl.DataFrame:
        """Of event-driven runs: when, between whom, with which weight and outcome, a row per exchange."""
        return self._table("exchanges")

    @cached_property
    def steps(self) -> pl.DataFrame:
        """Of event-driven runs: when, whether the device fired, and its loss, a row per device and its iteration."""
        return self._table("steps")

    @cached_property
    def network(self) -> pl.DataFrame:
        """The physical links, one row per seed and iteration at which they changed."""
        return self._table("network")

    @cached_property
    def devices(self) -> pl.DataFrame:
        """Bandwidth, samples and labels, one row per seed and device."""
        return self._table("devices")

    @cached_property
    def models(self) -> dict[Pair, Floats]:
        """The final models (m, n) by strategy and seed."""
        found = {pair: run.models for pair, run in self._runs.items()}
        return ArraysByKey(self._in_order({pair: models for pair, models in found.items() if models is not None}))

    @cached_property
    def local(self) -> dict[Pair, dict[str, np.ndarray]]:
        """What devices keep to themselves (running statistics of BatchNorm, personal models), by strategy and seed."""
        found = {pair: dict(run.local) for pair, run in self._runs.items()}
        return ArraysByKey(self._in_order({pair: own for pair, own in found.items() if own}))

    def _in_order(self, found: Mapping[Pair, T]) -> dict[Pair, T]:
        pairs = product(self.experiment.strategies, self.experiment.seeds)
        return {pair: found[pair] for pair in pairs if pair in found}

    def snapshots(self, strategy: str, seed: int) -> Mapping[int, Floats]:
        """Return the models (m, n) of single iterations, by iteration. Empty without `keep_models_every`."""
        self._check_pair("snapshots", strategy, seed)
        return self._runs[strategy, seed].snapshots

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """All tables by the names of their files in a run directory."""
        return {name: getattr(self, name) for name in tables_of(self.experiment).names}

    @property
    def is_finished(self) -> bool:
        """Whether every run is done or has failed, so that nothing more will come."""
        return {"done", "failed"}.issuperset(self.states.values())

    def __repr__(self) -> str:
        place = f", kept in {self.directory}" if self.directory else ""
        failed = f", {len(self.failed)} failed" if self.failed else ""
        done = sum(state == "done" for state in self.states.values())
        unfinished = "" if self.is_finished else f", unfinished: {done} of {len(self.states)} runs are done"
        strategies, seeds = len(self.experiment.strategies), len(self.experiment.seeds)
        runs = f"{strategies} strateg{'y' if strategies == 1 else 'ies'} x {seeds} seed{'s'[: seeds != 1]}"
        seconds = getattr(self.experiment.driver, "seconds", None)
        length = f"{self.experiment.iterations} iterations" if seconds is None else f"{seconds:g} virtual seconds"
        return f"<Result of {self.experiment.name}: {runs}, {length}{unfinished}{failed}{place}>"

    def summary(self, measure: str | None = None) -> pl.DataFrame:
        """Return one row per strategy, with means over seeds.

        The columns are the measure at the end, that of the worst seed and that of the mean model, the share of devices
        that fire, the total transmission time and the final consensus error. Of event-driven runs they are the same
        three, seconds, counts, bytes, consensus error and number of devices and, with a `target`, the seconds and bytes
        to it: see `timeline_summary`. A run at whose end no device is there has no measures. `measure` names any column
        that says how good models are, such as "own_accuracy". Default: that of the experiment.

        Of a result that has not finished, it is how far each run has come. Then there are also the columns `seeds`, the
        number of seeds that the means are over, and in lockstep `iterations`, the mean number of iterations made. The
        share of devices that fire is that of the iterations up to the checkpoints, since after them only evaluated ones
        have rows, and who fires then may be anything but typical; it is null before the first checkpoint.
        """
        chosen = self._chosen(measure)
        beside = [one for one in (chosen.beside,) if one in self._curve.columns]
        if tables_of(self.experiment) is EVENT_DRIVEN:
            from efhc.report.timelines import timeline_summary

            summary = timeline_summary(self.timeline, chosen, self._target_of(chosen))
            if self.is_finished or "seeds" in summary.columns:
                return summary
            return summary.with_columns(seeds=pl.Series(self._seeds_there, dtype=pl.Int64))
        has_all_before = pl.col("iteration") == pl.int_range(pl.len())
        ends = self.metrics.group_by("strategy", "seed", maintain_order=True).agg(
            pl.col("transmission_time_total", "consensus_error").last(),
            pl.col("fired").filter(has_all_before).sum(),
            has_all_before.sum().alias("counted"),
            (pl.col("iteration").last() + 1).alias("iterations"),
        )
        last = self.evaluations.group_by(RUN).agg(pl.col(chosen.name, *beside).drop_nulls().last())
        ends = ends.join(last, on=RUN, how="left", maintain_order="left")
        is_counted = (pl.col("counted") > 1) | (pl.col("iterations") == 1)  # the first iteration is always evaluated
        so_far = [pl.len().cast(pl.Int64).alias("seeds"), pl.col("iterations").mean()]
        return ends.group_by("strategy", maintain_order=True).agg(
            pl.col(chosen.name).mean(),
            chosen.worst,
            pl.col(beside).mean(),
            (pl.col("fired").filter(is_counted).sum() / pl.col("counted").filter(is_counted).sum())
            .truediv(self.experiment.devices)
            .fill_nan(None)
            .alias("firing_share"),
            pl.col("transmission_time_total").mean(),
            pl.col("consensus_error").mean(),
            *([] if self.is_finished else so_far),
        )

    def _chosen(self, measure: str | None = None) -> Measure:
        """Return the measure of that name. Default: that of the experiment."""
        return measure_of(self._curve, measure or self.experiment.measure)

    @property
    def _curve(self) -> pl.DataFrame:
        return self._table(tables_of(self.experiment).curve)

    @property
    def _seeds_there(self) -> list[int]:
        """The number of seeds of each strategy that has any, in the order of `summary`."""
        seeds = self._curve.group_by("strategy", maintain_order=True).agg(pl.col("seed").n_unique())
        return seeds["seed"].to_list()

    def at_budget(
        self, share: float | Sequence[float] = 0.1, of: str = "ZT", measure: str | None = None
    ) -> pl.DataFrame:
        """Return how good each run of a lockstep experiment is when it has spent a share of what another spends.

        The budget is `share` of the total transmission time of the strategy `of` with the same seed; several shares
        give a row each. The columns are strategy, seed, spends (what the run spends in all, as a share of the same
        total), share and the measure. `measure` names any column that says how good models are, such as "own_accuracy".
        Default: that of the experiment. It is linear between evaluations. A run that spends less than its budget is
        taken at its end, and one that had spent more when it was first evaluated has no value: a warning says so, and
        if no run has one, an `InputError`. Runs that have not finished are left out, and so are the seeds in which `of`
        has not finished.
        """
        from efhc.report.claims.leads import at_shares, unresolved
        from efhc.report.tables import shares_in

        curves = self._evaluated_whole_runs
        if of not in self.experiment.strategies:
            known = ", ".join(self.experiment.strategies)
            raise InputError("of", of, known, f"this result has no {of} to compare with. Use {known}.")
        shares = shares_in("share", share)
        chosen = self._chosen(measure).name
        found = at_shares(curves, chosen, shares, of)
        if problem := unresolved(curves, chosen, shares, of):
            if not found[chosen].count():
                raise InputError("share", share, "a larger share", f"{problem}. Or use a larger share.")
            warnings.warn(problem, stacklevel=2)
        return found

    def table(
        self,
        measure: str | Sequence[str] | None = None,
        budget: float | Sequence[float] | None = None,
        of: str = "ZT",
    ) -> ComparisonTable:
        """Return a table for a paper: a row per strategy, a column per measure and budget, mean ± interval over seeds.

        `measure` names one or several measures, such as "own_accuracy_min". Default: `measure` of the experiment at the
        end and, of event-driven runs with a target accuracy, "seconds_to_target" and "bytes_to_target". `budget` is one
        or several shares of the total transmission time of the strategy `of`. Default: the end of the runs. The table
        has `latex()`, `markdown()`, `csv()`, `frame` and `save("table.tex")`; its notes say what the numbers are, and
        which runs have no result.
        """
        return self.compared({self.experiment.name: self}, measure, budget, of)

    @staticmethod
    def compared(
        results: Mapping[str, Result],
        measure: str | Sequence[str] | None = None,
        budget: float | Sequence[float] | None = None,
        of: str = "ZT",
    ) -> ComparisonTable:
        """Return the `table` of several results, which are named: a group of columns for each."""
        from efhc.report.tables import comparison_table, shares_in
        from efhc.report.timelines import TO_TARGET

        parts = [name.partition(", ") for name in results]
        are_alike = len({first for first, _, _ in parts}) == 1 and all(rest for _, _, rest in parts)
        titles = [rest for _, _, rest in parts] if are_alike else list(results)
        settings = [one.setting_runs(title) for title, one in zip(titles, results.values(), strict=True)]
        if measure is None:
            first = next(iter(results.values()))
            chosen = [first._chosen().name, *(TO_TARGET if first.target is not None else ())]
        else:
            chosen = (
                [measure] if isinstance(measure, str) else list(measure) if isinstance(measure, Iterable) else [measure]
            )
            if not all(isinstance(one, str) for one in chosen):
                raise InputError("measure", repr(measure), "the name of a measure, or a list of names")
        budgets: Sequence[float | None] = [None] if budget is None else shares_in("budget", budget)
        return comparison_table(settings, chosen, budgets, of)

    def setting_runs(self, title: str) -> SettingRuns:
        """Return the evaluations of the runs that are done, and which are not, as `comparison_table` takes them."""
        from efhc.report.tables import SettingRuns, phases
        from efhc.report.timelines import nobody_left

        experiment, curve = self.experiment, self._curve
        lost = {
            pair: self.failed.get(pair, state) if state == "failed" else state
            for pair, state in self.states.items()
            if state != "done"
        }
        is_timed = tables_of(experiment) is EVENT_DRIVEN
        if is_timed:
            gone = {(name, seed) for name, seeds in nobody_left(curve).items() for seed in seeds}
            lost |= dict.fromkeys(sorted(gone - set(lost)), "no device is there at the end")
        schema = pl.Schema({"strategy": pl.String(), "seed": curve.schema["seed"]})
        pairs = pl.DataFrame([*self.states.keys() - lost.keys()], schema=schema, orient="row")
        whole = curve.join(pairs, on=RUN, how="semi", maintain_order="left")
        curves = evaluated(whole)
        return SettingRuns(
            title,
            curves,
            {pair: lost[pair] for pair in self.states if pair in lost},
            experiment.devices,
            self._tested_on,
            list(dict.fromkeys(name for name, _ in self.states)),
            {} if is_timed else phases(whole, curves),
            {} if is_timed else phases(whole, curves, at_end=False),
            None if self.target is None else (self._chosen().name, self.target),
        )

    @property
    def _tested_on(self) -> str:
        """The samples that measures are taken on, in words."""
        kind = "test" if self.experiment.validation is None else "validation"
        if (samples := self.experiment.test_samples) is None:
            try:
                samples = len(Runs().inputs(self.experiment).data.y_test)
            except (EfhcError, OSError):  # the data need not be there any more
                return f"all {kind} samples"
        return f"{samples:,} {kind} samples"

    def frontier(
        self,
        path: Path | str | None = None,
        leaders: Sequence[str] = (),
        measure: str | None = None,
        *,
        width: Width = "page",
    ) -> Picture:
        """Draw a measure against the share of ZT's total transmission time that was spent; write it to `path` if given.

        Default of `measure`: that of the experiment. The `leaders`, EF-HC and ZT (all strategies, if there are at most
        eight) are drawn with the band in which the mean of other seeds is expected, others in grey; a CSV file beside
        the figure has the means of all. `width` is "page" (7 in) or "column" (3.3 in). Runs that have not finished are
        left out. `at_budget` has the numbers.
        """
        from efhc.report.claims.leads import all_means
        from efhc.report.figure_data import FrontierData, SettingData
        from efhc.report.figures import run_title, save_figure
        from efhc.report.figures.paper import frontier_figure

        strategies = self.experiment.strategies
        unknown = [name for name in leaders if name not in strategies]
        if unknown:
            raise InputError("leaders", unknown[0], f"strategies of the experiment: {', '.join(strategies)}")
        curves = self._evaluated_whole_runs
        if not len(curves.filter(strategy="ZT")):
            raise InputError("frontier", "a result without a finished run of ZT", "one with it: ZT sets the budgets")
        setting = SettingData(self.experiment.name, run_title(self.experiment), curves, measure=self._chosen(measure))
        data = FrontierData("" if path is None else Path(path).stem, "", (setting,), tuple(leaders))
        figure = frontier_figure(data, width)
        figure.words = run_title(self.experiment)
        if path is not None:
            save_figure(figure, Path(path))
            write_safely(Path(path).with_suffix(".csv"), all_means(data).write_csv().encode())
        return figure

    @property
    def _evaluated_whole_runs(self) -> pl.DataFrame:
        """The evaluated rows of the metrics, of runs that are done. Raises `EfhcError` if runs have no metrics."""
        if tables_of(self.experiment) is EVENT_DRIVEN:
            advice = "for an event-driven result use result.summary() or result.timeline"
            raise EfhcError(f"at_budget and frontier need runs in lockstep; {advice}")
        if self.experiment.early_stopping is not None:
            problem = "runs with early_stopping have no budgets, because ZT may have ended before it spent its total"
            raise InputError("early_stopping", "at_budget and frontier", "runs without it", f"{problem}.")
        done = [{"strategy": name, "seed": seed} for (name, seed), state in self.states.items() if state == "done"]
        pairs = pl.DataFrame(done, schema={"strategy": pl.String, "seed": self.metrics.schema["seed"]})
        return self.evaluations.join(pairs, on=["strategy", "seed"], how="semi", maintain_order="left")

    def words(self, measure: str | None = None) -> SummaryWords:
        """Return the summary in words, as the command line prints it and a notebook shows it.

        Default of `measure`: that of the experiment.
        """
        from efhc.report.summary import SummaryWords, nobody_left_lines, summary_tables

        experiment, chosen = self.experiment, self._chosen(measure)
        summary, so_far = self.summary(chosen.name), not self.is_finished
        seeds, target = self._seeds_there, self._target_of(chosen)
        tables = summary_tables(summary, chosen, experiment.name, seeds, experiment.devices, target, so_far=so_far)
        is_timed = tables_of(experiment) is EVENT_DRIVEN
        notes = list(nobody_left_lines(self.timeline)) if is_timed else []
        return SummaryWords(tables, [*notes, *self._early_lines(), *self._personal_lines()])

    def _early_lines(self) -> Iterator[str]:
        """Yield a line for each strategy with runs that ended early."""
        if self.experiment.early_stopping is None or not self.is_finished:
            return
        timed = tables_of(self.experiment) is EVENT_DRIVEN
        ends = self._curve.group_by(RUN, maintain_order=True).agg(pl.col("seconds" if timed else "iteration").max())
        for (strategy,), of_strategy in ends.group_by("strategy", maintain_order=True):
            if timed:
                lengths = [f"{seconds:g} s" for seconds in of_strategy["seconds"]]
            else:
                lengths = [f"{k + 1:,}" for k in of_strategy["iteration"] if k + 1 < self.experiment.iterations]
            if lengths:
                unit = "" if timed else f" of {self.experiment.iterations:,} iterations"
                yield f"{strategy}: {len(lengths)} of {len(of_strategy)} runs ended after {', '.join(lengths)}{unit}"

    def _personal_lines(self) -> Iterator[str]:
        """Yield a line for each strategy in which devices keep parameters to themselves."""
        for name, strategy in self.experiment.strategies.items():
            if getattr(strategy, "personal", None) is not None:
                pair = next(
                    (pair for pair in self.local if pair[0] == name and PERSONAL_MODEL in self.local[pair]), None
                )
                if pair is not None:
                    shared, personal = self.models[pair].shape[1], self.local[pair][PERSONAL_MODEL].shape[1]
                    yield f"{name}: {shared:,} parameters of each device are shared, {personal:,} are personal"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the summary, the figure, the runs that failed, and where the result is kept."""
        from efhc.report.summary import result_html

        return result_html(self.words(), self.plot(), self.failed, self.directory, is_finished=self.is_finished)

    @property
    def figure_name(self) -> str:
        """The name of the file in which `efhc run` keeps what `plot` draws."""
        return "seconds.png" if tables_of(self.experiment) is EVENT_DRIVEN else "comparison.png"

    def plot(
        self,
        path: Path | str | None = None,
        *,
        measure: str | None = None,
        width: Width = "page",
        against: str | None = None,
    ) -> Picture:
        """Draw the paper's panels of this experiment, and write the figure to `path` if one is given.

        Of event-driven runs, the panels are over seconds and bytes. `measure` is what is drawn. Default: that of the
        experiment. `width` is "page" (7 in) or "column" (3.3 in). `against` draws one panel alone: the measure against
        "iterations" or "transmission_time", of event-driven runs "seconds" or "bytes". The legend says what bands are;
        of more than eight strategies, EF-HC, ZT and the best at the end are told apart, and the others grey. Curves of
        runs that have not finished go as far as all seeds of their strategy have come. A notebook shows the figure if a
        cell ends with it.
        """
        from efhc.report.figures import WIDTHS, comparison_figure, run_title, save_figure, seconds_figure

        if width not in WIDTHS:
            raise InputError("width", f"'{width}'", " or ".join(WIDTHS))
        chosen = self._chosen(measure)
        more: Any = {"measure": chosen.name, "width": width, "against": against}
        title, target = "" if self.is_finished else "unfinished", self._target_of(chosen)
        if tables_of(self.experiment) is EVENT_DRIVEN:
            figure = seconds_figure(self.timeline, target, title, **more)
        else:
            figure = comparison_figure(self.metrics, title=title, **more)
        figure.words = ", ".join(filter(None, [run_title(self.experiment), title]))
        if path is not None:
            save_figure(figure, Path(path))
        return figure

    @property
    def target(self) -> float | None:
        """The value of the measure up to which an event-driven experiment counts seconds and bytes, if it names one."""
        driver = self.experiment.driver
        return driver.target if isinstance(driver, EventDriven) else None

    def _target_of(self, chosen: Measure) -> float | None:
        """Return the target if it is one of this measure."""
        return self.target if chosen == self._chosen() else None

    def module(self, strategy: str, seed: int, device: int | Literal["mean"]) -> nn.Module:
        """Return the trained network of one device, or the mean model, as a `torch.nn.Module` in evaluation mode.

        It has the device's parameters and its own running statistics, so it scores what the metrics say. The mean
        model has the mean of all devices' parameters and statistics. Feed it inputs as the run saw them:
        `data.inputs(data.x_test)`, reshaped to (samples, *shape); an image without a channel axis gets one.
        """
        return self._trained("module", strategy, seed, device)[0]

    def to_onnx(self, path: Path | str, strategy: str, seed: int, device: int | Literal["mean"]) -> None:
        """Write the trained network of one device, or the mean model, as an ONNX file.

        It is the network that `module` returns. Its input `samples` takes any number of samples, and its output is
        `scores`. Raises an `EfhcError` if the extra `onnx` is missing or the network does what ONNX cannot say.
        """
        require("onnx")
        module, data = self._trained("to_onnx", strategy, seed, device)
        from efhc.learning.onnx_file import onnx_bytes

        write_safely(Path(path), onnx_bytes(module, data))

    def _trained(
        self, method: str, strategy: str, seed: int, device: int | Literal["mean"]
    ) -> tuple[nn.Module, Dataset]:
        from efhc.learning.models import ModuleModel

        model = self.experiment.model
        if not isinstance(model, ModuleModel):
            kind = getattr(model, "kind", type(model).__name__)
            raise InputError("model", kind, "a neural network", f"{method} needs a neural network, and this is {kind}.")
        self._check_pair(method, strategy, seed)
        devices = self.experiment.devices
        is_device = isinstance(device, int | np.integer) and not isinstance(device, bool) and 0 <= device < devices
        if device != "mean" and not is_device:
            raise InputError("device", repr(device), f'0 to {devices - 1}, or "mean"')
        inputs = Runs().inputs(self.experiment)
        if inputs.checksums["data_sha256"] != self._checksums["data_sha256"]:
            raise InputError("data", "other data than the run was made with", "the same data, to build its network")
        with using_inputs(inputs.files):
            scenario = draw_scenario(self.experiment, inputs.data, seed)
            learner = personalized(scenario, self.experiment.strategies[strategy], strategy).learner
        local = self.local.get((strategy, seed), {})
        return learner.module(self.models[strategy, seed], local, device), inputs.data

    def _check_pair(self, field: str, strategy: str, seed: int) -> None:
        """Raise `InputError` unless the result has a run of this strategy and seed."""
        made = {
            name: [
                number
                for number in self.experiment.seeds
                if self.states.get((name, number), "waiting") not in ("failed", "waiting")
            ]
            for name in self.experiment.strategies
        }
        if seed not in made.get(strategy, []):
            allowed = "; ".join(f"{name}, seed {', '.join(map(str, seeds))}" for name, seeds in made.items() if seeds)
            problem = f"there is no run of {strategy} with seed {seed}; there is {allowed or 'none yet'}."
            raise InputError(field, f"{strategy}, seed {seed}", allowed, problem)

    def save(self, directory: Path | str) -> None:
        """Write the result to a new run directory, from which `Result.load` reads it.

        What was made in Python and has no name is described in config.toml: such a directory can be loaded, but its
        experiment cannot be run again. Strategies of a study whose names a config cannot have get shorter ones. Raises
        `EfhcError` if the result has not finished.
        """
        if not self.is_finished:
            how = "complete it, and load it again"
            if self.directory is not None:
                config, folder = shlex.quote(str(self.directory / "config.toml")), shlex.quote(str(self.directory))
                how = f"complete it with `efhc run {config} --out {folder} --resume`, and load it again"
            raise EfhcError(f"a result that has not finished cannot be saved; {how}")
        names = _names_in_config(self.experiment.strategies)
        if any(old != new for old, new in names.items()):
            self._renamed(names).save(directory)
            return
        target = ExperimentFolder(Path(directory))
        experiment, checksums, data = self.experiment, dict(self._checksums), target.data_of(self.experiment)
        if data is not None:
            experiment = experiment.model_copy(update={"data": NpzFile.of(experiment.data, data.path)})
            checksums["data_sha256"] = {data.path.name: data.sha256}
        with target.locked():
            target.describe(experiment, checksums)
            target.keep_data(data)
            final = {pair: (models, self.local.get(pair, {})) for pair, models in self.models.items()}
            for strategy, seed in final:
                for k, models in self.snapshots(strategy, seed).items():
                    target.save_snapshot(strategy, seed, k, models)
            failed = [{"strategy": name, "seed": seed, "reason": text} for (name, seed), text in self.failed.items()]
            target.finish_run(self.tables, final, (), **({"failed": failed} if failed else {}))

    def _renamed(self, names: Mapping[str, str]) -> Result:
        """Return the same result with other names of its strategies."""
        strategies = {names[old]: strategy for old, strategy in self.experiment.strategies.items()}
        runs = {(names[old], seed): run for (old, seed), run in self._runs.items()}
        failed = {(names[old], seed): reason for (old, seed), reason in self.failed.items()}
        pairs = [(names[old], seed) for old, seed in self.states]
        experiment = self.experiment.model_copy(update={"strategies": strategies})
        return Result(experiment, runs, failed, self._checksums, pairs=pairs)

    def to_csv(self, folder: Path | str) -> None:
        """Write every table as a CSV file; lists of devices and links become numbers with blanks between them."""
        for name, table in self.tables.items():
            lists = [column for column, kind in table.schema.items() if isinstance(kind, pl.List)]
            flat = table.with_columns(pl.col(lists).cast(pl.List(pl.String)).list.join(" ")) if lists else table
            write_safely(Path(folder) / f"{name}.csv", flat.write_csv().encode())


def _names_in_config(names: Iterable[str]) -> dict[str, str]:
    """Return for each name of a strategy one that a config may have, no two of them alike."""
    taken = set(names)
    found = {}
    for name in names:
        try:
            _STRATEGY_NAME.validate_python(name)
            found[name] = name
        except ValidationError:
            start = re.sub(r"[^A-Za-z0-9 .,_=+-]", "_", name)[:50]
            start = start if start[:1].isalnum() else f"X{start[1:]}"
            found[name] = next(new for number in count(2) if (new := f"{start} {number}") not in taken)
            taken.add(found[name])
    return found


def _of_table(name: str, tables: RunTables, found: Mapping[Pair, pl.DataFrame]) -> dict[Pair, pl.DataFrame]:
    """Return the runs' tables that make up the table `name`, given that table of every run.

    These are all of them or, if the strategies of a seed share their rows, the longest of each seed; of equally long
    ones the first. Event-driven runs end at different times: a shorter table is the beginning of the longest.
    """
    if tables.is_per_strategy(name):
        # Two strategies of the same kind and parameters are one run with two names.
        return {pair: table.with_columns(strategy=pl.lit(pair[0])) for pair, table in found.items()}
    of_seed: dict[int, list[Pair]] = {}
    for pair in found:
        of_seed.setdefault(pair[1], []).append(pair)
    longest = (max(pairs, key=lambda pair: len(found[pair])) for pairs in of_seed.values())
    return {pair: found[pair] for pair in longest}


def kept_runs(experiment: Experiment, folder: ExperimentFolder) -> dict[Pair, KeptRun]:
    """Return the runs of an experiment that have been begun, by strategy and seed."""
    tables = tables_of(experiment)
    if folder.holds_tables:
        pairs = [(strategy, seed) for seed in experiment.seeds for strategy in experiment.strategies]
        return {pair: StoredRun(folder, tables, pair) for pair in pairs}
    found = {pair: folder.store / key for pair, key in folder.keys.items()}
    found = {pair: path for pair, path in found.items() if _is_run_of(folder.config, pair, RunFolder(path))}
    if not folder.keys:
        from efhc.experiments.runs.study import unlisted_runs

        found = unlisted_runs(folder.config, folder.path / OWN_RUNS)
    return {pair: StoredRun(RunFolder(path), tables) for pair, path in found.items() if path.is_dir()}


def _is_run_of(config: Mapping[str, Any], pair: Pair, run: RunFolder) -> bool:
    """Return whether a folder holds the run of this strategy and seed of an experiment, by what its config says."""
    strategy, seed = pair
    try:
        here = run.config
    except DamagedError:
        return False
    (kind,) = here["strategies"] if len(here["strategies"]) == 1 else ("",)
    expected = {**config, "name": here.get("name"), "strategies": {kind: config["strategies"].get(strategy)}}
    return first_difference(*map(without_place, (here, expected | {"seeds": [seed]}))) is None
