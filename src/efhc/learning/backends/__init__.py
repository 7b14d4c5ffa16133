"""Ways to compute the gradients of all devices, each held to the others by tests, and which one is taken.

Chosen by measurement (docs/performance.md): compiled loops for linear models and for small networks of simple layers;
for other small networks the faster of all devices stacked into one set of torch operations and one device after the
other, as timed here (`choosing`); one device after the other for large ones, where stacking only costs memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from efhc.base.errors import InputError, within
from efhc.core.randomness import Randomness
from efhc.learning.backends.backend import ArraysBackend, Backend, Batch
from efhc.learning.backends.linear_backend import LinearBackend
from efhc.learning.data.dataset import Dataset
from efhc.learning.models import ModuleModel

__all__ = ["Backend", "Batch", "backend_for"]

MOST_PARAMETERS = 1_000_000
"""Parameters of a module up to which `auto` compiles it, or stacks the devices."""


def backend_for(
    model: Any,
    data: Dataset,
    randomness: Randomness,
    name: str = "auto",
    device: str = "cpu",
    threads: int = 1,
    *,
    batch_size: int | None = None,
    devices: int = 10,
    devices_apart: bool = False,
) -> Backend:
    """Return the backend of that name, or with "auto" the one that is the fastest for this model.

    `devices` is the number of devices of a call: one alone is computed by the loop. `batch_size` is that of all
    devices; default: it is not known, or they differ. `devices_apart` says that calls will be for devices in iterations
    of their own: a module that draws noise is then computed by the loop over devices.

    Raises `InputError` if the model cannot use the backend or the device.
    """
    if not isinstance(model, ModuleModel):
        if not data.has_classes:
            given = f"a {type(model).__name__} for labels that are {data.label_words}"
            raise InputError("model", given, "a torch module, such as mlp, with a loss for such labels")
        known = ["linear", "arrays"] if LinearBackend.knows(model) else ["arrays"]
        if device != "cpu":
            raise InputError("device", device, "'cpu' for a model that is not a torch module")
        chosen = known[0] if name == "auto" else name
        if chosen not in known:
            raise InputError("backend", name, f"auto or {' or '.join(known)} for this model")
        return LinearBackend(model, data, threads=threads) if chosen == "linear" else ArraysBackend(model, data)

    from efhc.learning.backends import choosing
    from efhc.learning.backends.compiled_backend import CompiledBackend, NotCompiledError, is_faster, network_for
    from efhc.learning.backends.module_backend import LoopBackend
    from efhc.learning.backends.stacked import StackedBackend, UnstackableError
    from efhc.learning.pytorch import torch

    of = (model, data, randomness)
    compiled = partial(CompiledBackend, *of, batch_size=batch_size, threads=threads)
    stacked = partial(StackedBackend, *of, device=device, threads=threads)
    loop = partial(LoopBackend, *of, device=device, threads=threads)

    def auto() -> Backend:
        if model.parameters(data) > MOST_PARAMETERS:
            return loop()
        if device == "cpu":
            try:
                if is_faster(network_for(*of), batch_size):
                    return compiled()
            except NotCompiledError:
                pass
        try:
            found = stacked()
        except UnstackableError:
            return loop()
        if devices == 1 or (devices_apart and found.draws_noise):
            return loop()
        other = loop()
        return found if choosing.is_stacked_faster(found, other, model, data, devices, batch_size) else other

    ways: dict[str, Callable[[], Backend]] = {"auto": auto, "compiled": compiled, "stacked": stacked, "loop": loop}
    if name not in ways:
        raise InputError("backend", name, "auto, compiled, stacked or loop for a torch module")
    if name == "compiled" and device != "cpu":
        raise InputError("device", device, "'cpu' for backend = 'compiled'")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InputError("device", device, "cpu: PyTorch finds no CUDA device here")
    with within("model"):
        backend = ways[name]()
    if devices_apart and isinstance(backend, StackedBackend):
        backend.check_devices_may_part()
    return backend
