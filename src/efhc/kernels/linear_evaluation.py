"""Compiled loops that count the right answers of linear models: scores are read while they are in the cache.

    count_right    how many samples have their largest score at their label     learning.backends.linear_backend

An input is scale * z + shift, where z is a byte or a number of the data. So a score is its start, which is
bias + shift * (sum of the weights), plus the products of the weights and scale * z. Those with z = 0 are left out, and
the others are added one after the other, each by one fused multiply-add. So a score has the same bits on every
processor, for any number of threads, and whichever models are evaluated together.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from efhc.base.compiling import as_written
from efhc.kernels import lanes

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
def count_right(room, panels, models, starts, right, is_bad, low, high):
    """Count the right answers of models (m, n) for panels `low` to `high` - 1; n = classes * features + classes.

    starts[i, c]: where the score of class c begins. right[p, i]: the samples of panel p whose largest score, the first
    of equal ones, model i has at their label. is_bad[p, i]: whether a score of model i is NaN there, or a largest score
    is not finite.
    """
    inputs, scores = room
    classes = starts.shape[1]
    rows = len(models) * classes
    for panel in range(low, high):
        scale_panel(panels, panel, inputs)
        for row in range(0, rows, ROWS):
            score_rows(panels, panel, inputs, models, starts, row, scores)
        for i in range(len(models)):
            right[panel, i], is_bad[panel, i] = read_answers(scores, panels.ranks, panel, i, classes)


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
def read_answers(scores, ranks, panel, model, classes):
    """How many samples of a panel a model gets right, and whether an answer cannot be read from its scores."""
    half = lanes.width(scores)
    one, zero = lanes.filled(scores, 1), lanes.filled(scores, 0)
    right, doubt = zero, zero
    for part in range(2):
        place = 2 * half * model * classes + half * part
        largest = lanes.load(scores, place)
        for c in range(1, classes):
            largest = lanes.larger(largest, lanes.load(scores, place + 2 * half * c))
        answer = zero
        for c in range(classes):
            rank = lanes.filled(scores, classes - c)  # the first of equal scores has the largest rank
            answer = lanes.larger(answer, lanes.where_equal(lanes.load(scores, place + 2 * half * c), largest, rank))
        right = right + lanes.where_equal(answer, lanes.load(ranks, 2 * half * panel + half * part), one)
        doubt = doubt + (largest - largest)  # 0, or NaN if the largest score is not finite
    return int(lanes.total(right)), not lanes.total(doubt) == 0  # noqa: SIM201 - NaN is unequal to 0
