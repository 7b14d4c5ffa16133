"""Looks for runs in a thread of its own, so that no page waits until a large folder has been searched."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread
from typing import NamedTuple

from efhc.base.errors import EfhcError
from efhc.watch.discovery import Discovery, FoundGroup, FoundRun
from efhc.watch.reading import readable
from efhc.watch.table_source import Last, last_rows, stamp_of_tables

LOOK_SECONDS, REST = 1.0, 20
"""Least time between two looks, and the ratio of the rest after a look to the time that the look took."""
PATIENCE_SECONDS = 0.1
"""How long a page waits for a look to end. After that, the page shows what the look before found."""
FRESH_SECONDS = 5.0
"""Time after the end of a run during which a page may still have rows of its live file instead of its tables."""


class Tables(NamedTuple):
    """The tables of the complete runs in one directory."""

    stamp: Hashable
    """Changes whenever the tables are written."""
    since: float
    """When they were first seen, on the monotonic clock; minus infinity if they were there from the beginning."""
    last: dict[tuple[str, int], Last] | str
    """The last row of each curve by strategy and seed, or what is wrong with the tables."""

    @property
    def is_final(self) -> bool:
        """Whether every page that asks for these runs gets the tables, and no longer the live file."""
        return time.monotonic() - self.since > FRESH_SECONDS


class Look(NamedTuple):
    """What one look has found."""

    groups: list[FoundGroup]
    tables: dict[Path, Tables]
    """By directory."""
    left_out: str | None
    """What was not searched, in words."""
    changed: dict[str, float]
    """When files were last added to the folders of a group, in seconds since 1970, by its id, if that is known."""
    began: float
    """When the look began, on the monotonic clock."""


class Looking:
    """Looks again and again, and rests in between for much longer than it looks."""

    def __init__(self, discovery: Discovery, found: Callable[[Look], None]) -> None:
        """`found` hears of each look, in the thread that looked."""
        self._discovery, self._found = discovery, found
        self._tables: dict[Path, Tables] = {}
        self._lock = Lock()
        self._thread: Thread | None = None
        self._due = self._ended = float("-inf")

    def look_if_due(self) -> None:
        """Begin to look if the rest is over. Waits for the end of the look if it comes soon or is the first."""
        with self._lock:
            is_due = time.monotonic() >= self._due
            thread = self._begin() if is_due and not self._is_looking() else self._thread
        if thread is not None:
            thread.join(PATIENCE_SECONDS if self._ended > float("-inf") else None)

    def look_now(self) -> None:
        """Look, and wait for the end. A look that began earlier does not count."""
        if (earlier := self._thread) is not None:
            earlier.join()
        with self._lock:
            thread = self._thread if self._thread is not None and self._is_looking() else self._begin()
        thread.join()

    def _is_looking(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _begin(self) -> Thread:
        self._thread = Thread(target=self._look, name="efhc-look", daemon=True)
        self._thread.start()
        return self._thread

    def _look(self) -> None:
        began = time.monotonic()
        try:
            groups = self._discovery.find()
            complete = {run.folder: run for group in groups for run in group.runs if run.is_complete}
            self._tables = {folder: self._tables_of(run) for folder, run in complete.items()}
            folders = {group.id: {group.folder, *(run.folder for run in group.runs)} for group in groups}
            changed = {id_: at for id_, some in folders.items() if (at := _changed(some)) is not None}
            self._found(Look(groups, self._tables, self._discovery.left_out, changed, began))
        finally:
            self._ended = time.monotonic()
            self._due = self._ended + max(LOOK_SECONDS, REST * (self._ended - began))

    def _tables_of(self, run: FoundRun) -> Tables:
        known, stamp = self._tables.get(run.folder), stamp_of_tables(run)
        if known is not None and known.stamp == stamp:
            return known
        last: dict[tuple[str, int], Last] | str
        try:
            with readable(run.folder):
                last = last_rows(run)
        except EfhcError as error:
            last = str(error)
        return Tables(stamp, self._ended if self._ended == float("-inf") else time.monotonic(), last)


def _changed(folders: Iterable[Path]) -> float | None:
    """Return when a file was last added to one of these folders, or taken away. None: no folder can be looked at."""
    times = []
    for folder in folders:
        with suppress(OSError):
            times.append(folder.stat().st_mtime)
    return max(times, default=None)
