"""What is known of a run in a folder: its live file while it is made, and its tables once it is complete."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from threading import Lock
from typing import Any

import polars as pl

from efhc.experiments.runs.events import Begin
from efhc.experiments.runs.live_file import LiveRun, NewRecords, Tail
from efhc.experiments.runs.tables import EVENT_DRIVEN
from efhc.report.views import DeviceView, RunSummary
from efhc.watch.discovery import FoundRun
from efhc.watch.folders import stamp_of
from efhc.watch.run_tables import TableReader, Tables
from efhc.watch.sources import PARTS, Part, Row, Source

TOTALS = {"transmission_time": "transmission_time_total", "bits": "bits_total", "broadcasts": "broadcasts_total"}
"""The columns of a curve that are totals, and those of the metrics in lockstep that they come from."""
NOT_SHOWN = {"strategy", "seed", "iteration", "steps", "fired", "links_used", "bytes", *TOTALS.values()}
"""Columns of the metrics and of the timeline that a curve has in another form. It has all others."""


class RunSource(Source):
    """A run in a folder. Call `read` to see what its live file has got since the last call."""

    def __init__(self, run: FoundRun, tables: Tables | None = None, **limits: int) -> None:
        """`tables` are those of a complete run; `limits` are those of a `TableReader`."""
        super().__init__()
        self.run, self.tables = run, tables
        self._tables = TableReader(run, **limits) if tables is not None else None
        self._tail, self._reading = Tail(run.live) if run.live else None, Lock()
        self._stamp: Hashable = None
        """The stamp of the live file when it was read last. None: there was no live file."""
        self._rewritten = 0
        """How many times known rows of the live file have changed."""
        self.live: LiveRun | None = None
        """The content of the live file. None: there is none."""

    def is_of(self, run: FoundRun, tables: Tables | None) -> bool:
        """Return whether what is known of a run comes from the same files."""
        stamps = [None if one is None else one.stamp for one in (self.tables, tables)]
        return self.run.live == run.live and stamps[0] == stamps[1]

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
            self.live, self._rewritten = None, self._rewritten + 1
        if self.live is None:
            self.live = LiveRun.of(new.records)
            return
        for record in new.records:
            part = next((part for part, kind in PARTS.items() if isinstance(record, kind)), None)
            before = 0 if part is None else len(self._records(part))
            self.live.add(record)
            # Known rows are superseded when the run went on from a checkpoint before them.
            is_next = part is None or len(self._records(part)) == before + 1
            self._rewritten += isinstance(record, Begin) or not is_next

    def _records(self, part: Part) -> Sequence[Any]:
        live = self.live
        if live is None:
            return []
        of_part: dict[Part, Sequence[Any]] = {
            "curve": live.rows, "samples": live.samples, "events": live.events, "network": live.networks,
        }  # fmt: skip
        return of_part[part]

    @property
    def generation(self) -> Hashable:
        return self.tables.stamp if self.tables is not None else ("live", str(self.run.live), self._rewritten)

    @property
    def devices(self) -> list[DeviceView]:
        if self._tables is not None:
            return self._tables.devices
        live = self.live  # once: another thread may read a file that begins again
        return [
            {"device": device, "bandwidth": bandwidth, "samples": None, "labels": None}
            for device, bandwidth in enumerate(live.about.bandwidths if live else [])
        ]

    @property
    def leaves_out_events(self) -> bool:  # type: ignore[override]
        live = self.live
        if self._tables is not None:
            return self._tables.leaves_out_events
        return live is not None and len(live.events) < live.k

    @property
    def notes(self) -> dict[str, str]:
        if self._tables is not None:
            notes = dict(self._tables.notes)
            if not self.rows("samples").columns["k"]:
                notes["devices over time"] = "not known: there is no live file of this run"
            return {name: note for name, note in notes.items() if note}
        if (live := self.live) is None:
            return {}
        about = live.about
        return {"parameters of a model": f"{about.parameters:,}", "process": f"{about.pid} on {about.host}"}

    def metrics(self) -> pl.DataFrame:
        if self._tables is not None:
            return self._tables.metrics()
        with self._lock:
            return pl.DataFrame([one.row for one in self._records("curve")], infer_schema_length=None)

    def _rows(self, part: Part, first: int) -> Iterable[Row]:
        records, tables = self._records(part), self._tables
        if tables is None or part == "samples":
            new = records[first:]
            return [self._point(one.k, one.row) for one in new] if part == "curve" else [vars(one) for one in new]
        if first:
            return []  # tables do not grow
        if part != "curve":
            return tables.shown.events if part == "events" else tables.shown.network
        seconds = {row.k: row.row.get("seconds") for row in records}
        return [self._point(k, {"seconds": seconds.get(k), **row}) for k, row in tables.evaluated]

    def _point(self, k: int, row: Row) -> Row:
        """Return a point of the curve, given a row of the metrics or the timeline.

        Devices on their own clocks have no common iteration: k is the mean of theirs. The timeline has totals already.
        """
        if self.run.tables is EVENT_DRIVEN:
            shown = row if row.get("bytes") is None else {**row, "bits": 8.0 * row["bytes"]}
        else:
            shown = {**row, **{name: row.get(total) for name, total in TOTALS.items()}}
        return {"k": k} | {name: _finite(value) for name, value in shown.items() if name not in NOT_SHOWN}

    def summary(self, problem: str | None = None) -> RunSummary:
        """Return the run in one line. A run with a `problem` has failed."""
        run, live, problem = self.run, self.live, problem or self.run.problem
        summary: RunSummary = {
            "id": run.id, "strategy": run.strategy, "seed": run.seed, "state": "waiting", "k": 0,
            "iterations": run.iterations, "accuracy": None, "iterations_per_second": None, "seconds_left": None,
            "problem": problem,
        }  # fmt: skip
        if problem:
            summary["state"] = "failed"
        elif self.tables is not None:
            summary["state"], summary["k"] = "done", run.iterations
            if isinstance(self.tables.last, str):
                summary["problem"] = self.tables.last
            elif (row := self.tables.last.get((run.strategy_there, run.seed))) is not None:
                summary["accuracy"] = row.accuracy
                if run.seconds is not None:
                    summary["k"] = summary["iterations"] = row.k
        elif live is not None:
            summary["state"] = live.state()
            summary["iterations"] = _expected(run, live)
            summary["k"] = min(live.k, summary["iterations"])
            summary["accuracy"] = live.rows[-1].row.get("accuracy") if live.rows else None
            summary["problem"] = live.end.problem if live.end else None
            if summary["state"] == "running":
                speed = summary["iterations_per_second"] = live.iterations_per_second
                summary["seconds_left"] = (summary["iterations"] - summary["k"]) / speed if speed else None
        return summary


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None


def _expected(run: FoundRun, live: LiveRun) -> int:
    """Return how many iterations a run will have: of one that ends after some seconds, at its pace up to now."""
    if run.seconds is None:
        return run.iterations
    now = live.rows[-1].row.get("seconds") if live.rows else None
    return max(live.k, round(live.rows[-1].k * run.seconds / now) if now else run.iterations)
