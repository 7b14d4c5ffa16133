"""The result of an experiment: tables and models of all its runs, from memory or from a run directory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

import numpy as np
import polars as pl

from efhc.base.arrays import Floats
from efhc.base.errors import InputError
from efhc.base.inputs import using_inputs
from efhc.base.saving import write_safely
from efhc.drivers.event_driven.settings import EventDriven
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.runs.directory import Pair, RunDirectory
from efhc.experiments.runs.draw import draw_scenario
from efhc.experiments.runs.run import Inputs, Run, Runs
from efhc.experiments.runs.store import Failures, MemoryStore, RunStore
from efhc.experiments.runs.tables import EVENT_DRIVEN, RunTables, tables_of
from efhc.learning.data import NpzFile

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import nn

T = TypeVar("T")


class _Source(Protocol):
    """Where a result has its tables and models from."""

    def table(self, name: str) -> pl.DataFrame: ...
    def models(self) -> dict[Pair, Floats]: ...
    def local(self) -> dict[Pair, dict[str, np.ndarray]]: ...
    def snapshots(self, strategy: str, seed: int) -> Mapping[int, Floats]: ...
    def checksums(self) -> Mapping[str, Mapping[str, str]]: ...


class Result:
    """The tables and final models of an experiment. What comes from a directory is read when it is needed."""

    def __init__(
        self, experiment: Experiment, source: _Source, failed: Mapping[Pair, str], directory: Path | None = None
    ) -> None:
        self.experiment = experiment
        self.failed: dict[Pair, str] = dict(failed)
        """The runs that failed, by strategy and seed, and why. They have no rows and no models."""
        self.directory = directory
        """Where the result is kept, if it is."""
        self._source = source

    @classmethod
    def load(cls, directory: Path | str) -> Result:
        """Return the result in a run directory.

        Code that the config names ("file.py:Name") is not run, and need not be there: `experiment` can be read, but to
        run it again, load config.toml by `load_experiment`. Raises `InputError` if the directory does not hold a run
        that has finished.
        """
        run = RunDirectory(Path(directory))
        if not run.is_complete:
            raise InputError("run directory", directory, "the directory of a run that has finished")
        return cls.in_directory(run.read_experiment(), run)

    @classmethod
    def in_directory(cls, experiment: Experiment, directory: RunDirectory) -> Result:
        """The result of this experiment, which is kept in this directory."""
        return cls(experiment, _Directory(directory), directory.failures, directory.path)

    def _table(self, name: str) -> pl.DataFrame:
        """Return a table. Raises `InputError` if runs of this driver do not have it."""
        tables = tables_of(self.experiment)
        if name not in tables.names:
            raise InputError(name, f"a run of the {tables.driver} driver", f"its tables: {', '.join(tables.names)}")
        return self._source.table(name)

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
        return self._source.models()

    @cached_property
    def local(self) -> dict[Pair, dict[str, np.ndarray]]:
        """What devices keep to themselves (running statistics of BatchNorm), by strategy and seed."""
        return self._source.local()

    def snapshots(self, strategy: str, seed: int) -> Mapping[int, Floats]:
        """Return the models (m, n) of single iterations, by iteration. Empty without `keep_models_every`."""
        self._check_pair("snapshots", strategy, seed)
        return self._source.snapshots(strategy, seed)

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """All tables by the names of their files in a run directory."""
        return {name: getattr(self, name) for name in tables_of(self.experiment).names}

    def __repr__(self) -> str:
        place = f", kept in {self.directory}" if self.directory else ""
        failed = f", {len(self.failed)} failed" if self.failed else ""
        strategies, seeds = len(self.experiment.strategies), len(self.experiment.seeds)
        runs = f"{strategies} strateg{'y' if strategies == 1 else 'ies'} x {seeds} seed{'s'[: seeds != 1]}"
        seconds = getattr(self.experiment.driver, "seconds", None)
        length = f"{self.experiment.iterations} iterations" if seconds is None else f"{seconds:g} virtual seconds"
        return f"<Result of {self.experiment.name}: {runs}, {length}{failed}{place}>"

    def summary(self) -> pl.DataFrame:
        """Return one row per strategy, with means over seeds.

        The columns are the final accuracies, the share of devices that fire, the total transmission time and the final
        consensus error. Of event-driven runs they are the final accuracies, seconds, counts, bytes, consensus error and
        number of devices and, with a `target_accuracy`, the seconds and bytes to it: see `timeline_summary`. A run at
        whose end no device is there has no accuracy.
        """
        if tables_of(self.experiment) is EVENT_DRIVEN:
            from efhc.report.timelines import timeline_summary

            return timeline_summary(self.timeline, self.target_accuracy)
        last = pl.col("iteration") == pl.col("iteration").max()
        return self.metrics.group_by("strategy", maintain_order=True).agg(
            pl.col("accuracy").filter(last).mean(),
            pl.col("accuracy").filter(last).min().alias("worst_seed_accuracy"),
            pl.col("mean_model_accuracy").filter(last).mean(),
            (pl.col("fired").mean() / self.experiment.devices).alias("firing_share"),
            pl.col("transmission_time_total").filter(last).mean(),
            pl.col("consensus_error").filter(last).mean(),
        )

    @property
    def figure_name(self) -> str:
        """The name of the file in which `efhc run` keeps what `plot` draws."""
        return "seconds.png" if tables_of(self.experiment) is EVENT_DRIVEN else "comparison.png"

    def plot(self, path: Path | str | None = None) -> Figure:
        """Draw the paper's panels of this experiment, and write the figure to `path` if one is given.

        Of event-driven runs, the panels are over seconds and bytes.
        """
        from efhc.report.figures import comparison_figure, run_title, save_figure, seconds_figure

        title = run_title(self.experiment)
        if tables_of(self.experiment) is EVENT_DRIVEN:
            figure = seconds_figure(self.timeline, self.target_accuracy, title)
        else:
            figure = comparison_figure(self.metrics, title=title)
        if path is not None:
            save_figure(figure, Path(path))
        return figure

    @property
    def target_accuracy(self) -> float | None:
        """The accuracy up to which an event-driven experiment counts seconds and bytes, if it names one."""
        driver = self.experiment.driver
        return driver.target_accuracy if isinstance(driver, EventDriven) else None

    def module(self, strategy: str, seed: int, device: int | Literal["mean"]) -> nn.Module:
        """Return the trained network of one device, or the mean model, as a `torch.nn.Module` in evaluation mode.

        It has the device's parameters and its own running statistics, so it scores what the metrics say. The mean
        model has the mean of all devices' parameters and statistics. Feed it inputs as the run saw them:
        `data.inputs(data.x_test)`, reshaped to (samples, *shape); an image without a channel axis gets one.
        """
        from efhc.learning.models import ModuleModel

        model = self.experiment.model
        if not isinstance(model, ModuleModel):
            raise InputError("model", getattr(model, "kind", type(model).__name__), "a model that is a torch module")
        self._check_pair("module", strategy, seed)
        devices = self.experiment.devices
        is_device = isinstance(device, int | np.integer) and not isinstance(device, bool) and 0 <= device < devices
        if device != "mean" and not is_device:
            raise InputError("device", repr(device), f'0 to {devices - 1}, or "mean"')
        inputs = Runs().inputs(self.experiment)
        if inputs.checksums["data_sha256"] != self._source.checksums()["data_sha256"]:
            raise InputError("data", "other data than the run was made with", "the same data, to build its network")
        with using_inputs(inputs.files):
            learner = draw_scenario(self.experiment, inputs.data, seed).learner
        local = self.local.get((strategy, seed), {})
        module: nn.Module = learner.module(self.models[strategy, seed], local, device)
        return module

    def _check_pair(self, asked: str, strategy: str, seed: int) -> None:
        """Raise `InputError` unless the result has a run of this strategy and seed."""
        made = {
            name: [number for number in self.experiment.seeds if (name, number) not in self.failed]
            for name in self.experiment.strategies
        }
        if seed not in made.get(strategy, []):
            allowed = "; ".join(f"{name}, seed {', '.join(map(str, seeds))}" for name, seeds in made.items() if seeds)
            raise InputError(asked, f"{strategy}, seed {seed}", allowed)

    def save(self, directory: Path | str) -> None:
        """Write the result to a new run directory, from which `Result.load` reads it.

        What was made in Python and has no name is described in config.toml: such a directory can be loaded, but its
        experiment cannot be run again.
        """
        target = RunDirectory(Path(directory))
        experiment, checksums, data = self.experiment, dict(self._source.checksums()), target.data_of(self.experiment)
        if data is not None:
            experiment = experiment.model_copy(update={"data": NpzFile(path=data.path)})
            checksums["data_sha256"] = {data.path.name: data.sha256}
        with target.locked():
            target.begin(experiment, checksums, resume=False, unnamed="describe")
            target.keep_data(data)
            for name, table in self.tables.items():
                target.save_table(name, table)
            target.save_models(self.models, self.local)
            for strategy, seed in self.models:
                target.save_snapshots(strategy, seed, self.snapshots(strategy, seed))
            target.finish(tables_of(experiment), self.failed)

    def to_csv(self, folder: Path | str) -> None:
        """Write every table as a CSV file; lists of devices and links become numbers with blanks between them."""
        for name, table in self.tables.items():
            lists = [column for column, kind in table.schema.items() if isinstance(kind, pl.List)]
            flat = table.with_columns(pl.col(lists).cast(pl.List(pl.String)).list.join(" ")) if lists else table
            write_safely(Path(folder) / f"{name}.csv", flat.write_csv().encode())


class _Directory:
    """A result on disk."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self.table = directory.load_table
        self.models = directory.load_models
        self.local = directory.load_local
        self.snapshots = directory.snapshots

    def checksums(self) -> Mapping[str, Mapping[str, str]]:
        meta = self._directory.meta
        return {name: meta.get(name, {}) for name in ("data_sha256", "input_sha256")}


class _Memory:
    """A result in memory."""

    def __init__(self, tables: RunTables, inputs: Inputs, runs: Iterable[Run], store: MemoryStore) -> None:
        self._tables, self._inputs = tables, inputs
        self._made = {run.pair: store.made[run.key] for run in runs if run.key in store.made}

    def table(self, name: str) -> pl.DataFrame:
        found = {pair: made.tables[name] for pair, made in self._made.items()}
        # Two strategies of the same kind and parameters are one run with two names.
        return pl.concat(
            table.with_columns(strategy=pl.lit(strategy)) if "strategy" in table.columns else table
            for (strategy, _), table in _of_table(name, self._tables, found, len).items()
        )

    def models(self) -> dict[Pair, Floats]:
        return {pair: made.models for pair, made in self._made.items()}

    def local(self) -> dict[Pair, dict[str, np.ndarray]]:
        return {pair: made.local for pair, made in self._made.items() if made.local}

    def snapshots(self, strategy: str, seed: int) -> Mapping[int, Floats]:
        return self._made[strategy, seed].snapshots

    def checksums(self) -> Mapping[str, Mapping[str, str]]:
        return self._inputs.checksums


def _of_table(name: str, tables: RunTables, found: Mapping[Pair, T], rows: Callable[[T], int]) -> dict[Pair, T]:
    """Return the runs' tables that make up the table `name`, given that table of every run and its number of `rows`.

    These are all of them or, if the strategies of a seed share their rows, the longest of each seed; of equally long
    ones the first. Event-driven runs end at different times: a shorter table is the beginning of the longest.
    """
    if tables.is_per_strategy(name):
        return dict(found)
    of_seed: dict[int, list[Pair]] = {}
    for pair in found:
        of_seed.setdefault(pair[1], []).append(pair)
    longest = (max(pairs, key=lambda pair: rows(found[pair])) for pairs in of_seed.values())
    return {pair: found[pair] for pair in longest}


def result_in_memory(
    experiment: Experiment, inputs: Inputs, runs: list[Run], store: MemoryStore, failures: Failures
) -> Result:
    """Return the result of runs that were made in memory."""
    return Result(experiment, _Memory(tables_of(experiment), inputs, runs, store), _reasons(runs, failures))


def collect(directory: RunDirectory, runs: list[Run], store: RunStore, failures: Failures) -> None:
    """Write the tables and models of all runs that did not fail to one run directory, and complete it."""
    made = {run.pair: run for run in runs if run.key not in failures}
    tables = tables_of(runs[0].experiment)
    for name in tables.names:
        found = {pair: store.scan(run, name) for pair, run in made.items()}
        directory.save_table(name, pl.concat(_of_table(name, tables, found, _number_of_rows).values()))
    models: dict[Pair, Floats] = {}
    local: dict[Pair, dict[str, np.ndarray]] = {}
    warnings: list[str] = []
    for pair, run in made.items():
        alone = RunDirectory(store.directory(run))
        (models[pair],) = alone.map_models().values()
        for own in alone.load_local().values():
            local[pair] = own
        (strategy,) = run.experiment.strategies
        directory.save_snapshots(*pair, alone.snapshots(strategy, run.seed))
        warnings += alone.meta.get("warnings", [])
    directory.save_models(models, local)
    directory.finish(tables, _reasons(runs, failures), warnings)


def _number_of_rows(table: pl.LazyFrame) -> int:
    return int(table.select(pl.len()).collect().item())


def _reasons(runs: list[Run], failures: Failures) -> dict[Pair, str]:
    return {run.pair: str(failures[run.key]) for run in runs if run.key in failures}
