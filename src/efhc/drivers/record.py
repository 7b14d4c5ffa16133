"""What is kept of one run: a row of metrics, who fired and which links were used, for every iteration.

Row k describes iteration k: who fired, which links were used, what was sent and what it cost, the batch loss at W(k),
and the models that it left, W(k+1): their consensus error and, where evaluated, their accuracy.

A record is emptied in pieces while the run goes, so that its size does not grow with the length of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isnan
from typing import NamedTuple, TypeVar

import numpy as np
import polars as pl

from efhc.base.arrays import Floats, Ints
from efhc.core.cost import BITS_PER_NUMBER
from efhc.core.graph import Graph
from efhc.core.state import State
from efhc.drivers.observers import Observer
from efhc.drivers.steps import Steps, both_ways
from efhc.learning.measures import CLASSIFICATION, EVALUATION, Evaluation, measures_of
from efhc.scenarios.scenario import Scenario

COUNTED: dict[str, pl.DataType] = {
    "iteration": pl.Int64(),
    "transmission_time": pl.Float64(),
    "transmission_time_total": pl.Float64(),
    "fired": pl.Int64(),
    "links_used": pl.Int64(),
    "train_loss": pl.Float64(),
    "consensus_error": pl.Float64(),
    "bits": pl.Float64(),
}
"""The columns of the metrics that every iteration has."""
METRICS: dict[str, pl.DataType] = {
    **COUNTED,
    EVALUATION: pl.Int64(),
    **dict.fromkeys(measures_of(CLASSIFICATION), pl.Float64()),
}
"""Columns of the metrics, after `strategy` and `seed`. `evaluation` and measures are null where models were not
evaluated. Measures of metrics of the user's own follow as further columns."""

SUMS = {"bits_total": "bits", "broadcasts_total": "fired"}
"""What rows in a live file have in addition: the sums of these columns of the metrics so far."""
Frame = TypeVar("Frame", pl.DataFrame, pl.LazyFrame, pl.DataFrame | pl.LazyFrame)

PIECE_ROWS, PIECE_ENTRIES = 1 << 16, 1 << 22
"""A piece is large enough to be put away when it has this many iterations, or this many devices and links in lists."""


@dataclass(frozen=True, eq=False)
class Piece:
    """The tables of one run from one position to the next."""

    first: int
    end: int
    """The position after it, at which the next piece begins. In lockstep, a position is a number of iterations."""
    tables: dict[str, pl.DataFrame]
    """By name, without the columns that name the run (strategy and seed)."""


def with_totals(metrics: Frame, totals: Iterable[str] = tuple(SUMS)) -> Frame:
    """Return metrics, which begin with the first iteration, with these sums up to each row as further columns."""
    return metrics.with_columns(pl.col(SUMS[total]).cum_sum().alias(total) for total in totals)


def list_columns(columns: Mapping[str, Ints], counts: Ints) -> pl.DataFrame:
    """Columns of lists that are equally long: row r holds the next `counts[r]` of the values of each column."""
    if not len(counts):
        return pl.DataFrame(
            {name: pl.Series([], dtype=pl.List(pl.Series(values).dtype)) for name, values in columns.items()}
        )
    rows = pl.DataFrame({"start": np.cumsum(counts) - counts, "length": counts})
    whole = (pl.lit(pl.Series(name, values).implode()).first() for name, values in columns.items())
    return rows.select(one.list.slice("start", "length") for one in whole)


class _Stretch(NamedTuple):
    """Iterations on one graph, in little memory."""

    k: int
    graph: Graph
    is_new: bool
    """Whether the graph has other links than the one before."""
    metrics: dict[str, np.ndarray]
    """The columns of the metrics but for measures, with one entry per iteration. NaN: not known."""
    fired: Ints
    """The devices that fired, iteration after iteration."""
    used: Ints
    """The numbers of the links used, iteration after iteration."""
    bits: tuple[Ints, Ints] | None
    """Bits over each of `used` from its lower end to its higher end, and back. None: a whole model each."""


@dataclass
class Record:
    """Grows by a few iterations at a time, and is emptied by `take`."""

    first: int = 0
    """The iteration of the next piece's first row."""
    time_total: float = 0.0
    """The transmission time of all iterations so far."""
    largest_time: float = 0.0
    """The largest transmission time of an iteration so far."""
    totals: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SUMS, 0))
    """The sums of the columns `SUMS` over all iterations."""
    _stretches: list[_Stretch] = field(default_factory=list)
    _measures: dict[int, dict[str, float | int | None]] = field(default_factory=dict)
    """The measures of the iterations after which models were evaluated."""
    _parameters: int = 0
    """n"""
    _length: int = 0
    _entries: int = 0

    @property
    def end(self) -> int:
        """The number of iterations that were recorded, those already taken included."""
        return self.first + self._length

    @property
    def is_large(self) -> bool:
        """Whether it is time to take a piece."""
        return self._length >= PIECE_ROWS or self._entries >= PIECE_ENTRIES

    def add(self, steps: Steps, bandwidths: Floats, parameters: int) -> None:
        """Record what these iterations did: one entry per iteration in each column of `METRICS`."""
        used_at, used = np.nonzero(steps.used)
        fired_at, fired = np.nonzero(steps.fired)
        times = steps.transmission_times(bandwidths, parameters)
        metrics = {
            "iteration": np.arange(steps.k, steps.k + len(steps)),
            "transmission_time": times,
            "transmission_time_total": np.concatenate([[self.time_total], times]).cumsum()[1:],
            "fired": np.bincount(fired_at, minlength=len(steps)),
            "links_used": np.bincount(used_at, minlength=len(steps)),
            "train_loss": np.add.reduce(steps.losses, axis=1, dtype=np.float64) / steps.losses.shape[1],
            "consensus_error": steps.consensus_errors,
            "bits": steps.bits_of_iterations(parameters),
        }
        bits = None
        if steps.bits is not None:
            forth, back = both_ways(steps.graph)
            bits = steps.bits[used_at, forth[used]], steps.bits[used_at, back[used]]
        is_new = steps.k == 0 or steps.has_other_links
        stretch = _Stretch(
            steps.k, steps.graph, is_new, metrics, fired.astype(np.int32), used.astype(np.int32), bits
        )  # fmt: skip
        self._stretches.append(stretch)
        self._parameters = parameters
        self.time_total = float(metrics["transmission_time_total"][-1])
        self.largest_time = max(self.largest_time, float(times.max()))
        self.totals = {name: total + metrics[SUMS[name]].sum().item() for name, total in self.totals.items()}
        self._length += len(steps)
        self._entries += len(fired) + len(used) + (2 * len(steps.graph.links) if is_new else 0)

    def add_evaluation(self, evaluation: Evaluation, iteration: int | None = None, *, first: int | None = None) -> None:
        """Record how good the models are that an iteration left, which was not taken yet. Default: the last one.

        `first` is the first iteration of several that make up one evaluation. Default: it is one by itself.
        """
        iteration = self.end - 1 if iteration is None else iteration
        self._measures[iteration] = {EVALUATION: iteration if first is None else first, **evaluation.columns}

    def row(self, iteration: int) -> dict[str, float | int | None]:
        """Return the row of the metrics of an iteration that was not taken yet. None stands for not evaluated."""
        stretch, place = self._place_of(iteration)
        numbers = {name: column[place].item() for name, column in stretch.metrics.items()}
        found = {name: None if isnan(number) else number for name, number in numbers.items()}
        return {**dict.fromkeys(METRICS), **found, **self._measures.get(iteration, {})}

    def _place_of(self, iteration: int) -> tuple[_Stretch, int]:
        stretch = next(one for one in reversed(self._stretches) if one.k <= iteration)
        return stretch, iteration - stretch.k

    def take(self) -> Piece:
        """Return everything recorded since the last piece. The record goes on after it."""
        ends = _joined((s.graph.links[s.used] for s in self._stretches), (0, 2))
        tables = {"metrics": self._metrics(), "events": self._events(ends), "network": self._network()}
        piece = Piece(self.first, self.end, tables)
        self.first, self._length, self._entries, self._stretches = self.end, 0, 0, []
        self._measures = {}
        return piece

    def _column(self, name: str) -> np.ndarray:
        return np.concatenate([[], *(stretch.metrics[name] for stretch in self._stretches)])

    def _metrics(self) -> pl.DataFrame:
        names = dict.fromkeys([*METRICS, *(name for row in self._measures.values() for name in row)])
        return pl.DataFrame([self._series(name, METRICS.get(name, pl.Float64())) for name in names])

    def _series(self, name: str, kind: pl.DataType) -> pl.Series:
        """Return a column of the metrics. A NaN stands for what is not known: nothing that is recorded is NaN."""
        if name in COUNTED:
            column = self._column(name)
        else:
            column = np.full(self._length, np.nan)
            for iteration, row in self._measures.items():
                value = row.get(name)
                column[iteration - self.first] = np.nan if value is None else value
        return pl.Series(name, column, nan_to_null=True).cast(kind)

    def _events(self, ends: Ints) -> pl.DataFrame:
        fired, bits = _joined(s.fired for s in self._stretches), _joined(map(self._sent, self._stretches), (0, 2))
        fired_counts, counts = (self._column(name).astype(np.int64) for name in ("fired", "links_used"))
        of_links = {**_numbers_of_ends(ends), "bits_forth": bits[:, 0], "bits_back": bits[:, 1]}
        iterations = pl.DataFrame({"iteration": pl.Series(range(self.first, self.end), dtype=pl.Int64)})
        lists = list_columns({"fired": fired.astype(np.int32)}, fired_counts), list_columns(of_links, counts)
        return iterations.hstack([column for table in lists for column in table])

    def _sent(self, stretch: _Stretch) -> Ints:
        """Bits over each of the used links, forth and back, (used links, 2)."""
        if stretch.bits is None:
            return np.full((len(stretch.used), 2), BITS_PER_NUMBER * self._parameters, dtype=np.int64)
        return np.column_stack(stretch.bits)

    def _network(self) -> pl.DataFrame:
        changes = [stretch for stretch in self._stretches if stretch.is_new]
        links = _joined((stretch.graph.links for stretch in changes), (0, 2))
        counts = np.array([len(stretch.graph.links) for stretch in changes], dtype=np.int64)
        iterations = pl.DataFrame({"iteration": pl.Series([stretch.k for stretch in changes], dtype=pl.Int64)})
        return iterations.hstack(list_columns(_numbers_of_ends(links), counts))


def _numbers_of_ends(links: Ints) -> dict[str, Ints]:
    return {"link_from": links[:, 0].astype(np.int32), "link_to": links[:, 1].astype(np.int32)}


def _joined(arrays: Iterable[Ints], empty: tuple[int, ...] = (0,)) -> Ints:
    return np.concatenate([np.empty(empty, dtype=np.int64), *arrays])


class Recording(Observer):
    """Adds every iteration to a record."""

    def __init__(self, scenario: Scenario, record: Record) -> None:
        self.record = record
        self._bandwidths, self._parameters = scenario.bandwidths.values, scenario.learner.backend.parameters

    def after(self, steps: Steps, state: State) -> None:
        self.record.add(steps, self._bandwidths, self._parameters)
