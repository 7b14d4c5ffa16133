"""What happens in a run, as a stream of events for its readers: the live file, progress bars, trackers, notebooks.

Events hold copies of results, not the state of the training. All but `Recalled` can be serialized, so that a reader
also works for a run on another machine. A reader that fails is reported once and gets no further events; the run goes
on. The live file of a run (`live_file.py`) is these events, one JSON object per line.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from threading import RLock
from typing import Annotated, Literal

from pydantic import Field

from efhc.base.arrays import Ints
from efhc.experiments.runs.provenance import own_mark
from efhc.experiments.runs.run import Run
from efhc.experiments.runs.tables import driver_of
from efhc.learning.measures import EVALUATION, measures_of, metrics_in
from efhc.scenarios.personal import parameter_counts
from efhc.scenarios.scenario import Scenario

Row = Mapping[str, float | int | None]
"""One row of the metrics, or of the timeline of an event-driven run, by column. The numbers are those of the table."""

EndState = Literal["done", "stopped", "failed"]
"""How a run ended: complete; interrupted or ended by an unexpected error, so that it can be resumed; or failed, because
training diverged or a setting cannot be used (`keeping.FAILURES`)."""

# The live file may come from another user: these types limit what is read from it to what a run can have.
Finite = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Time = Annotated[float, Field(ge=0, le=1e11)]
"""Unix time."""
Links = Sequence[tuple[Count, Count]]
Numbers = Sequence[Finite | None]
"""None stands for a number that is not finite: JSON has none."""


@dataclass(frozen=True)
class Begin:
    """The run begins or, with k > 0, is resumed after k iterations: later ones were not kept."""

    at: Time
    k: Count
    experiment: str
    strategy: str
    seed: Annotated[int, Field(ge=-(2**64), le=2**64)]
    key: str
    driver: str
    devices: Annotated[Count, Field(ge=1)]
    parameters: Count
    """The number n of parameters of one model that are shared."""
    iterations: Count
    bandwidths: Sequence[Finite]
    links: Links
    """The physical links at the beginning."""
    pid: Annotated[int, Field(ge=1, lt=2**31)]
    host: str
    process: str | None
    """Distinguishes the process from a later one with the same pid. None: the system does not say."""
    kind: Literal["begin"] = "begin"
    personal_parameters: Count = 0
    """The number of parameters that each device trains and keeps to itself."""

    @classmethod
    def of(cls, run: Run, scenario: Scenario, k: int) -> Begin:
        """Return the event of a run that this process makes."""
        return cls.described(
            run,
            k,
            parameter_counts(scenario),
            scenario.bandwidths.values.tolist(),
            pairs(scenario.network.graph(0).links),
        )

    @classmethod
    def described(cls, run: Run, k: int, counts: tuple[int, int], bandwidths: Sequence[float], links: Links) -> Begin:
        """Return the event of a run, given the facts that its scenario or its tables have.

        `counts` are the numbers of shared and of personal parameters.
        """
        one, pid, (parameters, personal) = run.experiment, os.getpid(), counts
        facts = (run.whole.name, *run.pair, run.key, driver_of(one), one.devices, parameters, one.iterations)
        return cls(
            time.time(), k, *facts, bandwidths, links, pid, platform.node(), own_mark(pid), personal_parameters=personal
        )


@dataclass(frozen=True)
class Reached:
    """The run has made k iterations. Emitted several times per second, and at the end."""

    at: Time
    k: Count
    kind: Literal["reached"] = "reached"


@dataclass(frozen=True)
class Evaluated:
    """The models after k iterations were evaluated. Several rows may make up one evaluation: see `Evaluations`.

    In lockstep, `row` also has `seconds`, the time for which the run has been made so far, and `bits_total` and
    `broadcasts_total`, the sums of `bits` and `fired` over all iterations so far. They are None where they are
    unknown. The timeline of an event-driven run has virtual seconds and totals of its own.
    """

    at: Time
    k: Count
    row: Mapping[str, Annotated[int, Field(ge=-(2**63), lt=2**63)] | Finite | None]
    kind: Literal["evaluated"] = "evaluated"


@dataclass(frozen=True)
class Devices:
    """A sample of all devices after k iterations."""

    at: Time
    k: Count
    accuracy: Numbers | None
    """On the global test set. None: the objective has no accuracy."""
    drift: Numbers | None
    """The distance of each model from its last broadcast, as the trigger measures it. None: not measured."""
    threshold: Numbers | None
    """None in the list: infinite, so that the device does not fire."""
    own_accuracy: Numbers | None = None
    """On the device's own distribution. None: not known."""
    kind: Literal["devices"] = "devices"

    @property
    def numbers(self) -> dict[str, Numbers]:
        measured = {name: numbers for name, numbers in vars(self).items() if name not in ("at", "k", "kind")}
        return {name: numbers for name, numbers in measured.items() if numbers is not None}


@dataclass(frozen=True)
class Firings:
    """The devices that fired and the links that were used in iteration k, one of a sample of all iterations.

    All links are among those of the last `Begin` or `Network` event.
    """

    k: Count
    fired: Sequence[Count]
    used: Links
    seconds: Finite | None = None
    """The second up to which these events happened, if devices have their own clocks."""
    kind: Literal["events"] = "events"


@dataclass(frozen=True)
class Network:
    """The physical links from iteration k on."""

    k: Count
    links: Links
    kind: Literal["network"] = "network"


@dataclass(frozen=True)
class End:
    """The run has ended."""

    at: Time
    state: EndState
    problem: str | None
    """Why it stopped or failed, if that is known."""
    kind: Literal["end"] = "end"


@dataclass(frozen=True)
class Recalled:
    """The run is resumed. `rows` reads the rows of earlier sessions' evaluations; in lockstep they have no `seconds`.

    Emitted right after `Begin`, and never written to a file.
    """

    rows: Callable[[], Iterable[Row]]


LiveRecord = Begin | Reached | Evaluated | Devices | Firings | Network | End
"""The events that a live file holds."""
Event = LiveRecord | Recalled

EventReader = Callable[[Event], None]


class Follower:
    """A reader with one method per kind of event. Subclasses override what they need."""

    def __call__(self, event: Event) -> None:
        match event:
            case Begin():
                self.begin(event)
            case Recalled():
                self.recalled(event.rows)
            case Reached():
                self.reached(event.k)
            case Evaluated():
                self.evaluated(event.row)
            case Devices():
                self.sampled(event)
            case Firings():
                self.happened(event)
            case Network():
                self.rewired(event)
            case End():
                self.end(event.state, event.problem)

    def begin(self, run: Begin) -> None: ...

    def recalled(self, rows: Callable[[], Iterable[Row]]) -> None: ...

    def reached(self, k: int) -> None: ...

    def evaluated(self, row: Row) -> None: ...

    def sampled(self, devices: Devices) -> None: ...

    def happened(self, firings: Firings) -> None: ...

    def rewired(self, network: Network) -> None: ...

    def end(self, state: EndState, problem: str | None) -> None: ...


FollowerFactory = Callable[[Run], EventReader]
"""Creates the reader of one run's events."""


class EventStream:
    """Passes the events of one run to its readers, one event at a time."""

    def __init__(self, run: Run, warn: Callable[[str], None]) -> None:
        self._run, self._warn, self._lock = run, warn, RLock()
        self._readers: list[EventReader] = []
        self._begin: Begin | None = None
        self._network: Network | None = None

    def follow(self, factories: Sequence[FollowerFactory]) -> None:
        """Create the readers of the run, before its first event."""
        for factory in factories:
            try:
                self._readers.append(factory(self._run))
            except Exception as error:  # whatever is wrong with it, the run goes on
                self._leave_out(factory, error)

    def __len__(self) -> int:
        return len(self._readers)

    @property
    def wants_samples(self) -> bool:
        """Whether a reader uses more than rows: one without the attribute `rows_only`."""
        return not all(getattr(reader, "rows_only", False) for reader in self._readers)

    def emit(self, *events: Event) -> None:
        """Pass events to all readers. One that raises is reported and gets no further events."""
        with self._lock:  # models may be evaluated in a thread of their own
            for event in events:
                if isinstance(event, Begin):
                    self._begin, self._network = event, None
                elif isinstance(event, Network):
                    self._network = event
                for reader in [*self._readers]:
                    self._pass(reader, event)

    def add(self, reader: EventReader, rows: Sequence[Row] = ()) -> None:
        """Add a reader to a run that is being made.

        It gets the `Begin` event, the links in force as far as other readers know them, and `rows` as evaluated before.
        """
        with self._lock:
            self._readers.append(reader)
            for event in (self._begin, self._network):
                if event is not None:
                    self._pass(reader, event)
            for row in rows:
                self._pass(reader, Evaluated(time.time(), evaluated_after(row, self._begin), row))

    def end(self, state: EndState, problem: str | None) -> None:
        if self._begin is not None:
            self.emit(End(time.time(), state, problem))

    def _pass(self, reader: EventReader, event: Event) -> None:
        try:
            reader(event)
        except Exception as error:  # whatever is wrong with it, the run goes on
            self._readers.remove(reader)
            self._leave_out(reader, error)

    def _leave_out(self, reader: object, error: Exception) -> None:
        name = getattr(reader, "name", getattr(reader, "__name__", type(reader).__name__))
        reason = str(error) or type(error).__name__
        self._warn(f"{self._run.name}: {name} gets no further updates ({reason}); the run continues")


def measured(row: Row) -> dict[str, float]:
    """Return the measures that are known in a row, by name."""
    known = {name: value for name, value in row.items() if isinstance(value, int | float) and isfinite(value)}
    return {name: known[name] for name in measures_of(metrics_in(known)) if name in known}


class Evaluations:
    """The evaluations in a stream of rows: of one that consists of several rows, a row with the means of measures."""

    def __init__(self) -> None:
        self._which: float | None = None
        self._sums: dict[str, tuple[float, int]] = {}
        """The sum of each measure over the rows of the last evaluation, and their number."""

    def add(self, row: Row) -> tuple[Row, bool]:
        """Return the last evaluation, given a further row, and whether that row begins it."""
        which = row.get(EVALUATION)
        known = {} if which is None else measured(row)
        begins = not known or which != self._which
        if begins:
            self._which, self._sums = which, {}
        for name, value in known.items():
            total, count = self._sums.get(name, (0.0, 0))
            self._sums[name] = total + value, count + 1
        means = {} if begins else {name: total / count for name, (total, count) in self._sums.items()}
        return {**row, **means}, begins


def evaluated_after(row: Row, run: Begin | None) -> int:
    """Return the number k of iterations after which a row was evaluated; of a timeline, the mean over devices."""
    iteration = row.get("iteration")
    return int(row.get("steps") or 0) // (run.devices if run else 1) if iteration is None else int(iteration) + 1


def pairs(links: Ints) -> list[tuple[int, int]]:
    """Return links (links, 2) as pairs of devices."""
    return list(zip(*links.T.tolist(), strict=True)) if len(links) else []


EVENTS_PER_SECOND = 20.0
"""The largest number of iterations whose events are emitted, and of changes of the network, together."""
SAMPLE_SECONDS, SAMPLE_SHARE = 0.5, 0.005
"""Least time between two samples of the devices, and the greatest share of a run's time that they may take."""


class Allowance:
    """Limits samples to `per_second` on average, and to fewer if they are large."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._left, self._at = per_second, time.monotonic()  # short runs have samples, too

    def left(self) -> int:
        now = time.monotonic()
        self._left = min(self._left + (now - self._at) * self._per_second, self._per_second)
        self._at = now
        return max(0, int(self._left))

    def spend(self, entries: int) -> None:
        """Count one sample with this number of `entries`. Every hundred entries count as one more sample."""
        self._left = max(self._left - 1 - entries / 100, -10 * self._per_second)
