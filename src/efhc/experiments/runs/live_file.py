"""The live file of a run, live.jsonl: its events while it is made, one JSON object per line.

JSON lines, because `tail -f`, jq and every language read them, a line is appended by one write, and a line that is not
whole yet lacks its newline. The first line says that this is a live file, and changes whenever the file is rewritten: a
reader then starts again. The file stays small, however long a run is: samples are thinned first, evaluated rows last.
docs/files.md describes the file for users.

Law: every link that a `Firings` record uses is among the links of the last network up to its iteration. So networks are
not thinned on their own: those that were in force at an event are written and kept with it.
"""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError

from efhc.base.inputs import open_regular
from efhc.base.saving import write_safely
from efhc.experiments.runs.events import (
    Begin,
    Devices,
    End,
    Evaluated,
    Event,
    Firings,
    Links,
    LiveRecord,
    Network,
    Numbers,
    Reached,
    Recalled,
)
from efhc.experiments.runs.progress import Speed
from efhc.experiments.runs.provenance import is_running
from efhc.report.views import State

LIVE = "live.jsonl"
"""The live file in the folder of a run."""
FORMAT = 1
"""The version of the format. A file of another version is left alone."""
LIMIT = 1_000_000
"""Bytes above which a live file is thinned."""
MOST_BYTES = 64_000_000
"""A file that is larger is no live file: runs keep theirs at about a megabyte, unless their network is huge."""
REACHED_SECONDS = 2.0
"""Time between two `Reached` records, if no other record is written."""
SILENT_SECONDS = 600.0
"""A run on another machine whose live file has not grown for this long counts as stopped."""
FEW = 4
"""The number of records of each kind that are always kept, however large they are."""

_RECORDS: TypeAdapter[LiveRecord] = TypeAdapter(Annotated[LiveRecord, Field(discriminator="kind")])


def heading() -> bytes:
    """Return the first line of a file that is written now."""
    return _line({"kind": "efhc-live", "format": FORMAT, "written": secrets.token_hex(8)})


def _is_heading(line: bytes) -> bool:
    """Return whether a line is the first one of a live file of this version."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and (content.get("kind"), content.get("format")) == ("efhc-live", FORMAT)


def encoded(record: LiveRecord) -> bytes:
    """Return a record as a line."""
    content = dict(vars(record))
    return _line({"kind": content.pop("kind"), **content})


def decoded(line: bytes) -> LiveRecord | None:
    """Return the record in a line, or None if it holds none: a damaged line, or one of a kind that came later."""
    try:
        return _RECORDS.validate_json(line, strict=False)
    except ValidationError:
        return None


def _rounded(numbers: Iterable[float | None]) -> Numbers:
    """Return numbers to four digits, and None for those that are not finite."""
    return [None if number is None or not math.isfinite(number) else float(f"{number:.4g}") for number in numbers]


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def _line(content: dict[str, Any]) -> bytes:
    return _ENCODER.encode(content).encode() + b"\n"


# Writing

Line = tuple[LiveRecord | None, bytes]
"""A record, None if it is damaged, and its line."""


class LiveFile:
    """Appends the events of a run to a file. The file is whole after every record."""

    name = LIVE

    def __init__(self, path: Path, *, limit: int = LIMIT) -> None:
        self._path, self._limit = path, limit
        self._size = 0
        self._every: Counter[type[LiveRecord]] = Counter()
        """The stride n of each kind: every n-th record is written (0: all)."""
        self._skipped: Counter[type[LiveRecord]] = Counter()
        """The number of records of each kind since the last one that was written."""
        self._written_at = 0.0
        self._unwritten: Evaluated | None = None
        """The latest row, if it was left out."""
        self._network: Network | None = None
        """The physical links, if no event that was written has used them yet."""

    def __call__(self, event: Event) -> None:
        match event:
            case Begin():
                self._begin(event)
            case Reached():
                if time.monotonic() - self._written_at > REACHED_SECONDS:
                    self._write(event)
            case Devices():
                short: dict[str, Any] = {name: _rounded(numbers) for name, numbers in event.numbers.items()}
                self._write(replace(event, **short))
            case Network():
                self._network = event
            case End():
                self._append(self._unwritten, self._network, event)
            case Evaluated() | Firings():
                self._write(event)
            case Recalled():
                pass  # the file has these rows

    def _begin(self, begin: Begin) -> None:
        self._network = None
        kept: list[LiveRecord] = []
        if begin.k > 0 and (earlier := read_live(self._path)) is not None:
            earlier.add(begin)  # what came after k is superseded
            kept = [*earlier.rows, *earlier.samples, *earlier.events, *earlier.networks[1:]]
        self._replace(list(map(encoded, [begin, *kept])))
        if self._size > self._limit:
            self._thin()
        self._written_at = time.monotonic()

    def _write(self, record: LiveRecord) -> None:
        """Append a record, if it is the turn of one of its kind."""
        kind = type(record)
        self._skipped[kind] += 1
        is_written = self._skipped[kind] >= self._every[kind]
        if isinstance(record, Evaluated):
            self._unwritten = None if is_written else record
        if is_written:
            self._skipped[kind] = 0
            network, self._network = (self._network, None) if kind is Firings else (None, self._network)
            self._append(network, record)

    def _append(self, *records: LiveRecord | None) -> None:
        lines = b"".join(encoded(record) for record in records if record is not None)
        with open(self._path, "ab", buffering=0, opener=_existing) as file:
            if file.write(lines) != len(lines):
                raise OSError(errno.ENOSPC, "not everything could be written", str(self._path))
        self._written_at = time.monotonic()
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
            records = _without_unused_networks(_without_every_other(records, kind))
        self._replace([line for _, line in records])
        self._limit = max(self._limit, 2 * self._size)  # of a huge network, the links alone may need more

    def _kind_to_thin(self, records: Sequence[Line]) -> type[LiveRecord] | None:
        """Return the samples that need most room, or rows if no samples need much. None: little is left of anything."""
        counts, sizes = Counter(type(record) for record, _ in records), Counter[type]()
        for record, line in records:
            sizes[Firings if isinstance(record, Network) else type(record)] += len(
                line
            )  # networks go with their events
        samples: list[type[LiveRecord]] = [kind for kind in (Firings, Devices) if counts[kind] > FEW]
        if counts[Evaluated] > FEW and sum(sizes[kind] for kind in samples) < self._limit // 8:
            return Evaluated
        return max(samples, key=lambda kind: sizes[kind], default=None)

    def _replace(self, lines: Sequence[bytes]) -> None:
        content = heading() + b"".join(lines)
        write_safely(self._path, content)
        self._size = len(content)


def _without_every_other(records: Sequence[Line], thinned: type[LiveRecord]) -> list[Line]:
    """Return the records without every other one of a kind; the last of it stays."""
    of_kind = [place for place, (record, _) in enumerate(records) if isinstance(record, thinned)]
    dropped = set(of_kind[-2::-2])
    return [record for place, record in enumerate(records) if place not in dropped]


def _without_unused_networks(records: Sequence[Line]) -> list[Line]:
    """Return the records without the networks that were in force at none of the events; the last one stays."""
    networks = sorted(record.k for record, _ in records if isinstance(record, Network))
    events = (record.k for record, _ in records if isinstance(record, Firings))
    in_force = {bisect_right(networks, k) - 1 for k in events} | {len(networks) - 1}
    used = {networks[place] for place in in_force if place >= 0}
    return [each for each in records if not isinstance(each[0], Network) or each[0].k in used]


def _existing(path: str, flags: int) -> int:
    """Open a file that is there: do not recreate a deleted file: it would lack its heading."""
    return os.open(path, flags & ~os.O_CREAT)


# Reading


class NewRecords(NamedTuple):
    """The records that were added since the last reading."""

    records: list[LiveRecord]
    begins_again: bool
    """Whether the file was rewritten, or is gone: these records replace all earlier ones."""
    is_there: bool
    """Whether there is a live file."""


class Tail:
    """Reads a live file while it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._heading = b""
        self._read = 0
        """The bytes read so far: whole lines only."""

    def read(self) -> NewRecords:
        """Return the whole records that were written since the last call. A line that is damaged is left out."""
        try:
            with open_regular(self.path, MOST_BYTES) as file:
                heading = file.readline(1000)
                begins_again = heading != self._heading or file.seek(0, 2) < self._read
                if not _is_heading(heading):
                    return self._nothing()
                file.seek(len(heading) if begins_again else self._read)
                content = file.read(MOST_BYTES)
        except (OSError, ValueError):  # a ValueError for a path with a NUL in it
            return self._nothing()
        whole = content[: content.rfind(b"\n") + 1]
        self._read = (len(heading) if begins_again else self._read) + len(whole)
        had_any, self._heading = bool(self._heading), heading
        records = [record for line in whole.splitlines() if (record := decoded(line)) is not None]
        return NewRecords(records, begins_again and had_any, True)

    def _nothing(self) -> NewRecords:
        had_any, self._heading, self._read = bool(self._heading), b"", 0
        return NewRecords([], had_any, False)


@dataclass
class LiveRun:
    """The content of a live file."""

    about: Begin
    """How the run began, or went on the last time."""
    rows: list[Evaluated] = field(default_factory=list)
    samples: list[Devices] = field(default_factory=list)
    events: list[Firings] = field(default_factory=list)
    networks: list[Network] = field(default_factory=list)
    """The physical links from the beginning on, and whenever they changed."""
    k: int = 0
    """The number of iterations made."""
    at: float = 0.0
    """The time of the last record, as Unix time."""
    end: End | None = None
    _speed: Speed = field(default_factory=Speed)
    """Since the run began, or went on."""

    @classmethod
    def of(cls, records: list[LiveRecord]) -> LiveRun | None:
        """Return the run of these records. None if no `Begin` is among them."""
        run = None
        for record in records:
            if run is not None:
                run.add(record)
            elif isinstance(record, Begin) and _fits(record, record.devices):
                run = cls(record)
                run.add(record)
        return run

    def add(self, record: LiveRecord) -> None:
        """Add one record. One about iterations that are known already supersedes what was known after them.

        A record that names devices which the run does not have is left out.
        """
        if not _fits(record, self.about.devices):
            return
        match record:
            case Begin():
                self.about, self.k, self.end, self._speed = record, record.k, None, Speed()
                self.rows = [row for row in self.rows if row.k <= record.k]
                self.samples = [sample for sample in self.samples if sample.k <= record.k]
                self.events = [event for event in self.events if event.k < record.k]
                self.networks = [network for network in self.networks if network.k < record.k]
                if not self.networks:
                    self.networks = [Network(0, record.links)]
            case Evaluated():
                while self.rows and _place(self.rows[-1]) >= _place(record):
                    self.rows.pop()
                self.rows.append(record)
                self.k = max(self.k, record.k)
            case Devices():
                self.samples.append(record)
            case Firings():
                self.events.append(record)
                self.k = max(self.k, record.k)
            case Network():
                if self.networks[-1].k >= record.k:
                    self.networks.pop()
                self.networks.append(record)
            case Reached():
                self.k = max(self.k, record.k)
            case End():
                self.end = record
        self.at = max(self.at, getattr(record, "at", 0.0))
        if isinstance(record, Evaluated | Reached) and record.at >= self.about.at:
            self._speed.note(record.at, record.k)

    def state(self) -> State:
        """Return what the run does now. On the machine that makes it, a run that was killed is known to be stopped.

        On another machine, a run counts as stopped when its file has not grown for ten minutes.
        """
        if self.end is not None:
            return self.end.state
        goes_on = is_running(self.about.pid, self.about.host, self.about.process)
        if goes_on is None:
            goes_on = time.time() - self.at < SILENT_SECONDS
        return "running" if goes_on else "stopped"

    @property
    def iterations_per_second(self) -> float | None:
        """The mean speed in the last half minute. None: too early to say."""
        return self._speed.per_second


def _fits(record: LiveRecord, devices: int) -> bool:
    match record:
        case Begin():
            return record.devices == devices == len(record.bandwidths) and _are_below(devices, record.links)
        case Devices():
            return all(len(numbers) == devices for numbers in record.numbers.values())
        case Firings():
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
    """Return the content of the live file at `path`, or None if there is none, or nothing in it can be read."""
    return LiveRun.of(Tail(path).read().records)
