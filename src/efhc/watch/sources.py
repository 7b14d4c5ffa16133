"""What a page shows of a run, read from its files or from nodes, in one form.

A part of a run is a table of columns that grows. A page that has the first rows of one generation gets the others; when
the generation changes, for example because a run is complete and its tables take the place of its live file, the page
gets all rows again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import fields
from threading import Lock
from typing import Any, Literal, NamedTuple

import polars as pl

from efhc.experiments.runs.events import Devices, Evaluated, Events, Network, Record
from efhc.report.views import CURVE_COLUMNS, Curve, DeviceView

Part = Literal["curve", "samples", "events", "network"]
PARTS: dict[Part, type[Record]] = {"curve": Evaluated, "samples": Devices, "events": Events, "network": Network}
"""The parts of a run, and the record of a live file that each row of a part shows."""


def _columns(record: type[Record]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(record) if field.name not in ("at", "kind"))


COLUMNS: dict[Part, tuple[str, ...]] = {part: _columns(record) for part, record in PARTS.items()}
COLUMNS["curve"] = ("k", *CURVE_COLUMNS)
"""The columns that a part always has. A curve has those of the user's own metrics, too."""

Columns = dict[str, list[Any]]
Row = Mapping[str, Any]


class PartRows(NamedTuple):
    """Rows of one part, all read at the same moment."""

    generation: Hashable
    start: int
    """The number of rows of this generation before the first one here."""
    columns: Columns

    @property
    def end(self) -> int:
        """The number of rows of this generation up to the last one here."""
        return self.start + len(self.columns["k"])


class Source(ABC):
    """What is known of one run. One thread may read its files while others ask for rows."""

    leaves_out_events: bool
    """Whether iterations are missing in the events."""

    def __init__(self) -> None:
        self._lock = Lock()

    @property
    @abstractmethod
    def generation(self) -> Hashable:
        """A value that changes whenever known rows have changed. New rows at the end do not change it."""

    @property
    @abstractmethod
    def devices(self) -> list[DeviceView]:
        """The devices."""

    @property
    @abstractmethod
    def notes(self) -> dict[str, str]:
        """Facts about the run that depend on the source, by name."""

    @abstractmethod
    def _rows(self, part: Part, first: int) -> Iterable[Row]:
        """Return the rows of a part from the row `first` on, by column. Those that a row lacks are None."""

    def rows(self, part: Part, generation: Hashable = None, start: int = 0) -> PartRows:
        """Return the rows of a part from `start` on if `generation` is the present generation, otherwise all rows."""
        with self._lock:
            first = start if generation == self.generation else 0
            listed = list(self._rows(part, first))
            own = listed[0] if part == "curve" and listed else ()
            names = dict.fromkeys((*COLUMNS[part], *own))
            return PartRows(self.generation, first, {name: [row.get(name) for row in listed] for name in names})

    @property
    def curve(self) -> Curve:
        """What was evaluated."""
        return self.rows("curve").columns

    def parts(self) -> dict[str, Any]:
        """Return all parts of the run as a `RunDetail` has them."""
        parts: dict[str, dict[str, Any]] = {part: self.rows(part).columns for part in PARTS}
        parts["events"]["is_sample"] = self.leaves_out_events
        return {**parts, "devices": self.devices}

    def metrics(self) -> pl.DataFrame:
        """Return everything that was evaluated, as a table to save."""
        return pl.DataFrame(self.curve, strict=False)


def in_force(changed_at: Sequence[int], iterations: Iterable[int]) -> list[int]:
    """Return the places of the changes that hold in any of these iterations. `changed_at` ascends."""
    return sorted({bisect_right(changed_at, k) - 1 for k in iterations} - {-1})


def note_of_links(used: Sequence[object]) -> str:
    """Return a note if the links in use are not known in all iterations, otherwise an empty text."""
    known = sum(one is not None for one in used)
    return f"drawn in {known:,} of these {len(used):,} iterations" if known < len(used) else ""
