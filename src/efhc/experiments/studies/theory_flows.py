"""From a run directory to the information flow of one of its runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

import numpy as np
import polars as pl

from efhc.base.arrays import Flags, Ints
from efhc.base.errors import EfhcError
from efhc.base.inputs import sha256
from efhc.core.graph import Graph
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.runs.directory import RunDirectory
from efhc.theory.connectivity.flow import Flow

ENDS = ("link_from", "link_to")
GRAPHS = 32
"""Graphs kept at once: those of a network that changes at every iteration would not fit into memory."""


def load_flow(
    directory: RunDirectory, experiment: Experiment, strategy: str, seed: int, graph: Callable[[int], Graph]
) -> Flow:
    """Who fired, and which links were used, as the run directory has it; `graph(k)` is that of `load_graphs`."""
    events = directory.read_rows("events", (pl.col("strategy") == strategy) & (pl.col("seed") == seed))
    if events["iteration"].to_list() != list(range(experiment.iterations)):
        raise EfhcError(f"events.parquet lacks iterations of {strategy}, seed {seed}")
    _check_devices("events", events, ("fired", *ENDS), experiment.devices)
    starts, ends = _flat_links(events)
    return Flow(
        graph,
        _fired(events["fired"], experiment.devices),
        lambda k: ends[starts[k] : starts[k + 1]],
        exchange_at_start=experiment.exchange_at_start,
    )


def load_graphs(directory: RunDirectory, experiment: Experiment, seed: int) -> Callable[[int], Graph]:
    """G(k); rows with the same links give the same object, as long as it is kept."""
    network = directory.read_rows("network", pl.col("seed") == seed)
    if network["iteration"].to_list()[:1] != [0]:
        raise EfhcError(f"network.parquet lacks iterations of seed {seed}")
    _check_devices("network", network, ENDS, experiment.devices)
    starts, ends = _flat_links(network)
    changes = network["iteration"].to_numpy()
    contents = [sha256(ends[starts[row] : starts[row + 1]].tobytes()) for row in range(len(changes))]
    first_like_it = {content: row for row, content in reversed(list(enumerate(contents)))}
    same_as = np.array([first_like_it[content] for content in contents])

    @lru_cache(GRAPHS)
    def graph_of_row(row: int) -> Graph:
        as_recorded = Graph(experiment.devices, ends[starts[row] : starts[row + 1]].astype(np.int64))
        in_order = (np.diff(as_recorded.codes) > 0).all()
        return as_recorded if in_order else Graph.of(experiment.devices, as_recorded.links)

    return lambda k: graph_of_row(int(same_as[np.searchsorted(changes, k, side="right") - 1]))


def _check_devices(table: str, rows: pl.DataFrame, columns: Iterable[str], devices: int) -> None:
    """Compiled loops look no index up twice."""
    for column in columns:
        numbers = rows[column].explode().drop_nulls().to_numpy()
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < devices:
            raise EfhcError(f"{table}.parquet: {column} names a device that is not one of 0..{devices - 1}")


def _flat_links(table: pl.DataFrame) -> tuple[Ints, Ints]:
    """The links of all rows in one array (links, 2), and where those of each row begin."""
    starts = np.concatenate([[0], np.cumsum(table["link_from"].list.len().to_numpy().astype(np.int64))])
    columns = [table[name].explode().drop_nulls().to_numpy() for name in ENDS]
    return starts, np.column_stack(columns)


def _fired(lists: pl.Series, devices: int) -> Flags:
    fired = np.zeros((len(lists), devices), dtype=bool)
    rows = np.repeat(np.arange(len(lists)), lists.list.len().to_numpy())
    fired[rows, lists.explode().drop_nulls().to_numpy()] = True
    return fired
