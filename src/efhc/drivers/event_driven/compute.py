"""How long a gradient takes: t_i(k) seconds for the step k of device i, a function of (seed, i, k) alone."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Protocol

import numpy as np
from pydantic import Discriminator, Field, Tag

from efhc.base.arrays import Floats
from efhc.base.errors import InputError, within
from efhc.base.inputs import InputFile
from efhc.base.own_code import is_built_in, quoting
from efhc.base.policy import Policy
from efhc.base.registry import Family
from efhc.base.traces import LEAST, Seconds, as_number, read_trace
from efhc.core.randomness import Purpose, Randomness, Sequences


def _number_or_list(given: Any) -> str:
    return "list" if isinstance(given, list | tuple) else "number"


SecondsOfDevices = Annotated[
    Annotated[Seconds, Tag("number")] | Annotated[tuple[Seconds, ...], Field(min_length=1, strict=False), Tag("list")],
    Discriminator(_number_or_list),
]
"""One duration for all devices, or a list with one per device."""


class ComputeClock(Protocol):
    """The compute times of one run."""

    def seconds(self, device: int, k: int) -> float:
        """Return how long the gradient of `device` at its step `k` takes, the same in each call."""
        ...


class ComputeTimes(Policy, ABC):
    """Compute times that a config can name."""

    @abstractmethod
    def over_time(self, devices: int, randomness: Randomness) -> ComputeClock:
        """Return the compute times of `devices` devices."""


class ConstantCompute(ComputeTimes):
    """t_i(k) = seconds_i"""

    kind: Literal["constant"] = "constant"
    seconds: SecondsOfDevices = 1.0
    """How long a gradient takes: one number, or a list with one per device."""

    def over_time(self, devices: int, randomness: Randomness) -> ComputeClock:
        return RepeatedTimes([(one,) for one in _per_device("seconds", self.seconds, devices)])


class LognormalCompute(ComputeTimes):
    """t_i(k) = median_i exp(device_sigma y_i) exp(sigma z_i(k)), with y_i and z_i(k) standard normal.

    A time below 1e-9 seconds counts as 1e-9 seconds.
    """

    kind: Literal["lognormal"] = "lognormal"
    median: SecondsOfDevices = 1.0
    """Median of the compute times: one number, or a list with one per device."""
    sigma: float = Field(default=0.5, ge=0, le=10)
    """Standard deviation of the logarithm from step to step."""
    device_sigma: float = Field(default=0.0, ge=0, le=10)
    """Standard deviation of the logarithm from device to device."""

    def over_time(self, devices: int, randomness: Randomness) -> ComputeClock:
        medians = _per_device("median", self.median, devices)
        return LognormalTimes(medians, self.sigma, self.device_sigma, randomness)


class ComputeFile(ComputeTimes):
    """t_i(k) from a CSV file: columns `device` and `seconds`, or a trace with columns `device`, `k` and `seconds`.

    A trace has the steps k of every device from 0 without gaps, and repeats.
    """

    kind: Literal["csv"] = "csv"
    path: InputFile
    """The file."""

    def over_time(self, devices: int, randomness: Randomness) -> ComputeClock:
        times: list[dict[int, float]] = [{} for _ in range(devices)]
        for line in read_trace(self.path, ("device", "seconds"), ("device", "k", "seconds")):
            device = line.device(devices)
            k = line.whole("k") if "k" in line.cells else 0
            if k is None:
                raise line.refused("k", "whole numbers from 0")
            if k in times[device]:
                raise line.refused("device", f"each {'step' if 'k' in line.cells else 'device'} once")
            times[device][k] = line.seconds()
        for device, steps in enumerate(times):
            gap = next((k for k in range(max(len(steps), 1)) if k not in steps), None)
            if gap is not None:
                what = f"no time of device {device}" + (f" at k = {gap}" if steps else "")
                raise InputError("path", f"{what} in {self.path}", "every device, and k from 0 without gaps")
        return RepeatedTimes([tuple(steps[k] for k in range(len(steps))) for steps in times])


def _per_device(field: str, given: float | Sequence[float], devices: int) -> Sequence[float]:
    if isinstance(given, float | int):
        return [float(given)] * devices
    if len(given) != devices:
        raise InputError(field, f"{len(given)} compute times", f"one for all, or one per device, {devices}")
    return given


class RepeatedTimes:
    """Times from a list per device, which starts again when it ends."""

    def __init__(self, times: Sequence[Sequence[float]]) -> None:
        self._times = times

    def seconds(self, device: int, k: int) -> float:
        times = self._times[device]
        return times[k % len(times)]


class LognormalTimes:
    """Times that are drawn block by block. It remembers the block that each device is in, so every run has its own."""

    BLOCK: ClassVar = 128
    """Steps drawn at once, from one stream per device and block. Part of a run's identity."""

    def __init__(self, medians: Sequence[float], sigma: float, device_sigma: float, randomness: Randomness) -> None:
        def median(device: int) -> float:
            if not device_sigma:
                return medians[device]
            own = randomness.stream(Purpose.COMPUTE_TIMES, device, 0).standard_normal()
            return medians[device] * math.exp(device_sigma * own)

        def draw(stream: np.random.Generator, device: int) -> Floats:
            return np.maximum(median(device) * np.exp(sigma * stream.standard_normal(self.BLOCK)), LEAST)

        self._times = Sequences(randomness, Purpose.COMPUTE_TIMES, self.BLOCK, draw)

    def seconds(self, device: int, k: int) -> float:
        return float(self._times(k + self.BLOCK, device))  # block 0 holds what all steps of a device have in common


class CheckedClock:
    """The times of code that is not ours: each must be a positive, finite number that depends on (i, k) alone."""

    def __init__(self, policy: Any, clock: Any) -> None:
        self._policy, self._clock = policy, clock
        self._was_checked_twice = False

    def seconds(self, device: int, k: int) -> float:
        found = self._checked(device, k)
        if not self._was_checked_twice:
            self._was_checked_twice = True
            if (again := self._checked(device, k)) != found:
                given = f"{found} and then {again} for device {device} at k = {k}"
                raise InputError("driver.compute", given, "times that depend on the arguments only")
        return found

    def _checked(self, device: int, k: int) -> float:
        with quoting(self._policy, "driver.compute"):
            given = self._clock.seconds(device, k)
        seconds = as_number(given)
        if not 0 < seconds < math.inf:
            what = f"{given!r} for device {device} at k = {k}"
            raise InputError("driver.compute", what, "compute times that are positive and finite")
        return seconds


COMPUTE_TIMES = Family(ComputeTimes, (__name__,), ("over_time",), default="constant")
AnyComputeTimes = Annotated[ComputeTimes, COMPUTE_TIMES]


def draw_compute_times(compute: ComputeTimes, devices: int, randomness: Randomness) -> ComputeClock:
    """Return the compute times of one run. Raises `InputError` if the setting `driver.compute` cannot be used."""
    with within("driver.compute"), quoting(compute, "kind"):
        clock = compute.over_time(devices, randomness)
    if is_built_in(compute):
        return clock
    if not callable(getattr(clock, "seconds", None)):
        allowed = "an object with the method seconds(device, k)"
        raise InputError("driver.compute.kind", f"a {type(clock).__name__} from over_time", allowed)
    return CheckedClock(compute, clock)
