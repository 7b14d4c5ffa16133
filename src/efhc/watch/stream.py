"""What a page gets while it is open, as server-sent events.

tree    everything that was found, when it has changed
detail  the run that the page shows: first in full, then without its rows whenever anything else has changed
delta   rows of one part of a run: of curves, for all runs of the group; of all parts, for the run that the page shows
gone    the id of the group or the run that the page shows, when it was deleted or cannot be read

The first events have everything that is known. A page that lost its connection requests a new stream.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

from efhc.base.errors import EfhcError
from efhc.report.plain_json import to_json
from efhc.report.views import Delta
from efhc.watch.readers import PARTS, Part, PartRows, Reader
from efhc.watch.untrusted import readable
from efhc.watch.watcher import Watcher

Event = tuple[str, Any]
"""The name of an event, and its data."""
TREE_SECONDS = 1.0
"""Least time between two trees."""


class Changes:
    """What one page has got of a group and a run, and what is new since."""

    def __init__(self, watcher: Watcher, group: str | None, run: str | None) -> None:
        self._watcher, self._group, self._run = watcher, group, run
        self._sent: dict[tuple[str, Part], tuple[Hashable, int]] = {}
        """Of each part of a run, the generation and the number of rows that the page has."""
        self._latest: dict[str, Any] = {}
        """The data of the last event by its name."""
        self._tree_sent = float("-inf")
        self._was_there: set[str] = set()
        self._unreadable: set[Hashable] = set()
        """Generations of tables that could not be read."""

    def next(self) -> Iterator[Event]:
        """Yield the changes since the last call."""
        watcher = self._watcher
        watcher.refresh()
        if (now := time.monotonic()) - self._tree_sent >= TREE_SECONDS and self._is_new("tree", watcher.tree):
            self._tree_sent = now
            yield "tree", self._latest["tree"]
        there = {id_ for id_ in (self._group, self._run) if id_ is not None and watcher.has(id_)}
        for id_ in sorted(self._was_there - there):
            yield "gone", {"id": id_}
        self._was_there = there
        if self._run in there:
            yield from self._rows_of(self._run, PARTS)
        for run in watcher.runs_of(self._group):
            if run != self._run:
                yield from self._rows_of(run, ("curve",))

    def _is_new(self, name: str, data: Any) -> bool:
        is_new: bool = data != self._latest.get(name)
        self._latest[name] = data
        return is_new

    def _rows_of(self, run: str, parts: Iterable[Part]) -> Iterator[Event]:
        """Yield new rows of a run, after what else is new of the run that the page shows."""
        final = self._watcher.final_generation(run)
        due = [part for part in parts if final is None or self._sent.get((run, part), (None,))[0] != final]
        if final in self._unreadable or (not due and run != self._run):
            return
        if (reader := self._watcher.reader(run)) is None:
            return
        try:
            with readable(self._watcher.root):
                about = self._watcher.about(run) if run == self._run else None
                if about is not None and self._is_new("detail", about):
                    is_first = (run, "samples") not in self._sent
                    in_full = {part: self._lacking(run, part, reader).columns for part in PARTS} if is_first else {}
                    yield "detail", {**about, **in_full}
                for part in due:
                    generation, _ = self._sent.get((run, part), (None, 0))
                    rows = self._lacking(run, part, reader)
                    if rows.columns["k"] or generation not in (None, rows.generation):
                        delta: Delta = {"id": run, "part": part, "start": rows.start, "columns": rows.columns}
                        yield "delta", delta
        except EfhcError:  # deleted while it was read, which the next scan finds, or damaged: not tried again
            if final is not None:
                self._unreadable.add(final)
            if run == self._run:
                yield "gone", {"id": run}

    def _lacking(self, run: str, part: Part, reader: Reader) -> PartRows:
        """Return the rows that the page lacks."""
        rows = reader.rows(part, *self._sent.get((run, part), ()))
        self._sent[run, part] = rows.generation, rows.end
        return rows


def as_text(event: Event) -> str:
    """Return an event as it is sent."""
    name, data = event
    return f"event: {name}\ndata: {to_json(data)}\n\n"
