"""What a small network is to compiled loops: a chain of layers whose shapes are known, and the parameters of each.

The parameters of all layers are one row of numbers, in the order of torch: the weights of a layer, then its biases.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from efhc.kernels.lanes import BYTES

Shape = tuple[int, int, int]
"""Channels, rows and columns."""


class Convolution(NamedTuple):
    """y_o = b_o + sum_i w_oi * x_i, moved by one pixel at a time over x_i padded with zeros."""

    outputs: int
    kernel: tuple[int, int]
    padding: tuple[int, int]
    bias: bool

    def after(self, shape: Shape) -> Shape:
        """The shape of y."""
        rows, columns = (shape[1 + axis] + 2 * self.padding[axis] - self.kernel[axis] + 1 for axis in range(2))
        return self.outputs, rows, columns

    def parameters(self, shape: Shape) -> int:
        """The number of parameters for an input of this shape."""
        return self.outputs * (shape[0] * math.prod(self.kernel) + self.bias)


class Linear(NamedTuple):
    """y = W x + b for all numbers of x, in their order."""

    outputs: int
    bias: bool

    def after(self, shape: Shape) -> Shape:
        """The shape of y."""
        return self.outputs, 1, 1

    def parameters(self, shape: Shape) -> int:
        """The number of parameters for an input of this shape."""
        return self.outputs * (math.prod(shape) + self.bias)


class Pooling(NamedTuple):
    """The largest number of every window, or their mean. Windows lie side by side; what is left over is left out."""

    kind: Literal["max", "mean"]
    window: tuple[int, int]

    def after(self, shape: Shape) -> Shape:
        """The shape of y."""
        return shape[0], shape[1] // self.window[0], shape[2] // self.window[1]

    def parameters(self, shape: Shape) -> int:
        """Returns 0: the layer has no parameters."""
        return 0


class ReLU(NamedTuple):
    """max(x, 0)"""

    def after(self, shape: Shape) -> Shape:
        """The shape of y."""
        return shape

    def parameters(self, shape: Shape) -> int:
        """Returns 0: the layer has no parameters."""
        return 0


Layer = Convolution | Linear | Pooling | ReLU


class CompiledNetwork(NamedTuple):
    """All that the machine code of a network depends on."""

    shape: Shape
    """The shape of a sample."""
    layers: tuple[Layer, ...]
    loss: Literal["cross-entropy", "multi-margin"]
    precision: str

    @property
    def lanes(self) -> int:
        """Numbers in a vector."""
        return BYTES // np.dtype(self.precision).itemsize

    @property
    def parameters(self) -> int:
        """n"""
        return sum(layer.parameters(shape) for layer, shape in self.in_order())

    def in_order(self) -> Iterator[tuple[Layer, Shape]]:
        """Every layer, and the shape of what it reads."""
        shape = self.shape
        for layer in self.layers:
            yield layer, shape
            shape = layer.after(shape)
