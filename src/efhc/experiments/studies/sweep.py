"""Sweeps: one experiment at every point of a grid or list of settings, with every strategy and seed at each.

[sweep]                           a grid: all combinations
network.radius = [0.3, 0.5]
partition.labels_per_device = [1, 2]

[[sweep]]                         a list: one grid after the other
network = ["ring", "star"]
[[sweep]]
network = "complete"              a single value is a list of one
"""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from efhc.base.errors import InputError
from efhc.base.saving import write_safely
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import (
    SWEEP,
    build_experiment,
    only_experiment,
    read_tables,
    with_overrides,
    with_settings,
)
from efhc.experiments.runs.store import BatchProgress, Engine, Run, Runs, RunStore

RESULTS = "results.parquet"


@dataclass(frozen=True)
class Point:
    """An experiment, and the settings that make it this point of the sweep."""

    settings: Mapping[str, Any]
    experiment: Experiment


def load_sweep(path: Path | str, overrides: Iterable[str] = ()) -> list[Point]:
    """The points of a TOML file with a table [sweep] or tables [[sweep]]."""
    tables = read_tables(path)
    if SWEEP not in tables:
        raise InputError(SWEEP, f"nothing in {path}", 'a table such as [sweep] with "network.radius" = [0.3, 0.5]')
    return sweep_points(with_overrides(only_experiment(tables), overrides), tables[SWEEP], Path(path).parent)


def sweep_points(base: Mapping[str, Any], sweep: Any, folder: Path | None = None) -> list[Point]:
    """The experiment of `base` at every point of `sweep`."""
    points: dict[str, Point] = {}
    for settings in _all_settings(sweep):
        name = ", ".join(f"{key}={value}" for key, value in settings.items())
        try:
            experiment = build_experiment(with_settings(base, settings.items()), folder)
        except InputError as error:
            raise InputError(error.field, f"{error.given} (sweep: {name})", error.allowed) from None
        points.setdefault(name, Point(settings, experiment))  # grids of a list may share points
    return list(points.values())


def _all_settings(sweep: Any) -> Iterator[dict[str, Any]]:
    grids = sweep if isinstance(sweep, list) else [sweep]
    for grid in grids:
        if not isinstance(grid, Mapping):
            raise InputError(SWEEP, repr(grid), "tables of settings, each with the values to try")
        choices = dict(_choices(grid))
        if "seeds" in choices:
            raise InputError("sweep.seeds", choices["seeds"], "other keys; every point is run with all of `seeds`")
        for values in itertools.product(*choices.values()):
            yield dict(zip(choices, values, strict=True))


def _choices(grid: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Dotted keys, however they are nested, with the values that each takes."""
    for key, value in grid.items():
        if isinstance(value, Mapping):
            yield from _choices(value, f"{prefix}{key}.")
        elif value == []:
            raise InputError(f"sweep.{prefix}{key}", "an empty list", "at least one value")
        else:
            yield prefix + key, value if isinstance(value, list) else [value]


def runs_of(points: Iterable[Point]) -> list[tuple[Point, Run]]:
    """Every run of every point."""
    runs = Runs()
    return [(point, run) for point in points for run in runs.of(point.experiment)]


def run_sweep(
    runs: list[tuple[Point, Run]], out: Path, store: RunStore, engine: Engine, progress: BatchProgress
) -> pl.DataFrame:
    """Make what is missing, and keep the tidy table of all in `out`/results.parquet."""
    store.complete([run for _, run in runs], engine, progress)
    table = sweep_table(runs, store)
    buffer = io.BytesIO()
    table.write_parquet(buffer)
    write_safely(out / RESULTS, buffer.getvalue())
    return table


def sweep_table(runs: list[tuple[Point, Run]], store: RunStore) -> pl.DataFrame:
    """One row per run and evaluated iteration: the settings of the point, the run, and its metrics."""
    keys = list(dict.fromkeys(key for point, _ in runs for key in point.settings))
    columns = {key: _column(key, [point.settings.get(key) for point, _ in runs]) for key in keys}
    return pl.concat(
        store.curve(run).select(
            *(pl.lit(column[row], column.dtype).alias(key) for key, column in columns.items()),
            pl.lit(run.key).alias("run"),
            pl.all(),
        )
        for row, (_, run) in enumerate(runs)
    )


def _column(key: str, values: list[Any]) -> pl.Series:
    """Numbers, truth values or texts as they are; whatever is mixed, or a table, as JSON."""
    given = [value for value in values if value is not None]
    for kinds in (bool, int, (int, float), str):
        if all(isinstance(value, kinds) and (kinds is bool or not isinstance(value, bool)) for value in given):
            return pl.Series(key, values, strict=False)
    return pl.Series(key, [None if value is None else json.dumps(value) for value in values])


def summary(table: pl.DataFrame) -> pl.DataFrame:
    """One row per point and strategy, means over seeds of the last iteration."""
    settings = table.columns[: table.columns.index("run")]
    last = table.group_by(*settings, "strategy", "seed", maintain_order=True).last()
    return last.group_by(*settings, "strategy", maintain_order=True).agg(
        pl.len().alias("seeds"),
        pl.col("accuracy").mean(),
        pl.col("accuracy").min().alias("worst_seed_accuracy"),
        pl.col("transmission_time_total").mean(),
        pl.col("broadcasts_total").mean(),
    )
