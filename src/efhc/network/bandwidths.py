"""Bandwidths b_i. Each kind also has a nominal bandwidth b_M, the 1/rho of the global threshold (GT)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, Field

from efhc.base.errors import InputError
from efhc.base.inputs import InputFile
from efhc.base.policy import Policy
from efhc.base.registry import Family
from efhc.base.traces import read_trace
from efhc.core.randomness import Purpose, Randomness
from efhc.core.triggers import Bandwidths

SMALLEST, LARGEST = 1e-100, 1e100
"""Beyond these, 1/b_i and the sums of such numbers are no longer numbers."""


def _not_too_small(value: float) -> float:
    if value < SMALLEST:
        raise ValueError(f"at least {SMALLEST}")
    return value


Positive = Annotated[float, Field(gt=0, le=LARGEST), AfterValidator(_not_too_small)]


class BandwidthPolicy(Policy, ABC):
    """Bandwidths that a config can name."""

    @abstractmethod
    def draw(self, devices: int, randomness: Randomness) -> Bandwidths:
        """Return the bandwidths of all devices, and the nominal one."""


class ConstantBandwidth(BandwidthPolicy):
    """b_i = value"""

    kind: Literal["constant"] = "constant"
    value: Positive = 5000.0
    """The bandwidth of every device."""

    def draw(self, devices: int, randomness: Randomness) -> Bandwidths:
        return Bandwidths(np.full(devices, self.value), self.value)


class UniformBandwidth(BandwidthPolicy):
    """b_i uniform in ((1 - spread) b_M, (1 + spread) b_M)"""

    kind: Literal["uniform"] = "uniform"
    nominal: Positive = 5000.0
    """b_M, here the mean."""
    spread: float = Field(default=0.9, ge=0, lt=1)
    """The paper's sigma_N."""

    def draw(self, devices: int, randomness: Randomness) -> Bandwidths:
        low, high = (1 - self.spread) * self.nominal, (1 + self.spread) * self.nominal
        return Bandwidths(randomness.stream(Purpose.BANDWIDTHS).uniform(low, high, devices), self.nominal)


class BetaBandwidth(BandwidthPolicy):
    """b_i = max(Beta(a, b), floor) b_M"""

    kind: Literal["beta"] = "beta"
    nominal: Positive = 5000.0
    """b_M, here the upper end."""
    a: float = Field(default=0.5, gt=0)
    """First parameter of the Beta distribution."""
    b: float = Field(default=0.5, gt=0)
    """Second parameter of the Beta distribution."""
    floor: float = Field(default=0.01, gt=0, le=1)
    """Smallest share of b_M: the cost n / b_i explodes near 0."""

    def draw(self, devices: int, randomness: Randomness) -> Bandwidths:
        shares = randomness.stream(Purpose.BANDWIDTHS).beta(self.a, self.b, devices)
        values = np.maximum(shares, self.floor) * self.nominal
        if values.min() < SMALLEST:
            raise InputError("floor", self.floor, f"a floor for which bandwidths are at least {SMALLEST}")
        return Bandwidths(values, self.nominal)


def _given(field: str, values: Sequence[float], nominal: float | None, devices: int) -> Bandwidths:
    if len(values) != devices:
        raise InputError(field, f"{len(values)} bandwidths", f"one per device, {devices}")
    return Bandwidths(np.array(values), float(np.mean(values)) if nominal is None else nominal)


class GivenBandwidths(BandwidthPolicy):
    """b_i from a list."""

    kind: Literal["list"] = "list"
    values: tuple[Positive, ...] = Field(strict=False)
    """One bandwidth per device."""
    nominal: Positive | None = None
    """b_M. Default: the mean of the list."""

    def draw(self, devices: int, randomness: Randomness) -> Bandwidths:
        return _given("values", self.values, self.nominal, devices)


class BandwidthFile(BandwidthPolicy):
    """b_i from a CSV file: one number per line, or columns `device` and `bandwidth` with a header."""

    kind: Literal["csv"] = "csv"
    path: InputFile
    """The file."""
    nominal: Positive | None = None
    """b_M. Default: the mean of the file."""

    def draw(self, devices: int, randomness: Randomness) -> Bandwidths:
        found: dict[int, float] = {}
        lines = read_trace(self.path, ("bandwidth",), ("device", "bandwidth"), alone="bandwidth")
        for order, line in enumerate(lines):
            device = line.device(devices) if "device" in line.cells else order
            if device in found:
                raise line.refused("device", "each device once")
            found[device] = line.number("bandwidth")
            if not SMALLEST <= found[device] <= LARGEST:
                raise line.refused("bandwidth", f"a number from {SMALLEST} to {LARGEST}")
        return _given("path", [found[device] for device in sorted(found)], self.nominal, devices)


def _as_list(given: Any) -> Any:
    """Return the table of a list or an array of numbers, which Python users may pass as bandwidths."""
    numbers = given.tolist() if isinstance(given, np.ndarray) else given
    return {"kind": "list", "values": numbers} if isinstance(numbers, list | tuple) else numbers


BANDWIDTHS = Family(
    BandwidthPolicy,
    (__name__,),
    ("draw",),
    default="uniform",
    from_python=_as_list,
    python_types=("Sequence[float]", "NDArray[Any]"),
)
AnyBandwidths = Annotated[BandwidthPolicy, BANDWIDTHS]
