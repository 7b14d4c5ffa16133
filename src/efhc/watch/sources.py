"""Where what a page shows of a run comes from: its tables, its live file, or nodes that were asked.

Whatever the source, a part of a run is a table of columns that grows. A page that has the first rows of one generation
gets the others; when the generation changes, for example because a run is complete and its tables take the place of
its live file, it gets all anew.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, Protocol, cast

from efhc.report.views import Curve, Device, DeviceSamples, Events, Wiring

Part = Literal["curve", "samples", "events", "network"]
PARTS: tuple[Part, ...] = ("curve", "samples", "events", "network")
COLUMNS: dict[Part, tuple[str, ...]] = {
    "curve": tuple(Curve.__annotations__),
    "samples": tuple(DeviceSamples.__annotations__),
    "events": ("k", "fired", "used"),
    "network": ("k", "links"),
}

ACCURACIES = ("accuracy", "accuracy_min", "accuracy_max", "mean_model_accuracy", "consensus_error")
"""The columns of a curve that metrics, timelines and live files have by the same name."""

Columns = dict[str, list[Any]]


class Rows(NamedTuple):
    """Rows of one part, all read at the same moment."""

    generation: Hashable
    start: int
    """The number of rows of this generation before the first one here."""
    columns: Columns

    @property
    def end(self) -> int:
        """The number of rows of this generation up to the last one here."""
        return self.start + len(self.columns["k"])


class Source(Protocol):
    """What is known of one run."""

    @property
    def generation(self) -> Hashable:
        """A value that changes whenever known rows have changed. New rows at the end do not change it."""

    @property
    def devices(self) -> list[Device]:
        """The devices."""

    @property
    def leaves_out_events(self) -> bool:
        """Whether iterations are missing in the events."""

    @property
    def notes(self) -> dict[str, str]:
        """Facts about the run that depend on the source, by name."""

    def rows(self, part: Part, generation: Hashable = None, start: int = 0) -> Rows:
        """Return the rows of a part from `start` on if `generation` is the present generation, otherwise all rows."""


def curve_of(source: Source) -> Curve:
    """Return what was evaluated."""
    return cast("Curve", source.rows("curve").columns)


def samples_of(source: Source) -> DeviceSamples:
    """Return the samples of the devices."""
    return cast("DeviceSamples", source.rows("samples").columns)


def events_of(source: Source) -> Events:
    """Return who fired and which links were used."""
    return cast("Events", {**source.rows("events").columns, "is_sample": source.leaves_out_events})


def network_of(source: Source) -> list[Wiring]:
    """Return the physical links over time."""
    columns = source.rows("network").columns
    return [{"k": k, "links": links} for k, links in zip(columns["k"], columns["links"], strict=True)]


def as_columns(part: Part, rows: Iterable[Sequence[Any]]) -> Columns:
    """Return rows, with their values in the order of `COLUMNS`, as columns."""
    listed = list(rows)
    return {name: [row[place] for row in listed] for place, name in enumerate(COLUMNS[part])}


def in_force(changed_at: Sequence[int], iterations: Iterable[int]) -> list[int]:
    """Return the places of the changes that hold in any of these iterations. `changed_at` ascends."""
    return sorted({bisect_right(changed_at, k) - 1 for k in iterations} - {-1})


def note_of_links(used: Sequence[object]) -> str:
    """Return a note if the links in use are not known in all iterations, otherwise nothing."""
    known = sum(one is not None for one in used)
    return f"drawn in {known:,} of these {len(used):,} iterations" if known < len(used) else ""


class NothingYet:
    """The source of a run that has not begun."""

    generation: Hashable = "nothing"
    leaves_out_events = False

    @property
    def devices(self) -> list[Device]:
        return []

    @property
    def notes(self) -> dict[str, str]:
        return {}

    def rows(self, part: Part, generation: Hashable = None, start: int = 0) -> Rows:
        return Rows(self.generation, 0, as_columns(part, []))
