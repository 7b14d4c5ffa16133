"""One device after the other, with whatever module: images and their filters lie in memory channels last.

In that order, and on one core, torch 2.13 writes past the end of the gradient of a 1x1 convolution with a stride. Such
a layer is given every stride-th pixel and no stride instead, which is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from efhc.core.arrays import Ints
from efhc.learning.backends.module_backend import Modes, ModuleBackend, Tensors, functional_call
from efhc.learning.pytorch import channels_last, nn, skips_pixels, torch


class LoopBackend(ModuleBackend):
    """A device's answers depend on nothing but its own model, samples and iteration, to the last bit (on the CPU)."""

    def _chosen(self, modes: Modes, start: Tensors) -> Modes:
        for layer in (layer for module in modes.values() for layer in module.modules()):
            if isinstance(layer, nn.Conv2d) and skips_pixels(layer):
                layer.register_forward_pre_hook(partial(_every_pixel_of, layer.stride))
                layer.stride = (1, 1)
        return modes

    def _parts(self, samples: Ints | Sequence[Ints]) -> list[slice]:
        return [slice(i, i + 1) for i in range(len(samples))]

    def _leaf(self, columns: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        return columns.view(shape)

    def _scores(self, network: nn.Module, parameters: Tensors, buffers: Tensors, x: torch.Tensor) -> torch.Tensor:
        own = {name: buffer[0] for name, buffer in buffers.items()}
        x = x.reshape(-1, *self._shape)
        if x.ndim == 4:
            x = channels_last(x)
        tensors = {**parameters, **own}
        scores: torch.Tensor = functional_call(network, tensors, x)
        buffers.update({name: tensors[name][None] for name in own})
        return scores[None]


def _every_pixel_of(stride: tuple[int, ...], _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return (inputs[0][..., :: stride[0], :: stride[1]], *inputs[1:])
