"""b_i over time, in parameters per second: piecewise constant, and a function of the config and the seed alone."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from functools import cache, partial
from typing import Annotated, Any, Literal, Protocol

import numpy as np
from pydantic import Field

from efhc.base.arrays import Floats
from efhc.base.errors import InputError
from efhc.base.inputs import InputFile
from efhc.base.own_code import is_built_in, quoting
from efhc.base.policy import Policy
from efhc.base.registry import Family
from efhc.base.traces import as_number, read_trace
from efhc.core.randomness import Purpose, Randomness
from efhc.network.bandwidths import LARGEST, SMALLEST


class Rates(Protocol):
    """The rates of all devices over time. Times may be given in any order; the results are the same each time."""

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
    """b_i(t) = b_i at all times."""

    kind: Literal["constant"] = "constant"

    def over_time(self, bandwidths: Floats, randomness: Randomness) -> Rates:
        return _Trace([()] * len(bandwidths), _plain(bandwidths))


# From a file


class RateFile(RatePolicy):
    """b_i over time from a CSV file with the columns `seconds`, `device` and `rate`.

    A row holds until the next one of its device. Before its first row a device has its bandwidth b_i. A link of rate 0
    carries nothing.
    """

    kind: Literal["csv"] = "csv"
    path: InputFile
    """The file. The times of each device ascend."""

    def over_time(self, bandwidths: Floats, randomness: Randomness) -> Rates:
        values = _plain(bandwidths)
        times: list[list[float]] = [[] for _ in values]
        for line in read_trace(self.path, ("seconds", "device", "rate")):
            seconds, device = line.seconds(least=0.0), line.device(len(values))
            rate = line.number("rate")
            if not (rate == 0 or SMALLEST <= rate <= LARGEST):
                raise line.refused("rate", f"0 or a number from {SMALLEST} to {LARGEST}")
            if times[device] and seconds <= times[device][-1]:
                given = f"second {seconds:g} after second {times[device][-1]:g} for device {device}"
                place = f"in line {line.place} of {self.path}"
                raise InputError("path", f"{given} {place}", "ascending times for each device")
            times[device].append(seconds)
            values[device].append(abs(rate))  # -0 is 0
        return _Trace(times, values)


def _plain(bandwidths: Floats) -> list[list[float]]:
    """Return the bandwidth of each device as the first of its rates."""
    rates: list[list[float]] = np.asarray(bandwidths, dtype=np.float64)[:, None].tolist()
    return rates


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


CYCLES = 1e8
"""How often a device may go through both states in a run, on average. Beyond, a change can be too small for the clock,
and to find the state of a device takes minutes."""


class MarkovRates(RatePolicy):
    """b_i in the good state, bad_share b_i in the bad one; both last exponentially distributed times.

    A device starts in the good state with probability good_seconds / (good_seconds + bad_seconds).
    """

    kind: Literal["markov"] = "markov"
    good_seconds: float = Field(default=60.0, ge=1e-9, le=1e100)
    """Mean duration of the good state."""
    bad_seconds: float = Field(default=10.0, ge=1e-9, le=1e100)
    """Mean duration of the bad state."""
    bad_share: float = Field(default=0.1, ge=0, lt=1)
    """Share of b_i that is left in the bad state."""

    def over_time(self, bandwidths: Floats, randomness: Randomness) -> Rates:
        return _TwoStates(self, bandwidths, randomness)


class _TwoStates:
    """The courses of all devices. Each is drawn when it is first used."""

    def __init__(self, policy: MarkovRates, bandwidths: Floats, randomness: Randomness) -> None:
        self._rates = [(policy.bad_share * good, good) for (good,) in _plain(bandwidths)]
        self._course = cache(partial(_Course, policy, randomness))

    def rate(self, device: int, seconds: float) -> float:
        return self._rates[device][self._course(device).is_good(seconds)]

    def next_change(self, device: int, seconds: float) -> float:
        return self._course(device).next_change(seconds)


class _Course:
    """When one device changes its state. It keeps one block of changes, and goes back to the start if need be."""

    BLOCK = 64
    """Changes drawn at once, from one stream per device and block; even. Part of a run's identity."""

    def __init__(self, policy: MarkovRates, randomness: Randomness, device: int) -> None:
        self._randomness, self._device = randomness, device
        good, bad = policy.good_seconds, policy.bad_seconds
        self._latest = CYCLES * (good + bad)
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
        if seconds > self._latest:
            mean = self._latest / CYCLES / 2
            given = f"states that last {mean:g} seconds on average at second {seconds:g}"
            raise InputError("driver.links.rates", given, f"longer states: at most {2 * CYCLES:g} changes on average")
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
        change = self._changes_until(seconds)  # which may go to another block
        return self._ends[change]


# Of the user's own


class CheckedRates:
    """The rates of code that is not ours: numbers that are finite and not negative, and changes that lie ahead."""

    def __init__(self, policy: Any, rates: Any) -> None:
        self._policy, self._rates = policy, rates

    def rate(self, device: int, seconds: float) -> float:
        with quoting(self._policy, "driver.links.rates"):
            given = self._rates.rate(device, seconds)
        rate = as_number(given)
        if not (rate == 0 or SMALLEST <= rate <= LARGEST):
            what = f"{given!r} from rate({device}, {seconds:g})"
            raise InputError("driver.links.rates", what, f"0 or a number from {SMALLEST} to {LARGEST}")
        return rate

    def next_change(self, device: int, seconds: float) -> float:
        with quoting(self._policy, "driver.links.rates"):
            given = self._rates.next_change(device, seconds)
        change = as_number(given)
        if not change > seconds:
            what = f"{given!r} from next_change({device}, {seconds:g})"
            raise InputError("driver.links.rates", what, f"a time after {seconds:g}, or infinity")
        return change


def draw_rates(policy: RatePolicy, bandwidths: Floats, randomness: Randomness) -> Rates:
    """Return the rates of one run. Raises `InputError` if the setting cannot be used."""
    with quoting(policy, "kind"):
        rates = policy.over_time(bandwidths, randomness)
    if is_built_in(policy):
        return rates
    if not all(callable(getattr(rates, name, None)) for name in ("rate", "next_change")):
        allowed = "an object with the methods rate(device, seconds) and next_change(device, seconds)"
        raise InputError("kind", f"a {type(rates).__name__} from over_time", allowed)
    return CheckedRates(policy, rates)


RATES = Family(RatePolicy, (__name__,), ("over_time",), default="constant")
AnyRates = Annotated[RatePolicy, RATES]
