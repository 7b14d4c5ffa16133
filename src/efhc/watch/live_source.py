"""What the live file of a run tells, while it grows and afterwards."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from threading import Lock
from typing import Any

from efhc.experiments.runs.live.reading import LiveRun, Tail
from efhc.experiments.runs.live.records import Begin, Devices, Evaluated, Events, Network, Record
from efhc.experiments.runs.tables import EVENT_DRIVEN
from efhc.report.views import Device
from efhc.watch.discovery import stamp_of
from efhc.watch.sources import ACCURACIES, Columns, Part, Rows, as_columns

KINDS: dict[type[Record], Part] = {Evaluated: "curve", Devices: "samples", Events: "events", Network: "network"}


class LiveSource:
    """Reads a live file whenever it is asked to. One thread may read while others ask for rows."""

    def __init__(self, path: Path) -> None:
        self._tail = Tail(path)
        self._stamp: Hashable = None
        """The stamp of the file when it was read last. None: there was no live file."""
        self._lock = Lock()
        self._generation = 0
        self.run: LiveRun | None = None
        """What is known so far. None: nothing."""

    def read(self) -> None:
        """Read what was written since the last call. A record that is not whole yet is left for the next one.

        A file whose stamp has not changed is not opened.
        """
        stamp = stamp_of(self._tail.path)
        if stamp is not None and stamp == self._stamp:
            return
        news = self._tail.read()
        self._stamp = stamp if news.is_there else None
        with self._lock:
            if news.begins_again:
                self.run, self._generation = None, self._generation + 1
            if self.run is None:
                self.run = LiveRun.of(news.records)
                return
            for record in news.records:
                before = self._length_of(record)
                self.run.add(record)
                # Rows that were known and are made again, because the run went on from a checkpoint before them.
                if isinstance(record, Begin) or self._length_of(record) != before + 1:
                    self._generation += type(record) in (Begin, *KINDS)

    def _length_of(self, record: Record) -> int:
        part = KINDS.get(type(record))
        return 0 if part is None else len(self._records(part))

    @property
    def generation(self) -> Hashable:
        return "live", self._generation

    @property
    def devices(self) -> list[Device]:
        run = self.run  # once: another thread may read a file that begins again
        return [
            {"device": device, "bandwidth": bandwidth, "samples": None, "labels": None}
            for device, bandwidth in enumerate(run.about.bandwidths if run else [])
        ]

    @property
    def leaves_out_events(self) -> bool:
        run = self.run
        return run is not None and len(run.events) < run.k

    @property
    def notes(self) -> dict[str, str]:
        run = self.run
        if run is None:
            return {}
        about = run.about
        return {"parameters of a model": f"{about.parameters:,}", "process": f"{about.pid} on {about.host}"}

    @property
    def evaluated(self) -> list[dict[str, Any]]:
        """The rows of the metrics or the timeline that are known."""
        with self._lock:
            return [one.row for one in self._records("curve")]

    def _records(self, part: Part) -> list[Any]:
        run = self.run
        if run is None:
            return []
        of_part: dict[Part, list[Any]] = {
            "curve": run.rows,
            "samples": run.samples,
            "events": run.events,
            "network": run.wirings,
        }
        return of_part[part]

    def rows(self, part: Part, generation: Hashable = None, start: int = 0) -> Rows:
        with self._lock:
            first = start if generation == self.generation else 0
            return Rows(self.generation, first, self._columns(part, self._records(part)[first:]))

    def _columns(self, part: Part, records: list[Any]) -> Columns:
        if part == "curve":
            devices = self.run.about.devices if self.run else 1
            is_timed = self.run is not None and self.run.about.driver == EVENT_DRIVEN.driver
            return as_columns(part, [curve_row(one.k, one.row, devices if is_timed else None) for one in records])
        fields = {
            "samples": ("k", "accuracy", "drift", "threshold"),
            "events": ("k", "fired", "used"),
            "network": ("k", "links"),
        }[part]
        return as_columns(part, [[getattr(one, name) for name in fields] for one in records])


def curve_row(k: int, row: dict[str, Any], timed_devices: int | None) -> tuple[Any, ...]:
    """Return a point of the curve, given a row of the metrics or, with `timed_devices`, of the timeline.

    Devices on their own clocks have no common iteration: k is the mean of theirs. The timeline has totals already.
    """
    accuracies = [row.get(name) for name in ACCURACIES]
    if timed_devices is not None:
        sent = row.get("bytes")
        bits = None if sent is None else 8.0 * sent
        return (int(row.get("steps") or 0) // timed_devices, *accuracies, None, None, bits, row.get("broadcasts"),
                row.get("seconds"))  # fmt: skip
    totals = [row.get(name) for name in ("train_loss", "transmission_time_total", "bits_total", "broadcasts_total")]
    return (k, *accuracies, *totals, row.get("seconds"))
