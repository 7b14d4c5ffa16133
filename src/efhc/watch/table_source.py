"""What the tables of a complete run tell, thinned so that a page stays quick however long the run was."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from efhc.base.regular_files import open_regular
from efhc.drivers.event_driven.settings import EventDriven
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
MOST_ROWS, MOST_ROWS_OF = 20_000_000, {"steps": 100_000_000, "exchanges": 100_000_000}
"""The largest number of rows of a table, and of those that have more: a few kilobytes can hold any number of rows."""


class Happened(NamedTuple):
    """What happened in some iterations of a run, and the physical links then."""

    events: Columns
    network: Columns
    left_out: int
    """The number of iterations that are missing."""
    fired_again: int = 0
    """How many times a device fired that had fired since the sample before already: that is told once."""
    links_gone: int = 0
    """How many links were used since the sample before, and were gone when the sample was taken: they are not told."""


class Drawn(NamedTuple):
    """The points of a curve that are drawn."""

    curve: Columns
    evaluations: int
    """The number of all points."""


def curve_table(run: FoundRun) -> str:
    """Return the name of the table that has the curve of a run."""
    return EVENT_DRIVEN.curve if run.driver == EVENT_DRIVEN.driver else LOCKSTEP.curve


def stamp_of_tables(run: FoundRun) -> Hashable:
    """Return what changes whenever the tables of a run are written."""
    return "tables", str(run.folder), stamp_of(run.folder / f"{curve_table(run)}.parquet")


def read_table(folder: Path, name: str) -> pl.LazyFrame:
    """Return a table in a directory.

    Raises `OSError` if it is no regular file, or a link, and `ValueError` if it has more rows than a page can show.
    """
    with open_regular(folder / f"{name}.parquet") as file:
        table = pl.scan_parquet(file)  # the file that was checked, whatever is put in its place
    # What the file says about its length may be a lie: the rows that would be read are counted.
    last = table.with_row_index("row number").select(pl.max("row number")).collect().item()
    most = MOST_ROWS_OF.get(name, MOST_ROWS)
    if last is not None and last >= most:
        raise ValueError(f"{name}.parquet has {last + 1:,} rows; a page shows tables of at most {most:,}")
    return table


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
        table = read_table(self._run.folder, name)
        columns = table.collect_schema().names()
        rows = table.filter(pl.col("seed") == self._run.seed)
        return rows.filter(pl.col("strategy") == self._run.strategy_there) if "strategy" in columns else rows

    @cached_property
    def _live(self) -> LiveRun | None:
        return None if self._run.live is None else read_live(self._run.live)

    @property
    def _mean_steps(self) -> pl.Expr:
        """The k of a sample of devices on their own clocks: the mean number of steps of a device."""
        return pl.col("steps") // max(self._run.devices, 1)

    def _evaluated(self) -> pl.DataFrame:
        """Return what was evaluated, as the columns of a curve but for the seconds of a run in lockstep."""
        if curve_table(self._run) == EVENT_DRIVEN.curve:
            found = self.scan(EVENT_DRIVEN.curve).select(
                self._mean_steps.alias("k"), *ACCURACIES,
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
    def _drawn(self) -> Drawn:
        table = self._evaluated()
        evaluations = len(table)
        if evaluations > self._most_points:
            chosen = np.unique(np.linspace(0, evaluations - 1, self._most_points).round().astype(int))
            table = table[chosen.tolist()]
        columns: Columns = table.select(COLUMNS["curve"]).to_dict(as_series=False)
        if curve_table(self._run) == LOCKSTEP.curve and self._live is not None:
            seconds = {row.k: row.row.get("seconds") for row in self._live.rows}
            columns["seconds"] = [seconds.get(k) for k in columns["k"]]
        return Drawn(columns, evaluations)

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
        """What happened since the last sample with a smaller k, for the last sample with each k."""
        samples = self.scan("timeline").select("seconds", k=self._mean_steps).collect()
        moments = samples.unique("k", keep="last", maintain_order=True)
        k, times = moments["k"].to_list(), moments["seconds"].to_numpy()
        if not k:
            return Happened(as_columns("events", []), as_columns("network", []), 0)
        firings = _by_moment(times, self.scan("steps").filter("fired").select("seconds", "device").collect())
        fired = firings.unique(maintain_order=True)
        committed = self.scan("exchanges").filter(pl.col("outcome") == "committed")
        ends = committed.select(
            "end",
            pl.min_horizontal("device", "neighbour").alias("a"),
            pl.max_horizontal("device", "neighbour").alias("b"),
        ).collect()
        used = _by_moment(times, ends).unique(maintain_order=True)
        wirings = self.scan("network").select("iteration", pl.col("link_from").list.len().alias("links")).collect()
        graphs = self._graphs_at(times, wirings["iteration"].to_numpy())
        stride = _stride(graphs, np.array([len(fired) + 2 * len(used)]), wirings, self._most_numbers)
        links = self._links("network", np.unique(graphs[::stride]).tolist())
        there = {graph: set(some) for graph, some in links.items()}

        who, which = defaultdict[int, list[int]](list), defaultdict[int, list[tuple[int, int]]](list)
        for moment, device in fired.filter(pl.col("moment") % stride == 0).sort("moment", "device").iter_rows():
            who[moment].append(device)
        for moment, a, b in used.filter(pl.col("moment") % stride == 0).sort("moment", "a", "b").iter_rows():
            which[moment].append((a, b))
        events, network, links_gone, before = [], [], 0, None
        for moment, graph in zip(range(0, len(k), stride), graphs[::stride].tolist(), strict=True):
            if graph != before:
                network.append((k[moment], links[graph]))
                before = graph
            still_there = [link for link in which[moment] if link in there[graph]]
            links_gone += len(which[moment]) - len(still_there)
            events.append((k[moment], who[moment], still_there))
        return Happened(
            as_columns("events", events), as_columns("network", network), len(k) - len(events),
            fired_again=len(firings) - len(fired), links_gone=links_gone,
        )  # fmt: skip

    def _graphs_at(self, times: np.ndarray, noted: np.ndarray) -> np.ndarray:
        """Return the number of the graph G(k) that was noted last at each of these seconds. `noted` ascends."""
        driver = self._run.config["driver"]
        default = EventDriven.model_fields["network_seconds"].default
        seconds = float(driver.get("network_seconds", default) if isinstance(driver, dict) else default)
        # The driver adds these seconds up, so that floor(time / seconds) is another number where a sum is rounded.
        changes = np.cumsum(np.full(min(int(noted[-1]), MOST_ROWS), seconds))
        numbers = np.searchsorted(changes, times, side="right")
        graphs: np.ndarray = noted[(np.searchsorted(noted, numbers, side="right") - 1).clip(0)]
        return graphs

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
        return self._happened.left_out > 0 or self._happened.fired_again > 0

    @property
    def notes(self) -> dict[str, str]:
        shown, all_of_them = len(self._drawn.curve["k"]), self._drawn.evaluations
        events, left_out = len(self._happened.events["k"]), self._happened.left_out
        notes = {
            "curves": f"{shown:,} of {all_of_them:,} evaluations are drawn" if shown < all_of_them else "",
            "events": f"{events:,} of {events + left_out:,} iterations are drawn, evenly spread" if left_out else "",
            "links in use": note_of_links(self._happened.events["used"]) or _note_of_gone(self._happened.links_gone),
            "devices over time": "" if self._samples["k"] else "not known: there is no live file of this run",
        }
        return {name: note for name, note in notes.items() if note}

    def _part(self, part: Part) -> Columns:
        if part == "curve":
            return self._drawn.curve
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


def _note_of_gone(links: int) -> str:
    return f"not drawn {links:,} times, since the link was gone at the next sample" if links else ""


def _by_moment(times: np.ndarray, happened: pl.DataFrame) -> pl.DataFrame:
    """Return a table whose first column is a second, with the place of the first moment that is not before it instead.

    `times` are the seconds of the moments. What comes after the last of them counts as that.
    """
    first, *others = happened.get_columns()
    moments = np.searchsorted(times, first.to_numpy(), side="left").clip(0, len(times) - 1)
    return pl.DataFrame([pl.Series("moment", moments, pl.Int64), *others])


class Last(NamedTuple):
    """The last row of the curve of a run."""

    k: int
    accuracy: float | None


def last_rows(run: FoundRun) -> dict[tuple[str, int], Last]:
    """Return the last row of the curve of each run in the directory of `run`, by strategy and seed."""
    table = curve_table(run)
    k = pl.col("iteration") + 1 if table == LOCKSTEP.curve else pl.col("steps") // max(run.devices, 1)
    accuracy = pl.col("accuracy").cast(pl.Float64)
    known = pl.when(accuracy.is_finite()).then(accuracy).alias("accuracy")
    rows = read_table(run.folder, table).select(*RUN, k.alias("k"), known)
    last = rows.group_by(*RUN, maintain_order=True).last().collect()
    return {(strategy, seed): Last(*row) for strategy, seed, *row in last.iter_rows()}
