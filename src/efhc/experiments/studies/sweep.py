"""Sweeps: one experiment at every point of a grid or list of settings, with every strategy and seed at each.

[sweep]                           a grid: all combinations
network.radius = [0.3, 0.5]
partition.labels_per_device = [1, 2]

[[sweep]]                         a list: one grid after the other
network = ["ring", "star"]
[[sweep]]
network = "complete"              a single value is a list of one

DIR/results.parquet, results.csv  every run and evaluation; a run that failed is a row that says so
DIR/summary.csv                   one row per distinct point and strategy, over seeds
DIR/sweep.png, sweep.pdf          the measure (and the seconds to a target) against the swept setting, if at most
                                  three settings vary
DIR/runs/                         the runs
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from efhc.base.errors import InputError
from efhc.base.saving import write_safely
from efhc.drivers.settings import EventDriven
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import (
    LOG,
    MEASURE,
    SWEEP,
    build_experiment,
    flat_settings,
    only_experiment,
    read_tables,
    with_overrides,
    with_settings,
)
from efhc.experiments.runs.events import FollowerFactory
from efhc.experiments.runs.experiment_folder import refuse_experiment
from efhc.experiments.runs.folder import parquet
from efhc.experiments.runs.run import Run, Runs
from efhc.experiments.runs.store import Engine, Failures, Progress, RunStore
from efhc.experiments.runs.study import list_runs
from efhc.experiments.runs.tables import driver_of
from efhc.experiments.runs.tracking import name_of, tracking
from efhc.experiments.trackers.tracker import as_folder
from efhc.learning.measures import Measure, measure_of, measures_of, metrics_in
from efhc.report.claims.intervals import bounds_words
from efhc.report.figure_data import ACCURACY, RUN
from efhc.report.numbers import MEGABYTE, cost_words, number_words
from efhc.report.timelines import (
    TO_TARGET,
    WITHOUT_TARGET,
    bounds_of_all,
    cost_to_target,
    target_over_seeds,
    with_target_bounds,
)

RESULTS = "results.parquet"
RESULTS_CSV = "results.csv"
SUMMARY = "summary.csv"
FIGURES = ("sweep.png", "sweep.pdf")

MOST_SETTINGS = 3
"""The largest number of settings that have a column each in a printed table, and that a figure can show."""


@dataclass(frozen=True)
class SweepPoint:
    """One point of a sweep: the swept settings, and the experiment that has them."""

    settings: Mapping[str, Any]
    experiment: Experiment


def load_sweep(path: Path | str, overrides: Iterable[str] = ()) -> list[SweepPoint]:
    """Return the points of a TOML file with a table [sweep] or tables [[sweep]]."""
    tables = read_tables(path)
    if SWEEP not in tables:
        raise InputError(
            SWEEP, f"{path}, which has no [sweep]", 'a table such as [sweep] with "network.radius" = [0.3, 0.5]'
        )
    return sweep_points(with_overrides(only_experiment(tables), overrides), tables[SWEEP], Path(path).parent)


def sweep_points(base: Mapping[str, Any], sweep: Any, folder: Path | None = None) -> list[SweepPoint]:
    """Return the experiment of `base` at every point of `sweep`, each point once."""
    points: dict[str, SweepPoint] = {}
    for settings in _all_settings(sweep):
        name = ", ".join(f"{key}={value}" for key, value in settings.items())
        try:
            experiment = build_experiment(with_settings(base, settings.items()), folder)
        except InputError as error:
            at_point = error.problem and f"{error.problem} (sweep: {name})"
            raise InputError(error.field, f"{error.given} (sweep: {name})", error.allowed, at_point) from None
        points.setdefault(name, SweepPoint(settings, experiment))  # grids of a list may share points
    drivers = dict.fromkeys(driver_of(point.experiment) for point in points.values())
    if len(drivers) > 1:
        raise InputError(SWEEP, f"points with the drivers {' and '.join(drivers)}", "one driver: its runs are compared")
    return list(points.values())


def _all_settings(sweep: Any) -> Iterator[dict[str, Any]]:
    grids = sweep if isinstance(sweep, list) else [sweep]
    if not grids:
        raise InputError(SWEEP, "an empty list", "at least one table of settings, each with the values to try")
    for grid in grids:
        if not isinstance(grid, Mapping):
            raise InputError(SWEEP, repr(grid), "tables of settings, each with the values to try")
        choices = {key: value if isinstance(value, list) else [value] for key, value in flat_settings(grid)}
        if not choices:
            raise InputError(SWEEP, "an empty table", "at least one setting with the values to try")
        for key, values in choices.items():
            if not values:
                raise InputError(f"sweep.{key}", "an empty list", "at least one value")
        if "seeds" in choices:
            raise InputError(
                "sweep.seeds", "", "", "seeds cannot be swept, because every point runs with all of `seeds`."
            )
        for name in {LOG, MEASURE} & set(choices):
            raise InputError(f"sweep.{name}", choices[name], f"other keys; `{name}` does not change results")
        for point in itertools.product(*choices.values()):
            yield dict(zip(choices, point, strict=True))


def runs_of(points: Iterable[SweepPoint]) -> list[tuple[SweepPoint, Run]]:
    """Return every run of every point."""
    runs = Runs()
    return [(point, run) for point in points for run in runs.of(point.experiment)]


def run_sweep(
    runs: Sequence[tuple[SweepPoint, Run]],
    out: Path,
    store: RunStore,
    engine: Engine,
    progress: Progress,
    warn: Callable[[str], None] = lambda text: None,
    followers: Sequence[FollowerFactory] = (),
) -> pl.DataFrame:
    """Make the runs that are missing, write tables and figures to `out`, and return the table of all results.

    A run that fails does not stop the others. If all runs fail, the first failure is raised. `warn` is called with one
    line about each tracker that cannot log them. Each of `followers` creates a follower of each run that is made.
    """
    refuse_experiment(out)
    list_runs((run for _, run in runs), store.folder)
    experiments = [point.experiment for point, _ in runs]
    keys = list(dict.fromkeys(key for point, _ in runs for key in point.settings))
    short = dict(zip(keys, _short_names(keys), strict=True))
    settings = [",".join(f"{short[key]}={value}" for key, value in point.settings.items()) for point, _ in runs]
    names = tracker_names([(as_folder(one), [run]) for one, (_, run) in zip(settings, runs, strict=True)])
    with tracking(experiments, out, warn, name=names) as trackers:
        failures = store.make_missing([run for _, run in runs], engine, progress, followers=[*trackers, *followers])
    table = sweep_table(runs, store, failures)
    measure = measure_of_sweep(runs, table)
    means = summary(table, measure)
    write_safely(out / RESULTS, parquet(table))
    write_safely(out / RESULTS_CSV, table.write_csv().encode())
    write_safely(out / SUMMARY, means.write_csv().encode())
    if len(varying_settings(table)) > MOST_SETTINGS:
        for name in FIGURES:
            (out / name).unlink(missing_ok=True)  # of an earlier sweep, of which this table is not
        return table
    from efhc.report.figures import save_figure
    from efhc.report.figures.studies import sweep_figure

    figure = sweep_figure(means, _settings(table), _left_alone(table), measure=measure)
    for name in FIGURES:
        save_figure(figure, out / name)
    return table


def measure_of_sweep(runs: Sequence[tuple[SweepPoint, Run]], table: pl.DataFrame) -> Measure:
    """Return the measure of a sweep's experiments, of which the table has values. Raises `InputError` otherwise."""
    return measure_of(table, runs[0][0].experiment.measure)


def tracker_names(parts: Iterable[tuple[str, Iterable[Run]]]) -> Callable[[Run], str]:
    """Return what names each run of a study for trackers: by the first part that has it.

    Runs that would share a name, because their parts look the same in a folder's name, have their key in it.
    """
    names: dict[str, str] = {}
    for part, runs in parts:
        for run in runs:
            names.setdefault(run.key, f"{part}/{name_of(run)}")
    uses = Counter(names.values())
    return lambda run: names[run.key] if uses[names[run.key]] == 1 else f"{names[run.key]}-{run.key[:6]}"


def sweep_table(
    runs: Sequence[tuple[SweepPoint, Run]], store: RunStore, failures: Failures | None = None
) -> pl.DataFrame:
    """Return one row per run and evaluation: the settings of the point, the run, and its metrics or timeline.

    A run that failed has a single row without these; its column `failed` holds the error.
    """
    failures = failures or {}
    if runs and all(run.key in failures for _, run in runs):
        raise failures[runs[0][1].key]
    keys = list(dict.fromkeys(key for point, _ in runs for key in point.settings))
    columns = {key: _column(key, [point.settings.get(key) for point, _ in runs]) for key in keys}
    parts = []
    for row, (_, run) in enumerate(runs):
        if run.key in failures:
            metrics = pl.DataFrame({"strategy": run.strategy, "seed": run.seed, "failed": str(failures[run.key])})
        else:
            metrics = _curve(run, store).with_columns(failed=pl.lit(None, pl.String))
        settings = (pl.lit(column[row], column.dtype).alias(key) for key, column in columns.items())
        parts.append(metrics.select(*settings, pl.lit(run.key).alias("run"), pl.all()))
    # The columns are those of a run that has metrics, even if the first one failed.
    order = max((part.columns for part in parts), key=len)
    others = (name for part in parts for name in part.columns)  # models may have metrics of their own
    return pl.concat(parts, how="diagonal_relaxed").select(list(dict.fromkeys([*order, *others])))


def _curve(run: Run, store: RunStore) -> pl.DataFrame:
    """Return the evaluations of a run; with a target, each with the seconds and bytes at which it was reached.

    The number of devices that were there is called `devices_present`, because `devices` may be swept.
    """
    curve, driver = store.curve(run), run.experiment.driver
    if isinstance(driver, EventDriven) and driver.target is not None:
        measure = measure_of(curve, run.whole.measure)
        curve = curve.join(cost_to_target(curve, measure, driver.target), on=RUN, maintain_order="left")
    return curve.rename({"devices": "devices_present"}, strict=False)


def _column(key: str, values: list[Any]) -> pl.Series:
    """Return numbers, truth values or texts as they are, and tables or mixed values as JSON."""
    given = [value for value in values if value is not None]
    for kinds in (bool, int, (int, float), str):
        if all(isinstance(value, kinds) and (kinds is bool or not isinstance(value, bool)) for value in given):
            return pl.Series(key, values, strict=False)
    return pl.Series(key, [None if value is None else json.dumps(value) for value in values])


def _settings(table: pl.DataFrame) -> list[str]:
    return table.columns[: table.columns.index("run")]


def varying_settings(table: pl.DataFrame) -> list[str]:
    """Return the swept settings that are not the same at every point. With more than `MOST_SETTINGS`, there is no
    figure.
    """
    return [setting for setting in _settings(table) if table[setting].n_unique() > 1]


def _left_alone(table: pl.DataFrame) -> list[str]:
    """Return the settings that some points, of another grid of the list, do not set."""
    return [setting for setting in _settings(table) if table[setting].null_count()]


def summary(table: pl.DataFrame, measure: Measure = ACCURACY) -> pl.DataFrame:
    """Return one row per distinct point and strategy, with means over seeds of the measure at the end of the runs.

    `low` and `high` are the 95 % interval of the mean, below five seeds the smallest and the largest value of a seed,
    and null with one seed; `failed` counts the seeds without a result. Points whose runs are the same, because a
    strategy does not depend on a setting, share a row in which that setting is null. With a target, there are the
    columns that `timeline_summary` describes. An event-driven run at whose end no device is there has no value: the
    mean is over the other seeds, and has no interval. The last columns are the means of all other measures.
    """
    settings, to_target = _settings(table), target_over_seeds() if TO_TARGET[0] in table.columns else []
    of_time = ["seconds", "broadcasts", "bytes", "devices_present"]
    costs = of_time if "seconds" in table.columns else ["transmission_time_total", "broadcasts_total"]
    others = [one for one in measures_of(metrics_in(table.columns)) if one in table.columns and one != measure.name]
    last = table.group_by(*settings, "strategy", "seed", maintain_order=True).last()
    rows = last.group_by(*settings, "strategy", maintain_order=True).agg(
        pl.col("failed").is_null().sum().alias("seeds"),
        pl.col("failed").is_not_null().sum(),
        pl.col(measure.name).mean(),
        pl.col(measure.name).filter(pl.col("failed").is_null()).alias("per_seed"),
        measure.worst,
        pl.col(costs).mean(),
        *to_target,
        pl.col(others).mean(),
        pl.col("run").alias("runs"),
    )
    intervals = [bounds_of_all(per_seed) for per_seed in rows["per_seed"].to_list()]
    ends = pl.DataFrame(intervals, schema={"low": pl.Float64, "high": pl.Float64}, orient="row")
    means = pl.concat([rows, ends], how="horizontal").select(
        *settings, "strategy", "seeds", "failed", measure.name, "low", "high", measure.worst_name, *costs,
        *(expression.meta.output_name() for expression in to_target), *others, "runs",
    )  # fmt: skip
    if to_target:
        means = with_target_bounds(means)
    set_everywhere = [setting for setting in settings if setting not in _left_alone(table)]
    return _without_repetitions(means, settings, set_everywhere).drop("runs")


def _without_repetitions(means: pl.DataFrame, settings: list[str], set_everywhere: list[str]) -> pl.DataFrame:
    """Merge the rows of a strategy that have the same runs, if together they take every value of a setting."""
    same = ["strategy", "runs"]
    for setting in set_everywhere:
        others = [*same, *(other for other in settings if other != setting)]
        takes_all = pl.col(setting).n_unique().over(others) == means[setting].n_unique()
        if means[setting].n_unique() > 1:
            means = means.with_columns(pl.when(takes_all).then(None).otherwise(pl.col(setting)).alias(setting))
            means = means.unique([*settings, *same], keep="first", maintain_order=True)
    return means


def summary_rows(table: pl.DataFrame, measure: Measure = ACCURACY) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of a summary for a terminal of 80 columns.

    Settings that are the same everywhere are left out, and others are named by the last part of their key. A setting
    on which a row does not depend is shown as `any`, and one that the point leaves alone as `-`. More than
    `MOST_SETTINGS` settings share one column, without those that the point leaves alone.
    """
    means, varying = summary(table, measure), varying_settings(table)
    names, together = _short_names(varying), len(varying) > MOST_SETTINGS
    shown = _shown_costs(means)
    if means["low"].count():
        shown = {bounds_words(means["seeds"]): _interval_words} | shown
    header = [*(["settings"] if together else names), "strategy", measure.metric, *shown]
    failed = bool(means["failed"].sum())
    rows = []
    for row in means.iter_rows(named=True):
        absent = {setting: "-" if table[setting].null_count() else "any" for setting in varying}
        cells = [absent[setting] if row[setting] is None else number_words(row[setting]) for setting in varying]
        if together:
            cells = [", ".join(f"{name}={cell}" for name, cell in zip(names, cells, strict=True) if cell != "-")]
        known = row[measure.name] is not None
        cells += [row["strategy"], f"{row[measure.name]:.3f}" if known else "no device" if row["seeds"] else "failed"]
        cells += [show(row) if row["seeds"] else "" for show in shown.values()]
        rows.append([*cells, *([str(row["failed"] or "")] if failed else [])])
    return [*header, *(["failed"] if failed else [])], rows


Shown = dict[str, Callable[[dict[str, Any]], str]]
"""Columns of a printed table: their names, and what they show of a row of the summary."""


def _shown_costs(means: pl.DataFrame) -> Shown:
    """Return the columns of a printed table that say what a run has cost, as many as it has room for."""
    if "seconds" not in means.columns:
        return {
            "time": lambda row: number_words(row["transmission_time_total"]),
            "broadcasts": lambda row: number_words(row["broadcasts_total"]),
        }
    if TO_TARGET[0] not in means.columns:
        return {
            "seconds": lambda row: number_words(row["seconds"]),
            "broadcasts": lambda row: number_words(row["broadcasts"]),
            "MB": lambda row: number_words(row["bytes"] / MEGABYTE),
        }
    return {
        "seconds\nto target": lambda row: cost_words(row[TO_TARGET[0]], row[WITHOUT_TARGET[0]]),
        "MB\nto target": lambda row: cost_words(row[TO_TARGET[1]], row[WITHOUT_TARGET[1]], MEGABYTE),
        "reached": lambda row: f"{row['reached']} of {row['seeds']}",
    }


def _interval_words(row: dict[str, Any]) -> str:
    return "" if row["low"] is None else f"{row['low']:.3f}-{row['high']:.3f}"


def failed_runs(table: pl.DataFrame) -> list[str]:
    """Return a line per reason for which runs failed: the first one's point and error."""
    lines: dict[str, tuple[str, str]] = {}
    for row in table.filter(pl.col("failed").is_not_null()).iter_rows(named=True):
        point = ", ".join(f"{key}={row[key]}" for key in _settings(table) if row[key] is not None)
        reason = row["failed"].removeprefix(f"{row['strategy']}, seed {row['seed']}")
        lines.setdefault(row["run"], (reason, f"{point}: {row['failed']}"))
    return each_reason_once(lines.values())


def each_reason_once(lines: Iterable[tuple[str, str]]) -> list[str]:
    """Return the first line of each reason, with the number of further runs. Each line comes after its reason."""
    same: dict[str, list[str]] = {}
    for reason, line in lines:
        same.setdefault(reason, []).append(line)
    return [
        first if not more else f"{first} (and {len(more)} more run{'s'[: len(more) != 1]})"
        for first, *more in same.values()
    ]


def _short_names(keys: list[str]) -> list[str]:
    """Return the last part of each key, preceded by as many parts as make the keys different."""
    names = []
    for key in keys:
        parts = key.split(".")
        endings = (".".join(parts[-n:]) for n in range(1, len(parts) + 1))
        unique = (one for one in endings if sum(f".{other}".endswith(f".{one}") for other in keys) == 1)
        names.append(next(unique, key))
    return names
