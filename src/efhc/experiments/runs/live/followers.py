"""Followers hear of a run while it is made: the live file, the bar on the terminal, trackers.

A follower gets plain data, never the state: it cannot change the run, it costs little, and a run that is made on
another machine can be followed from here. One that fails is warned of once and left out; the run goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from efhc.experiments.runs.run import Run

Row = Mapping[str, float | int | None]
"""One row of the metrics, or of the timeline of an event-driven run, by column. The numbers are those of the table."""

EndState = Literal["done", "stopped", "failed"]
"""How a run ended. One that has stopped was interrupted and can go on; a failed one cannot."""


@dataclass(frozen=True)
class About:
    """Facts about a run that do not change while it is made."""

    experiment: str
    strategy: str
    seed: int
    key: str
    driver: str
    devices: int
    parameters: int
    """The number n of parameters of one model."""
    iterations: int
    bandwidths: Sequence[float]
    links: Sequence[tuple[int, int]]
    """The physical links at the beginning."""


@dataclass(frozen=True)
class DeviceSample:
    """What each device was like after k iterations."""

    k: int
    accuracy: Sequence[float]
    drift: Sequence[float] | None
    """How far each model is from its last broadcast, as the trigger measures it at iteration k. None: not measured."""
    threshold: Sequence[float] | None
    """The threshold of each device at iteration k. None: the strategy has no thresholds."""


@dataclass(frozen=True)
class EventSample:
    """Who fired and which links were used in one iteration."""

    k: int
    fired: Sequence[int]
    used: Sequence[tuple[int, int]]


class Follower:
    """Hears nothing; subclasses override what they need."""

    def begin(self, about: About, k: int) -> None:
        """The run begins or, with k > 0, goes on after k iterations. Rows of later iterations were not kept."""

    def recalled(self, rows: Callable[[], Iterable[Row]]) -> None:
        """The run goes on. `rows` reads the evaluated rows of its earlier sessions, which were perhaps heard then.

        Called right after `begin`. In lockstep, these rows have totals, but no `seconds`.
        """

    def reached(self, k: int) -> None:
        """The run has made k iterations. Called several times per second, and at the end: it must cost little."""

    def evaluated(self, row: Row) -> None:
        """The models were evaluated.

        In lockstep, `row` also has `seconds`, the time for which the run has been made so far, and `bits_total` and
        `broadcasts_total`, the sums of `bits` and `fired` over all iterations so far. They are None where they are
        unknown. Off lockstep, the row of the timeline has virtual seconds and totals of its own.
        """

    def sampled(self, devices: DeviceSample) -> None:
        """A thin sample of the devices."""

    def happened(self, events: Sequence[EventSample]) -> None:
        """A thin sample of the events. All links that they used are among those told by `begin` or `rewired` last."""

    def rewired(self, k: int, links: Sequence[tuple[int, int]]) -> None:
        """From iteration k, these are the physical links."""

    def end(self, state: EndState, problem: str | None) -> None:
        """The run has ended; `problem` says why it stopped or failed, if that is known. Called once after `begin`."""


class FollowerFactory(Protocol):
    """Creates one follower per run."""

    def __call__(self, run: Run) -> Follower:
        """Return the follower of a run."""
