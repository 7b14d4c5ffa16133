"""Which backend of a network is the fastest here, by the processor time of gradients of the run's own shapes.

`stacked` and `loop` differ in last bits, so a choice is made once: a process keeps it for all seeds, a run names its
backend in meta.json, and is resumed with that. The clock is that of the threads that compute: what else the machine
does matters little.
"""

from __future__ import annotations

from threading import Lock
from typing import Any

import numpy as np

from efhc.learning.backends.backend import Batch
from efhc.learning.backends.module_backend import LoopBackend
from efhc.learning.backends.stacked import MOST_AT_ONCE, StackedBackend
from efhc.learning.data.dataset import Dataset
from efhc.learning.models.modules import ModuleModel

CLEARLY_LESS = 0.9
"""`stacked` is taken if it needs at most this share of the time of `loop`, whose bits depend on less."""
ROUNDS, SECONDS, USUAL_BATCH = 5, 0.5, 64
"""Calls of each backend that are timed, the time after which no further ones are begun, and a batch of unknown size."""

_KNOWN: dict[tuple[Any, ...], bool] = {}
_MEASURING = Lock()


def is_stacked_faster(
    stacked: StackedBackend, loop: LoopBackend, model: ModuleModel, data: Dataset, devices: int, batch_size: int | None
) -> bool:
    """Return whether `stacked` takes clearly less time than `loop`: measured once in a process for the same shapes."""
    devices, batch = min(devices, 2 * MOST_AT_ONCE), min(batch_size or USUAL_BATCH, len(data.y_train))
    network = str(loop.module_for(np.zeros(loop.parameters, data.precision), {}))
    key = network, loop.parameters, data.shape, data.precision, loop.device, str(model.loss), devices, batch
    with _MEASURING:
        if key not in _KNOWN:
            one = model.initial(data, np.random.default_rng(0)).astype(data.precision)
            drawn = np.random.default_rng(0).integers(0, len(data.y_train), (devices, batch))
            seconds = _times((stacked, loop), np.tile(one, (devices, 1)), Batch(0, drawn))
            _KNOWN[key] = seconds[0] <= CLEARLY_LESS * seconds[1]
        return _KNOWN[key]


def _times(backends: tuple[StackedBackend, LoopBackend], models: np.ndarray, batch: Batch) -> list[float]:
    """Return the least processor time of a call of each backend. The first call is not timed: it prepares a lot."""
    out = np.empty_like(models)
    found: list[list[float]] = [[] for _ in backends]
    for turn in range(ROUNDS + 1):
        for backend, times in zip(backends, found, strict=True):
            before = backend.processor_seconds
            backend.grads(models, batch, backend.initial_local(len(models)), out)
            if turn:
                times.append(backend.processor_seconds - before)
        if turn and sum(map(sum, found)) > SECONDS:
            break
    return [min(times) for times in found]
