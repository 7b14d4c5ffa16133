"""Devices that come and go. The event number `count` of a device is a function of (seed, device, count) alone."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, Self, get_args

from pydantic import Field, field_validator, model_validator

from efhc.base.errors import InputError, Unusable, within
from efhc.base.inputs import InputFile
from efhc.base.own_code import is_built_in, quoting
from efhc.base.policy import Policy
from efhc.base.registry import Family
from efhc.base.traces import Seconds, TraceLine, as_number, read_trace
from efhc.core.randomness import Purpose, Randomness, Sequences

What = Literal["join", "leave", "crash", "restart"]
Status = Literal["there", "away", "crashed"]

BECOMES: dict[tuple[Status, What], Status] = {
    ("away", "join"): "there",
    ("there", "leave"): "away",
    ("there", "crash"): "crashed",
    ("crashed", "restart"): "there",
}
"""What may happen to a device, and what it is afterwards."""

IN_WORDS: dict[Status, str] = {"there": "is there", "away": "is not there", "crashed": "has crashed"}


class ChurnEvent(NamedTuple):
    """One thing that happens to one device."""

    seconds: float
    """When, in virtual time."""
    device: int
    what: What


class ChurnEvents(Protocol):
    """All that happens to the devices of one run."""

    def next_event(self, device: int, count: int) -> ChurnEvent | None:
        """Return what happens to `device` after `count` earlier events, the same each time; None if nothing does."""
        ...


class ChurnPolicy(Policy, ABC):
    """Churn that a config can name."""

    journal: Literal["keep", "lose"] = "keep"
    """Whether a device continues from its journal after a crash ("keep"), or from nothing ("lose")."""
    start: Literal["fresh", "copy"] = "fresh"
    """Start of a device that joins or lost all: its initial model ("fresh") or its first neighbour's ("copy")."""
    absent: tuple[Annotated[int, Field(ge=0)], ...] = Field(default=(), strict=False)
    """Devices that are missing at the start."""

    @field_validator("absent")
    @classmethod
    def _distinct(cls, absent: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(absent)) < len(absent):
            raise ValueError("each device once")
        return absent

    @abstractmethod
    def events(self, devices: int, randomness: Randomness) -> ChurnEvents:
        """Return all that happens to `devices` devices."""


class ChurnRates(ChurnPolicy):
    """The times until a device crashes, restarts, leaves and joins are exponential.

    With `crash_every` but without `restart_after`, every device crashes for good in the end; likewise with
    `leave_every` but without `join_after`.
    """

    kind: Literal["rates"] = "rates"
    crash_every: Seconds | None = None
    """Mean seconds until a crash. Default: no device crashes."""
    restart_after: Seconds | None = None
    """Mean seconds until a restart. Default: never."""
    leave_every: Seconds | None = None
    """Mean seconds until a device leaves. Default: no device leaves."""
    join_after: Seconds | None = None
    """Mean seconds until a missing device joins. Default: never."""

    @model_validator(mode="after")
    def _something_happens(self) -> Self:
        if self.crash_every is None and self.restart_after is not None:
            raise Unusable("restart_after", f"{self.restart_after:g} without crash_every", "crash_every beside it")
        if self.leave_every is None and self.join_after is not None and not self.absent:
            allowed = "leave_every or absent beside it"
            raise Unusable("join_after", f"{self.join_after:g} without leave_every and absent", allowed)
        if self.crash_every is None and self.leave_every is None and self.join_after is None:
            raise Unusable("kind", "'rates' without a rate", "crash_every, leave_every, or join_after with absent")
        return self

    @property
    def starts_over(self) -> bool:
        """Whether devices come back without what they had, any number of times: they may never finish."""
        leaves = self.leave_every is not None and self.join_after is not None
        loses = self.crash_every is not None and self.restart_after is not None and self.journal == "lose"
        return self.start == "fresh" and (leaves or loses)

    def events(self, devices: int, randomness: Randomness) -> ChurnEvents:
        return DrawnEvents(self, randomness)


class ChurnFile(ChurnPolicy):
    """Events from a CSV file with the columns `seconds`, `device` and `event` (join, leave, crash, restart), in order
    of time.
    """

    kind: Literal["csv"] = "csv"
    path: InputFile
    """The file."""

    def events(self, devices: int, randomness: Randomness) -> ChurnEvents:
        found: list[list[ChurnEvent]] = [[] for _ in range(devices)]
        status: list[Status] = ["away" if device in self.absent else "there" for device in range(devices)]
        before = 0.0
        for line in read_trace(self.path, ("seconds", "device", "event")):
            event = self._event(line, devices)
            if event.seconds < before:
                raise line.refused("seconds", f"times in order, here {before:g} or later")
            before = event.seconds
            became = BECOMES.get((status[event.device], event.what))
            if became is None:
                given = f"{_described(event, status[event.device])} in line {line.place} of {self.path}"
                raise InputError("path", given, _possible(status[event.device]))
            status[event.device] = became
            found[event.device].append(event)
        return ListedEvents(found)

    @staticmethod
    def _event(line: TraceLine, devices: int) -> ChurnEvent:
        what: Any = line.cells["event"].lower()
        if what not in get_args(What):
            raise line.refused("event", ", ".join(get_args(What)))
        return ChurnEvent(line.seconds(least=0.0), line.device(devices), what)


def _described(event: ChurnEvent, status: Status) -> str:
    return f"{event.what} of device {event.device} at {event.seconds:g} s, which {IN_WORDS[status]}"


def _possible(status: Status) -> str:
    return " or ".join(what for before, what in BECOMES if before == status)


class ListedEvents:
    """Events from one list per device."""

    def __init__(self, events: Sequence[Sequence[ChurnEvent]]) -> None:
        self._events = events

    def next_event(self, device: int, count: int) -> ChurnEvent | None:
        events = self._events[device]
        return events[count] if count < len(events) else None


class FollowedEvents(ABC):
    """Events that depend on those before them, which are kept."""

    def __init__(self, absent: Collection[int]) -> None:
        self._absent = absent
        self._known: dict[int, list[ChurnEvent]] = {}
        self._status: dict[int, Status] = {}

    @abstractmethod
    def follow(self, device: int, before: Sequence[ChurnEvent], status: Status) -> ChurnEvent | None:
        """Return the next event of a device, which is possible with its status and not earlier than those before."""

    def next_event(self, device: int, count: int) -> ChurnEvent | None:
        known = self._known.setdefault(device, [])
        while len(known) <= count:
            status = self._status.get(device, "away" if device in self._absent else "there")
            event = self.follow(device, known, status)
            if event is None:
                return None
            known.append(event)
            self._status[device] = BECOMES[status, event.what]
        return known[count]


def _latest(before: Sequence[ChurnEvent]) -> float:
    return before[-1].seconds if before else 0.0


class DrawnEvents(FollowedEvents):
    """The events of `ChurnRates`."""

    BLOCK: ClassVar = 16
    """Events drawn at once, from one stream per device and block. Part of a run's identity."""

    def __init__(self, rates: ChurnRates, randomness: Randomness) -> None:
        super().__init__(rates.absent)
        self._rates = rates
        self._draws = Sequences(
            randomness, Purpose.CHURN, self.BLOCK, lambda stream, device: stream.standard_exponential((self.BLOCK, 2))
        )

    def follow(self, device: int, before: Sequence[ChurnEvent], status: Status) -> ChurnEvent | None:
        rates = self._rates
        of_status: dict[Status, list[tuple[What, float | None]]] = {
            "there": [("crash", rates.crash_every), ("leave", rates.leave_every)],
            "crashed": [("restart", rates.restart_after)],
            "away": [("join", rates.join_after)],
        }
        possible = of_status[status]
        if all(mean is None for _, mean in possible):
            return None
        drawn = self._draws(len(before), device).tolist()
        waits = [(mean * one, what) for (what, mean), one in zip(possible, drawn, strict=False) if mean is not None]
        wait, what = min(waits)
        return ChurnEvent(_latest(before) + wait, device, what)


class CheckedEvents(FollowedEvents):
    """The events of code that is not ours: each is possible where its device is, and none comes before the last."""

    AT_ONE_INSTANT: ClassVar = 1000
    """How many events one device may have at one time: endlessly many would stop the clock."""

    def __init__(self, policy: Any, events: Any, absent: frozenset[int]) -> None:
        super().__init__(absent)
        self._policy, self._events = policy, events

    def follow(self, device: int, before: Sequence[ChurnEvent], status: Status) -> ChurnEvent | None:
        with quoting(self._policy, "driver.churn"):
            given = self._events.next_event(device, len(before))
            event = None if given is None else ChurnEvent(*given)
        if event is None:
            return None
        if event.device != device or event.what not in get_args(What):
            raise InputError("driver.churn", f"{tuple(event)!r} for device {device}", "(seconds, device, what)")
        seconds, latest = as_number(event.seconds), _latest(before)
        if not latest <= seconds < math.inf:
            allowed = f"a finite time, {latest:g} s or later"
            raise InputError("driver.churn", f"{event.seconds!r} for event {len(before)} of device {device}", allowed)
        if (status, event.what) not in BECOMES:
            raise InputError("driver.churn", _described(event, status), _possible(status))
        if len(before) > self.AT_ONE_INSTANT and before[-1 - self.AT_ONE_INSTANT].seconds == seconds:
            given = f"more than {self.AT_ONE_INSTANT} events of device {device} at {seconds:g} s"
            raise InputError("driver.churn", given, "later times, or None")
        return ChurnEvent(seconds, device, event.what)


CHURN = Family(ChurnPolicy, (__name__,), ("events",), default="rates")
AnyChurn = Annotated[ChurnPolicy, CHURN]


@dataclass(frozen=True, eq=False)
class Churn:
    """The churn of one run."""

    absent: frozenset[int]
    """Devices that are missing at the start."""
    journal: Literal["keep", "lose"]
    """What a device that crashes does with its journal."""
    start: Literal["fresh", "copy"]
    """What a device that joins starts from."""
    events: ChurnEvents


def draw_churn(churn: ChurnPolicy | None, devices: int, randomness: Randomness) -> Churn:
    """Return the churn of one run; for None, one in which nothing happens.

    Raises `InputError` if the setting `driver.churn` cannot be used.
    """
    if churn is None:
        return Churn(frozenset(), "keep", "fresh", ListedEvents([()] * devices))
    absent = frozenset(getattr(churn, "absent", ()))
    if unknown := sorted(device for device in absent if not 0 <= device < devices):
        raise InputError("driver.churn.absent", f"device {unknown[0]}", f"devices 0 to {devices - 1}")
    with within("driver.churn"), quoting(churn, "kind"):
        events = churn.events(devices, randomness)
    if not is_built_in(churn):
        if not callable(getattr(events, "next_event", None)):
            allowed = "an object with the method next_event(device, count)"
            raise InputError("driver.churn.kind", f"a {type(events).__name__} from events", allowed)
        events = CheckedEvents(churn, events, absent)
    return Churn(absent, getattr(churn, "journal", "keep"), getattr(churn, "start", "fresh"), events)
