"""The models w_i(0) that the devices start from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np

from efhc.base.arrays import Floats
from efhc.base.errors import InputError
from efhc.base.inputs import InputFile, parse_numpy, read_bytes
from efhc.base.policy import Policy
from efhc.base.registry import Family
from efhc.core.randomness import Purpose, Randomness
from efhc.learning.data.dataset import Dataset
from efhc.learning.models import AnyModel


class InitialModels(Policy, ABC):
    """Initial models that a config can name."""

    @abstractmethod
    def models(self, model: AnyModel, data: Dataset, devices: int, randomness: Randomness) -> Floats:
        """Return the models (devices, n) in the precision of the data."""

    def model_of(self, device: int, model: AnyModel, data: Dataset, devices: int, randomness: Randomness) -> Floats:
        """Return the model of one device, (n,): a copy of its row of `models`."""
        own: Floats = self.models(model, data, devices, randomness)[device].copy()
        return own


class RowByRow(InitialModels, ABC):
    """Initial models that are made one at a time, so that not all of them are ever in memory in double precision."""

    @abstractmethod
    def rows(self, model: AnyModel, data: Dataset, devices: int, randomness: Randomness) -> Callable[[int], Floats]:
        """Return a function that returns the model of a device, (n,), in any floating-point type."""

    def models(self, model: AnyModel, data: Dataset, devices: int, randomness: Randomness) -> Floats:
        row = self.rows(model, data, devices, randomness)
        models = np.empty((devices, model.parameters(data)), dtype=data.precision)
        for device in range(devices):
            models[device] = _rounded(row(device), data.precision)
        return models

    def model_of(self, device: int, model: AnyModel, data: Dataset, devices: int, randomness: Randomness) -> Floats:
        return _rounded(self.rows(model, data, devices, randomness)(device), data.precision)


def _rounded(given: Floats, precision: str) -> Floats:
    """Return a copy of a model in this precision."""
    with np.errstate(over="ignore"):
        own: Floats = np.array(given, precision)
    if not np.isfinite(own).all():
        raise InputError("kind", f"numbers too large for {precision}", "smaller ones, or float64")
    return own


class PerDevice(RowByRow):
    """Each device draws its own model."""

    kind: Literal["per-device"] = "per-device"

    def rows(self, model: AnyModel, data: Dataset, devices: int, randomness: Randomness) -> Callable[[int], Floats]:
        return lambda device: model.initial(data, randomness.stream(Purpose.INITIAL_MODELS, device))


class Shared(RowByRow):
    """One model is drawn, and all devices start from it."""

    kind: Literal["shared"] = "shared"

    def rows(self, model: AnyModel, data: Dataset, devices: int, randomness: Randomness) -> Callable[[int], Floats]:
        drawn = model.initial(data, randomness.stream(Purpose.INITIAL_MODELS))
        return lambda device: drawn


class Zeros(RowByRow):
    """All parameters are 0."""

    kind: Literal["zeros"] = "zeros"

    def rows(self, model: AnyModel, data: Dataset, devices: int, randomness: Randomness) -> Callable[[int], Floats]:
        zeros = np.zeros(model.parameters(data))
        return lambda device: zeros


class ModelFile(RowByRow):
    """From a .npy file: one row per device, or one row for all."""

    kind: Literal["npy"] = "npy"
    path: InputFile
    """The file."""

    def rows(self, model: AnyModel, data: Dataset, devices: int, randomness: Randomness) -> Callable[[int], Floats]:
        parameters = model.parameters(data)
        allowed = f"a .npy file of finite numbers of shape ({devices}, {parameters}) or ({parameters},)"
        given = parse_numpy(read_bytes(self.path), self.path, allowed).get("")
        if given is None or given.dtype.kind not in "fiu":
            raise InputError("path", f"{self.path}, not an array of numbers", allowed)
        if given.shape not in ((parameters,), (1, parameters), (devices, parameters)):
            raise InputError("path", f"shape {given.shape} in {self.path}", allowed)
        if not np.isfinite(given).all():
            raise InputError("path", f"NaN or infinity in {self.path}", allowed)
        all_rows = np.broadcast_to(given, (devices, parameters))
        return lambda device: all_rows[device]


INITIAL_MODELS = Family(InitialModels, (__name__,), ("models",), default="per-device")
AnyInitialModels = Annotated[InitialModels, INITIAL_MODELS]
