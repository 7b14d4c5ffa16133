"""Compiled loops that test linear models: scores are read while they are in the cache.

    test_samples    whether each sample has its largest score at its label, and its loss    learning.backends

An input is scale * z + shift, where z is a byte or a number of the data. So a score is its start, which is
bias + shift * (sum of the weights), plus the products of the weights and scale * z. Those with z = 0 are left out, and
the others are added one after the other, each by one fused multiply-add. So a score has the same bits on every
processor, for any number of threads, and whichever models are evaluated together.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from efhc.base.compiling import as_written
from efhc.kernels import lanes
from efhc.kernels.linear_loops import CROSS_ENTROPY, MULTI_MARGIN

ROWS = 5
"""Classes whose scores are added up at once. With two vectors of samples that takes 13 registers."""


class Panels(NamedTuple):
    """Test samples side by side, in panels as wide as two vectors. A panel lacks the features that are 0 in all of it.

    What stands in for samples beyond the last is zero.
    """

    values: Any
    """(features of all panels, samples of a panel)"""
    features: Any
    """Which features they are, ascending in each panel."""
    starts: Any
    """The features of panel p are those from starts[p] to starts[p + 1] - 1."""
    ranks: Any
    """The number of classes minus the label of each sample, (panels, samples of a panel); 0 beyond the last."""
    scale: Any


class PanelRoom(NamedTuple):
    """Memory for one panel."""

    inputs: Any
    """scale * z of its features and samples."""
    scores: Any
    """Of its samples, for the classes of all models, one after the other."""


def room_for(panels: Panels, models: Any, starts: Any) -> PanelRoom:
    """Room for one panel after the other."""
    wide, (count, classes) = panels.values.shape[1], starts.shape
    inputs = np.empty((models.shape[1] // classes - 1) * wide, models.dtype)
    return PanelRoom(inputs, np.empty((count * classes + ROWS) * wide, models.dtype))


@as_written
def test_samples(room, panels, models, starts, kind, right, losses, is_bad, low, high):
    """Test models (m, n) on the samples of panels `low` to `high` - 1; n = classes * features + classes.

    starts[i, c]: where the score of class c begins. right[i, s]: 1 if model i has its largest score, the first of equal
    ones, at the label of sample s, else 0; samples are counted through all panels. losses[i, s]: its loss, of the
    `kind` that `linear_loops` names. is_bad[p, i]: whether a score of model i is NaN in panel p, or a largest score is
    not finite.
    """
    inputs, scores = room
    classes = starts.shape[1]
    rows = len(models) * classes
    for panel in range(low, high):
        scale_panel(panels, panel, inputs)
        for row in range(0, rows, ROWS):
            score_rows(panels, panel, inputs, models, starts, row, scores)
        for i in range(len(models)):
            is_bad[panel, i] = read_answers(scores, panels.ranks, panel, i, classes, kind, right, losses)


@as_written
def scale_panel(panels, panel, inputs):
    """Write scale * z of the features and samples of a panel to `inputs`."""
    wide = panels.values.shape[1]
    first, end = panels.starts[panel], panels.starts[panel + 1]
    values = panels.values[first:end].reshape(-1)
    for place in range((end - first) * wide):
        inputs[place] = values[place]
    scale = lanes.filled(inputs, panels.scale)
    for start in range(0, (end - first) * wide, lanes.width(inputs)):
        lanes.store(inputs, start, lanes.load(inputs, start) * scale)


@as_written
def weights_of(models, classes, row):
    """Where the weights of a class begin, if the classes of all models are counted through."""
    n = models.shape[1]
    return row // classes * n + row % classes * (n // classes - 1)


@as_written
def score_rows(panels, panel, inputs, models, starts, row, scores):
    """Write the scores of a panel for `ROWS` classes, the first of which is `row`, counted through all models.

    Beyond the last class of the last model, that class is scored again, into rows that are not read.
    """
    half, classes = lanes.width(inputs), starts.shape[1]
    last = len(models) * classes - 1
    row1, row2, row3, row4 = min(row + 1, last), min(row + 2, last), min(row + 3, last), min(row + 4, last)
    a, a0 = weights_of(models, classes, row), lanes.repeated(starts, row)
    b, b0 = weights_of(models, classes, row1), lanes.repeated(starts, row1)
    c, c0 = weights_of(models, classes, row2), lanes.repeated(starts, row2)
    d, d0 = weights_of(models, classes, row3), lanes.repeated(starts, row3)
    e, e0 = weights_of(models, classes, row4), lanes.repeated(starts, row4)
    a1, b1, c1, d1, e1 = a0, b0, c0, d0, e0
    first = panels.starts[panel]
    for place in range(panels.starts[panel + 1] - first):
        f = panels.features[first + place]
        x0, x1 = lanes.load(inputs, 2 * half * place), lanes.load(inputs, 2 * half * place + half)
        w = lanes.repeated(models, a + f)
        a0, a1 = lanes.fma(w, x0, a0), lanes.fma(w, x1, a1)
        w = lanes.repeated(models, b + f)
        b0, b1 = lanes.fma(w, x0, b0), lanes.fma(w, x1, b1)
        w = lanes.repeated(models, c + f)
        c0, c1 = lanes.fma(w, x0, c0), lanes.fma(w, x1, c1)
        w = lanes.repeated(models, d + f)
        d0, d1 = lanes.fma(w, x0, d0), lanes.fma(w, x1, d1)
        w = lanes.repeated(models, e + f)
        e0, e1 = lanes.fma(w, x0, e0), lanes.fma(w, x1, e1)
    place = 2 * half * row
    lanes.store(scores, place, a0)
    lanes.store(scores, place + half, a1)
    lanes.store(scores, place + 2 * half, b0)
    lanes.store(scores, place + 3 * half, b1)
    lanes.store(scores, place + 4 * half, c0)
    lanes.store(scores, place + 5 * half, c1)
    lanes.store(scores, place + 6 * half, d0)
    lanes.store(scores, place + 7 * half, d1)
    lanes.store(scores, place + 8 * half, e0)
    lanes.store(scores, place + 9 * half, e1)


@as_written
def read_answers(scores, ranks, panel, model, classes, kind, right, losses):
    """Write a model's result on each test sample of a panel. Returns whether an answer cannot be read from its scores.

    With s the scores, y the label and C the number of classes, the losses are

        multi-margin     (1/C) sum_{c != y} max(0, 1 - s_y + s_c)
        cross-entropy    log sum_c exp(s_c - max s) - (s_y - max s)
        squared          (1/2) sum_c (s_c - [c = y])^2
    """
    half = lanes.width(scores)
    one, zero = lanes.filled(scores, 1), lanes.filled(scores, 0)
    doubt = zero
    for part in range(2):
        place = 2 * half * model * classes + half * part
        label = lanes.load(ranks, 2 * half * panel + half * part)
        largest = lanes.load(scores, place)
        of_label = zero
        for c in range(classes):
            score, rank = lanes.load(scores, place + 2 * half * c), lanes.filled(scores, classes - c)
            largest = lanes.larger(largest, score)
            of_label = of_label + lanes.where_equal(label, rank, score)
        answer, loss = zero, zero
        for c in range(classes):
            score, rank = lanes.load(scores, place + 2 * half * c), lanes.filled(scores, classes - c)
            answer = lanes.larger(answer, lanes.where_equal(score, largest, rank))  # the first has the largest rank
            if kind == MULTI_MARGIN:
                loss = loss + lanes.larger(zero, one - of_label + score)
            elif kind == CROSS_ENTROPY:
                loss = loss + exponential(scores, score - largest)
            else:
                loss = lanes.fma(score, score, loss)
        at = model * right.shape[1] + 2 * half * panel + half * part
        lanes.store(right, at, lanes.where_equal(answer, label, one))
        if kind == MULTI_MARGIN:
            lanes.store(losses, at, (loss - one) * lanes.filled(scores, 1 / classes))
        elif kind == CROSS_ENTROPY:
            lanes.store(losses, at, loss)
            first = 2 * half * panel + half * part
            for s in range(half):
                losses[model, first + s] = math.log(losses[model, first + s])
            lanes.store(losses, at, lanes.load(losses, at) + (largest - of_label))
        else:
            lanes.store(losses, at, (loss - of_label - of_label + one) * lanes.filled(scores, 0.5))
        doubt = doubt + (largest - largest)  # 0, or NaN if the largest score is not finite
    return not lanes.total(doubt) == 0  # noqa: SIM201 - NaN is unequal to 0


@as_written
def exponential(scores, x):
    """exp(x) for x <= 0, to 1e-11: the series of exp(x / 32) up to the seventh power, squared five times."""
    t = lanes.larger(x, lanes.filled(scores, -64)) * lanes.filled(scores, 1 / 32)
    one = lanes.filled(scores, 1)
    e = lanes.fma(t, lanes.filled(scores, 1 / 7), one)
    for divisor in range(6, 0, -1):
        e = lanes.fma(e, t * lanes.filled(scores, 1 / divisor), one)
    for _ in range(5):
        e = e * e
    return e
