"""What is compiled does what its Python text says: both, side by side, on small problems."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from efhc.core.arithmetic import consensus_error
from efhc.core.graph import Graph
from efhc.kernels import iteration_loops, linear_loops, model_loops
from efhc.kernels.compiled_arithmetic import drift, links_of
from efhc.kernels.iteration_loops import Buffers, Outcome, StretchInputs
from efhc.kernels.linear_loops import Batches, Loss, Span, TrainingInputs
from efhc.kernels.model_loops import Mixture

FEATURES = 7
PRECISIONS = [np.float32, np.float64]
LOSSES = [linear_loops.MULTI_MARGIN, linear_loops.CROSS_ENTROPY, linear_loops.SQUARED]


def both(kernel, *arguments):
    """The arguments after a compiled and after an interpreted call; what each returned is compared."""
    compiled, interpreted = copy.deepcopy(arguments), copy.deepcopy(arguments)
    returned = kernel(*compiled), kernel.py_func(*interpreted)
    for one, other in zip(*(flat((each,)) for each in (compiled, interpreted)), strict=True):
        assert_close(one, other)
    for one, other in zip(*(flat((each,)) for each in returned), strict=True):
        assert_close(one, other)
    return compiled


def flat(arguments):
    """The arguments, and the fields of those that are tuples."""
    return [one for each in arguments for one in (flat(each) if isinstance(each, tuple) else (each,))]


def assert_close(one, other):
    if isinstance(one, np.ndarray | float):
        tolerance = 1e-4 if getattr(one, "dtype", None) == np.float32 else 1e-6
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)
    else:
        assert one == other


@pytest.fixture(params=PRECISIONS, ids=lambda kind: kind.__name__)
def precision(request):
    return request.param


def drawn(precision, *shape):
    return np.random.default_rng(0).normal(size=shape).astype(precision)


def test_passes_over_the_models(precision):
    models, last = drawn(precision, 4, 1100), drawn(precision, 4, 1100)[::-1].copy()
    *_, drifts, _, _ = both(model_loops.drift_rows, models, np.arange(4), last, np.arange(4), np.zeros(4), 1, 3)
    assert (drifts > 0).tolist() == [False, True, True, False]
    both(model_loops.drift_rows, models, np.array([0, 1]), models, np.array([3, 3]), np.zeros(2), 0, 2)
    both(model_loops.squares_of_tile, models, 5, last, 1100, 1, 1000)
    both(model_loops.squares_of_tile, models, 0, models, 0, 1, 70)
    both(model_loops.squares, models, 5, last, 1100, 0, 1090)
    both(model_loops.copy_rows, models, last, np.array([True, False, True, True]), 0, 4)
    both(model_loops.combine_rows, models, np.array([0, 2]), np.array([0.3, 0.7], precision), 3)
    graph = Graph.of(4, [(0, 1), (0, 2), (0, 3), (2, 3)])
    links, used = links_of(graph, np.dtype(precision)), np.array([True, True, False, True])
    links.partners[:], links.weights[:] = 0, 0
    both(model_loops.mix_rows, links, used, models, last, precision(0.1), 0, 4)
    links.partners[:], links.weights[:] = 0, 0
    both(model_loops.find_mixture, links, used, 0, precision(0.1))
    weights = np.array([9, 0.2, 0.3], precision)
    mixture = Mixture(1, precision(0.5), np.array([0, 0, 3]), weights, 1, 3, precision(0.1), place=2)
    *_, mixed = both(model_loops.mix_row, models, mixture, last)
    wanted = models[1] / 2 + weights[1:] @ models[[0, 3]] - precision(0.1) * last[2]
    np.testing.assert_allclose(mixed[2], wanted, rtol=1e-4, atol=1e-5)
    both(model_loops.mix_tile, models, mixture, last, 100, 300)
    both(model_loops.mix_row_and_drift, models, mixture, last, models, 2)
    both(model_loops.drift_of, models, 1, last, 2)


def spreads(models):
    """The spreads of two tiles."""
    room = model_loops.tile_room(models.dtype)
    for array in room:
        array[:] = 0
    return both(model_loops.spread_tiles, room, models, np.ones(2), 0, 2)[2]


@pytest.mark.parametrize("devices", [1, 4, 16, 17, 40])
def test_the_spread_of_the_models(precision, devices):
    models = drawn(precision, devices, 1100) + precision(5)
    models[0] += 1000  # an outlier
    tiles = spreads(models)
    few = models, 0, min(devices, 5), 100, 1000
    both(model_loops.spread_of_rows, *few, np.zeros(model_loops.TILE, precision))
    both(model_loops.spread_in_double, *few, np.zeros(model_loops.TILE))
    assert tiles.sum() == pytest.approx(consensus_error(models), rel=1e-5 if precision == np.float32 else 1e-12)
    same = np.repeat(models[:1], devices, axis=0)
    assert not spreads(same).any()
    models[-1, 1050] = np.nan
    assert np.isnan(spreads(models)).tolist() == [False, True]


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_squares_beyond_single_precision(size):
    models, last = drawn(np.float32, 40, 70) * np.float32(size), np.zeros((40, 70), np.float32)
    *_, drifts, _, _ = both(model_loops.drift_rows, models, np.arange(40), last, np.arange(40), np.zeros(40), 0, 40)
    assert drifts == pytest.approx(np.sqrt(np.square(models.astype(float)).mean(axis=1)), rel=1e-6, abs=0)
    for rows in (3, 40):
        found = np.zeros(1)
        model_loops.spread_tiles(model_loops.tile_room(np.float32), models[:rows], found, 0, 1)
        assert found[0] == pytest.approx(consensus_error(models[:rows]), rel=1e-6, abs=0)


@pytest.mark.parametrize("classes", [2, 3, 5, 6, 11, 62])
@pytest.mark.parametrize("features", [1, 7, 8, 65])
@pytest.mark.parametrize("kind", LOSSES)
def test_linear_models(precision, classes, features, kind):
    samples = 9
    models = drawn(precision, 2, classes * (features + 1))
    rows, labels = drawn(precision, samples, features), np.arange(samples) % classes
    inputs = TrainingInputs(rows, precision(1), precision(0), labels)
    room = linear_loops.room_for(models, inputs)
    for array in room:
        array[:] = 0
    mine, upcoming = Span(np.arange(samples), 0, samples), Span(np.arange(samples), 0, 2)
    losses, gradients = np.zeros(1), np.zeros_like(models)
    *_, x = both(linear_loops.gather, inputs, mine, samples, room.x)
    assert np.array_equal(x[:samples, :features], rows)
    both(
        linear_loops.gather_rows, rows, precision(2), precision(1), np.array([3, 0]), np.zeros((2, features), precision)
    )
    scores = both(linear_loops.score, x, samples, models, len(models[0]), room.scores, rows, upcoming)[-3]
    want = rows @ models[1, :-classes].reshape(classes, features).T + models[1, -classes:]
    np.testing.assert_allclose(scores[:samples], want, rtol=1e-4, atol=1e-4)
    of_kind = (linear_loops.multi_margin, linear_loops.cross_entropy, linear_loops.squared)[kind]
    both(linear_loops.loss_of, kind, scores, samples, labels, precision(0.1))
    scores = both(of_kind, scores, samples, labels, precision(0.1))[0]
    lists = both(linear_loops.find_active, scores, samples, x.shape[1], room.counts, room.active, room.shares)[3:]
    room = room._replace(x=x, counts=lists[0], active=lists[1], shares=lists[2])
    for is_first in (True, False):
        for l2 in (0.0, 0.1):
            both(linear_loops.add_gradients, models, 0, precision(l2), room, is_first, models * 2, 0)
    arguments = models, 1, inputs, Loss(kind, precision(0.1)), mine, upcoming, room, gradients, 0
    gradients = both(linear_loops.linear_row, *arguments)[-2]
    assert gradients[0].any()
    assert not gradients[1].any()
    # The gradient says how the loss changes.
    if precision == np.float64 and kind != linear_loops.MULTI_MARGIN:
        for t in (0, features, classes * features):
            losses = []
            for change in (-1e-6, 1e-6):
                moved = models.copy()
                moved[1, t] += change
                losses.append(linear_loops.linear_row(moved, *arguments[1:-2], np.zeros_like(models), 0))
            assert (losses[1] - losses[0]) / 2e-6 == pytest.approx(gradients[0, t], abs=1e-5)


def a_problem(precision, devices=3, classes=4, samples=2 * linear_loops.SAMPLES + 3):
    """Models, samples as bytes, and a batch for each device."""
    rows = np.random.default_rng(1).integers(0, 256, (30, FEATURES), dtype=np.uint8)
    models = drawn(precision, devices, classes * (FEATURES + 1)) / 10
    inputs = TrainingInputs(rows, precision(0.01), precision(-1), np.arange(30) % classes)
    batch = np.random.default_rng(2).integers(0, 30, devices * samples).astype(np.int32)
    return models, inputs, Batches(batch, np.arange(devices + 1) * samples)


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("l2", [0, 0.1])
def test_many_samples(precision, kind, l2):
    models, inputs, batches = a_problem(precision)
    picked, places, loss = np.array([2, 2, 1]), np.array([1, 0, 2]), Loss(kind, precision(l2))
    room = linear_loops.room_for(models, inputs)
    for array in room:
        array[:] = 0
    arguments = room, models, picked, inputs, loss, batches, np.zeros(3), models * 0, places
    both(linear_loops.linear_picked, *arguments, 0, 3)


def a_stretch(precision, models, alpha, iterations=5, thresholds=(0.0, 0.05, np.inf), kind=0, l2=0.0):
    """The arguments of `stretch` for the problem above."""
    devices = len(models)
    _, inputs, (batch, ends) = a_problem(precision)
    graph = Graph.of(devices, [(0, 1), (1, 2)])
    room, drifts = iteration_loops.stretch_room(models, inputs, 2), drift(models, models + precision(0.1))
    for array in flat((room,)):
        array[:] = 0
    return (
        room,
        Buffers(models, models + precision(0.1), np.zeros_like(models), drifts),
        inputs,
        Loss(kind, precision(l2)),
        Batches(batch[None], ends),
        links_of(graph, np.dtype(precision)),
        StretchInputs(
            np.array([True, False]), np.tile(thresholds, (iterations, 1)), np.full(iterations, alpha, precision)
        ),
        Outcome(np.zeros((iterations, devices), bool), np.zeros((iterations, devices)), np.zeros(iterations)),
    )


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("l2", [0, 0.1])
def test_whole_stretches(precision, kind, l2):
    models, *_ = a_problem(precision)
    *_, outcome = both(iteration_loops.stretch, *a_stretch(precision, models, 0.01, kind=kind, l2=l2))
    assert outcome.fired[:, 0].all()
    assert not outcome.fired[:, 2].any()
    assert (outcome.losses > 0).all()
    assert (outcome.consensus_errors > 0).all()


@pytest.mark.parametrize("thresholds", [(0.0, 0.0, 0.0), (0.0, np.inf, 0.0), (0.0, 0.05, np.inf)])
def test_a_stretch_is_the_passes_one_after_the_other_to_the_last_bit(precision, thresholds):
    models, inputs, batches = a_problem(precision)
    arguments = a_stretch(precision, models.copy(), 0.01, thresholds=thresholds)
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
    arguments = a_stretch(precision, models.copy(), alpha, thresholds=thresholds)
    with np.errstate(all="ignore"):
        both(iteration_loops.stretch, *arguments)
    done, after = iteration_loops.stretch(*arguments)
    assert done == 0
    assert after.models is arguments[1].models
    assert after.last_broadcast is arguments[1].last_broadcast
    assert np.array_equal(after.models, models, equal_nan=True)
    assert np.array_equal(after.last_broadcast, models + precision(0.1), equal_nan=True)
