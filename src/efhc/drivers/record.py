"""What is kept of one run: a row of metrics, who fired and which links were used, for every iteration.

Row k tells of iteration k: who fired, which links were used, what was sent and what it cost, the batch loss at W(k),
and the models that it left, W(k+1): their consensus error and, where evaluated, their accuracy.

A record is emptied in pieces while the run goes, so that its size does not grow with the length of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from efhc.base.arrays import Floats, Ints
from efhc.core.cost import BITS_PER_NUMBER, exchange_airtime_bits
from efhc.core.graph import Graph
from efhc.drivers.steps import Steps, both_ways

METRICS: dict[str, pl.DataType] = {
    "iteration": pl.Int64(),
    "transmission_time": pl.Float64(),
    "transmission_time_total": pl.Float64(),
    "fired": pl.Int64(),
    "links_used": pl.Int64(),
    "train_loss": pl.Float64(),
    "accuracy": pl.Float64(),
    "accuracy_min": pl.Float64(),
    "accuracy_max": pl.Float64(),
    "consensus_error": pl.Float64(),
    "mean_model_accuracy": pl.Float64(),
    "bits": pl.Float64(),
}
"""Columns of the metrics, after `strategy` and `seed`. Accuracies are null where they were not evaluated."""

_COLUMN = {name: position for position, name in enumerate(METRICS)}

PIECE_ROWS, PIECE_ENTRIES = 1 << 16, 1 << 22
"""A piece is large enough to be put away when it has this many iterations, or this many devices and links in lists."""


@dataclass(frozen=True, eq=False)
class Piece:
    """The tables of one run from one position to the next."""

    first: int
    end: int
    """The position after it, at which the next piece begins. In lockstep, a position is a number of iterations."""
    tables: dict[str, pl.DataFrame]
    """By name, without the columns that tell runs apart."""


def list_columns(columns: Mapping[str, Ints], counts: Ints) -> pl.DataFrame:
    """Columns of lists that are equally long: row r holds the next `counts[r]` of the values of each column."""
    rows = pl.DataFrame({"row": np.arange(len(counts))})
    flat = pl.DataFrame({"row": np.repeat(np.arange(len(counts)), counts), **columns})
    lists = flat.group_by("row", maintain_order=True).agg(*columns)
    joined = rows.join(lists, on="row", how="left", maintain_order="left")
    return joined.select(pl.col(name).fill_null(pl.lit([], dtype=joined.schema[name])) for name in columns)


@dataclass(frozen=True, eq=False)
class _Stretch:
    """Iterations on one graph, in little memory."""

    k: int
    graph: Graph
    is_new: bool
    """Whether the graph has other links than the one before."""
    fired: Ints
    """The devices that fired, iteration after iteration."""
    fired_counts: Ints
    used: Ints
    """The numbers of the links used, iteration after iteration."""
    used_counts: Ints
    bits: tuple[Ints, Ints] | None
    """Bits over each of them from its lower end to its higher end, and back. None: a whole model in both directions."""
    parameters: int

    def bits_both_ways(self) -> Ints:
        """`bits` of every entry of `used`, (entries, 2)."""
        if self.bits is None:
            return np.full((len(self.used), 2), BITS_PER_NUMBER * self.parameters, dtype=np.int64)
        return np.column_stack(self.bits)


@dataclass
class Record:
    """Grows by a few iterations at a time, and is emptied by `take`."""

    first: int = 0
    """The iteration of the next piece's first row."""
    time_total: float = 0.0
    """The transmission time of all iterations before the last row's."""
    _rows: list[np.ndarray] = field(default_factory=list)
    """Metrics, (iterations, columns) each; NaN where there is none: nothing that is recorded is NaN."""
    _stretches: list[_Stretch] = field(default_factory=list)
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
        """Note down what these iterations did."""
        times = steps.transmission_times(bandwidths, parameters)
        totals = np.cumsum([self.time_total, *times])[1:]
        used_at, used = np.nonzero(steps.used)
        fired_at, fired = np.nonzero(steps.fired)
        used_counts, fired_counts = (np.bincount(at, minlength=len(steps)) for at in (used_at, fired_at))
        rows = np.full((len(steps), len(METRICS)), np.nan)
        for name, values in {
            "iteration": steps.k + np.arange(len(steps)),
            "transmission_time": times,
            "transmission_time_total": totals,
            "fired": fired_counts,
            "links_used": used_counts,
            "train_loss": steps.losses.mean(axis=1, dtype=np.float64),
            "consensus_error": steps.consensus_errors,
        }.items():
            rows[:, _COLUMN[name]] = values
        before, now = steps.previous_graph, steps.graph
        is_new = steps.k == 0 or not now.has_links_of(before)
        bits = None
        if steps.bits is not None:
            rows[:, _COLUMN["bits"]] = steps.bits_of_iterations(parameters)
            forth, back = both_ways(now)
            bits = steps.bits[used_at, forth[used]], steps.bits[used_at, back[used]]
        fired, used = fired.astype(np.int32), used.astype(np.int32)
        stretch = _Stretch(steps.k, now, is_new, fired, fired_counts, used, used_counts, bits, parameters)
        self._rows.append(rows)
        self._stretches.append(stretch)
        self.time_total = float(totals[-1])
        self._length += len(steps)
        self._entries += len(fired) + len(used) + (2 * len(now.links) if is_new else 0)

    def add_accuracies(self, accuracies: Floats, of_mean_model: float) -> None:
        """Note down how good the models are that the last iteration left."""
        last = self._rows[-1][-1]
        values = accuracies.mean(), accuracies.min(), accuracies.max(), of_mean_model
        names = "accuracy", "accuracy_min", "accuracy_max", "mean_model_accuracy"
        last[[_COLUMN[name] for name in names]] = values

    def take(self) -> Piece:
        """Everything recorded since the last piece. The record goes on after it."""
        tables = {"metrics": self._metrics(), "events": self._events(), "network": self._network()}
        piece = Piece(self.first, self.end, tables)
        self.first, self._length, self._entries = self.end, 0, 0
        self._rows, self._stretches = [], []
        return piece

    def _metrics(self) -> pl.DataFrame:
        for metrics, stretch in zip(self._rows, self._stretches, strict=True):
            if stretch.bits is None:
                exchanged = stretch.graph, stretch.used, stretch.used_counts, stretch.parameters
                metrics[:, _COLUMN["bits"]] = exchange_airtime_bits(*exchanged)
        table = np.concatenate([np.empty((0, len(METRICS))), *self._rows])
        rows = pl.DataFrame(table, schema=list(METRICS), orient="row")
        return rows.fill_nan(None).select(pl.col(name).cast(kind) for name, kind in METRICS.items())

    def _events(self) -> pl.DataFrame:
        fired, fired_counts = (_joined(getattr(s, name) for s in self._stretches) for name in ("fired", "fired_counts"))
        ends = _joined((s.graph.links[s.used] for s in self._stretches), (0, 2))
        bits = _joined((s.bits_both_ways() for s in self._stretches), (0, 2))
        counts = _joined(s.used_counts for s in self._stretches)
        of_links = {**_numbers_of_ends(ends), "bits_forth": bits[:, 0], "bits_back": bits[:, 1]}
        iterations = pl.DataFrame({"iteration": pl.Series(range(self.first, self.end), dtype=pl.Int64)})
        return pl.concat(
            [
                iterations,
                list_columns({"fired": fired.astype(np.int32)}, fired_counts),
                list_columns(of_links, counts),
            ],
            how="horizontal",
        )

    def _network(self) -> pl.DataFrame:
        changes = [stretch for stretch in self._stretches if stretch.is_new]
        links = _joined((stretch.graph.links for stretch in changes), (0, 2))
        counts = np.array([len(stretch.graph.links) for stretch in changes], dtype=np.int64)
        iterations = pl.DataFrame({"iteration": pl.Series([stretch.k for stretch in changes], dtype=pl.Int64)})
        return pl.concat([iterations, list_columns(_numbers_of_ends(links), counts)], how="horizontal")


def _numbers_of_ends(links: Ints) -> dict[str, Ints]:
    return {"link_from": links[:, 0].astype(np.int32), "link_to": links[:, 1].astype(np.int32)}


def _joined(arrays: object, empty: tuple[int, ...] = (0,)) -> Ints:
    return np.concatenate([np.empty(empty, dtype=np.int64), *arrays])  # type: ignore[misc]
