"""The models w_i(0) that the devices start from."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from efhc.core.arrays import Floats
from efhc.core.errors import InputError
from efhc.core.policy import Policy, default_kind, or_your_own
from efhc.core.randomness import Purpose, Randomness
from efhc.inputs import InputFile, parse_numpy, read_bytes
from efhc.learning.models import LinearModel


class PerDevice(Policy):
    """Each device draws its own."""

    kind: Literal["per-device"] = "per-device"

    def models(self, model: LinearModel, features: int, classes: int, devices: int, randomness: Randomness) -> Floats:
        streams = (randomness.stream(Purpose.INITIAL_MODELS, i) for i in range(devices))
        return np.stack([model.initial(features, classes, stream) for stream in streams])


class Shared(Policy):
    """One is drawn, and all devices start from it."""

    kind: Literal["shared"] = "shared"

    def models(self, model: LinearModel, features: int, classes: int, devices: int, randomness: Randomness) -> Floats:
        drawn = model.initial(features, classes, randomness.stream(Purpose.INITIAL_MODELS))
        return np.tile(drawn, (devices, 1))


class Zeros(Policy):
    """All parameters 0."""

    kind: Literal["zeros"] = "zeros"

    def models(self, model: LinearModel, features: int, classes: int, devices: int, randomness: Randomness) -> Floats:
        return np.zeros((devices, model.parameters(features, classes)))


class ModelFile(Policy):
    """From a .npy file: one row per device, or one row for all."""

    kind: Literal["npy"] = "npy"
    path: InputFile

    def models(self, model: LinearModel, features: int, classes: int, devices: int, randomness: Randomness) -> Floats:
        parameters = model.parameters(features, classes)
        allowed = f"a .npy file of finite numbers of shape ({devices}, {parameters}) or ({parameters},)"
        given = parse_numpy(read_bytes(self.path), self.path, allowed).get("")
        if given is None or given.dtype.kind not in "fiu":
            raise InputError("path", f"{self.path}, not an array of numbers", allowed)
        if given.shape not in ((parameters,), (1, parameters), (devices, parameters)):
            raise InputError("path", f"shape {given.shape} in {self.path}", allowed)
        if not np.isfinite(given).all():
            raise InputError("path", f"NaN or infinity in {self.path}", allowed)
        return np.broadcast_to(given, (devices, parameters)).copy()


AnyInitialModels = Annotated[
    PerDevice | Shared | Zeros | ModelFile,
    Field(discriminator="kind"),
    default_kind("per-device"),
    or_your_own("models"),
]
