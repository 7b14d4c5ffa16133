"""The tables of a complete run, thinned so that a page stays quick however long the run was."""

from __future__ import annotations

import time
from collections.abc import Hashable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from efhc.base.errors import EfhcError
from efhc.base.inputs import open_regular
from efhc.drivers.event_driven.settings import EventDriven
from efhc.experiments.runs.tables import EVENT_DRIVEN, LOCKSTEP, RUN
from efhc.report.views import DeviceView
from efhc.watch.discovery import FoundRun
from efhc.watch.folders import readable, stamp_of
from efhc.watch.sources import Row, note_of_links

MOST_POINTS = 2_000
"""The largest number of points of a curve."""
MOST_ITERATIONS, MOST_NUMBERS = 10_000, 100_000
"""The largest number of iterations whose events are shown, and about how many devices that fired, ends of links in use
and ends of physical links they may have."""
MOST_ROWS, MOST_ROWS_OF = 20_000_000, {"steps": 100_000_000, "exchanges": 100_000_000}
"""The largest number of rows of a table, and of the largest tables: a few kilobytes can hold any number of rows."""
FRESH_SECONDS = 5.0
"""Time after the end of a run during which a page may still have rows of its live file instead of its tables."""

Link = tuple[int, int]


class ShownEvents(NamedTuple):
    """The events and the physical links that are drawn, as rows of `Source`."""

    events: list[Row]
    """Links in use are None where there is no room for them."""
    network: list[Row]
    """The links from the first event on at which they are in force."""
    left_out: int
    """The number of iterations that are missing."""
    links_gone: int
    """How many times a link was used and was gone at the end of that iteration: it is not drawn then."""


def read_table(folder: Path, name: str) -> pl.LazyFrame:
    """Return a table in a folder.

    Raises `OSError` if it is no regular file, or a link, and `ValueError` if it has more rows than a page can show.
    """
    with open_regular(folder / f"{name}.parquet") as file:
        table = pl.scan_parquet(file)  # the file that was checked, whatever is put in its place
    # The length in the header may be wrong on purpose: the rows that would be read are counted.
    last = table.with_row_index("row number").select(pl.max("row number")).collect().item()
    most = MOST_ROWS_OF.get(name, MOST_ROWS)
    if last is not None and last >= most:
        raise ValueError(f"{name}.parquet has {last + 1:,} rows; a page shows tables of at most {most:,}")
    return table


class TableReader:
    """Reads the tables of one run, each when it is needed. They do not change while this object is used."""

    def __init__(self, run: FoundRun, most_numbers: int = MOST_NUMBERS, most_points: int = MOST_POINTS) -> None:
        self._run, self._most_numbers, self._most_points = run, most_numbers, most_points
        self._devices = max(run.devices, 1)
        self._is_timed = run.tables is EVENT_DRIVEN

    def scan(self, name: str) -> pl.LazyFrame:
        """Return the rows of this run in a table."""
        table = read_table(self._run.folder, name)
        columns = table.collect_schema().names()
        rows = table.filter(pl.col("seed") == self._run.seed)
        return rows.filter(pl.col("strategy") == self._run.strategy_there) if "strategy" in columns else rows

    # The curve

    def metrics(self) -> pl.DataFrame:
        """Return all rows of the metrics or the timeline, with the strategy named as on the page."""
        return self.scan(self._run.tables.curve).with_columns(strategy=pl.lit(self._run.strategy)).collect()

    @cached_property
    def _evaluated(self) -> pl.DataFrame:
        table = self.scan(self._run.tables.curve)
        if self._is_timed:
            return table.collect()
        has_bits = "bits" in table.collect_schema().names()  # runs of earlier versions have none
        totals = {"broadcasts_total": pl.col("fired").cum_sum()}
        totals |= {"bits_total": pl.col("bits").cum_sum()} if has_bits else {}
        return table.with_columns(**totals).drop_nulls("accuracy").collect()

    @cached_property
    def evaluated(self) -> list[tuple[int, dict[str, Any]]]:
        """The rows of the curve that are drawn, evenly spread, each after its k. In lockstep, they have totals."""
        table = self._evaluated
        if len(table) > self._most_points:
            table = table[np.unique(np.linspace(0, len(table) - 1, self._most_points).round().astype(int)).tolist()]
        rows = table.iter_rows(named=True)
        return [(row["steps"] // self._devices if self._is_timed else row["iteration"] + 1, row) for row in rows]

    # Events and links

    @cached_property
    def shown(self) -> ShownEvents:
        """The events and links that are drawn: those of every n-th iteration."""
        rows = self._moments() if self._is_timed else self.scan("events").with_columns(seconds=None, k="iteration")
        of_links = pl.col("link_from").list.len().fill_null(0)
        sizes = rows.select("k", "seconds", fired=pl.col("fired").list.len().fill_null(0), links=of_links).collect()
        wirings = self.scan("network").select("iteration", links=pl.col("link_from").list.len()).collect()
        if not len(sizes) or not len(wirings):
            return ShownEvents([], [], len(sizes), 0)
        changes = wirings["iteration"].to_numpy()
        graphs = self._graphs_at(sizes, changes)
        ends = dict(zip(changes.tolist(), (2 * wirings["links"]).to_list(), strict=True))
        most = self._most_numbers
        stride = max(1, -(-len(sizes) // MOST_ITERATIONS), -(-int(sizes["fired"].sum()) // most))
        while stride < len(sizes) and len(drawn := np.unique(graphs[::stride]).tolist()) > 1:
            if sum(ends[graph] for graph in drawn) <= most:
                break
            stride *= 2
        kept = sizes[::stride]
        # Links in use need most of the room: they are drawn in fewer iterations if need be.
        with_links = kept["k"][:: max(1, -(-2 * int(kept["links"].sum()) // most))]
        fired = rows.filter(pl.col("k").is_in(kept["k"].to_list())).select("k", "fired", "seconds").collect()
        used = _links(rows.filter(pl.col("k").is_in(with_links.to_list())), "k")
        there = _links(
            self.scan("network").filter(pl.col("iteration").is_in(np.unique(graphs[::stride]).tolist())), "iteration"
        )
        sets = {graph: set(links) for graph, links in there.items()}
        events: list[Row] = []
        network: list[Row] = []
        links_gone = 0
        for (k, devices, seconds), graph in zip(fired.iter_rows(), graphs[::stride].tolist(), strict=True):
            if not network or network[-1]["links"] != there[graph]:
                network.append({"k": k, "links": there[graph]})
            links = used.get(k)
            if links is not None:
                still_there = [link for link in links if link in sets[graph]]
                links_gone += len(links) - len(still_there)
                links = still_there
            events.append({"k": k, "fired": devices or [], "used": links, "seconds": seconds})
        return ShownEvents(events, network, len(sizes) - len(events), links_gone)

    def _moments(self) -> pl.LazyFrame:
        """Return the events of a run whose devices have their own clocks, as rows like those of a run in lockstep.

        Row k holds what happened after row k - 1, up to the second at which devices have made k + 1 steps on average. A
        device that fired twice in between is there twice.
        """
        steps = self.scan("steps").select("seconds", "device", "fired").sort("seconds").collect()
        count = max(1, len(steps) // self._devices) if len(steps) else 0
        places = np.arange(1, count + 1) * self._devices - 1
        places[-1:] = len(steps) - 1  # the last moment has the steps that are left over
        times = steps["seconds"].to_numpy()[places]

        def by_moment(table: pl.DataFrame, seconds: str) -> pl.DataFrame:
            moments = np.searchsorted(times, table[seconds].to_numpy(), side="left").clip(0, max(count - 1, 0))
            return table.select(pl.Series("k", moments, pl.Int64), pl.exclude(seconds))

        fired = by_moment(steps.filter("fired").select("seconds", "device"), "seconds").sort("k", "device")
        ends = pl.min_horizontal("device", "neighbour"), pl.max_horizontal("device", "neighbour")
        committed = self.scan("exchanges").filter(pl.col("outcome") == "committed")
        exchanged = committed.select("end", link_from=ends[0], link_to=ends[1]).collect()
        used = by_moment(exchanged, "end").unique().sort("k", "link_from", "link_to")
        moments = pl.DataFrame({"k": np.arange(count), "seconds": times}, schema_overrides={"k": pl.Int64})
        grouped = fired.group_by("k").agg(pl.col("device").alias("fired")), used.group_by("k").agg(pl.all())
        return moments.join(grouped[0], "k", "left").join(grouped[1], "k", "left").sort("k").lazy()

    def _graphs_at(self, rows: pl.DataFrame, changes: np.ndarray) -> np.ndarray:
        """Return the number of the graph G(k) that is in force in each of these rows. `changes` ascends."""
        numbers = rows["k"].to_numpy()
        if self._is_timed:
            driver = self._run.config["driver"]
            default = EventDriven.model_fields["network_seconds"].default
            seconds = float(driver.get("network_seconds", default) if isinstance(driver, dict) else default)
            # The driver adds these seconds up, so that floor(time / seconds) is another number where a sum is rounded.
            changed_at = np.cumsum(np.full(min(int(changes[-1]), MOST_ROWS), seconds))
            numbers = np.searchsorted(changed_at, rows["seconds"].to_numpy(), side="right")
        graphs: np.ndarray = changes[(np.searchsorted(changes, numbers, side="right") - 1).clip(0)]
        return graphs

    # Other facts

    @cached_property
    def devices(self) -> list[DeviceView]:
        """The devices."""
        table = self.scan("devices").select("device", "bandwidth", "samples", "labels").sort("device").collect()
        return [
            {"device": row[0], "bandwidth": row[1], "samples": row[2], "labels": row[3]} for row in table.iter_rows()
        ]

    @property
    def leaves_out_events(self) -> bool:
        """Whether iterations are missing in the events."""
        return self.shown.left_out > 0

    @property
    def notes(self) -> dict[str, str]:
        """What is not drawn, by name."""
        points, all_points = len(self.evaluated), len(self._evaluated)
        events, left_out, gone = len(self.shown.events), self.shown.left_out, self.shown.links_gone
        note_of_gone = f"not drawn {gone:,} times, since the link was gone a moment later" if gone else ""
        return {
            "curves": f"{points:,} of {all_points:,} evaluations are drawn" if points < all_points else "",
            "events": f"{events:,} of {events + left_out:,} iterations are drawn, evenly spread" if left_out else "",
            "links in use": note_of_links([row["used"] for row in self.shown.events]) or note_of_gone,
        }


def _links(table: pl.LazyFrame, key: str) -> dict[int, list[Link]]:
    """Return the links in the rows of a table, by their iteration."""
    rows = table.select(key, "link_from", "link_to").collect().iter_rows()
    return {k: list(zip(starts or [], ends or [], strict=True)) for k, starts, ends in rows}


class Last(NamedTuple):
    """The last row of the curve of a run."""

    k: int
    accuracy: float | None


class Tables(NamedTuple):
    """The tables in one folder: those of one run or, in an experiment of efhc 0.2, of all."""

    stamp: Hashable
    """Changes whenever the tables are written."""
    last: dict[tuple[str, int], Last] | str
    """The last row of each curve by strategy and seed, or what is wrong with the tables."""
    since: float = float("-inf")
    """When they were first seen, on the monotonic clock; minus infinity if they were there from the beginning."""

    @classmethod
    def of(cls, run: FoundRun, known: Tables | None, now: float) -> Tables:
        """Return the tables in the folder of a run; they are read only if they are not the `known` ones."""
        stamp = "tables", str(run.folder), stamp_of(run.folder / f"{run.tables.curve}.parquet")
        if known is not None and known.stamp == stamp:
            return known
        try:
            with readable(run.folder):
                return cls(stamp, _last_rows(run), now)
        except EfhcError as error:
            return cls(stamp, str(error), now)

    @property
    def is_final(self) -> bool:
        """Whether every page that requests these runs gets the tables, and no longer the live file."""
        return time.monotonic() - self.since > FRESH_SECONDS


def _last_rows(run: FoundRun) -> dict[tuple[str, int], Last]:
    """Return the last row of the curve of each run in the folder of `run`, by strategy and seed."""
    k = pl.col("iteration") + 1 if run.tables is LOCKSTEP else pl.col("steps") // max(run.devices, 1)
    accuracy = pl.col("accuracy").cast(pl.Float64)
    known = pl.when(accuracy.is_finite()).then(accuracy).alias("accuracy")
    rows = read_table(run.folder, run.tables.curve).select(*RUN, k.alias("k"), known)
    last = rows.group_by(*RUN, maintain_order=True).last().collect()
    return {(strategy, seed): Last(*row) for strategy, seed, *row in last.iter_rows()}
