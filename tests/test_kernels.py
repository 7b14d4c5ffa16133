"""What is compiled does what its Python text says: both, side by side, on small problems."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from efhc.core.graph import Graph
from efhc.kernels import loops
from efhc.kernels.compiled_arithmetic import links_of

FEATURES, SAMPLES = 7, 9
PRECISIONS = [np.float32, np.float64]


def both(kernel, *arguments):
    """The arguments after a compiled and after an interpreted call, and what each returned."""
    compiled, interpreted = copy.deepcopy(arguments), copy.deepcopy(arguments)
    returned = kernel(*compiled), kernel.py_func(*interpreted)
    if returned[0] is not None:
        np.testing.assert_allclose(np.array(returned[0]), np.array(returned[1]), rtol=1e-4)
    for one, other in zip(flat(compiled), flat(interpreted), strict=True):
        if isinstance(one, np.ndarray):
            tolerance = 1e-4 if one.dtype == np.float32 else 1e-10
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)
    return compiled


def flat(arguments):
    """The arguments, and the fields of those that are tuples."""
    return [one for each in arguments for one in (each if isinstance(each, tuple) else (each,))]


@pytest.fixture(params=PRECISIONS, ids=lambda kind: kind.__name__)
def precision(request):
    return request.param


def drawn(precision, *shape):
    return np.random.default_rng(0).normal(size=shape).astype(precision)


def test_passes_over_the_models(precision):
    models, last = drawn(precision, 4, 1100), drawn(precision, 4, 1100)[::-1].copy()
    both(loops.drift_row, models[0], last[0])
    *_, drifts, _, _ = both(loops.drift_rows, models, last, np.zeros(4), 1, 3)
    assert (drifts > 0).tolist() == [False, True, True, False]
    both(loops.spread_tiles, models, np.zeros(2), 0, 2)
    same = np.repeat(models[:1], 4, axis=0)
    assert not both(loops.spread_tiles, same, np.ones(2), 0, 2)[1].any()
    both(loops.copy_rows, models, last, np.array([True, False, True, True]), 0, 4)
    graph = Graph.of(4, [(0, 1), (0, 2), (0, 3), (2, 3)])
    used = np.array([True, True, False, True])
    both(loops.mix_rows, links_of(graph, np.dtype(precision)), used, models, last, precision(0.1), 0, 4)


@pytest.mark.parametrize("classes", [2, 3, 5, 6, 11])
def test_linear_models(precision, classes):
    x, weights, biases = (
        drawn(precision, SAMPLES, FEATURES),
        drawn(precision, classes, FEATURES),
        drawn(precision, classes),
    )
    y = np.arange(SAMPLES) % classes
    if classes >= 5:
        both(loops.dots, x[0], x[1], weights, 0)
    both(loops.dot, x[0], weights[0])
    *_, scores = both(loops.score, x, weights, biases, np.zeros((SAMPLES, classes), precision))
    for loss in (loops.multi_margin, loops.cross_entropy, loops.squared):
        by_score, *_ = both(loss, scores, y, precision(0.1))
        both(loops.add_outer, by_score, x, weights)
    sparse = np.zeros((SAMPLES, classes), precision)
    sparse[4, 1] = 1
    both(loops.add_outer, sparse, x, weights)
    both(loops.add_four_by_two, sparse[:4, :2], x[:4], weights[:2])
    both(loops.add_four_by_two, scores[:4, :2], x[:4], weights[:2])
    both(loops.add_one, scores[0, 0], x[0], weights[0])
    both(loops.count_right, scores[:, None], y, np.zeros(1, np.int64))
    both(loops.gather_rows, x, precision(2), precision(1), np.array([3, 0]), np.zeros((2, FEATURES), precision))


@pytest.mark.parametrize("loss", [loops.MULTI_MARGIN, loops.CROSS_ENTROPY, loops.SQUARED])
@pytest.mark.parametrize("l2", [0, 0.1])
def test_many_samples_and_whole_stretches(precision, loss, l2):
    devices, classes, samples = 3, 4, 2 * loops.SAMPLES + 3
    rows = np.random.default_rng(1).integers(0, 256, (30, FEATURES), dtype=np.uint8)
    labels = np.arange(30) % classes
    models = drawn(precision, devices, classes * (FEATURES + 1)) / 10
    inputs = loops.Inputs(rows, precision(0.01), precision(-1), labels)
    batch = np.random.default_rng(2).integers(0, 30, devices * samples).astype(np.int32)
    ends = np.arange(devices + 1) * samples
    room = np.zeros((loops.SAMPLES, FEATURES), precision), np.zeros((loops.SAMPLES, classes), precision)
    of_loss = loops.Loss(loss, precision(l2))
    both(loops.linear_row, models[0], inputs, batch[:samples], of_loss, *room, np.zeros(64, np.int64), models[1])
    both(loops.linear_rows, models, inputs, batch, ends, of_loss, np.zeros(devices), models * 0, 0, devices)
    picked, places = np.array([2, 2, 1]), np.array([1, 0, 2])
    arguments = (inputs, batch, ends, of_loss, np.zeros(devices), models * 0, places)
    both(loops.linear_picked, models, picked, *arguments, 0, devices)

    graph = Graph.of(devices, [(0, 1), (1, 2)])

    def stretch(models, alpha):
        *_, outcome = both(
            loops.stretch,
            loops.Buffers(models, models + precision(0.1), models * 0),
            inputs,
            of_loss,
            loops.Batches(batch[None], ends),
            links_of(graph, np.dtype(precision)),
            loops.Plan(np.array([True, False]), np.tile([0.0, 0.05, np.inf], (5, 1)), np.full(5, alpha, precision)),
            loops.Outcome(np.zeros((5, devices), bool), np.zeros((5, devices)), np.zeros(5)),
        )
        return outcome

    fired, losses, spreads = stretch(models, 0.01)
    assert fired[:, 0].all()
    assert not fired[:, 2].any()
    assert (losses > 0).all()
    assert (spreads > 0).all()
    _, losses, spreads = stretch(models, np.inf)  # ends in the first iteration
    assert not np.isfinite(spreads[0])
    _, losses, spreads = stretch(models * precision(np.nan), 0.01)
    assert np.isnan(losses[0]).any()
    assert not spreads.any()
