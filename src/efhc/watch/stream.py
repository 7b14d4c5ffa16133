"""What changes while a page is open, as server-sent events.

tree    everything that was found, when it has changed
nodes   the last status of the nodes of the run, whenever they were polled
delta   rows of one part of one run: of curves, for all runs of a group; of the rest, for one run
gone    the id of a group or run that the page shows and that is not there any more
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

from efhc.base.errors import EfhcError
from efhc.report.plain_json import to_json
from efhc.report.views import Delta, Tree
from efhc.watch.folders import readable
from efhc.watch.node_source import NodeSource
from efhc.watch.sources import PARTS, Part, Source
from efhc.watch.watcher import Watcher

Event = tuple[str, Any]
"""The name of an event, and its data."""
TREE_SECONDS = 1.0
"""Least time between two trees."""


class Changes:
    """What one page has got, and what is new since.

    A page requests a group and a run by itself, and then follows them. So that no row is lost between the two, the
    first events have all rows of runs that are being made; complete runs do not change.
    """

    def __init__(self, watcher: Watcher, group: str | None, run: str | None) -> None:
        self._watcher, self._group, self._run = watcher, group, run
        self._sent: dict[tuple[str, Part], tuple[Hashable, int]] = {}
        """Of each part of a run, the generation and the number of rows that the page has."""
        self._tree: Tree | None = None
        self._tree_sent = float("-inf")
        self._was_there: set[str] = set()
        self._polls = 0
        """How many times nodes had been polled when the page got their status."""

    def next(self) -> Iterator[Event]:
        """Yield the changes since the last call."""
        watcher = self._watcher
        watcher.refresh()
        tree = watcher.tree
        if (now := time.monotonic()) - self._tree_sent >= TREE_SECONDS and tree != self._tree:
            self._tree, self._tree_sent = tree, now
            yield "tree", tree
        yield from self._gone()
        for run in watcher.runs_of(self._group) if self._group else ():
            yield from self._news(run, ("curve",))
        if self._run:
            yield from self._nodes(self._run)
            yield from self._news(self._run, PARTS)

    def _gone(self) -> Iterator[Event]:
        for shown, is_there in (
            (self._group, self._group is not None and self._watcher.has_group(self._group)),
            (self._run, self._run is not None and self._watcher.has_run(self._run)),
        ):
            if shown is None:
                continue
            if is_there:
                self._was_there.add(shown)
            elif shown in self._was_there:
                self._was_there.discard(shown)
                yield "gone", {"id": shown}

    def _nodes(self, run: str) -> Iterator[Event]:
        """Yield the nodes with their links, rates and faults, which no table that grows can hold."""
        source = self._watcher.source(run)
        if isinstance(source, NodeSource) and source.polls != self._polls:
            self._polls = source.polls
            yield "nodes", {"id": run, "facts": source.notes, "devices": source.devices}

    def _news(self, run: str, parts: Iterable[Part]) -> Iterator[Event]:
        # The page has the tables of a run that has been complete for a while, unless it has rows of the live file.
        final = self._watcher.final(run)
        due = [part for part in parts if final is None or self._sent.get((run, part), (final,))[0] != final]
        if not due or (source := self._watcher.source(run)) is None:
            return
        for part in due:
            try:
                with readable(self._watcher.root):
                    delta = self._delta(run, part, source)
            except EfhcError:  # deleted while it was read, which the next scan finds, or damaged: not tried again
                self._sent[run, part] = source.generation, 0
                continue
            if delta is not None:
                yield "delta", delta

    def _delta(self, run: str, part: Part, source: Source) -> Delta | None:
        generation, start = self._sent.get((run, part), (None, 0))
        rows = source.rows(part, generation, start)
        self._sent[run, part] = rows.generation, rows.end
        is_new = generation is not None and rows.generation != generation
        if rows.end == rows.start and not is_new:
            return None
        return {"id": run, "part": part, "start": rows.start, "columns": rows.columns}


def as_text(event: Event) -> str:
    """Return an event as it is sent."""
    name, data = event
    return f"event: {name}\ndata: {to_json(data)}\n\n"
