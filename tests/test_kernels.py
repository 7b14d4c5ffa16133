"""What is compiled does what its Python text says: both, side by side, on small problems."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from efhc import kernels
from efhc.core.graph import Graph

FEATURES, SAMPLES = 7, 9
PRECISIONS = [np.float32, np.float64]


def both(kernel, *arguments):
    """The arguments after a compiled and after an interpreted call, and what each returned."""
    compiled, interpreted = copy.deepcopy(arguments), copy.deepcopy(arguments)
    returned = kernel(*compiled), kernel.py_func(*interpreted)
    if returned[0] is not None:
        np.testing.assert_allclose(np.array(returned[0]), np.array(returned[1]), rtol=1e-4)
    for one, other in zip(compiled, interpreted, strict=True):
        if isinstance(one, np.ndarray):
            tolerance = 1e-4 if one.dtype == np.float32 else 1e-10
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)
    return compiled


@pytest.fixture(params=PRECISIONS, ids=lambda kind: kind.__name__)
def precision(request):
    return request.param


def drawn(precision, *shape):
    return np.random.default_rng(0).normal(size=shape).astype(precision)


def test_passes_over_the_models(precision):
    models, last = drawn(precision, 4, 1100), drawn(precision, 4, 1100)[::-1].copy()
    both(kernels.drift_row, models[0], last[0])
    *_, drifts, _, _ = both(kernels.drift_rows, models, last, np.zeros(4), 1, 3)
    assert (drifts > 0).tolist() == [False, True, True, False]
    both(kernels.spread_tiles, models, np.zeros(2), 0, 2)
    same = np.repeat(models[:1], 4, axis=0)
    assert not both(kernels.spread_tiles, same, np.ones(2), 0, 2)[1].any()
    both(kernels.copy_rows, models, last, np.array([True, False, True, True]), 0, 4)
    graph = Graph.of(4, [(0, 1), (0, 2), (0, 3), (2, 3)])
    starts, neighbours, link_of, order = graph.rows
    beta, used = graph.metropolis_weights.astype(precision), np.array([True, True, False, True])
    both(kernels.mix_rows, order, starts, neighbours, link_of, used, beta, models, last, precision(0.1), 0, 4)


@pytest.mark.parametrize("classes", [2, 3, 5, 6, 11])
def test_linear_models(precision, classes):
    x, weights, biases = (
        drawn(precision, SAMPLES, FEATURES),
        drawn(precision, classes, FEATURES),
        drawn(precision, classes),
    )
    y = np.arange(SAMPLES) % classes
    if classes >= 5:
        both(kernels.dots, x[0], x[1], weights, 0)
    both(kernels.dot, x[0], weights[0])
    *_, scores = both(kernels.score, x, weights, biases, np.zeros((SAMPLES, classes), precision))
    for loss in (kernels.multi_margin, kernels.cross_entropy, kernels.squared):
        by_score, *_ = both(loss, scores, y, precision(0.1))
        both(kernels.add_outer, by_score, x, weights)
    sparse = np.zeros((SAMPLES, classes), precision)
    sparse[4, 1] = 1
    both(kernels.add_outer, sparse, x, weights)
    both(kernels.add_four_by_two, sparse[:4, :2], x[:4], weights[:2])
    both(kernels.add_four_by_two, scores[:4, :2], x[:4], weights[:2])
    both(kernels.add_one, scores[0, 0], x[0], weights[0])
    both(kernels.count_right, scores[:, None], y, np.zeros(1, np.int64))
    both(kernels.gather_rows, x, precision(2), precision(1), np.array([3, 0]), np.zeros((2, FEATURES), precision))


@pytest.mark.parametrize("loss", [kernels.MULTI_MARGIN, kernels.CROSS_ENTROPY, kernels.SQUARED])
@pytest.mark.parametrize("l2", [0, 0.1])
def test_many_samples_and_whole_stretches(precision, loss, l2):
    devices, classes, samples = 3, 4, 2 * kernels.SAMPLES + 3
    rows = np.random.default_rng(1).integers(0, 256, (30, FEATURES), dtype=np.uint8)
    labels = np.arange(30) % classes
    models = drawn(precision, devices, classes * (FEATURES + 1)) / 10
    inputs = rows, precision(0.01), precision(-1), labels
    batch = np.random.default_rng(2).integers(0, 30, devices * samples).astype(np.int32)
    ends = np.arange(devices + 1) * samples
    room = np.zeros((kernels.SAMPLES, FEATURES), precision), np.zeros((kernels.SAMPLES, classes), precision)
    of_loss = loss, precision(l2)
    both(kernels.linear_row, models[0], *inputs, batch[:samples], *of_loss, *room, np.zeros(64, np.int64), models[1])
    both(kernels.linear_rows, models, *inputs, batch, ends, *of_loss, np.zeros(devices), models * 0, 0, devices)

    graph = Graph.of(devices, [(0, 1), (1, 2)])
    starts, neighbours, link_of, order = graph.rows

    def stretch(models, alpha):
        return both(
            kernels.stretch,
            *(models, models * 0, models + precision(0.1)),
            *(*inputs, batch[None], ends, *of_loss),
            *(order, starts, neighbours, link_of, graph.links, graph.metropolis_weights.astype(precision)),
            np.array([True, False]),
            np.tile([0.0, 0.05, np.inf], (5, 1)),
            np.full(5, alpha, precision),
            *(np.zeros((5, devices), bool), np.zeros((5, devices)), np.zeros(5)),
        )

    *_, fired, losses, spreads = stretch(models, 0.01)
    assert fired[:, 0].all()
    assert not fired[:, 2].any()
    assert (losses > 0).all()
    assert (spreads > 0).all()
    *_, losses, spreads = stretch(models, np.inf)  # ends in the first iteration
    assert not np.isfinite(spreads[0])
    *_, losses, spreads = stretch(models * precision(np.nan), 0.01)
    assert np.isnan(losses[0]).any()
    assert not spreads.any()
