"""The layers of small networks, and their compiled loops.

Samples lie side by side, `block` of them: one vector or two. A value between two layers is (channels, rows, columns,
samples), so a layer is made of whole vectors and single weights. Shapes and places are constants of the machine code.
The room begins with scratch memory: what a layer writes there is needed only while that layer is computed.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from efhc.base.compiling import part_for
from efhc.kernels.lanes import BYTES, filled, larger, load, store, total, where_equal
from efhc.kernels.products import Cross, Product, SumTerms, cross, product, transposed_tile

FAST_MEMORY = 20_000
"""Bytes that a tile of a convolution's weight gradient may look at again and again."""


Shape = tuple[int, int, int]
"""Channels, rows and columns."""


class Value(NamedTuple):
    """Where a value between two layers is in the room, and its gradient. Nothing writes to its padding but zeros."""

    shape: Shape
    padding: tuple[int, int]
    lanes: int
    """Numbers in a vector."""
    block: int
    place: int
    """Where it begins. Its gradient follows, laid out alike."""

    @property
    def row(self) -> int:
        """From one row to the next."""
        return (self.shape[2] + 2 * self.padding[1]) * self.block

    @property
    def channel(self) -> int:
        """From one channel to the next."""
        return (self.shape[1] + 2 * self.padding[0]) * self.row

    @property
    def size(self) -> int:
        """Numbers, padding included; also from a number to its gradient."""
        return self.shape[0] * self.channel

    @property
    def start(self) -> int:
        """The first number that is not padding."""
        return self.place + self.padding[0] * self.row + self.padding[1] * self.block


class LayerLoops(NamedTuple):
    """The loops of one layer. They compute in the room; w is the model."""

    forward: Callable[..., None]
    """(w, room): write y."""
    backward: Callable[..., None]
    """(w, room, gradient): write the gradient of x, and add that of the layer's parameters, given that of y."""


@dataclass(frozen=True)
class Layer(ABC):
    """A layer of a network whose shapes are known. Its numbers stay as they are unless it says otherwise."""

    def after(self, shape: Shape) -> Shape:
        """The shape of the output y for an input x of this shape."""
        return shape

    def parameters(self, shape: Shape) -> int:
        """The number of parameters for an input of this shape: weights first, then biases, as in torch."""
        return 0

    def scratch(self, shape: Shape, lanes: int, block: int) -> int:
        """The numbers of scratch memory for an input of this shape."""
        return 0

    @abstractmethod
    def loops(self, x: Value, y: Value, w_at: int, *, inner: bool) -> LayerLoops:
        """The loops of the layer with parameters from `w_at` on.

        The gradient of x may be left out unless the layer is `inner`: behind others with parameters.
        """


@dataclass(frozen=True)
class ReLU(Layer):
    """max(x, 0), written over x."""

    def loops(self, x: Value, y: Value, w_at: int, *, inner: bool) -> LayerLoops:
        lanes, size, first, end = x.lanes, x.size, x.place, x.place + x.size

        @part_for
        def forward(w, room):
            zero = filled(room, 0)
            for t in range(first, end, lanes):
                store(room, t, larger(load(room, t), zero))

        @part_for
        def backward(w, room, gradient):
            zero = filled(room, 0)
            for t in range(first, end, lanes):
                dy = load(room, t + size)
                store(room, t + size, dy - where_equal(load(room, t), zero, dy))

        return LayerLoops(forward, backward)


@dataclass(frozen=True)
class Convolution(Layer):
    """y_o = b_o + sum_i w_oi * x_i, moved by one pixel at a time over x_i padded with zeros."""

    outputs: int
    kernel: tuple[int, int]
    padding: tuple[int, int]
    bias: bool

    def after(self, shape: Shape) -> Shape:
        rows, columns = (shape[1 + axis] + 2 * self.padding[axis] - self.kernel[axis] + 1 for axis in range(2))
        return self.outputs, rows, columns

    def parameters(self, shape: Shape) -> int:
        return self.outputs * (shape[0] * math.prod(self.kernel) + self.bias)

    def scratch(self, shape: Shape, lanes: int, block: int) -> int:
        return lanes * self.parameters(shape)  # a vector per weight

    def loops(self, x: Value, y: Value, w_at: int, *, inner: bool) -> LayerLoops:
        inputs, (outputs, height, width), (rows, columns) = x.shape[0], y.shape, self.kernel
        block, lanes, has_bias = x.block, x.lanes, self.bias
        of_kernel, of_output = rows * columns, inputs * rows * columns
        weights = outputs * of_output
        b_at, x_at, y_at, dx_at, dy_at = w_at + weights, x.place, y.start, x.place + x.size, y.start + y.size
        x_row, x_channel, x_size, y_row, y_channel = x.row, x.channel, x.size, y.row, y.channel

        window = SumTerms(inputs, of_kernel, x_channel), SumTerms(rows, columns, x_row), SumTerms(columns, 1, block)
        scores = product(Product(outputs, block, window, of_output, y_channel, "bias" if has_bias else "zero"))
        spread = product(
            Product(inputs, block, (SumTerms(outputs, of_output, y_channel),), of_kernel, x_channel, "add")
        )
        band = _band(height, 2 * y_row + x_row, rows * x_row, lanes)
        pixels = SumTerms(band, y_row, x_row), SumTerms(width * block // lanes, lanes, lanes)
        weigh = cross(Cross(outputs, columns, pixels, y_channel, block, of_output * lanes))

        @part_for
        def forward(w, room):
            for r in range(height):
                for c in range(width):
                    scores(w, w_at, w, b_at, room, x_at + r * x_row + c * block, room, y_at + r * y_row + c * block)

        @part_for
        def add_weights(room, gradient):
            for t in range(weights * lanes):
                room[t] = 0
            for r in range(0, height, band):
                for i in range(inputs):
                    for q in range(rows):
                        place = (i * rows + q) * columns * lanes
                        weigh(room, dy_at + r * y_row, room, x_at + i * x_channel + (r + q) * x_row, room, place)
            for t in range(weights):
                gradient[w_at + t] += total(load(room, t * lanes))

        @part_for
        def backward(w, room, gradient):
            add_weights(room, gradient)
            if has_bias:
                for o in range(outputs):
                    sums = filled(room, 0)
                    for r in range(height):
                        for t in range(0, width * block, lanes):
                            sums = sums + load(room, dy_at + o * y_channel + r * y_row + t)
                    gradient[b_at + o] += total(sums)
            if inner:
                for t in range(x_size):
                    room[dx_at + t] = 0
                for r in range(height):
                    for c in range(width):
                        for q in range(rows):
                            for p in range(columns):
                                place = dx_at + (r + q) * x_row + (c + p) * block
                                spread(
                                    w, w_at + q * columns + p, w, 0, room, dy_at + r * y_row + c * block, room, place
                                )

        return LayerLoops(forward, backward)


@dataclass(frozen=True)
class Linear(Layer):
    """y = W x + b for all numbers of x, in their order."""

    outputs: int
    bias: bool

    def after(self, shape: Shape) -> Shape:
        return self.outputs, 1, 1

    def parameters(self, shape: Shape) -> int:
        return self.outputs * (math.prod(shape) + self.bias)

    def scratch(self, shape: Shape, lanes: int, block: int) -> int:
        return block * math.prod(shape)  # a copy of x

    def loops(self, x: Value, y: Value, w_at: int, *, inner: bool) -> LayerLoops:
        inputs, outputs, block, lanes = math.prod(x.shape), self.outputs, x.block, x.lanes
        b_at, x_at, y_at, dx_at, dy_at = w_at + inputs * outputs, x.place, y.start, x.place + x.size, y.start + y.size
        has_bias, apart = self.bias, y.channel  # if a convolution follows that pads, there is room between two outputs
        start: Literal["bias", "zero"] = "bias" if has_bias else "zero"
        scores = product(Product(outputs, block, (SumTerms(inputs, 1, block),), inputs, apart, start))
        spread = product(Product(inputs, block, (SumTerms(outputs, inputs, apart),), 1, block, "zero"))
        weigh = product(Product(outputs, inputs, (SumTerms(block, 1, inputs),), apart, inputs, "add"))
        transpose = transposing(inputs, block, block, inputs, lanes)

        @part_for
        def forward(w, room):
            scores(w, w_at, w, b_at, room, x_at, room, y_at)

        @part_for
        def backward(w, room, gradient):
            transpose(room, x_at, room, 0)
            weigh(room, dy_at, room, 0, room, 0, gradient, w_at)
            if has_bias:
                for o in range(outputs):
                    sums = filled(room, 0)
                    for t in range(0, block, lanes):
                        sums = sums + load(room, dy_at + o * apart + t)
                    gradient[b_at + o] += total(sums)
            if inner:
                spread(w, w_at, w, 0, room, dy_at, room, dx_at)

        return LayerLoops(forward, backward)


@dataclass(frozen=True)
class Pooling(Layer):
    """The largest number of every window, or their mean. Windows lie side by side; what is left over is left out.

    Of equally large numbers the first takes the gradient, as in torch.
    """

    kind: Literal["max", "mean"]
    window: tuple[int, int]

    def after(self, shape: Shape) -> Shape:
        return shape[0], shape[1] // self.window[0], shape[2] // self.window[1]

    def loops(self, x: Value, y: Value, w_at: int, *, inner: bool) -> LayerLoops:
        (channels, height, width), (rows, columns) = y.shape, self.window
        block, lanes, share, is_max = x.block, x.lanes, 1 / (rows * columns), self.kind == "max"
        x_row, x_channel, x_at, to_dx = x.row, x.channel, x.start, x.size
        y_row, y_channel, y_at, to_dy = y.row, y.channel, y.start, y.size

        @part_for
        def forward(w, room):
            for o in range(channels):
                for r in range(height):
                    for c in range(width):
                        for s in range(0, block, lanes):
                            corner = x_at + o * x_channel + r * rows * x_row + c * columns * block + s
                            found = load(room, corner)
                            for t in range(1, rows * columns):
                                other = load(room, corner + t // columns * x_row + t % columns * block)
                                found = larger(found, other) if is_max else found + other
                            if not is_max:
                                found = found * filled(room, share)
                            store(room, y_at + o * y_channel + r * y_row + c * block + s, found)

        @part_for
        def backward(w, room, gradient):
            for o in range(channels):
                for r in range(height):
                    for c in range(width):
                        for s in range(0, block, lanes):
                            corner = x_at + o * x_channel + r * rows * x_row + c * columns * block + s
                            place = y_at + o * y_channel + r * y_row + c * block + s
                            found, left = load(room, place), load(room, place + to_dy)
                            for t in range(rows * columns):
                                at = corner + t // columns * x_row + t % columns * block
                                if is_max:
                                    taken = where_equal(load(room, at), found, left)
                                    left = left - taken
                                else:
                                    taken = left * filled(room, share)
                                store(room, at + to_dx, taken)

        return LayerLoops(forward, backward)


@dataclass(frozen=True)
class CompiledNetwork:
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
        """Yield every layer, and the shape of its input."""
        shape = self.shape
        for layer in self.layers:
            yield layer, shape
            shape = layer.after(shape)


def _band(height: int, row: int, first_rows: int, lanes: int) -> int:
    """How many rows of y a weight gradient takes at once: all, or as many as stay in the fastest memory."""
    size = BYTES // lanes
    fitting = max(1, (FAST_MEMORY - first_rows * size) // (row * size))
    return next(rows for rows in range(min(height, fitting), 0, -1) if height % rows == 0)


def transposing(rows: int, columns: int, step: int, out_step: int, lanes: int) -> Callable[..., None]:
    """Return (x, its start, out, its start) -> None, which writes the columns of x as rows."""
    tile = transposed_tile(step, out_step)
    in_tiles = rows >= lanes and columns >= lanes

    @part_for
    def transpose(x, x_at, out, out_at):
        if in_tiles:
            for row in range(0, rows, lanes):
                i = min(row, rows - lanes)  # the last tile may overlap the one before
                for column in range(0, columns, lanes):
                    j = min(column, columns - lanes)
                    tile(x, x_at + i * step + j, out, out_at + j * out_step + i)
        else:
            for i in range(rows):
                for j in range(columns):
                    out[out_at + j * out_step + i] = x[x_at + i * step + j]

    return transpose
