"""b_i over time, in parameters per second: piecewise constant, and a function of the config and the seed alone."""

from __future__ import annotations

import csv
import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, Protocol

import numpy as np
from pydantic import Field

from efhc.base.arrays import Floats
from efhc.base.errors import InputError
from efhc.base.inputs import InputFile, read_text
from efhc.base.policy import Policy
from efhc.base.registry import Family
from efhc.core.randomness import Purpose, Randomness
from efhc.network.bandwidths import LARGEST, NUMBER, SMALLEST

COLUMNS = ("seconds", "device", "rate")


class Rates(Protocol):
    """The rates of all devices over time. Times may be asked in any order; the answers are the same each time."""

    def rate(self, device: int, seconds: float) -> float:
        """Return how many parameters per second the device sends from this time on."""
        ...

    def next_change(self, device: int, seconds: float) -> float:
        """Return the first time after `seconds` at which the rate may change; infinity if it never does."""
        ...


class RatePolicy(Policy, ABC):
    """Rates over time that a config can name."""

    @abstractmethod
    def over_time(self, bandwidths: Floats, randomness: Randomness) -> Rates:
        """Return the rates of devices with the bandwidths b_i, (m,)."""


# Constant


class ConstantRates(RatePolicy):
    """b_i at all times"""

    kind: Literal["constant"] = "constant"

    def over_time(self, bandwidths: Floats, randomness: Randomness) -> Rates:
        return _Unchanged(bandwidths)


class _Unchanged:
    """b_i(t) = b_i"""

    def __init__(self, bandwidths: Floats) -> None:
        self._rates: list[float] = np.asarray(bandwidths, dtype=np.float64).tolist()

    def rate(self, device: int, seconds: float) -> float:
        return self._rates[device]

    def next_change(self, device: int, seconds: float) -> float:
        return math.inf


# From a file


class RateFile(RatePolicy):
    """b_i over time from a CSV file with the columns `seconds`, `device` and `rate`

    A row holds from its time on until the next row of the same device, the last one for ever. Before its first row,
    and without any, a device has its bandwidth b_i. A link of rate 0 carries nothing.
    """

    kind: Literal["csv"] = "csv"
    path: InputFile
    """The file. The times of each device ascend."""

    def over_time(self, bandwidths: Floats, randomness: Randomness) -> Rates:
        start: list[float] = np.asarray(bandwidths, dtype=np.float64).tolist()
        times: list[list[float]] = [[] for _ in start]
        values = [[rate] for rate in start]
        for line, seconds, device, rate in self._rows(len(start)):
            if times[device] and seconds <= times[device][-1]:
                given = f"second {seconds:g} after second {times[device][-1]:g} for device {device} in line {line}"
                raise InputError("path", f"{given} of {self.path}", "ascending times for each device")
            times[device].append(seconds)
            values[device].append(rate)
        return _Trace(times, values)

    def _rows(self, devices: int) -> Iterator[tuple[int, float, int, float]]:
        """Yield line, seconds, device and rate of each row."""
        reader = csv.reader(read_text(self.path).splitlines())
        try:
            header = [name.strip().lower() for name in next(reader, [])]
            if missing := [name for name in COLUMNS if name not in header]:
                raise InputError("path", f"no column {missing[0]} in {self.path}", f"the columns {', '.join(COLUMNS)}")
            columns = [header.index(name) for name in COLUMNS]
            for row in reader:
                if row:
                    cells = [row[column].strip() if column < len(row) else "" for column in columns]
                    place = f"in line {reader.line_num} of {self.path}"
                    seconds = _number("seconds", cells[0], 0.0, place)
                    device = _device(cells[1], devices, place)
                    yield reader.line_num, seconds, device, _number("rate", cells[2], SMALLEST, place)
        except csv.Error as error:
            raise InputError("path", f"{self.path} ({error})", "a CSV file") from None


def _number(name: str, cell: str, smallest: float, place: str) -> float:
    """Return the number of a cell, which is 0 or from `smallest` to `LARGEST`."""
    try:
        number = float(cell) if NUMBER.fullmatch(cell) else math.nan
    except ValueError:
        number = math.nan
    if not (number == 0 or smallest <= number <= LARGEST):
        allowed = f"0 or a number from {smallest} to {LARGEST}" if smallest else f"a number from 0 to {LARGEST}"
        raise InputError("path", f"{name} {cell[:40]!r} {place}", allowed)
    return abs(number)  # -0 is 0


def _device(cell: str, devices: int, place: str) -> int:
    if not (cell.isascii() and cell.isdecimal()) or len(cell) > len(str(devices)) or int(cell) >= devices:
        raise InputError("path", f"device {cell[:20]!r} {place}", f"devices 0 to {devices - 1}")
    return int(cell)


class _Trace:
    """Device i has rate values[i][c] after c of its changes."""

    def __init__(self, times: Sequence[Sequence[float]], values: Sequence[Sequence[float]]) -> None:
        self._times, self._values = times, values

    def rate(self, device: int, seconds: float) -> float:
        return self._values[device][bisect_right(self._times[device], seconds)]

    def next_change(self, device: int, seconds: float) -> float:
        times = self._times[device]
        change = bisect_right(times, seconds)
        return times[change] if change < len(times) else math.inf


# Two states


class MarkovRates(RatePolicy):
    """b_i in the good state, bad_share b_i in the bad one; both last exponentially distributed times

    Each device is in the good state at the start with probability good_seconds / (good_seconds + bad_seconds), and so
    at every other time.
    """

    kind: Literal["markov"] = "markov"
    good_seconds: float = Field(default=60.0, ge=1e-9, le=1e100)
    """Mean duration of the good state."""
    bad_seconds: float = Field(default=10.0, ge=1e-9, le=1e100)
    """Mean duration of the bad state."""
    bad_share: float = Field(default=0.1, ge=0, lt=1)
    """Share of b_i that is left in the bad state."""

    def over_time(self, bandwidths: Floats, randomness: Randomness) -> Rates:
        return _TwoStates(self, np.asarray(bandwidths, dtype=np.float64).tolist(), randomness)


class _TwoStates:
    """The courses of all devices. Each is drawn when it is first asked for."""

    def __init__(self, policy: MarkovRates, bandwidths: list[float], randomness: Randomness) -> None:
        self._policy, self._bandwidths, self._randomness = policy, bandwidths, randomness
        self._courses: dict[int, _Course] = {}

    def _course(self, device: int) -> _Course:
        if device not in self._courses:
            self._courses[device] = _Course(self._policy, self._randomness, device)
        return self._courses[device]

    def rate(self, device: int, seconds: float) -> float:
        good = self._course(device).is_good(seconds)
        return self._bandwidths[device] if good else self._policy.bad_share * self._bandwidths[device]

    def next_change(self, device: int, seconds: float) -> float:
        return self._course(device).next_change(seconds)


class _Course:
    """When one device changes its state. It keeps one block of changes, and goes back to the start if need be."""

    BLOCK = 64
    """Changes drawn at once, from one stream per device and block; even. Part of a run's identity."""

    def __init__(self, policy: MarkovRates, randomness: Randomness, device: int) -> None:
        self._randomness, self._device = randomness, device
        good, bad = policy.good_seconds, policy.bad_seconds
        share = randomness.stream(Purpose.LINK_RATES, device).random()
        self._starts_good = bool(share < good / (good + bad))
        self._means = np.tile([good, bad] if self._starts_good else [bad, good], self.BLOCK // 2)
        self._number, self._begin = -1, 0.0
        self._ends: list[float] = []
        self._go_to(0, 0.0)

    def _go_to(self, number: int, begin: float) -> None:
        stream = self._randomness.stream(Purpose.LINK_RATES, self._device, number)
        self._number, self._begin = number, begin
        self._ends = (begin + np.cumsum(stream.standard_exponential(self.BLOCK) * self._means)).tolist()

    def _changes_until(self, seconds: float) -> int:
        """Return how many changes of the block there are until `seconds`, after going to the block of that time."""
        if seconds < self._begin:
            self._go_to(0, 0.0)
        while seconds >= self._ends[-1]:
            self._go_to(self._number + 1, self._ends[-1])
        return bisect_right(self._ends, seconds)

    def is_good(self, seconds: float) -> bool:
        """Return whether the device is in the good state from `seconds` on."""
        return self._starts_good == (self._changes_until(seconds) % 2 == 0)

    def next_change(self, seconds: float) -> float:
        """Return the first change after `seconds`."""
        return self._ends[self._changes_until(seconds)]


RATES = Family(RatePolicy, (__name__,), ("over_time",), default="constant")
AnyRates = Annotated[RatePolicy, RATES]
