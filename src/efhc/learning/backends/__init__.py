"""Ways to compute the gradients of all devices, each held to the others by tests, and which one is taken.

Chosen by measurement (docs/performance.md): compiled loops for linear models, and for modules see `of_modules`.
"""

from __future__ import annotations

from typing import Any

from efhc.base.errors import InputError
from efhc.core.randomness import Randomness
from efhc.learning.backends.backend import Backend, Batch
from efhc.learning.backends.linear_backend import LinearBackend
from efhc.learning.backends.numpy_backend import ArraysBackend
from efhc.learning.data.dataset import Dataset
from efhc.learning.models import ModuleModel

__all__ = ["Backend", "Batch", "backend_for"]


def backend_for(
    model: Any,
    data: Dataset,
    randomness: Randomness,
    name: str = "auto",
    device: str = "cpu",
    threads: int = 1,
    *,
    batch_size: int | None = None,
    devices_apart: bool = False,
) -> Backend:
    """Return the backend of that name, or the one that was measured to be the fastest for such a model.

    `batch_size` is that of all devices; default: it is not known, or they differ. `devices_apart` says that calls will
    be for devices in iterations of their own: a module that draws noise is then computed by the loop over devices.
    Raises `InputError` if the model cannot use the backend or the device.
    """
    if not isinstance(model, ModuleModel):
        known = ["linear", "arrays"] if LinearBackend.knows(model) else ["arrays"]
        if device != "cpu":
            raise InputError("device", device, "'cpu' for a model that is not a torch module")
        chosen = known[0] if name == "auto" else name
        if chosen not in known:
            raise InputError("backend", name, f"auto or {' or '.join(known)} for this model")
        return LinearBackend(model, data, threads=threads) if chosen == "linear" else ArraysBackend(model, data)

    from efhc.learning.backends.of_modules import BackendsOfModule

    return BackendsOfModule(model, data, randomness, device, threads, batch_size, devices_apart).named(name)
