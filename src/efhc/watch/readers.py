"""What a page shows of a run: its rows, from its live file while it is made and from its tables once it is complete.

The rows have four parts, which are tables that grow. A page that has the first rows of one generation gets the rows
after them; when the generation changes, for example because tables take the place of a live file, it gets all rows.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from threading import Lock
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import polars as pl

from efhc.base.errors import EfhcError
from efhc.drivers.record import SUMS, with_totals
from efhc.drivers.settings import EventDriven
from efhc.experiments.runs.events import Begin, Devices, Evaluated, Firings, LiveRecord, Network
from efhc.experiments.runs.live_file import LiveRun, NewRecords, Tail
from efhc.experiments.runs.tables import EVENT_DRIVEN
from efhc.report.views import CURVE_COLUMNS, AboutRows, Curve, DeviceView, RunSummary
from efhc.watch.discovery import FoundRun
from efhc.watch.untrusted import MOST_ROWS, read_table, readable, stamp_of

MOST_POINTS = 2_000
"""The largest number of points of a curve."""
MOST_ITERATIONS, MOST_NUMBERS = 10_000, 100_000
"""The largest number of iterations whose events are shown, and about how many devices that fired, ends of links in use
and ends of physical links they may have."""

Part = Literal["curve", "samples", "events", "network"]
PARTS: dict[Part, type[LiveRecord]] = {"curve": Evaluated, "samples": Devices, "events": Firings, "network": Network}
"""The parts of a run, and the record of a live file that each row of a part shows."""
COLUMNS: dict[Part, tuple[str, ...]] = {
    part: tuple(field.name for field in fields(record) if field.name not in ("at", "kind"))
    for part, record in PARTS.items()
} | {"curve": ("k", *CURVE_COLUMNS)}
"""The columns that a part always has. A curve has those of the user's own metrics, too."""
TOTALS = {"transmission_time": "transmission_time_total", "bits": "bits_total", "broadcasts": "broadcasts_total"}
"""The columns of a curve that are totals, and those of the metrics in lockstep that they come from."""
NOT_SHOWN = {"strategy", "seed", "iteration", "steps", "fired", "links_used", "bytes", *TOTALS.values()}
"""Columns of the metrics and of the timeline that a curve has in another form. It has all others."""

Link = tuple[int, int]
Row = Mapping[str, Any]


class PartRows(NamedTuple):
    """Rows of one part, all read at the same moment."""

    generation: Hashable
    start: int
    """The number of rows of this generation before the first one here."""
    columns: dict[str, list[Any]]

    @property
    def end(self) -> int:
        """The number of rows of this generation up to the last one here."""
        return self.start + len(self.columns["k"])


class Reader(ABC):
    """The rows of one run. One thread may add rows while others request them."""

    generation: Hashable = 0
    """A value that changes whenever known rows have changed. New rows at the end do not change it."""
    group = ""
    """The id of the group of the run."""
    live: LiveRun | None = None
    """The content of the live file. None: there is none."""

    def __init__(self, run: FoundRun) -> None:
        self.run, self._lock = run, Lock()

    @property
    def is_kept(self) -> bool:
        """Whether the run is shown even when its files have gone."""
        return False

    def is_of(self, run: FoundRun) -> bool:
        """Return whether what is known of a run comes from the same files."""
        return True

    @abstractmethod
    def read(self) -> None:
        """Read what is new since the last call, or begin to."""

    def forget(self) -> None:  # noqa: B027 - by default there is nothing to forget
        """Free memory; what is needed again is read again."""

    @abstractmethod
    def about(self) -> AboutRows:
        """Return the devices, and what is known of the rows."""

    def summary(self, problem: str | None = None) -> RunSummary:
        """Return the run in one line. A run with a `problem` has failed."""
        run, problem = self.run, problem or self.run.problem
        known = {"state": "failed", "problem": problem} if problem else self._progress()
        summary: RunSummary = {
            "id": run.id, "strategy": run.strategy, "seed": run.seed, "state": "waiting", "k": 0,
            "iterations": run.iterations, "accuracy": None, "iterations_per_second": None, "seconds_left": None,
            "problem": None,
        }  # fmt: skip
        return cast("RunSummary", {**summary, **known})

    @abstractmethod
    def _progress(self) -> Mapping[str, Any]:
        """Return what is known of the progress of the run, by the names in a summary."""

    @abstractmethod
    def _rows(self, part: Part, first: int) -> Iterable[Row]:
        """Return the rows of a part from the row `first` on, by column. Those that a row lacks are None."""

    def rows(self, part: Part, generation: Hashable = None, start: int = 0) -> PartRows:
        """Return the rows of a part from `start` on if `generation` is the present generation, otherwise all rows."""
        with self._lock:
            first = start if generation == self.generation else 0
            listed = list(self._rows(part, first))
            own = listed[0] if part == "curve" and listed else ()
            names = dict.fromkeys((*COLUMNS[part], *own))
            return PartRows(self.generation, first, {name: [row.get(name) for row in listed] for name in names})

    @property
    def curve(self) -> Curve:
        """What was evaluated."""
        return self.rows("curve").columns

    def metrics(self) -> pl.DataFrame:
        """Return everything that was evaluated, as a table to save."""
        return pl.DataFrame(self.curve, strict=False)


class LiveReader(Reader):
    """A run that is being made, or was stopped, by its live file."""

    def __init__(self, run: FoundRun) -> None:
        super().__init__(run)
        self._tail, self._reading = Tail(run.live) if run.live else None, Lock()
        self._stamp: Hashable = None
        """The stamp of the live file when it was read last. None: there was no live file."""
        self.generation = "live", str(run.live), 0

    def is_of(self, run: FoundRun) -> bool:
        return (self.run.live, self.run.is_complete) == (run.live, run.is_complete)

    def read(self) -> None:
        """Read what was written to the live file since the last call; a record that is not whole yet is left out.

        A file whose stamp has not changed is not opened.
        """
        if self._tail is None:
            return
        with self._reading:
            stamp = stamp_of(self._tail.path)
            if stamp is not None and stamp == self._stamp:
                return
            new = self._tail.read()
            self._stamp = stamp if new.is_there else None
            with self._lock:
                self._add(new)

    def _add(self, new: NewRecords) -> None:
        if new.begins_again:
            self.live = None
            self._supersede()
        if self.live is None:
            self.live = LiveRun.of(new.records)
            return
        for record in new.records:
            part = next((part for part, kind in PARTS.items() if isinstance(record, kind)), None)
            before = 0 if part is None else len(self._records(part))
            self.live.add(record)
            # Known rows are superseded when the run went on from a checkpoint before them.
            if isinstance(record, Begin) or (part is not None and len(self._records(part)) != before + 1):
                self._supersede()

    def _supersede(self) -> None:
        """Note that known rows of the live file have changed."""
        kind, path, times = cast("tuple[str, str, int]", self.generation)
        self.generation = kind, path, times + 1

    def _records(self, part: Part) -> Sequence[Any]:
        if (live := self.live) is None:
            return []
        of_part: dict[Part, Sequence[Any]] = {
            "curve": live.rows, "samples": live.samples, "events": live.events, "network": live.networks,
        }  # fmt: skip
        return of_part[part]

    def about(self) -> AboutRows:
        if (live := self.live) is None:  # once: another thread may read a file that begins again
            return {"devices": [], "facts": {}, "is_sample": False}
        about = live.about
        devices: list[DeviceView] = [
            {"device": device, "bandwidth": bandwidth, "samples": None, "labels": None}
            for device, bandwidth in enumerate(about.bandwidths)
        ]
        shared, personal = about.parameters, about.personal_parameters
        parameters = f"{shared:,} shared, {personal:,} personal" if personal else f"{shared:,}"
        facts = {"parameters of a model": parameters, "process": f"{about.pid} on {about.host}"}
        return {"devices": devices, "facts": facts, "is_sample": len(live.events) < live.k}

    def metrics(self) -> pl.DataFrame:
        with self._lock:
            return pl.DataFrame([one.row for one in self._records("curve")], infer_schema_length=None)

    def _rows(self, part: Part, first: int) -> Iterable[Row]:
        new = self._records(part)[first:]
        return [self._point(one.k, one.row) for one in new] if part == "curve" else map(vars, new)

    def _point(self, k: int, row: Row) -> Row:
        """Return a point of the curve, given a row of the metrics or the timeline.

        Devices on their own clocks have no common iteration: k is the mean of theirs. The timeline has totals already.
        """
        if self.run.tables is EVENT_DRIVEN:
            shown = row if row.get("bytes") is None else {**row, "bits": 8.0 * row["bytes"]}
        else:
            shown = {**row, **{name: row.get(total) for name, total in TOTALS.items()}}
        known = {name: value for name, value in shown.items() if name not in NOT_SHOWN}
        return {"k": k} | {
            name: None if value is None or not math.isfinite(value) else value for name, value in known.items()
        }

    def _progress(self) -> Mapping[str, Any]:
        if (live := self.live) is None:
            return {}
        state, accuracy = live.state(), live.rows[-1].row.get("accuracy") if live.rows else None
        k, iterations = live.k, self._iterations(live)
        known = {"state": state, "k": min(k, iterations), "iterations": iterations, "accuracy": accuracy}
        speed = live.iterations_per_second if state == "running" else None
        left = max(0, iterations - k) / speed if speed else None
        problem = live.end.problem if live.end else None
        return {**known, "problem": problem, "iterations_per_second": speed, "seconds_left": left}

    def _iterations(self, live: LiveRun) -> int:
        """Return how many iterations the run will have: if it ends after some seconds, at its pace up to now."""
        run, now = self.run, live.rows[-1].row.get("seconds") if live.rows else None
        if run.seconds is None:
            return run.iterations
        return max(live.k, round(live.rows[-1].k * run.seconds / now) if now else run.iterations)


class Drawn(NamedTuple):
    """The events and the physical links that are drawn, as rows of a `Reader`."""

    events: list[Row]
    """Links in use are None where there is no room for them."""
    network: list[Row]
    """The links from the first event on at which they are in force."""
    left_out: int
    """The number of iterations that are missing."""
    links_gone: int
    """How many times a link was used and was gone at the end of that iteration: it is not drawn then."""


class TableReader(LiveReader):
    """A complete run, by its tables. Each is read when it is needed, and thinned so that a page stays quick.

    The live file, if there is one, has the samples of the devices and the seconds, which the tables lack.
    """

    def __init__(self, run: FoundRun, most_numbers: int = MOST_NUMBERS, most_points: int = MOST_POINTS) -> None:
        """The last row of the run is read at once."""
        super().__init__(run)
        self._most_numbers, self._most_points = most_numbers, most_points
        self._devices = max(run.devices, 1)
        self._is_timed = run.tables is EVENT_DRIVEN
        self.generation = _tables_stamp(run)
        self._last: tuple[int, float | None] | None = None
        self._problem: str | None = None
        """What is wrong with the tables."""
        try:
            with readable(run.folder):
                self._last = self._read_last()
        except EfhcError as error:
            self._problem = str(error)

    def is_of(self, run: FoundRun) -> bool:
        return super().is_of(run) and self.generation == _tables_stamp(run)

    def forget(self) -> None:
        for name in ("_evaluated", "_points", "_drawn"):
            vars(self).pop(name, None)

    def _supersede(self) -> None:
        """Keep the generation, which is that of the tables."""

    def about(self) -> AboutRows:
        return self._about

    @cached_property
    def _about(self) -> AboutRows:
        table = self._scan("devices").select("device", "bandwidth", "samples", "labels").sort("device").collect()
        devices = cast("list[DeviceView]", table.to_dicts())
        return {"devices": devices, "facts": self._notes(), "is_sample": self._drawn.left_out > 0}

    def metrics(self) -> pl.DataFrame:
        return self._curve_table.with_columns(strategy=pl.lit(self.run.strategy)).collect()

    def _rows(self, part: Part, first: int) -> Iterable[Row]:
        if part == "samples":
            return super()._rows(part, first)
        if first:
            return []  # tables do not grow
        if part != "curve":
            return self._drawn.events if part == "events" else self._drawn.network
        seconds = {row.k: row.row.get("seconds") for row in self._records("curve")}
        return [self._point(k, {"seconds": seconds.get(k), **row}) for k, row in self._points]

    def _progress(self) -> Mapping[str, Any]:
        iterations, accuracy = self._last or (self.run.iterations, None)
        if self.run.seconds is None:
            iterations = self.run.iterations
        counts = {"k": iterations, "iterations": iterations}
        return {"state": "done", **counts, "accuracy": accuracy, "problem": self._problem}

    def _scan(self, name: str) -> pl.LazyFrame:
        """Return the rows of this run in a table."""
        table = read_table(self.run.folder, name)
        columns = table.collect_schema().names()
        rows = table.filter(pl.col("seed") == self.run.seed)
        return rows.filter(pl.col("strategy") == self.run.strategy_there) if "strategy" in columns else rows

    # The curve

    @property
    def _curve_table(self) -> pl.LazyFrame:
        """The metrics or the timeline."""
        return self._scan(self.run.tables.curve)

    def _read_last(self) -> tuple[int, float | None] | None:
        """Return the k of the last row of the curve, and its accuracy."""
        k = pl.col("steps") // self._devices if self._is_timed else pl.col("iteration") + 1
        accuracy = pl.col("accuracy").cast(pl.Float64)
        known = pl.when(accuracy.is_finite()).then(accuracy)
        rows = self._curve_table.select(k.alias("k"), known.alias("accuracy")).last().collect().rows()
        return rows[0] if rows else None

    @cached_property
    def _evaluated(self) -> pl.DataFrame:
        table = self._curve_table
        if self._is_timed:
            return table.collect()
        columns = table.collect_schema().names()  # runs of earlier versions have no bits
        totals = [total for total, column in SUMS.items() if column in columns]
        return with_totals(table, totals).drop_nulls("accuracy").collect()

    @cached_property
    def _points(self) -> list[tuple[int, Row]]:
        """The rows of the curve that are drawn, evenly spread, each after its k. In lockstep, they have totals."""
        table = self._evaluated
        if len(table) > self._most_points:
            table = table[np.unique(np.linspace(0, len(table) - 1, self._most_points).round().astype(int)).tolist()]
        rows = table.iter_rows(named=True)
        return [(row["steps"] // self._devices if self._is_timed else row["iteration"] + 1, row) for row in rows]

    # Events and links

    @cached_property
    def _drawn(self) -> Drawn:
        """The events and links that are drawn: those of every n-th iteration."""
        rows = self._moments() if self._is_timed else self._scan("events").with_columns(seconds=None, k="iteration")
        of_links = pl.col("link_from").list.len().fill_null(0)
        sizes = rows.select("k", "seconds", fired=pl.col("fired").list.len().fill_null(0), links=of_links).collect()
        networks = self._scan("network").select("iteration", ends=2 * pl.col("link_from").list.len()).collect()
        if not len(sizes) or not len(networks):
            return Drawn([], [], len(sizes), 0)
        graphs, most = self._graphs_at(sizes, networks["iteration"].to_numpy()), self._most_numbers
        stride = max(1, -(-len(sizes) // MOST_ITERATIONS), -(-int(sizes["fired"].sum()) // most))
        while stride < len(sizes) and len(drawn := np.unique(graphs[::stride])) > 1:
            if networks.filter(pl.col("iteration").is_in(drawn.tolist()))["ends"].sum() <= most:
                break
            stride *= 2
        kept, graphs = sizes[::stride], graphs[::stride]
        # Links in use need most of the room: they are drawn in fewer iterations if need be.
        has_links = pl.col("k").is_in(kept["k"][:: max(1, -(-2 * int(kept["links"].sum()) // most))].to_list())
        ends = [pl.when(has_links).then(pl.col(end).fill_null([])) for end in ("link_from", "link_to")]
        shown = rows.filter(pl.col("k").is_in(kept["k"].to_list())).select("k", "fired", "seconds", *ends).collect()
        in_force = self._scan("network").filter(pl.col("iteration").is_in(np.unique(graphs).tolist()))
        wires = in_force.select("iteration", "link_from", "link_to").collect().iter_rows()
        there = {k: list(zip(starts, ends, strict=True)) for k, starts, ends in wires}
        sets = {graph: set(links) for graph, links in there.items()}
        events: list[Row] = []
        network: list[Row] = []
        links_gone = 0
        for (k, fired, seconds, *used), graph in zip(shown.iter_rows(), graphs.tolist(), strict=True):
            if not network or network[-1]["links"] != there[graph]:
                network.append({"k": k, "links": there[graph]})
            links = None
            if used[0] is not None:
                links = [link for link in zip(*used, strict=True) if link in sets[graph]]
                links_gone += len(used[0]) - len(links)
            events.append({"k": k, "fired": fired or [], "used": links, "seconds": seconds})
        return Drawn(events, network, len(sizes) - len(events), links_gone)

    def _moments(self) -> pl.LazyFrame:
        """Return the events of a run whose devices have their own clocks, as rows like those of a run in lockstep.

        Row k holds what happened after row k - 1, up to the second at which devices have made k + 1 steps on average. A
        device that fired twice in between is there twice.
        """
        steps = self._scan("steps").select("seconds", "device", "fired").sort("seconds").collect()
        count = max(1, len(steps) // self._devices) if len(steps) else 0
        places = np.arange(1, count + 1) * self._devices - 1
        places[-1:] = len(steps) - 1  # the last moment has the steps that are left over
        times = steps["seconds"].to_numpy()[places]

        def by_moment(table: pl.DataFrame, seconds: str) -> pl.DataFrame:
            moments = np.searchsorted(times, table[seconds].to_numpy(), side="left").clip(0, max(count - 1, 0))
            return table.select(pl.Series("k", moments, pl.Int64), pl.exclude(seconds))

        fired = by_moment(steps.filter("fired").select("seconds", "device"), "seconds").sort("k", "device")
        ends = pl.min_horizontal("device", "neighbour"), pl.max_horizontal("device", "neighbour")
        committed = self._scan("exchanges").filter(pl.col("outcome") == "committed")
        exchanged = committed.select("end", link_from=ends[0], link_to=ends[1]).collect()
        used = by_moment(exchanged, "end").unique().sort("k", "link_from", "link_to")
        moments = pl.DataFrame({"k": np.arange(count), "seconds": times}, schema_overrides={"k": pl.Int64})
        grouped = fired.group_by("k").agg(pl.col("device").alias("fired")), used.group_by("k").agg(pl.all())
        return moments.join(grouped[0], "k", "left").join(grouped[1], "k", "left").sort("k").lazy()

    def _graphs_at(self, rows: pl.DataFrame, changes: np.ndarray) -> np.ndarray:
        """Return the number of the graph G(k) that is in force in each of these rows. `changes` ascends."""
        numbers = rows["k"].to_numpy()
        if self._is_timed:
            driver = self.run.config["driver"]
            default = EventDriven.model_fields["network_seconds"].default
            seconds = float(driver.get("network_seconds", default) if isinstance(driver, dict) else default)
            # The driver adds these seconds up, so that floor(time / seconds) is another number where a sum is rounded.
            changed_at = np.cumsum(np.full(min(int(changes[-1]), MOST_ROWS), seconds))
            numbers = np.searchsorted(changed_at, rows["seconds"].to_numpy(), side="right")
        graphs: np.ndarray = changes[(np.searchsorted(changes, numbers, side="right") - 1).clip(0)]
        return graphs

    def _notes(self) -> dict[str, str]:
        """Return what is not drawn, by name."""
        points, all_points, drawn = len(self._points), len(self._evaluated), self._drawn
        events, live, notes = len(drawn.events), self.live, {}
        if points < all_points:
            notes["curves"] = f"{points:,} of {all_points:,} evaluations are drawn"
        if drawn.left_out:
            notes["events"] = f"{events:,} of {events + drawn.left_out:,} iterations are drawn, evenly spread"
        if note := note_of_links([row["used"] for row in drawn.events]):
            notes["links in use"] = note
        elif drawn.links_gone:
            notes["links in use"] = f"not drawn {drawn.links_gone:,} times, since the link was gone a moment later"
        if live is None or not live.samples:
            notes["devices over time"] = "not known: there is no live file of this run"
        return notes


def _tables_stamp(run: FoundRun) -> Hashable:
    return "tables", str(run.folder), stamp_of(run.folder / f"{run.tables.curve}.parquet")


def in_force(changed_at: Sequence[int], iterations: Iterable[int]) -> list[int]:
    """Return the places of the changes that hold in any of these iterations. `changed_at` ascends."""
    return sorted({bisect_right(changed_at, k) - 1 for k in iterations} - {-1})


def note_of_links(used: Sequence[object]) -> str:
    """Return a note if the links in use are not known in all iterations, otherwise an empty text."""
    known = sum(one is not None for one in used)
    return f"drawn in {known:,} of these {len(used):,} iterations" if known < len(used) else ""
