"""Compiled loops are what NumPy makes of the same numbers, and touch nothing beyond their arrays."""

from __future__ import annotations

import numpy as np
import pytest

from efhc.core import arithmetic, mixing
from efhc.core.graph import Graph
from efhc.kernels import iteration_loops, linear_loops, model_loops
from efhc.kernels.compiled_arithmetic import drift, links_of
from efhc.kernels.iteration_loops import Buffers, Outcome, StretchInputs
from efhc.kernels.linear_loops import Batches, Loss, Span, TrainingInputs
from efhc.learning.models import SVM, LeastSquares, Softmax

LINEAR = [
    (linear_loops.MULTI_MARGIN, SVM()),
    *((linear_loops.CROSS_ENTROPY, Softmax(l2=l2)) for l2 in (0.0, 0.1)),
    *((linear_loops.SQUARED, LeastSquares(l2=l2)) for l2 in (0.0, 0.1)),
]
"""Losses, and the models that have them."""
MARGIN = 100
"""Numbers in front of a guarded array and behind it."""


@pytest.fixture(params=[np.float32, np.float64], ids=lambda kind: kind.__name__)
def precision(request):
    return request.param


def drawn(precision, *shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(precision)


def guarded(array):
    """A copy with NaN in front of it and behind it: if a loop reads beyond its ends, NaN shows in the results."""
    memory = np.full(array.size + 2 * MARGIN, np.nan, array.dtype)
    inside = memory[MARGIN:-MARGIN].reshape(array.shape)
    inside[...] = array
    return inside


def assert_guarded(*arrays):
    """Nothing was written beyond the ends of guarded arrays."""
    for inside in arrays:
        assert np.isnan(inside.base[:MARGIN]).all()
        assert np.isnan(inside.base[-MARGIN:]).all()


def assert_close(found, want):
    tolerance = 1e-4 if found.dtype == np.float32 else 1e-10
    np.testing.assert_allclose(found, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("n", [70, 1100])
def test_passes_over_the_models(precision, n):
    models, others = guarded(drawn(precision, 4, n)), guarded(drawn(precision, 4, n, seed=1))
    drifts = np.zeros(4)
    model_loops.drift_rows(models, np.arange(4), others, np.array([3, 2, 1, 0]), drifts, 1, 3)
    assert drifts == pytest.approx([0, *np.sqrt(np.square(models - others[::-1]).mean(axis=1))[1:3], 0], rel=1e-6)
    assert model_loops.squares(models, 5, others, n, 0, n - 10) == pytest.approx(
        np.square(models.ravel()[5 : n - 5]).sum(), rel=1e-6
    )
    copied, chosen = guarded(others), np.array([True, False, True, True])
    model_loops.copy_rows(models, copied, chosen, 0, 4)
    assert np.array_equal(copied, np.where(chosen[:, None], models, others))
    combined = guarded(models)
    model_loops.combine_rows(combined, np.array([0, 2]), np.array([0.3, 0.7], precision), 3)
    assert_close(combined[3], precision(0.3) * models[0] + precision(0.7) * models[2])
    graph, used = Graph.of(4, [(0, 1), (0, 2), (0, 3), (2, 3)]), np.array([True, True, False, True])
    mixed = guarded(others)
    model_loops.mix_rows(links_of(graph, np.dtype(precision)), used, models, mixed, precision(0.1), 0, 4)
    assert_close(mixed, mixing.mix_and_descend(graph, used, models, others, 0.1))
    assert_guarded(models, others, copied, combined, mixed)
    assert np.array_equal(combined[:3], models[:3])


def spreads(models):
    """The spreads of two tiles."""
    found = np.ones(2)
    model_loops.spread_tiles(model_loops.tile_room(models.dtype), models, found, 0, 2)
    return found


@pytest.mark.parametrize("devices", [1, 4, 16, 17, 40])
def test_the_spread_of_the_models(precision, devices):
    models = guarded(drawn(precision, devices, 1100) + precision(5))
    models[0] += 1000  # an outlier
    want = arithmetic.consensus_error(models)
    assert spreads(models).sum() == pytest.approx(want, rel=1e-5 if precision == np.float32 else 1e-12)
    same = np.repeat(models[:1], devices, axis=0)
    assert not spreads(same).any()
    models[-1, 1050] = np.nan
    assert np.isnan(spreads(models)).tolist() == [False, True]


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_squares_beyond_single_precision(size):
    models, last = drawn(np.float32, 40, 70) * np.float32(size), np.zeros((40, 70), np.float32)
    assert drift(models, last) == pytest.approx(np.sqrt(np.square(models.astype(float)).mean(axis=1)), rel=1e-6, abs=0)
    for rows in (3, 40):
        found = np.zeros(1)
        model_loops.spread_tiles(model_loops.tile_room(np.float32), models[:rows], found, 0, 1)
        assert found[0] == pytest.approx(arithmetic.consensus_error(models[:rows]), rel=1e-6, abs=0)


@pytest.mark.parametrize("classes", [2, 3, 5, 6, 11, 62])
@pytest.mark.parametrize("features", [1, 7, 8, 65])
@pytest.mark.parametrize(("kind", "model"), LINEAR)
@pytest.mark.parametrize("samples", [9, 2 * linear_loops.SAMPLES + 3])
def test_linear_models(precision, classes, features, kind, model, samples):
    models = guarded(drawn(precision, 2, classes * (features + 1)))
    rows = guarded(drawn(precision, samples, features))
    inputs = TrainingInputs(rows, precision(2), precision(1), np.arange(samples) % classes)
    picked = np.random.default_rng(1).permutation(samples)
    gathered = guarded(np.zeros_like(rows))
    linear_loops.gather_rows(rows, inputs.scale, inputs.shift, picked, gathered)
    assert_close(gathered, 2 * rows[picked] + 1)
    mine, upcoming, room = Span(picked, 0, samples), Span(picked, 0, 2), linear_loops.room_for(models, inputs)
    loss, gradients = Loss(kind, precision(getattr(model, "l2", 0))), guarded(np.full_like(models, 7))
    found = linear_loops.linear_row(models, 1, inputs, loss, mine, upcoming, room, gradients, 0)
    want, gradient = model.loss_and_gradient(models[1], gathered, inputs.labels[picked])
    assert_close(np.array([found], precision), [want])
    assert_close(gradients[0], gradient)
    assert (gradients[1] == 7).all()
    assert_guarded(models, rows, gathered, gradients)


def a_problem(precision, devices=3, classes=4, features=7, samples=2 * linear_loops.SAMPLES + 3):
    """Models, samples as bytes, and a batch for each device."""
    rows = np.random.default_rng(1).integers(0, 256, (30, features), dtype=np.uint8)
    models = drawn(precision, devices, classes * (features + 1)) / 10
    inputs = TrainingInputs(rows, precision(0.01), precision(-1), np.arange(30) % classes)
    batch = np.random.default_rng(2).integers(0, 30, devices * samples).astype(np.int32)
    return models, inputs, Batches(batch, np.arange(devices + 1) * samples)


def a_stretch(precision, models, alpha, thresholds, iterations=5, kind=linear_loops.MULTI_MARGIN, l2=0.0):
    """The arguments of `stretch` for the problem above."""
    devices = len(models)
    _, inputs, (batch, ends) = a_problem(precision)
    graph = Graph.of(devices, [(0, 1), (1, 2)])
    return (
        iteration_loops.stretch_room(models, inputs, 2),
        Buffers(models, models + precision(0.1), np.zeros_like(models), drift(models, models + precision(0.1))),
        inputs,
        Loss(kind, precision(l2)),
        Batches(batch[None], ends),
        links_of(graph, np.dtype(precision)),
        StretchInputs(
            np.array([True, False]), np.tile(thresholds, (iterations, 1)), np.full(iterations, alpha, precision)
        ),
        Outcome(np.zeros((iterations, devices), bool), np.zeros((iterations, devices)), np.zeros(iterations)),
    )


@pytest.mark.parametrize("thresholds", [(0.0, 0.0, 0.0), (0.0, np.inf, 0.0), (0.0, 0.05, np.inf)])
@pytest.mark.parametrize(("kind", "model"), LINEAR)
def test_a_stretch_is_the_passes_one_after_the_other_to_the_last_bit(precision, thresholds, kind, model):
    models, inputs, batches = a_problem(precision)
    arguments = a_stretch(precision, models.copy(), 0.01, thresholds, kind=kind, l2=getattr(model, "l2", 0))
    done, after = iteration_loops.stretch(*arguments)
    assert done == 5
    links, plan, outcome = arguments[-3:]
    last, used, every = models + precision(0.1), plan.new_links.copy(), np.arange(3)
    for k in range(5):
        gradients, losses, spreads, drifts = np.empty_like(models), np.empty(3), np.empty(1), drift(models, last)
        linear_loops.linear_picked(
            arguments[0].samples, models, every, inputs, arguments[3], batches, losses, gradients, every, 0, 3
        )
        fired = drifts >= plan.thresholds[k]
        used |= fired[links.ends].any(axis=1)
        model_loops.mix_rows(links, used, models, gradients, plan.step_sizes[k], 0, 3)
        model_loops.spread_tiles(arguments[0].tile, gradients, spreads, 0, 1)
        assert np.array_equal(fired, outcome.fired[k])
        assert np.array_equal(losses, outcome.losses[k])
        assert spreads[0] == outcome.consensus_errors[k]
        last[fired], models, used[:] = models[fired], gradients, False
    assert np.array_equal(after.models, models)
    assert np.array_equal(after.last_broadcast, last)
    if not np.isnan(after.drifts[0]):
        assert np.array_equal(after.drifts, drift(models, last))


@pytest.mark.parametrize(("alpha", "start"), [(np.inf, 1.0), (0.01, np.nan), (0.01, np.inf)])
@pytest.mark.parametrize("thresholds", [(0.0, 0.0, 0.0), (0.0, 0.05, np.inf)])
def test_an_iteration_that_diverges_leaves_everything_as_it_was(precision, alpha, start, thresholds):
    models, *_ = a_problem(precision)
    models[1] *= precision(start)
    arguments = a_stretch(precision, models.copy(), alpha, thresholds)
    done, after = iteration_loops.stretch(*arguments)
    assert done == 0
    assert after.models is arguments[1].models
    assert after.last_broadcast is arguments[1].last_broadcast
    assert np.array_equal(after.models, models, equal_nan=True)
    assert np.array_equal(after.last_broadcast, models + precision(0.1), equal_nan=True)
