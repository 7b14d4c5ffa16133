"""What changes while somebody watches, as server-sent events.

tree    everything that was found, when it has changed
nodes   what the nodes of the run say of themselves, whenever they were asked
delta   rows of one part of one run: of curves, for all runs of a group; of the rest, for one run
gone    the id of a group or run that was asked for and is not there any more
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator
from typing import Any

from efhc.base.errors import EfhcError
from efhc.report.plain_json import to_json
from efhc.report.views import Delta, Tree
from efhc.watch.node_source import NodeSource
from efhc.watch.reading import readable
from efhc.watch.sources import PARTS, Part, Source
from efhc.watch.watched import Watched

Event = tuple[str, Any]
"""The name of an event, and its data."""
TREE_SECONDS = 1.0
"""Least time between two trees."""


class Changes:
    """What one page has been told, and what is new since.

    A page asks for a group and a run by itself, and then follows them. So that nothing falls between the two, the first
    answer has all rows of runs that are being made; complete runs do not change.
    """

    def __init__(self, watched: Watched, group: str | None, run: str | None) -> None:
        self._watched, self._group, self._run = watched, group, run
        self._told: dict[tuple[str, Part], tuple[Hashable, int]] = {}
        """Of each part of a run, the generation and the number of rows that the page has."""
        self._tree: Tree | None = None
        self._tree_told = float("-inf")
        self._was_there: set[str] = set()
        self._asked = 0
        """How many times nodes had been asked when the page was told of them."""

    def next(self) -> Iterator[Event]:
        """Yield what has changed since the last call."""
        watched = self._watched
        watched.refresh()
        tree = watched.tree
        if (now := time.monotonic()) - self._tree_told >= TREE_SECONDS and tree != self._tree:
            self._tree, self._tree_told = tree, now
            yield "tree", tree
        yield from self._gone()
        for run in watched.runs_of(self._group) if self._group else ():
            yield from self._news(run, ("curve",))
        if self._run:
            yield from self._nodes(self._run)
            yield from self._news(self._run, PARTS)

    def _gone(self) -> Iterator[Event]:
        for asked, is_there in (
            (self._group, self._group is not None and self._watched.has_group(self._group)),
            (self._run, self._run is not None and self._watched.has_run(self._run)),
        ):
            if asked is None:
                continue
            if is_there:
                self._was_there.add(asked)
            elif asked in self._was_there:
                self._was_there.discard(asked)
                yield "gone", {"id": asked}

    def _nodes(self, run: str) -> Iterator[Event]:
        """Yield what no table that grows can hold: the nodes with their links, rates and faults, and who is silent."""
        source = self._watched.source(run)
        if isinstance(source, NodeSource) and source.asked != self._asked:
            self._asked = source.asked
            yield "nodes", {"id": run, "facts": source.notes, "devices": source.devices}

    def _news(self, run: str, parts: tuple[Part, ...]) -> Iterator[Event]:
        # The page has the tables of a run that has been complete for a while, unless it was told of the live file.
        final = self._watched.final(run)
        due = [part for part in parts if final is None or self._told.get((run, part), (final,))[0] != final]
        if not due or (source := self._watched.source(run)) is None:
            return
        for part in due:
            try:
                with readable(self._watched.root):
                    delta = self._delta(run, part, source)
            except EfhcError:  # deleted while it was read, which the next look says, or damaged: not tried again
                self._told[run, part] = source.generation, 0
                continue
            if delta is not None:
                yield "delta", delta

    def _delta(self, run: str, part: Part, source: Source) -> Delta | None:
        generation, start = self._told.get((run, part), (None, 0))
        rows = source.rows(part, generation, start)
        self._told[run, part] = rows.generation, rows.end
        is_new = generation is not None and rows.generation != generation
        if rows.end == rows.start and not is_new:
            return None
        return {"id": run, "part": part, "start": rows.start, "columns": rows.columns}


def as_text(event: Event) -> str:
    """Return an event as it is sent."""
    name, data = event
    return f"event: {name}\ndata: {to_json(data)}\n\n"
