"""The results of an experiment that has not finished: its single runs, each as far as it was made.

Of a run that is complete, that is everything. Of one that is being made, or was stopped, it is the pieces of its tables
that were put away, up to the last checkpoint or a little further, and after them the evaluated rows of its live file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from efhc.base.arrays import Floats
from efhc.drivers.event_driven.record import EXCHANGES, NETWORK, STEPS, TIMELINE
from efhc.drivers.record import METRICS
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.runs.checkpoints import PIECES, DamagedError
from efhc.experiments.runs.directory import OWN_RUNS, Pair, RunDirectory
from efhc.experiments.runs.live.reading import LIVE, LiveRun, read_live
from efhc.experiments.runs.single_runs import read_config, same_run, single_runs
from efhc.experiments.runs.tables import tables_of
from efhc.report.views import State

_LIST = pl.List(pl.Int32())
_EVENTS = {"iteration": pl.Int64(), "fired": _LIST, "link_from": _LIST, "link_to": _LIST}
_BITS = dict.fromkeys(("bits_forth", "bits_back"), pl.List(pl.Int64()))
_DEVICES = {"device": pl.Int32(), "bandwidth": pl.Float64(), "samples": pl.Int64(), "labels": _LIST}
SCHEMAS: Mapping[str, Mapping[str, pl.DataType]] = {
    "metrics": METRICS,
    "events": {**_EVENTS, **_BITS},
    "timeline": TIMELINE,
    "exchanges": EXCHANGES,
    "steps": STEPS,
    "network": NETWORK,
    "devices": _DEVICES,
}
"""The columns of tables of which nothing is there yet."""


@dataclass(frozen=True)
class _Run:
    """One run of the experiment, by one of its names."""

    pair: Pair
    """How the experiment calls it."""
    inner_pair: Pair
    """How it is called in its own directory."""
    directory: RunDirectory
    live: LiveRun | None

    @property
    def state(self) -> State:
        if self.directory.is_complete:
            return "done"
        if self.live is not None:
            return self.live.state()
        return "stopped" if any((self.directory.path / PIECES).glob("*")) else "waiting"


class PartialRuns:
    """The tables and models of the single runs of an experiment. It is read once; what changes later is not seen."""

    def __init__(self, experiment: Experiment, directory: Path) -> None:
        """`directory` is that of the experiment, which has not finished."""
        self._tables = tables_of(experiment)
        self._runs = {run.pair: run for run in _runs_of(directory)}
        pairs = [(strategy, seed) for seed in experiment.seeds for strategy in experiment.strategies]
        self.states: dict[Pair, State] = {
            pair: self._runs[pair].state if pair in self._runs else "waiting" for pair in pairs
        }
        self.failed = {
            pair: run.live.end.problem or ""
            for pair, run in self._runs.items()
            if self.states[pair] == "failed" and run.live is not None and run.live.end is not None
        }
        self._content = {pair: self._read(run) for pair, run in self._runs.items() if pair not in self.failed}

    def _read(self, run: _Run) -> dict[str, pl.DataFrame]:
        """Return the tables of a run, up to the last row that was kept."""
        for _ in range(2):  # a run that ends meanwhile removes its pieces, and has tables then
            try:
                if run.directory.is_complete:
                    return {name: run.directory.load_table(name) for name in self._tables.names}
                return self._pieces(run)
            except (DamagedError, FileNotFoundError, pl.exceptions.PolarsError):
                continue
        return {}

    def _pieces(self, run: _Run) -> dict[str, pl.DataFrame]:
        tables: dict[str, pl.DataFrame] = {}
        for name, labels in self._tables.labels.items():
            end, parts = 0, [pl.DataFrame(schema=dict(SCHEMAS[name]))]
            for file in sorted((run.directory.path / PIECES).glob(f"*.{name}.parquet")):
                first, after = map(int, file.name.split(".")[0].split("-"))
                if first == end:
                    parts.append(pl.read_parquet(file))
                    end = after
            table = pl.concat(parts, how="vertical_relaxed")
            if name == self._tables.curve and run.live is not None:
                table = pl.concat([table, _rows_after(table, run.live, SCHEMAS[name])])
            columns = {"strategy": pl.lit(run.pair[0]), "seed": pl.lit(run.pair[1], pl.Int64)}
            tables[name] = table.select(*(columns[label].alias(label) for label in labels), pl.all())
        return tables

    # What a result reads

    def table(self, name: str) -> pl.DataFrame:
        """Return a table of all runs."""
        found = {pair: content[name] for pair, content in self._content.items() if name in content}
        labels = self._tables.labels.get(name, ("seed",))
        if "strategy" in labels:
            found = {pair: table.with_columns(strategy=pl.lit(pair[0])) for pair, table in found.items()}
        else:  # the strategies of a seed share their rows: the longest has those of all
            longest: dict[int, pl.DataFrame] = {}
            for (_, seed), table in found.items():
                if len(table) > len(longest.get(seed, ())):
                    longest[seed] = table
            found = {("", seed): table for seed, table in longest.items()}
        kinds = {"strategy": pl.String(), "seed": pl.Int64()}
        empty = pl.DataFrame(schema={**{label: kinds[label] for label in labels}, **SCHEMAS[name]})
        return pl.concat([empty, *found.values()], how="vertical_relaxed")

    def models(self) -> dict[Pair, Floats]:
        """Return the final models of the runs that are complete."""
        return {pair: models for pair, run in self._complete.items() for models in run.directory.load_models().values()}

    def local(self) -> dict[Pair, dict[str, np.ndarray]]:
        """Return what devices keep to themselves, of the runs that are complete."""
        return {pair: own for pair, run in self._complete.items() for own in run.directory.load_local().values()}

    def snapshots(self, strategy: str, seed: int) -> Mapping[int, Floats]:
        """Return the models of single iterations."""
        run = self._runs.get((strategy, seed))
        return {} if run is None else run.directory.snapshots(*run.inner_pair)

    @property
    def _complete(self) -> dict[Pair, _Run]:
        return {pair: run for pair, run in self._runs.items() if run.directory.is_complete and run.directory.has_models}


def _runs_of(directory: Path) -> list[_Run]:
    """Return the runs of an experiment that have a directory, seed by seed, each by all of its names."""
    config = read_config(directory / "config.toml")
    found = single_runs(directory / OWN_RUNS)
    runs = []
    for seed in config["seeds"] if config else []:
        for strategy, table in config["strategies"].items() if config else []:
            if (single := found.get(same_run(table, seed))) is not None:
                inner = single.strategy, seed
                live = read_live(single.folder / LIVE)
                runs.append(_Run((strategy, seed), inner, RunDirectory(single.folder), live))
    return runs


def _rows_after(table: pl.DataFrame, live: LiveRun, schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Return the evaluated rows of a live file that come after those of a table."""
    order = "iteration" if "iteration" in schema else "seconds"
    last = table[order].max() if len(table) else None
    rows = [record.row for record in live.rows]
    after = [row for row in rows if last is None or (row.get(order) or 0) > last]  # type: ignore[operator]
    return pl.DataFrame([{name: row.get(name) for name in schema} for row in after], schema=dict(schema))
