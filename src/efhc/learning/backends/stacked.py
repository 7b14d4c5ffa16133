"""All devices at once, layer by layer where the module can be traced, else the whole of it by `torch.func.vmap`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from efhc.base.arrays import Floats, Ints
from efhc.base.errors import InputError
from efhc.core.state import Local
from efhc.learning.backends.backend import Batch
from efhc.learning.backends.built_module import Tensors, functional_call, has_hooks
from efhc.learning.backends.module_backend import Modes, ModuleBackend, shared_copy
from efhc.learning.backends.stacked_layers import StackedLayers, traced
from efhc.learning.pytorch import nn, torch

MOST_AT_ONCE = 6
"""Devices per part: more no longer pay for the cache that they need."""


ALLOWED = "the loop over devices, backend = 'loop'"
"""What an error tells the user to take instead."""


class UnstackableError(InputError):
    """A module that can only be computed one device after the other."""


class StackedBackend(ModuleBackend):
    """A device's answers depend on its own model, samples and iteration and on the number of devices (on the CPU).

    Devices whose batches differ in length are computed one by one. The devices of a part share one stream of noise, so
    a module that draws noise needs all devices in one iteration.
    """

    def grads(self, models: Floats, batch: Batch, local: Local, out: Floats) -> tuple[Floats, Local]:
        if not batch.is_lockstep:
            self.check_devices_may_part()
        return super().grads(models, batch, local, out)

    def check_devices_may_part(self) -> None:
        """Raise `InputError` if the devices cannot be in iterations of their own, because they share noise."""
        if self.draws_noise:
            given = f"stacked, with devices in iterations of their own and a {self._name} that draws random numbers"
            raise InputError("backend", given, "loop, or auto, which takes loop for it")

    def _parts(self, samples: Ints | Sequence[Ints]) -> list[slice]:
        devices = len(samples)
        if len({len(of_device) for of_device in samples}) > 1:
            return [slice(i, i + 1) for i in range(devices)]
        parts = min(devices, 2 * math.ceil(devices / (2 * MOST_AT_ONCE)))  # an even number, for an even number of cores
        cuts = [devices * part // parts for part in range(parts + 1)]
        return [slice(low, high) for low, high in pairwise(cuts)]

    def _leaf(self, columns: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        return columns.view(-1, *shape)

    def _scores(self, network: nn.Module, parameters: Tensors, buffers: Tensors, x: torch.Tensor) -> torch.Tensor:
        shared = x.ndim == len(self._shape) + 1
        if isinstance(network, torch.fx.GraphModule):
            if network not in self._layers:
                self._layers[network] = StackedLayers(network, self._aliases)
            return self._layers[network].scores(parameters, buffers, x, shared=shared)

        def of_device(own: Tensors, own_buffers: Tensors, x: torch.Tensor) -> tuple[torch.Tensor, Tensors]:
            tensors = {**own, **own_buffers}
            scores = functional_call(network, tensors, x)
            return scores, {name: tensors[name] for name in own_buffers}

        in_dims = (0, 0, None if shared else 0)
        scores, after = torch.func.vmap(of_device, in_dims, randomness="different")(parameters, buffers, x)
        buffers.update(after)
        result: torch.Tensor = scores
        return result

    def _chosen(self, modes: Modes, start: Tensors) -> Modes:
        """The first way that gives two different devices what each gives alone."""
        if any(has_hooks(part, "backward") for part in self._module.modules()):  # both ways would leave them out
            raise UnstackableError("module", f"a {self._name} with backward hooks", ALLOWED)
        names = {id(parameter): name for name, parameter in self._module.named_parameters()}
        all_names = self._module.named_parameters(remove_duplicate=False)
        self._layers: dict[nn.Module, StackedLayers] = {}
        self._aliases = {name: names[id(parameter)] for name, parameter in all_names}
        problem: Exception | str = "its scores differ from those of one device at a time"
        layers: Modes = {mode: graph for mode, module in modes.items() if (graph := traced(shared_copy(module)))}
        for way in (layers, modes):
            try:
                if way.keys() == modes.keys() and all(self._agrees(start, modes[mode], way[mode]) for mode in modes):
                    return way
            except Exception as error:  # tracing and vmap refuse in many ways
                problem = error
        given = (
            f"a {self._name} that cannot be computed for all devices at once ({str(problem).strip().splitlines()[0]})"
        )
        raise UnstackableError("module", given, ALLOWED)

    def _agrees(self, start: Tensors, alone: nn.Module, at_once: nn.Module) -> bool:
        count = len(self.data.y_train)
        x, y = self._inputs([np.array([0, count - 1]), np.array([count - 1, 1 % count])])
        pairs = {name: torch.stack([value, 0.9 * value]).requires_grad_() for name, value in start.items()}
        buffers = {name: torch.stack([value, value]) for name, value in self._buffers.items()}
        after: dict[str, Any] = dict(buffers)
        buffers = {name: value.clone() for name, value in buffers.items()}
        inputs = x if alone.training else x[0]
        scores = self._scores(at_once, pairs, buffers, inputs)
        if alone.training:
            torch.autograd.backward(self._losses(scores, y).sum())
        if self.draws_noise and alone.training:
            return True
        for device in range(2):
            own = {name: value[device] for name, value in pairs.items()}
            own_buffers = {name: value[device].clone() for name, value in after.items()}
            tensors = {**own, **own_buffers}
            want = functional_call(alone, tensors, x[device] if alone.training else x[0])
            got = {name: buffers[name][device] for name in own_buffers}
            if not _close(scores[device], want) or not all(_close(got[name], tensors[name]) for name in got):
                return False
        return True


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and bool((a - b).abs().max() <= 1e-3 * (1 + b.abs().max()))
