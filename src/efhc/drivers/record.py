"""What is kept of one run: a row of metrics, who fired and which links were used, for every iteration.

Row k tells of iteration k: who fired, which links were used, what was sent and what it cost, the batch loss at W(k),
and the models that it left, W(k+1): their consensus error and, where evaluated, their accuracy.

A record is emptied in pieces while the run goes, so that its size does not grow with the length of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

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

ACCURACIES = ("accuracy", "accuracy_min", "accuracy_max", "mean_model_accuracy")

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
    row = pl.Series(np.repeat(np.arange(len(counts)), counts)).set_sorted()
    lists = pl.DataFrame({"row": row, **columns}).group_by("row", maintain_order=True).agg(*columns)
    if counts.all():
        return lists.drop("row")
    rows = pl.DataFrame({"row": pl.Series(np.arange(len(counts))).set_sorted()})
    joined = rows.join(lists, on="row", how="left", maintain_order="left")
    return joined.select(pl.col(name).fill_null(pl.lit([], dtype=joined.schema[name])) for name in columns)


class _Stretch(NamedTuple):
    """Iterations on one graph, in little memory. Arrays have one entry per iteration if nothing else is said."""

    k: int
    graph: Graph
    is_new: bool
    """Whether the graph has other links than the one before."""
    times: Floats
    totals: Floats
    losses: Floats
    """The mean over devices."""
    consensus_errors: Floats
    fired: Ints
    """The devices that fired, iteration after iteration."""
    fired_counts: Ints
    used: Ints
    """The numbers of the links used, iteration after iteration."""
    used_counts: Ints
    on_air: Floats | None
    """The bits on air. None: those of whole models in both directions."""
    bits: tuple[Ints, Ints] | None
    """Bits over each of `used` from its lower end to its higher end, and back. None: a whole model each."""


@dataclass
class Record:
    """Grows by a few iterations at a time, and is emptied by `take`."""

    first: int = 0
    """The iteration of the next piece's first row."""
    time_total: float = 0.0
    """The transmission time of all iterations before the last row's."""
    _accuracies: dict[int, tuple[float, ...]] = field(default_factory=dict)
    """`ACCURACIES` of the models that an iteration left."""
    _stretches: list[_Stretch] = field(default_factory=list)
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
        """Note down what these iterations did."""
        times = steps.transmission_times(bandwidths, parameters)
        totals = np.concatenate([[self.time_total], times]).cumsum()[1:]
        used_at, used = np.nonzero(steps.used)
        fired_at, fired = np.nonzero(steps.fired)
        on_air = bits = None
        if steps.bits is not None:
            on_air = steps.bits_of_iterations(parameters)
            forth, back = both_ways(steps.graph)
            bits = steps.bits[used_at, forth[used]], steps.bits[used_at, back[used]]
        stretch = _Stretch(
            steps.k,
            steps.graph,
            steps.k == 0 or steps.has_other_links,
            times,
            totals,
            np.add.reduce(steps.losses, axis=1, dtype=np.float64) / steps.losses.shape[1],
            steps.consensus_errors,
            fired.astype(np.int32),
            np.bincount(fired_at, minlength=len(steps)),
            used.astype(np.int32),
            np.bincount(used_at, minlength=len(steps)),
            on_air,
            bits,
        )
        self._stretches.append(stretch)
        self._parameters = parameters
        self.time_total = float(totals[-1])
        self._length += len(steps)
        self._entries += len(fired) + len(used) + (2 * len(steps.graph.links) if stretch.is_new else 0)

    def add_accuracies(self, accuracies: Floats, of_mean_model: float, iteration: int | None = None) -> None:
        """Note down how good the models are that an iteration left, which was not taken yet. Default: the last one."""
        row = self.end - 1 if iteration is None else iteration
        values = accuracies.mean(), accuracies.min(), accuracies.max(), of_mean_model
        self._accuracies[row] = tuple(map(float, values))

    def row(self, iteration: int) -> dict[str, float | int | None]:
        """The row of the metrics of an iteration that was not taken yet. Accuracies are None if not evaluated."""
        stretch = next(one for one in reversed(self._stretches) if one.k <= iteration)
        place = iteration - stretch.k
        numbers: dict[str, float | int | None] = {
            "iteration": iteration,
            "transmission_time": float(stretch.times[place]),
            "transmission_time_total": float(stretch.totals[place]),
            "fired": int(stretch.fired_counts[place]),
            "links_used": int(stretch.used_counts[place]),
            "train_loss": float(stretch.losses[place]),
            "consensus_error": float(stretch.consensus_errors[place]),
            "bits": self._on_air_in(stretch, place),
            **dict(zip(ACCURACIES, self._accuracies.get(iteration, [None] * len(ACCURACIES)), strict=True)),
        }
        return {name: numbers[name] for name in METRICS}

    def _on_air_in(self, stretch: _Stretch, place: int) -> float:
        """The bits on air of one iteration."""
        if stretch.on_air is not None:
            return float(stretch.on_air[place])
        count = stretch.used_counts[place : place + 1]
        used = stretch.used[stretch.used_counts[:place].sum() :][: count[0]]
        return float(
            exchange_airtime_bits(stretch.graph.degrees[stretch.graph.links[used]], count, self._parameters)[0]
        )

    def take(self) -> Piece:
        """Everything recorded since the last piece. The record goes on after it."""
        ends = _joined((s.graph.links[s.used] for s in self._stretches), (0, 2))
        tables = {"metrics": self._metrics(), "events": self._events(ends), "network": self._network()}
        piece = Piece(self.first, self.end, tables)
        self.first, self._length, self._entries = self.end, 0, 0
        self._stretches, self._accuracies = [], {}
        return piece

    def _metrics(self) -> pl.DataFrame:
        columns: dict[str, Floats | Ints] = {
            "iteration": np.arange(self.first, self.end),
            "transmission_time": self._column("times"),
            "transmission_time_total": self._column("totals"),
            "fired": self._column("fired_counts"),
            "links_used": self._column("used_counts"),
            "train_loss": self._column("losses"),
            "consensus_error": self._column("consensus_errors"),
            "bits": self._on_air(),
            **{name: np.full(self._length, np.nan) for name in ACCURACIES},
        }
        for row, values in self._accuracies.items():
            for name, value in zip(ACCURACIES, values, strict=True):
                columns[name][row - self.first] = value
        table = pl.DataFrame({name: columns[name] for name in METRICS})
        return table.cast(METRICS).fill_nan(None)  # type: ignore[arg-type] # nothing that is recorded is NaN

    def _column(self, name: str) -> np.ndarray:
        return np.concatenate([[], *(getattr(stretch, name) for stretch in self._stretches)])

    def _on_air(self) -> Floats:
        """The bits on air of each iteration."""
        degrees = _joined((s.graph.degrees[s.graph.links[s.used]] for s in self._stretches), (0, 2))
        counts = _joined(s.used_counts for s in self._stretches)
        bits = exchange_airtime_bits(degrees, counts, self._parameters)
        for stretch in self._stretches:
            if stretch.on_air is not None:
                bits[stretch.k - self.first :][: len(stretch.times)] = stretch.on_air
        return bits

    def _events(self, ends: Ints) -> pl.DataFrame:
        fired, fired_counts = (_joined(getattr(s, name) for s in self._stretches) for name in ("fired", "fired_counts"))
        bits = _joined((self._sent(stretch) for stretch in self._stretches), (0, 2))
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
        return pl.concat([iterations, list_columns(_numbers_of_ends(links), counts)], how="horizontal")


def _numbers_of_ends(links: Ints) -> dict[str, Ints]:
    return {"link_from": links[:, 0].astype(np.int32), "link_to": links[:, 1].astype(np.int32)}


def _joined(arrays: Iterable[Ints], empty: tuple[int, ...] = (0,)) -> Ints:
    return np.concatenate([np.empty(empty, dtype=np.int64), *arrays])
