"""Losses, gradients and test results of small networks, in loops that are compiled for one network each.

All that a network computes with is in one array, the room, at places that are constants of the machine code. The room
begins with scratch memory, where samples are read to and layers compute; the values between layers follow. What a
model answers depends on its own parameters and samples only: its bits are the same alone as among others.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np

from efhc.base.compiling import compiled_for, joined_for, part_for
from efhc.kernels.linear_loops import cross_entropy, multi_margin
from efhc.kernels.network_layers import (
    CompiledNetwork,
    Convolution,
    Layer,
    LayerLoops,
    ReLU,
    Shape,
    Value,
    transposing,
)

TESTED_AT_ONCE = 256
"""Test samples in one piece of an evaluation."""


class Kernels(NamedTuple):
    """The compiled loops of one network."""

    picked: Callable[..., None]
    """(models, rows, inputs, samples, ends, losses, gradients, places, room, low, high)"""
    answers: Callable[..., None]
    """(models, inputs, right, losses, bad, room, low, high): of pieces of the test samples."""
    size: int
    """Numbers in the room. They must be 0 at first, and stay what they are from call to call."""


def kernels(network: CompiledNetwork, vectors: int) -> Kernels:
    """Return the loops of a network that takes as many samples at once as fit into one vector, or into two."""
    x, y, size, layers = laid_out(network, vectors)
    block, parameters = x.block, network.parameters
    features, classes = math.prod(x.shape), y.shape[0]
    # Without padding, a sample is one long row.
    channels, height, width = x.shape if any(x.padding) else (1, 1, features)
    x_at, x_channel, x_row, y_at, dy_at = x.start, x.channel, x.row, y.place, y.place + y.size
    side_by_side = transposing(block, width, features, block, x.lanes)
    forward = reduce(_forward, [layer.forward for layer in layers])
    backward = reduce(_backward, [layer.backward for layer in layers])
    loss = cross_entropy if network.loss == "cross-entropy" else multi_margin

    @part_for
    def read(inputs, samples, room):
        """Put samples side by side. Where fewer are left, others hold the first of them, and count nothing."""
        for s in range(block):
            row, at = inputs.rows[samples[s if s < len(samples) else 0]], s * features
            for t in range(features):
                room[at + t] = row[t] * inputs.scale + inputs.shift
        for i in range(channels):
            for r in range(height):
                side_by_side(room, (i * height + r) * width, room, x_at + i * x_channel + r * x_row)

    @part_for
    def read_scores(room, scores):
        for s in range(block):
            for c in range(classes):
                scores[s, c] = room[y_at + c * block + s]

    def picked(models, rows, inputs, samples, ends, losses, gradients, places, room, low, high):
        """losses[a] and gradients[places[a]] of the model models[rows[a]] on `samples[ends[a] : ends[a + 1]]`."""
        labels, scores = np.empty(block, np.int64), np.empty((block, classes), models.dtype)
        for a in range(low, high):
            w, gradient, count = models[rows[a]], gradients[places[a]], ends[a + 1] - ends[a]
            for t in range(parameters):
                gradient[t] = 0
            losses[a] = 0
            for start in range(ends[a], ends[a + 1], block):
                mine = samples[start : min(start + block, ends[a + 1])]
                for s in range(len(mine)):
                    labels[s] = inputs.labels[mine[s]]
                read(inputs, mine, room)
                forward(w, room)
                read_scores(room, scores)
                losses[a] += loss(scores, len(mine), labels, w.dtype.type(1.0 / count))
                for s in range(block):
                    for c in range(classes):
                        room[dy_at + c * block + s] = scores[s, c] if s < len(mine) else 0
                backward(w, room, gradient)
            losses[a] /= count

    def answers(models, inputs, right, losses, bad, room, low, high):
        """right[i, s] says whether model i answers sample s rightly, losses[i, s] is its loss; bad[i, p] says whether
        an answer to piece p of the samples is none.

        `low` to `high` number the pieces of all models, model by model.
        """
        scores = np.empty((block, classes), models.dtype)
        labels, pieces, samples = np.empty(1, np.int64), bad.shape[1], len(inputs.labels)
        for piece in range(low, high):
            i, p = divmod(piece, pieces)
            for start in range(p * TESTED_AT_ONCE, min((p + 1) * TESTED_AT_ONCE, samples), block):
                mine = np.arange(start, min(start + block, samples), dtype=np.int32)
                read(inputs, mine, room)
                forward(models[i], room)
                read_scores(room, scores)
                for s in range(len(mine)):
                    answer, is_one = answer_of(scores, s)
                    labels[0] = inputs.labels[start + s]
                    right[i, start + s] = answer == labels[0]
                    bad[i, p] |= not is_one
                    losses[i, start + s] = loss(scores[s : s + 1], 1, labels, models.dtype.type(1))

    key = repr((network, vectors))
    return Kernels(compiled_for(key, picked), compiled_for(key, answers), size)


@part_for
def answer_of(scores, s):
    """The class with the largest score of sample s, and whether that is finite and no score is NaN."""
    best, has_nan = 0, np.isnan(scores[s, 0])
    for c in range(1, scores.shape[1]):
        has_nan |= np.isnan(scores[s, c])
        if scores[s, c] > scores[s, best]:
            best = c
    return best, not has_nan and np.isfinite(scores[s, best])


def laid_out(network: CompiledNetwork, vectors: int) -> tuple[Value, Value, int, Sequence[LayerLoops]]:
    """Give every value a place. Returns the samples, their scores, the size of the room, and the layers."""
    block = vectors * network.lanes
    needs = [layer.scratch(shape, network.lanes, block) for layer, shape in network.in_order()]
    size = max(block * math.prod(network.shape), *needs)

    def placed(shape: Shape, readers: Sequence[Layer]) -> Value:
        nonlocal size
        reader = next((layer for layer in readers if not isinstance(layer, ReLU)), None)
        padding = reader.padding if isinstance(reader, Convolution) else (0, 0)
        value = Value(shape, padding, network.lanes, block, size)
        size += 2 * value.size
        return value

    first = x = placed(network.shape, network.layers)
    loops, w_at = [], 0
    for number, (layer, shape) in enumerate(network.in_order()):
        y = x if isinstance(layer, ReLU) else placed(layer.after(shape), network.layers[number + 1 :])
        loops.append(layer.loops(x, y, w_at, inner=w_at > 0))
        x, w_at = y, w_at + layer.parameters(shape)
    return first, x, size, loops


def _forward(one: Callable[..., None], other: Callable[..., None]) -> Callable[..., None]:
    """One, then the other."""

    @joined_for
    def both(w, room):
        one(w, room)
        other(w, room)

    return both


def _backward(one: Callable[..., None], other: Callable[..., None]) -> Callable[..., None]:
    """The other, then the one."""

    @joined_for
    def both(w, room, gradient):
        other(w, room, gradient)
        one(w, room, gradient)

    return both
