"""Reading a live file, once or again and again while it grows. Nothing here raises because of what is in the file."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from efhc.base.regular_files import open_regular
from efhc.experiments.runs.live.followers import EndState
from efhc.experiments.runs.live.processes import is_running
from efhc.experiments.runs.live.records import (
    Begin,
    Devices,
    End,
    Evaluated,
    Events,
    Links,
    Network,
    Reached,
    Record,
    decoded,
    is_heading,
)
from efhc.experiments.runs.live.speed import Speed

LIVE = "live.jsonl"
"""The live file in the directory of a single run."""
MOST_BYTES = 64_000_000
"""A file that is larger is no live file: runs keep theirs at about a megabyte, unless their network is huge."""

SILENT_SECONDS = 600.0
"""A run on another machine that has told nothing for this long counts as stopped."""


class News(NamedTuple):
    """What a reader has found since it looked last."""

    records: list[Record]
    begins_again: bool
    """Whether the file was written anew, or is gone: forget all earlier records. These are all that there are now."""
    is_there: bool
    """Whether there is a live file."""


class Tail:
    """Reads a live file while it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._heading = b""
        self._read = 0
        """The bytes read so far: whole lines only."""

    def read(self) -> News:
        """Return the whole records that were written since the last call. A line that is damaged is left out."""
        try:
            with open_regular(self.path, MOST_BYTES) as file:
                heading = file.readline(1000)
                begins_again = heading != self._heading or file.seek(0, 2) < self._read
                if not is_heading(heading):
                    return self._nothing()
                file.seek(len(heading) if begins_again else self._read)
                content = file.read(MOST_BYTES)
        except (OSError, ValueError):  # a ValueError for a path with a NUL in it
            return self._nothing()
        whole = content[: content.rfind(b"\n") + 1]
        self._read = (len(heading) if begins_again else self._read) + len(whole)
        had_any, self._heading = bool(self._heading), heading
        records = [record for line in whole.splitlines() if (record := decoded(line)) is not None]
        return News(records, begins_again and had_any, True)

    def _nothing(self) -> News:
        had_any, self._heading, self._read = bool(self._heading), b"", 0
        return News([], had_any, False)


State = Literal["running", EndState]


@dataclass
class LiveRun:
    """What a live file tells of a run."""

    about: Begin
    """How the run began, or went on the last time."""
    rows: list[Evaluated] = field(default_factory=list)
    samples: list[Devices] = field(default_factory=list)
    events: list[Events] = field(default_factory=list)
    wirings: list[Network] = field(default_factory=list)
    """The physical links from the beginning on, and whenever they changed."""
    k: int = 0
    """The number of iterations made."""
    at: float = 0.0
    """When the run was heard of last, as Unix time."""
    end: End | None = None
    _speed: Speed = field(default_factory=Speed)
    """Since the run began, or went on."""

    @classmethod
    def of(cls, records: list[Record]) -> LiveRun | None:
        """Return the run that records tell of. None if they do not begin."""
        run = None
        for record in records:
            if run is not None:
                run.add(record)
            elif isinstance(record, Begin) and _fits(record, record.devices):
                run = cls(record)
                run.add(record)
        return run

    def add(self, record: Record) -> None:
        """Hear of one more record. One that tells of iterations already known supersedes what was known after them.

        A record that names devices which the run does not have is left out.
        """
        if _fits(record, self.about.devices):
            self._add(record)

    def _add(self, record: Record) -> None:
        match record:
            case Begin():
                self.about, self.k, self.end, self._speed = record, record.k, None, Speed()
                self.rows = [row for row in self.rows if row.k <= record.k]
                self.samples = [sample for sample in self.samples if sample.k <= record.k]
                self.events = [event for event in self.events if event.k < record.k]
                self.wirings = [wiring for wiring in self.wirings if wiring.k < record.k]
                if not self.wirings:
                    self.wirings = [Network(0, record.links)]
            case Evaluated():
                while self.rows and _place(self.rows[-1]) >= _place(record):
                    self.rows.pop()
                self.rows.append(record)
                self.k = max(self.k, record.k)
            case Devices():
                self.samples.append(record)
            case Events():
                self.events.append(record)
                self.k = max(self.k, record.k)
            case Network():
                if self.wirings[-1].k >= record.k:
                    self.wirings.pop()
                self.wirings.append(record)
            case Reached():
                self.k = max(self.k, record.k)
            case End():
                self.end = record
        self.at = max(self.at, getattr(record, "at", 0.0))
        if isinstance(record, Evaluated | Reached) and record.at >= self.about.at:
            self._speed.note(record.at, record.k)

    def state(self, now: float | None = None, runs: Callable[..., bool | None] = is_running) -> State:
        """Return what the run does now. On the machine that makes it, a run that was killed is known to be stopped.

        On another machine, a run counts as stopped when it has told nothing for ten minutes. `runs` says whether a
        process, given by pid, host and mark, runs.
        """
        if self.end is not None:
            return self.end.state
        goes_on = runs(self.about.pid, self.about.host, self.about.process)
        if goes_on is None:
            goes_on = (time.time() if now is None else now) - self.at < SILENT_SECONDS
        return "running" if goes_on else "stopped"

    @property
    def iterations_per_second(self) -> float | None:
        """The mean speed in the last half minute. None: too early to say."""
        return self._speed.per_second


def _fits(record: Record, devices: int) -> bool:
    """Return whether a record speaks of devices that there are."""
    match record:
        case Begin():
            return record.devices == devices == len(record.bandwidths) and _are_below(devices, record.links)
        case Devices():
            told = (record.accuracy, record.drift, record.threshold)
            return all(numbers is None or len(numbers) == devices for numbers in told)
        case Events():
            return max(record.fired, default=0) < devices and _are_below(devices, record.used)
        case Network():
            return _are_below(devices, record.links)
    return True


def _are_below(devices: int, links: Links) -> bool:
    return all(a < devices and b < devices for a, b in links)


def _place(record: Evaluated) -> tuple[int, float]:
    """Where a row stands: after an iteration or, among samples of devices on their own clocks, at a second."""
    return record.k, float(record.row.get("seconds") or 0.0)


def read_live(path: Path) -> LiveRun | None:
    """Return what the live file at `path` tells, or None if there is none, or nothing in it that can be read."""
    return LiveRun.of(Tail(path).read().records)
