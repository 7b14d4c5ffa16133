"""Writing a live file. It stays small, however long a run is: samples are thinned first, and evaluated rows last.

Law: every link that an `Events` record uses is among the links of the last wiring up to its iteration. So wirings are
not thinned on their own: those that were in force at an event are written and kept with it.
"""

from __future__ import annotations

import errno
import os
import platform
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from efhc.base.saving import write_safely
from efhc.experiments.runs.live.followers import About, DeviceSample, EndState, EventSample, Follower, Row
from efhc.experiments.runs.live.processes import mark_of
from efhc.experiments.runs.live.reading import read_live
from efhc.experiments.runs.live.records import (
    Begin,
    Devices,
    End,
    Evaluated,
    Events,
    Network,
    Reached,
    Record,
    decoded,
    encoded,
    heading,
    rounded,
)

LIMIT = 1_000_000
"""Bytes above which a live file is thinned."""
REACHED_SECONDS = 2.0
"""Time between two records of how far the run is, if no other record tells."""
FEW = 4
"""The number of records of each kind that are always kept, however large they are."""

Line = tuple[Record | None, bytes]
"""A record, None if it is damaged, and its line."""


class LiveFile(Follower):
    """Appends what is heard of a run to a file. The file is whole after every record."""

    def __init__(self, path: Path, *, limit: int = LIMIT) -> None:
        self._path, self._limit = path, limit
        self._size = 0
        self._every: Counter[type[Record]] = Counter()
        """The stride n of each kind: every n-th record is written (0: all)."""
        self._skipped: Counter[type[Record]] = Counter()
        """The number of records of each kind since the last one that was written."""
        self._k, self._told_at = 0, 0.0
        self._unwritten: Evaluated | None = None
        """The latest row, if it was left out."""
        self._wiring: Network | None = None
        """The physical links, if no event that was written has used them yet."""

    def begin(self, about: About, k: int) -> None:
        self._k, self._wiring, now = k, None, time.time()
        pid = os.getpid()
        begin = Begin(now, k, **vars(about), pid=pid, host=platform.node(), process=mark_of(pid))
        kept: list[Record] = []
        if k > 0 and (earlier := read_live(self._path)) is not None:
            earlier.add(begin)  # what came after k is superseded
            kept = [*earlier.rows, *earlier.samples, *earlier.events, *earlier.wirings[1:]]
        self._replace(list(map(encoded, [begin, *kept])))
        if self._size > self._limit:
            self._thin()
        self._told_at = time.monotonic()

    def reached(self, k: int) -> None:
        self._k = k
        if time.monotonic() - self._told_at > REACHED_SECONDS:
            self._write(Reached(time.time(), k))

    def evaluated(self, row: Row) -> None:
        iteration = row.get("iteration")
        k = self._k if iteration is None else int(iteration) + 1
        self._write(Evaluated(time.time(), k, dict(row)))

    def sampled(self, devices: DeviceSample) -> None:
        drift, threshold = (None if one is None else rounded(one) for one in (devices.drift, devices.threshold))
        self._write(Devices(time.time(), devices.k, rounded(devices.accuracy), drift, threshold))

    def happened(self, events: Sequence[EventSample]) -> None:
        self._write(*(Events(**vars(event)) for event in events))

    def rewired(self, k: int, links: Sequence[tuple[int, int]]) -> None:
        self._wiring = Network(k, links)

    def end(self, state: EndState, problem: str | None) -> None:
        last = [record for record in (self._unwritten, self._wiring) if record is not None]
        self._append([*last, End(time.time(), state, problem)])

    def _write(self, *records: Record) -> None:
        """Append records, as many of each kind as there is room for."""
        written: list[Record] = []
        for record in records:
            kind = type(record)
            self._skipped[kind] += 1
            is_written = self._skipped[kind] >= self._every[kind]
            if is_written:
                self._skipped[kind] = 0
                if isinstance(record, Events) and self._wiring is not None:
                    written.append(self._wiring)
                    self._wiring = None
                written.append(record)
            if isinstance(record, Evaluated):
                self._unwritten = None if is_written else record
        if written:
            self._append(written)

    def _append(self, records: Sequence[Record]) -> None:
        lines = b"".join(map(encoded, records))
        with open(self._path, "ab", buffering=0, opener=_existing) as file:
            if file.write(lines) != len(lines):
                raise OSError(errno.ENOSPC, "not everything could be written", str(self._path))
        self._told_at = time.monotonic()
        self._size += len(lines)
        if self._size > self._limit:
            self._thin()

    def _thin(self) -> None:
        """Write the file anew with every other record of the kinds that need most room, until half of it is free."""
        lines = self._path.read_bytes().splitlines(keepends=True)[1:]
        records = [(decoded(line), line) for line in lines]
        last = max((place for place, (record, _) in enumerate(records) if isinstance(record, Reached)), default=-1)
        records = [each for place, each in enumerate(records) if place == last or not isinstance(each[0], Reached)]
        while sum(len(line) for _, line in records) > self._limit // 2 and (kind := self._kind_to_thin(records)):
            self._every[kind] = max(2, 2 * self._every[kind])
            records = _without_unused_wirings(_without_every_other(records, kind))
        self._replace([line for _, line in records])
        self._limit = max(self._limit, 2 * self._size)  # of a huge network, the links alone may need more

    def _kind_to_thin(self, records: Sequence[Line]) -> type[Record] | None:
        """Return the samples that need most room, or rows if no samples need much. None: little is left of anything."""
        counts, sizes = Counter[type](), Counter[type]()
        for record, line in records:
            counts[type(record)] += 1
            sizes[Events if isinstance(record, Network) else type(record)] += len(line)  # wirings go with their events
        samples: list[type[Record]] = [kind for kind in (Events, Devices) if counts[kind] > FEW]
        if counts[Evaluated] > FEW and sum(sizes[kind] for kind in samples) < self._limit // 8:
            return Evaluated
        return max(samples, key=lambda kind: sizes[kind], default=None)

    def _replace(self, lines: Sequence[bytes]) -> None:
        content = heading() + b"".join(lines)
        write_safely(self._path, content)
        self._size = len(content)


def _without_every_other(records: Sequence[Line], thinned: type[Record]) -> list[Line]:
    """Return the records without every other one of a kind; the last of it stays."""
    of_kind = [place for place, (record, _) in enumerate(records) if isinstance(record, thinned)]
    dropped = set(of_kind[-2::-2])
    return [record for place, record in enumerate(records) if place not in dropped]


def _without_unused_wirings(records: Sequence[Line]) -> list[Line]:
    """Return the records without the wirings that were in force at none of the events; the last one stays."""
    wirings = sorted(record.k for record, _ in records if isinstance(record, Network))
    events = (record.k for record, _ in records if isinstance(record, Events))
    in_force = {bisect_right(wirings, k) - 1 for k in events} | {len(wirings) - 1}
    used = {wirings[place] for place in in_force if place >= 0}
    return [each for each in records if not isinstance(each[0], Network) or each[0].k in used]


def _existing(path: str, flags: int) -> int:
    """Open a file that is there: a live file that somebody has deleted does not come back headless."""
    return os.open(path, flags & ~os.O_CREAT)
