"""One device after the other, with whatever module.

Images stay channels first in memory: channels last was no faster here (ResNet-18, one core), and see `stacked_layers`.
"""

from __future__ import annotations

from collections.abc import Sequence

from efhc.base.arrays import Ints
from efhc.learning.backends.built_module import Tensors, functional_call
from efhc.learning.backends.module_backend import Modes, ModuleBackend
from efhc.learning.pytorch import nn, torch

FEW_POSITIONS = 16
"""Outputs per channel up to which one product of matrices takes two thirds of the time of a convolution."""


class LoopBackend(ModuleBackend):
    """A device's answers depend on nothing but its own model, samples and iteration, to the last bit (on the CPU)."""

    def _chosen(self, modes: Modes, start: Tensors) -> Modes:
        for module in modes.values():
            for layer in module.modules():
                if type(layer) is nn.Conv2d and layer.groups == 1 and isinstance(layer.padding, tuple):
                    layer.__class__ = _Convolution
        return modes

    def _parts(self, samples: Ints | Sequence[Ints]) -> list[slice]:
        return [slice(i, i + 1) for i in range(len(samples))]

    def _leaf(self, columns: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        return columns.view(shape)

    def _scores(self, network: nn.Module, parameters: Tensors, buffers: Tensors, x: torch.Tensor) -> torch.Tensor:
        tensors = {**parameters, **{name: buffer[0] for name, buffer in buffers.items()}}
        scores: torch.Tensor = functional_call(network, tensors, x.reshape(-1, *self._shape))
        buffers.update({name: tensors[name][None] for name in buffers})
        return scores[None]


class _Convolution(nn.Conv2d):
    """The same layer; on small images its windows become columns of one matrix."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if images.ndim != 4 or self.padding_mode != "zeros":
            return super().forward(images)
        height, width = (
            (
                images.shape[axis + 2]
                + 2 * int(self.padding[axis])
                - self.dilation[axis] * (self.kernel_size[axis] - 1)
                - 1
            )
            // self.stride[axis]
            + 1
            for axis in range(2)
        )
        if not 1 < height * width <= FEW_POSITIONS:
            return super().forward(images)
        options = {"dilation": self.dilation, "padding": self.padding, "stride": self.stride}
        windows = nn.functional.unfold(images, self.kernel_size, **options)  # type: ignore[arg-type]
        columns = windows.transpose(0, 1).flatten(1)
        products = self.weight.flatten(1) @ columns
        if self.bias is not None:
            products = products + self.bias[:, None]
        return products.view(-1, len(images), height, width).transpose(0, 1).contiguous()
