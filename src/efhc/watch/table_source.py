"""What the tables of a complete run tell, thinned so that a page stays quick however long the run was."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from efhc.base.regular_files import check_regular
from efhc.experiments.runs.live.reading import LiveRun, read_live
from efhc.experiments.runs.tables import EVENT_DRIVEN, LOCKSTEP, RUN
from efhc.report.views import Device
from efhc.watch.discovery import FoundRun, stamp_of
from efhc.watch.sources import ACCURACIES, COLUMNS, Columns, Part, Rows, as_columns, note_of_links

MOST_POINTS = 2_000
"""The largest number of points of a curve."""
MOST_ITERATIONS, MOST_NUMBERS = 10_000, 100_000
"""The largest number of iterations whose events are shown, and about how many devices that fired, ends of links in use
and ends of physical links they may have."""


class Happened(NamedTuple):
    """What happened in some iterations of a run, and the physical links then."""

    events: Columns
    network: Columns
    left_out: int
    """The number of iterations that are missing."""


def curve_table(run: FoundRun) -> str:
    """Return the name of the table that has the curve of a run."""
    return EVENT_DRIVEN.curve if run.driver == EVENT_DRIVEN.driver else LOCKSTEP.curve


def stamp_of_tables(run: FoundRun) -> Hashable:
    """Return what changes whenever the tables of a run are written."""
    return "tables", str(run.folder), stamp_of(run.folder / f"{curve_table(run)}.parquet")


class TableSource:
    """The tables of one run, each read when it is asked for. They do not change while this object is used."""

    def __init__(
        self,
        run: FoundRun,
        generation: Hashable = "tables",
        most_numbers: int = MOST_NUMBERS,
        most_points: int = MOST_POINTS,
    ) -> None:
        self._run, self._most_numbers, self._most_points = run, most_numbers, most_points
        self.generation = generation

    def scan(self, name: str) -> pl.LazyFrame:
        """Return the rows of this run in a table."""
        table = pl.scan_parquet(check_regular(self._run.folder / f"{name}.parquet"))
        columns = table.collect_schema().names()
        rows = table.filter(pl.col("seed") == self._run.seed)
        return rows.filter(pl.col("strategy") == self._run.strategy_there) if "strategy" in columns else rows

    @cached_property
    def _live(self) -> LiveRun | None:
        return None if self._run.live is None else read_live(self._run.live)

    @cached_property
    def evaluated(self) -> pl.DataFrame:
        """What was evaluated, as the columns of a curve but for the seconds of a run in lockstep."""
        if curve_table(self._run) == EVENT_DRIVEN.curve:
            found = self.scan(EVENT_DRIVEN.curve).select(
                (pl.col("steps") // max(self._run.devices, 1)).alias("k"), *ACCURACIES,
                pl.lit(None, pl.Float64).alias("train_loss"), pl.lit(None, pl.Float64).alias("transmission_time"),
                (8.0 * pl.col("bytes")).alias("bits"), pl.col("broadcasts").cast(pl.Float64), "seconds",
            )  # fmt: skip
        else:
            rows = self.scan(LOCKSTEP.curve)
            has_bits = "bits" in rows.collect_schema().names()  # runs of earlier versions have none
            bits = pl.col("bits").cum_sum() if has_bits else pl.lit(None, pl.Float64)
            found = rows.select(
                (pl.col("iteration") + 1).alias("k"), *ACCURACIES, "train_loss",
                pl.col("transmission_time_total").alias("transmission_time"), bits.alias("bits"),
                pl.col("fired").cum_sum().cast(pl.Float64).alias("broadcasts"),
                pl.lit(None, pl.Float64).alias("seconds"),
            ).drop_nulls("accuracy")  # fmt: skip
        table = found.collect()
        numbers = [pl.when(pl.col(name).is_finite()).then(pl.col(name)) for name in table.columns if name != "k"]
        return table.with_columns(*numbers)

    @cached_property
    def _curve(self) -> Columns:
        table = self.evaluated
        if len(table) > self._most_points:
            chosen = np.unique(np.linspace(0, len(table) - 1, self._most_points).round().astype(int))
            table = table[chosen.tolist()]
        columns: Columns = table.select(COLUMNS["curve"]).to_dict(as_series=False)
        if curve_table(self._run) == LOCKSTEP.curve and self._live is not None:
            seconds = {row.k: row.row.get("seconds") for row in self._live.rows}
            columns["seconds"] = [seconds.get(k) for k in columns["k"]]
        return columns

    @cached_property
    def _samples(self) -> Columns:
        samples = self._live.samples if self._live else []
        return as_columns("samples", [(one.k, one.accuracy, one.drift, one.threshold) for one in samples])

    @cached_property
    def _happened(self) -> Happened:
        if curve_table(self._run) == EVENT_DRIVEN.curve:
            return self._happened_by_second()
        return self._happened_by_iteration()

    def _happened_by_iteration(self) -> Happened:
        rows = self.scan("events")
        sizes = rows.select(
            "iteration", fired=pl.col("fired").list.len(), numbers=2 * pl.col("link_from").list.len()
        ).collect()
        iterations, numbers = sizes["iteration"].to_numpy(), sizes["numbers"].to_numpy()
        wirings = self.scan("network").select("iteration", pl.col("link_from").list.len().alias("links")).collect()
        stride = _stride(iterations, sizes["fired"].to_numpy(), wirings, self._most_numbers)
        kept = iterations[::stride]
        # Links need most of the room: of fewer iterations, if need be.
        with_links = kept[:: max(1, -(-int(numbers[::stride].sum()) // self._most_numbers))]
        fired = rows.filter(pl.col("iteration").is_in(kept.tolist())).select("iteration", "fired").collect()
        used = self._links("events", with_links.tolist())
        events: Columns = {"k": fired["iteration"].to_list(), "fired": fired["fired"].to_list()}
        events["used"] = [used.get(k) for k in events["k"]]
        return Happened(events, self._network(_in_force(wirings["iteration"].to_numpy(), kept)), len(sizes) - len(kept))

    def _happened_by_second(self) -> Happened:
        """What happened since the sample before, for each sample of the timeline."""
        timeline = self.scan("timeline").select("seconds", "steps").collect()
        times = timeline["seconds"].to_numpy()
        if not len(times):
            return Happened(as_columns("events", []), as_columns("network", []), 0)
        fired = self.scan("steps").filter("fired").select("device", "seconds").collect()
        used = self.scan("exchanges").filter(pl.col("outcome") == "committed")
        ends = used.select(
            pl.min_horizontal("device", "neighbour").alias("a"),
            pl.max_horizontal("device", "neighbour").alias("b"),
            "end",
        ).collect()
        who: list[set[int]] = [set() for _ in times]
        which: list[set[tuple[int, int]]] = [set() for _ in times]
        for place, device in zip(_bins(times, fired["seconds"]), fired["device"].to_list(), strict=True):
            who[place].add(device)
        for place, a, b in zip(_bins(times, ends["end"]), ends["a"].to_list(), ends["b"].to_list(), strict=True):
            which[place].add((a, b))
        k = (timeline["steps"] // max(self._run.devices, 1)).to_list()
        numbers = sum(map(len, who)) + 2 * sum(map(len, which))
        stride = max(1, -(-len(k) // MOST_ITERATIONS), -(-numbers // self._most_numbers))
        kept = range(0, len(k), stride)
        rows = [(k[place], sorted(who[place]), sorted(which[place])) for place in kept]
        graphs = self.scan("network").select("iteration").collect()["iteration"].to_numpy()
        at = np.array([k[place] for place in kept], dtype=np.int64)
        network = self._network(_in_force(graphs, at))
        return Happened(as_columns("events", rows), network, len(k) - len(kept))

    def _network(self, iterations: list[int]) -> Columns:
        links = self._links("network", iterations)
        return {"k": list(links), "links": list(links.values())}

    def _links(self, name: str, iterations: list[int]) -> dict[int, list[Any]]:
        """Return the links in a table by iteration, in the order of the table."""
        table = self.scan(name).filter(pl.col("iteration").is_in(iterations)).collect()
        columns = (table[column].to_list() for column in ("iteration", "link_from", "link_to"))
        return {k: list(zip(starts, ends, strict=True)) for k, starts, ends in zip(*columns, strict=True)}

    @cached_property
    def devices(self) -> list[Device]:
        table = self.scan("devices").select("device", "bandwidth", "samples", "labels").sort("device").collect()
        return [
            {"device": row[0], "bandwidth": row[1], "samples": row[2], "labels": row[3]} for row in table.iter_rows()
        ]

    @property
    def leaves_out_events(self) -> bool:
        return self._happened.left_out > 0

    @property
    def notes(self) -> dict[str, str]:
        shown, all_of_them = len(self._curve["k"]), len(self.evaluated)
        events, left_out = len(self._happened.events["k"]), self._happened.left_out
        notes = {
            "curves": f"{shown:,} of {all_of_them:,} evaluations are drawn" if shown < all_of_them else "",
            "events": f"{events:,} of {events + left_out:,} iterations are drawn, evenly spread" if left_out else "",
            "links in use": note_of_links(self._happened.events["used"]),
            "devices over time": "" if self._samples["k"] else "not known: there is no live file of this run",
        }
        return {name: note for name, note in notes.items() if note}

    def _part(self, part: Part) -> Columns:
        if part == "curve":
            return self._curve
        if part == "samples":
            return self._samples
        return self._happened.events if part == "events" else self._happened.network

    def rows(self, part: Part, generation: Hashable = None, start: int = 0) -> Rows:
        if generation == self.generation:  # tables do not grow: nothing has to be read
            return Rows(generation, start, as_columns(part, []))
        return Rows(self.generation, 0, self._part(part))


def _stride(iterations: np.ndarray, numbers: np.ndarray, wirings: pl.DataFrame, most: int) -> int:
    """Return the stride n: every n-th iteration is kept, so that events and links have about `most` numbers each."""
    stride = max(1, -(-len(iterations) // MOST_ITERATIONS), -(-int(numbers.sum()) // most))
    links = dict(zip(wirings["iteration"].to_list(), wirings["links"].to_list(), strict=True))
    while stride < len(iterations):
        shown = _in_force(wirings["iteration"].to_numpy(), iterations[::stride])
        if len(shown) <= 1 or 2 * sum(links[k] for k in shown) <= most:
            break
        stride *= 2
    return stride


def _in_force(changed_at: np.ndarray, iterations: np.ndarray) -> list[int]:
    """Return when the links that hold in these iterations came into force. `changed_at` ascends."""
    if not len(changed_at) or not len(iterations):
        return []
    places = np.searchsorted(changed_at, iterations, side="right") - 1
    chosen: list[int] = changed_at[np.unique(places.clip(0))].tolist()
    return chosen


def _bins(times: np.ndarray, seconds: pl.Series) -> list[int]:
    """Return for each second the place of the first sample that was not taken before it."""
    places: list[int] = np.searchsorted(times, seconds.to_numpy(), side="left").clip(0, len(times) - 1).tolist()
    return places


def last_accuracies(folder: Path, table: str) -> dict[tuple[str, int], float | None]:
    """Return the last accuracy of each run in a directory, by strategy and seed."""
    rows = pl.scan_parquet(check_regular(folder / f"{table}.parquet"))
    accuracy = pl.col("accuracy").cast(pl.Float64)
    known = pl.when(accuracy.is_finite()).then(accuracy).alias("accuracy")
    last = rows.select(*RUN, known).group_by(*RUN, maintain_order=True).last().collect()
    return {(strategy, seed): accuracy for strategy, seed, accuracy in last.iter_rows()}
