"""One device after the other, with whatever module.

Images stay channels first in memory: channels last was no faster here (ResNet-18, one core), and see `stacked_layers`.
"""

from __future__ import annotations

from collections.abc import Sequence

from efhc.core.arrays import Ints
from efhc.learning.backends.module_backend import ModuleBackend, Tensors, functional_call
from efhc.learning.pytorch import nn, torch


class LoopBackend(ModuleBackend):
    """A device's answers depend on nothing but its own model, samples and iteration, to the last bit (on the CPU)."""

    def _parts(self, samples: Ints | Sequence[Ints]) -> list[slice]:
        return [slice(i, i + 1) for i in range(len(samples))]

    def _leaf(self, columns: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        return columns.view(shape)

    def _scores(self, network: nn.Module, parameters: Tensors, buffers: Tensors, x: torch.Tensor) -> torch.Tensor:
        tensors = {**parameters, **{name: buffer[0] for name, buffer in buffers.items()}}
        scores: torch.Tensor = functional_call(network, tensors, x.reshape(-1, *self._shape))
        buffers.update({name: tensors[name][None] for name in buffers})
        return scores[None]
