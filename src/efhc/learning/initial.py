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
from efhc.learning.models import Model


def _rows(devices: int, parameters: int, precision: str, row: Callable[[int], Floats]) -> Floats:
    """One row per device, made one at a time: nothing of their size in double precision is ever held."""
    models = np.empty((devices, parameters), dtype=precision)
    for i in range(devices):
        with np.errstate(over="ignore"):
            models[i] = row(i)
        if not np.isfinite(models[i]).all():
            raise InputError("kind", f"numbers too large for {precision}", "smaller ones, or float64")
    return models


class InitialModels(Policy, ABC):
    """Initial models that a config can name."""

    @abstractmethod
    def models(self, model: Model, data: Dataset, devices: int, randomness: Randomness) -> Floats:
        """The models (devices, n) in the precision of the data."""


class PerDevice(InitialModels):
    """Each device draws its own model."""

    kind: Literal["per-device"] = "per-device"

    def models(self, model: Model, data: Dataset, devices: int, randomness: Randomness) -> Floats:
        def drawn(device: int) -> Floats:
            return model.initial(data, randomness.stream(Purpose.INITIAL_MODELS, device))

        return _rows(devices, model.parameters(data), data.precision, drawn)


class Shared(InitialModels):
    """One model is drawn, and all devices start from it."""

    kind: Literal["shared"] = "shared"

    def models(self, model: Model, data: Dataset, devices: int, randomness: Randomness) -> Floats:
        drawn = model.initial(data, randomness.stream(Purpose.INITIAL_MODELS))
        return _rows(devices, model.parameters(data), data.precision, lambda device: drawn)


class Zeros(InitialModels):
    """All parameters are 0."""

    kind: Literal["zeros"] = "zeros"

    def models(self, model: Model, data: Dataset, devices: int, randomness: Randomness) -> Floats:
        return np.zeros((devices, model.parameters(data)), dtype=data.precision)


class ModelFile(InitialModels):
    """From a .npy file: one row per device, or one row for all."""

    kind: Literal["npy"] = "npy"
    path: InputFile
    """The file."""

    def models(self, model: Model, data: Dataset, devices: int, randomness: Randomness) -> Floats:
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
        return _rows(devices, parameters, data.precision, lambda device: all_rows[device])


INITIAL_MODELS = Family(InitialModels, (__name__,), ("models",), default="per-device")
AnyInitialModels = Annotated[InitialModels, INITIAL_MODELS]
