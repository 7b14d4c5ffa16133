# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""Compiled losses and gradients of linear models: what `learning.models.linear` says.

    linear_picked  losses and gradients of rows of one array
    linear_row     those of one of them

A model has `classes` rows of `features` weights, and then the biases. Every sum is made in an order that is written
here, so a device gets the same bits alone as among all, in every driver.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from efhc.base.compiling import as_written, part
from efhc.kernels.lanes import (
    block_width,
    fetch,
    filled,
    filled_block,
    fma,
    load,
    load_as,
    load_some,
    load_some_block,
    store,
    store_some,
    total,
    width,
)
from efhc.kernels.model_loops import squares

SAMPLES = 64
"""Samples whose inputs are scaled and held at once."""
CLASSES = 5
"""Classes whose scores are computed at once, for two samples: ten sums in ten registers."""
CACHE_LINE = 64
"""Bytes that come from memory together."""
MULTI_MARGIN, CROSS_ENTROPY, SQUARED = 0, 1, 2


class TrainingInputs(NamedTuple):
    """Training samples; the input of a sample is scale * row + shift."""

    rows: Any
    scale: Any
    shift: Any
    labels: Any


class Loss(NamedTuple):
    """`MULTI_MARGIN`, `CROSS_ENTROPY` or `SQUARED`, and the l2 regularisation."""

    kind: Any
    l2: Any


class Batches(NamedTuple):
    """The training samples that devices look at: those of device i are samples[..., ends[i] : ends[i + 1]]."""

    samples: Any
    ends: Any


class Span(NamedTuple):
    """The samples that one device looks at: samples[first:end]."""

    samples: Any
    first: Any
    end: Any


class Room(NamedTuple):
    """Memory for what is known of `SAMPLES` samples."""

    x: Any
    """Their inputs; a row has zeros behind its features, up to a whole block."""
    scores: Any
    """Their scores by class, and then the derivatives by those."""
    labels: Any
    counts: Any
    """Per class, the number of samples whose derivative is not 0."""
    active: Any
    """Where the inputs of those samples begin in `x`; there are `SAMPLES` places for each class."""
    shares: Any
    """The derivatives of those samples, in the same places."""


def room_for(models: Any, inputs: TrainingInputs) -> Room:
    """Memory for the samples of one device after the other."""
    features, line = inputs.rows.shape[1], CACHE_LINE // models.itemsize
    classes = models.shape[1] // (features + 1)
    whole = -(-features // block_width(models)) * block_width(models)
    return Room(
        np.empty((SAMPLES, whole + line), models.dtype),  # one line more: else all rows could share a few places
        np.empty((SAMPLES, classes), models.dtype),
        np.empty(SAMPLES, np.int64),
        np.empty(classes, np.int64),
        np.empty(classes * SAMPLES, np.int64),
        np.empty(classes * SAMPLES, models.dtype),
    )


# Inputs


@as_written
def fetch_row(rows, span, s):
    """Ask for the inputs of sample s of a span, if it has one: they lie anywhere, and come while others are used."""
    if span.first + s < span.end:
        start = np.int64(span.samples[span.first + s]) * rows.shape[1]
        for t in range(0, rows.shape[1], CACHE_LINE // rows.itemsize):
            fetch(rows, start + t)


@part
def scale_row(rows, sample, scale, shift, x, s):
    """x[s] = scale * rows[sample] + shift"""
    features, start, step = rows.shape[1], s * x.shape[1], width(x)
    whole = features - features % step
    for t in range(0, whole, step):
        store(x, start + t, fma(load_as(rows, sample * features + t, x), scale, shift))
    if whole < features:
        for t in range(whole, features):
            x[s, t] = rows[sample, t]
        rest = features - whole
        store_some(x, start + whole, rest, fma(load_some(x, start + whole, rest), scale, shift))


@as_written
def gather_rows(rows, scale, shift, samples, x):
    """x = scale * rows[samples] + shift. No index is checked: none may be negative."""
    for s in range(len(samples)):
        scale_row(rows, samples[s], filled(x, scale), filled(x, shift), x, s)


@as_written
def gather(inputs, mine, count, x):
    """x[s] = scale * rows[mine[s]] + shift for `count` samples, and zeros behind."""
    end = x.shape[1] - CACHE_LINE // x.itemsize
    scale, shift, nothing = filled(x, inputs.scale), filled(x, inputs.shift), filled_block(x, 0)
    for s in range(count):
        store(x, s * x.shape[1] + end - block_width(x), nothing)
        scale_row(inputs.rows, np.int64(mine.samples[mine.first + s]), scale, shift, x, s)


# Scores


@part
def load_five(w, starts, t, some):
    """The next `some` weights of five classes."""
    a, b, c, d, e = starts
    return (
        load_some(w, a + t, some),
        load_some(w, b + t, some),
        load_some(w, c + t, some),
        load_some(w, d + t, some),
        load_some(w, e + t, some),
    )


@part
def add_products(sums, v, weights):
    """sums + v weights, for five classes."""
    return (
        fma(v, weights[0], sums[0]),
        fma(v, weights[1], sums[1]),
        fma(v, weights[2], sums[2]),
        fma(v, weights[3], sums[3]),
        fma(v, weights[4], sums[4]),
    )


@part
def dots(x, one, two, w, starts, features):
    """The products of the inputs of two samples, at `one` and `two`, and the weights of five classes, at `starts`."""
    step, zero = width(x), filled(x, 0)
    first = second = (zero, zero, zero, zero, zero)
    whole = features - features % step
    for t in range(0, whole, step):
        weights = load_five(w, starts, t, step)
        first = add_products(first, load(x, one + t), weights)
        second = add_products(second, load(x, two + t), weights)
    if whole < features:
        weights = load_five(w, starts, whole, features - whole)
        first = add_products(first, load(x, one + whole), weights)
        second = add_products(second, load(x, two + whole), weights)
    return first, second


@as_written
def score(x, count, models, start, scores, rows, upcoming):
    """scores = x weights^T + biases for `count` samples; the model begins at `start`.

    Meanwhile, the inputs of the samples that come next are asked for.
    """
    stride, classes = x.shape[1], scores.shape[1]
    features = models.shape[1] // classes - 1
    biases, last = start + classes * features, classes - 1
    flat = models.reshape(models.size)
    for c in range(0, classes, CLASSES):  # what five classes go beyond the last class, they compute it again
        c1, c2, c3, c4 = min(c + 1, last), min(c + 2, last), min(c + 3, last), min(c + 4, last)
        starts = (
            start + c * features,
            start + c1 * features,
            start + c2 * features,
            start + c3 * features,
            start + c4 * features,
        )
        for s in range(0, count, 2):
            partner = min(s + 1, count - 1)  # an odd last sample is its own partner
            if c == 0:
                fetch_row(rows, upcoming, s)
                fetch_row(rows, upcoming, s + 1)
            first, second = dots(x, s * stride, partner * stride, models, starts, features)
            for sample, found in ((s, first), (partner, second)):
                scores[sample, c] = total(found[0]) + flat[biases + c]
                scores[sample, c1] = total(found[1]) + flat[biases + c1]
                scores[sample, c2] = total(found[2]) + flat[biases + c2]
                scores[sample, c3] = total(found[3]) + flat[biases + c3]
                scores[sample, c4] = total(found[4]) + flat[biases + c4]


# Losses


@as_written
def multi_margin(scores, count, y, share):
    """Losses (1/C) sum_{c != y} max(0, 1 - s_y + s_c) added up; the scores become `share` times their derivatives."""
    classes = scores.shape[1]
    one, zero = scores.dtype.type(1), scores.dtype.type(0)
    step, losses = share / scores.dtype.type(classes), 0.0
    for s in range(count):
        target, of_sample, active = scores[s, y[s]], 0.0, zero
        scores[s, y[s]] = -np.inf
        for c in range(classes):
            margin = one - target + scores[s, c]
            is_active = not margin <= zero  # NaN counts as active, so that it shows
            of_sample += margin if is_active else zero
            active += one if is_active else zero
            scores[s, c] = step if is_active else zero
        scores[s, y[s]] = -step * active
        losses += of_sample
    return losses / classes


@as_written
def cross_entropy(scores, count, y, share):
    """Losses log sum_c exp(s_c) - s_y added up; the scores become `share` times their derivatives."""
    classes, losses = scores.shape[1], 0.0
    for s in range(count):
        largest = scores[s, 0]
        for c in range(1, classes):
            largest = max(largest, scores[s, c])
        target = scores[s, y[s]] - largest
        exponentials = scores.dtype.type(0)
        for c in range(classes):
            scores[s, c] = np.exp(scores[s, c] - largest)
            exponentials += scores[s, c]
        losses += np.log(exponentials) - target
        for c in range(classes):
            scores[s, c] *= share / exponentials
        scores[s, y[s]] -= share
    return losses


@as_written
def squared(scores, count, y, share):
    """Losses (1/2) ||s - e_y||^2 added up; the scores become `share` times their derivatives."""
    classes, losses = scores.shape[1], 0.0
    for s in range(count):
        scores[s, y[s]] -= scores.dtype.type(1)
        of_sample = 0.0
        for c in range(classes):
            of_sample += scores[s, c] * scores[s, c]  # in its precision: it overflows where NumPy's does
            scores[s, c] *= share
        losses += of_sample
    return losses / 2


@as_written
def loss_of(kind, scores, count, y, share):
    """The losses of `count` samples added up; the scores become `share` times their derivatives."""
    if kind == MULTI_MARGIN:
        return multi_margin(scores, count, y, share)
    if kind == CROSS_ENTROPY:
        return cross_entropy(scores, count, y, share)
    return squared(scores, count, y, share)


# Gradients


@as_written
def find_active(scores, count, stride, counts, active, shares):
    """List the samples of each class whose derivative is not 0."""
    for c in range(len(counts)):
        found = c * SAMPLES
        for s in range(count):
            active[found], shares[found] = s * stride, scores[s, c]
            found += scores[s, c] != 0
        counts[c] = found - c * SAMPLES


@part
def add_block(x, t, some, active, shares, first, end, gain, source, start, gradients, place):
    """gradients = gain source + sum_s share_s x_s, for the first `some` numbers of the block at feature t.

    `start` and `place` are where that block begins in both; the samples are those of active[first:end].
    """
    sums = filled_block(x, 0)
    if gain != 0:
        sums = filled_block(x, gain) * load_some_block(source, start, some)
    for a in range(first, end):
        inputs = load_some_block(x, active[a] + t, block_width(x))
        sums = fma(filled_block(x, shares[a]), inputs, sums)
    store_some(gradients, place, some, sums)


@as_written
def add_gradients(models, start, l2, room, is_first, gradients, place):
    """gradients += sum_s share_s (x_s, 1), class by class; where it is the first sum, gradients = l2 w + that.

    The model begins at `start`, and the gradient at `place`.
    """
    x, counts, active, shares = room.x, room.counts, room.active, room.shares
    source, first, gain = (models, start, l2) if is_first else (gradients, place, models.dtype.type(1))
    classes, step = len(counts), block_width(models)
    features = models.shape[1] // classes - 1
    whole = features - features % step
    for t in range(0, whole, step):  # a block of the inputs of all samples is in the fastest cache
        for c in range(classes):
            at, begin = c * features + t, c * SAMPLES
            end = begin + counts[c]
            add_block(x, t, step, active, shares, begin, end, gain, source, first + at, gradients, place + at)
    if whole < features:
        for c in range(classes):
            at, begin = c * features + whole, c * SAMPLES
            end, some = begin + counts[c], features - whole
            add_block(x, whole, some, active, shares, begin, end, gain, source, first + at, gradients, place + at)
    biases, of_source, by_weights = classes * features, source.reshape(source.size), gradients.reshape(gradients.size)
    for c in range(classes):
        by_bias = gain * of_source[first + biases + c]
        for a in range(c * SAMPLES, c * SAMPLES + counts[c]):
            by_bias += shares[a]
        by_weights[place + biases + c] = by_bias


# Losses and gradients


@as_written
def linear_row(models, row, inputs, loss, mine, upcoming, room, gradients, place):
    """The mean loss of models[row] on the samples `mine`, and its gradient in gradients[place].

    The inputs of the samples `upcoming` are asked for meanwhile.
    """
    n, start, end = models.shape[1], row * models.shape[1], mine.end
    share, losses = models.dtype.type(1.0 / (end - mine.first)), 0.0
    for first in range(mine.first, end, SAMPLES):
        count = min(SAMPLES, end - first)
        gather(inputs, Span(mine.samples, first, first + count), count, room.x)
        for s in range(count):
            room.labels[s] = inputs.labels[mine.samples[first + s]]
        soon = Span(mine.samples, first + count, end) if first + count < end else upcoming
        score(room.x, count, models, start, room.scores, inputs.rows, soon)
        losses += loss_of(loss.kind, room.scores, count, room.labels, share)
        find_active(room.scores, count, room.x.shape[1], room.counts, room.active, room.shares)
        add_gradients(models, start, loss.l2, room, first == mine.first, gradients, place * n)
    of_weights = squares(models, start, models, start, 0, n) if loss.l2 > 0 else 0.0
    return losses / (end - mine.first) + loss.l2 / 2 * of_weights


@as_written
def linear_picked(room, models, rows, inputs, loss, batches, losses, gradients, places, low, high):
    """losses[a] and gradients[places[a]] of the model models[rows[a]], on the a-th samples of the batches."""
    samples, ends = batches.samples, batches.ends
    for a in range(low, high):
        following = min(a + 1, high - 1)
        mine, upcoming = Span(samples, ends[a], ends[a + 1]), Span(samples, ends[following], ends[following + 1])
        losses[a] = linear_row(models, rows[a], inputs, loss, mine, upcoming, room, gradients, places[a])
