"""Ways to compute the gradients of all devices, each held to the others by tests, and which one is taken.

Chosen by measurement (docs/performance.md): compiled loops for linear models; all devices stacked into one set of torch
operations while a model is small; one device after the other beyond, where stacking only costs memory.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import Any

from efhc.base.errors import InputError, within
from efhc.core.randomness import Randomness
from efhc.learning.backends.backend import Backend, Batch
from efhc.learning.backends.compiled_backend import LinearBackend
from efhc.learning.backends.numpy_backend import ArraysBackend
from efhc.learning.data.dataset import Dataset
from efhc.learning.models import ModuleModel

__all__ = ["Backend", "Batch", "backend_for"]

STACKED = 1_000_000
"""Parameters up to which devices are stacked."""


def backend_for(
    model: Any,
    data: Dataset,
    randomness: Randomness,
    name: str = "auto",
    device: str = "cpu",
    threads: int = 1,
    *,
    devices_apart: bool = False,
) -> Backend:
    """Return the backend of that name, or the one that was measured to be the fastest for such a model.

    `devices_apart` says that calls will be for devices in iterations of their own: a module that draws noise is then
    computed by the loop over devices. Raises `InputError` if the model cannot use the backend or the device.
    """
    if not isinstance(model, ModuleModel):
        known = ["linear", "arrays"] if LinearBackend.knows(model) else ["arrays"]
        if device != "cpu":
            raise InputError("device", device, "'cpu' for a model that is not a torch module")
        chosen = known[0] if name == "auto" else name
        if chosen not in known:
            raise InputError("backend", name, f"auto or {' or '.join(known)} for this model")
        return LinearBackend(model, data, threads=threads) if chosen == "linear" else ArraysBackend(model, data)

    from efhc.learning.backends.loop import LoopBackend
    from efhc.learning.backends.stacked import StackedBackend, UnstackableError
    from efhc.learning.pytorch import torch

    if name not in {"auto", "stacked", "loop"}:
        raise InputError("backend", name, "auto, stacked or loop for a torch module")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InputError("device", device, "cpu: PyTorch finds no CUDA device here")
    stacked = None
    with within("model"):
        if name == "stacked" or (name == "auto" and model.parameters(data) <= STACKED):
            with suppress(UnstackableError) if name == "auto" else nullcontext():
                stacked = StackedBackend(model, data, randomness, device=device, threads=threads)
        if stacked is None or (name == "auto" and devices_apart and stacked.draws_noise):
            return LoopBackend(model, data, randomness, device=device, threads=threads)
    if devices_apart:
        stacked.check_devices_may_part()
    return stacked
