"""Which backend computes a torch module.

Chosen by measurement (docs/performance.md): compiled loops for small networks of simple layers; for others, all devices
stacked into one set of torch operations while a model is small, and one device after the other beyond, where stacking
only costs memory.
"""

from __future__ import annotations

from typing import NamedTuple

from efhc.base.errors import InputError, within
from efhc.core.randomness import Randomness
from efhc.learning.backends.backend import Backend
from efhc.learning.backends.compiled_backend import CompiledBackend, NotCompiledError, is_faster, network_for
from efhc.learning.backends.loop import LoopBackend
from efhc.learning.backends.stacked import StackedBackend, UnstackableError
from efhc.learning.data.dataset import Dataset
from efhc.learning.models import ModuleModel
from efhc.learning.pytorch import torch

MOST_PARAMETERS = 1_000_000
"""Parameters of a module up to which `auto` compiles it, or stacks the devices."""


class BackendsOfModule(NamedTuple):
    """What a module could be computed with."""

    model: ModuleModel
    data: Dataset
    randomness: Randomness
    device: str
    threads: int
    batch_size: int | None
    devices_apart: bool

    def named(self, name: str) -> Backend:
        """Return the backend of that name. Raises `InputError` if it cannot compute the module."""
        ways = {"auto": self._auto, "compiled": self._compiled, "stacked": self._stacked, "loop": self._loop}
        if name not in ways:
            raise InputError("backend", name, "auto, compiled, stacked or loop for a torch module")
        if name == "compiled" and self.device != "cpu":
            raise InputError("device", self.device, "'cpu' for backend = 'compiled'")
        if self.device.startswith("cuda") and not torch.cuda.is_available():
            raise InputError("device", self.device, "cpu: PyTorch finds no CUDA device here")
        with within("model"):
            backend = ways[name]()
        if self.devices_apart and isinstance(backend, StackedBackend):
            backend.check_devices_may_part()
        return backend

    def _auto(self) -> Backend:
        backend: Backend | None = None
        if self.model.parameters(self.data) <= MOST_PARAMETERS:
            backend = self._compiled_if_faster() or self._stacked_if_possible()
        return self._loop() if backend is None else backend

    def _compiled_if_faster(self) -> Backend | None:
        if self.device != "cpu":
            return None
        try:
            network = network_for(self.model, self.data, self.randomness)
        except NotCompiledError:
            return None
        return self._compiled() if is_faster(network, self.batch_size) else None

    def _stacked_if_possible(self) -> Backend | None:
        try:
            stacked = self._stacked()
        except UnstackableError:
            return None
        return None if self.devices_apart and stacked.draws_noise else stacked

    def _compiled(self) -> CompiledBackend:
        return CompiledBackend(self.model, self.data, self.randomness, batch_size=self.batch_size, threads=self.threads)

    def _stacked(self) -> StackedBackend:
        return StackedBackend(self.model, self.data, self.randomness, device=self.device, threads=self.threads)

    def _loop(self) -> LoopBackend:
        return LoopBackend(self.model, self.data, self.randomness, device=self.device, threads=self.threads)
