"""The constants of a problem are what their definitions say: by hand, by brute force and through the backends."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from efhc.core.randomness import Randomness
from efhc.learning.backends import backend_for
from efhc.learning.data import Dataset, Digits
from efhc.learning.models import MLP, SVM, LeastSquares, Softmax
from efhc.theory import linear_problem, sampled_problem
from efhc.theory.linear_problem import LinearProblem
from efhc.theory.problem import gradient_diversity, problem_for
from efhc.theory.sampled_problem import SampledProblem

MODELS = [SVM(), Softmax(l2=0.3), LeastSquares(l2=0.2)]


class YourOwn:
    """Softmax regression as a user would bring it: an object that no one knows."""

    def __init__(self, model: Any) -> None:
        self.parameters, self.initial = model.parameters, model.initial
        self.scores, self.loss_and_gradient = model.scores, model.loss_and_gradient


def problem(
    sizes: tuple[int, ...] = (7, 4, 12), features: int = 3, classes: int = 4, precision: str = "float64"
) -> tuple[Dataset, list[np.ndarray]]:
    """Devices with different numbers of samples; the first and the last share some."""
    rng = np.random.default_rng(1)
    total = sum(sizes)
    x, y = rng.normal(size=(total, features)), np.arange(total) % classes
    parts = np.split(rng.permutation(total), np.cumsum(sizes)[:-1])
    parts[-1] = np.concatenate([parts[-1], parts[0][:2]])
    return Dataset(x, y, x[:2], y[:2]).load(precision), parts


def random_model(data: Dataset, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=data.classes * (data.features + 1))


def dense_hessian(model: Any, w: np.ndarray, x: np.ndarray, y: np.ndarray, h: float = 1e-5) -> np.ndarray:
    steps = h * np.eye(len(w))
    columns = [
        (model.loss_and_gradient(w + e, x, y)[1] - model.loss_and_gradient(w - e, x, y)[1]) / (2 * h) for e in steps
    ]
    hessian = np.array(columns)
    return (hessian + hessian.T) / 2


def by_hand() -> LinearProblem:
    """Device 0 has x = 0, 2 of class 0; device 1 has x = 1, 3 of class 1."""
    data = Dataset(np.array([[0.0], [2.0], [1.0], [3.0]]), np.array([0, 0, 1, 1]), np.zeros((1, 1)), np.array([0]))
    return LinearProblem(LeastSquares(l2=0), data.load("float64"), [np.array([0, 1]), np.array([2, 3])], 1)


def test_noise_and_diversity_by_hand():
    # At w = 0 the scores are 0: sample gradients are -e_y (x, 1), and w is laid out (a_0, a_1, c_0, c_1).
    losses, gradients = by_hand().local(np.zeros(4))
    np.testing.assert_allclose(losses, [0.5, 0.5])
    np.testing.assert_allclose(gradients, [[-1, 0, -1, 0], [0, -2, 0, -1]])
    # Half the squared distance of the two gradients, (0, 1) and (2, 1), or (1, 1) and (3, 1), is 2: a quarter is 1.
    noise = by_hand().noise(np.zeros((2, 4)))
    np.testing.assert_allclose(noise.variance, [1, 1])
    assert not noise.error.any()
    # grad F is their mean; each is half of (-1, 2, -1, 1) from it.
    np.testing.assert_allclose(gradient_diversity(gradients), [7**0.5 / 2, 7**0.5 / 2])


@pytest.mark.parametrize("model", MODELS, ids=repr)
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_local_is_the_models_own_loss_in_double_precision(model: Any, precision: str):
    data, parts = problem(precision=precision)
    w = random_model(data).astype(precision)
    losses, gradients = LinearProblem(model, data, parts, 2).local(w)
    for i, part in enumerate(parts):
        x = data.inputs(data.x_train[part]).astype(np.float64)
        loss, gradient = model.loss_and_gradient(w.astype(np.float64), x, data.y_train[part])
        assert losses[i] == pytest.approx(loss, rel=1e-14)
        np.testing.assert_allclose(gradients[i], gradient, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("model", MODELS, ids=repr)
@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_noise_is_the_mean_over_all_mini_batches(model: Any, batch_size: int):
    data, parts = problem(sizes=(6, 4, 5))
    models = np.stack([random_model(data, seed) for seed in range(3)])
    noise = LinearProblem(model, data, parts, batch_size).noise(models)
    for i, part in enumerate(parts):
        _, full = model.loss_and_gradient(models[i], data.x_train[part], data.y_train[part])
        squares = []
        for batch in itertools.combinations(part, batch_size):
            rows = list(batch)
            gradient = model.loss_and_gradient(models[i], data.x_train[rows], data.y_train[rows])[1]
            squares.append(np.square(gradient - full).sum())
        assert noise.variance[i] == pytest.approx(np.mean(squares), rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("sizes", [(7, 4, 12), (3, 2, 9)])
def test_curvature_of_least_squares_is_that_of_its_hessian(sizes: tuple[int, ...]):
    data, parts = problem(sizes)
    model, w = LeastSquares(l2=0.2), random_model(data)
    curvature = LinearProblem(model, data, parts, 1).curvature(w)
    for i, part in enumerate(parts):
        eigenvalues = np.linalg.eigvalsh(dense_hessian(model, w, data.x_train[part], data.y_train[part]))
        assert curvature.smoothness[i] == pytest.approx(eigenvalues[-1], rel=1e-7)
        assert curvature.convexity[i] == pytest.approx(eigenvalues[0], rel=1e-7)


def test_curvature_of_softmax_bounds_that_of_its_hessians():
    data, parts = problem(classes=2)
    model = Softmax(l2=0.3)
    curvature = LinearProblem(model, data, parts, 1).curvature(np.zeros(1))
    assert curvature.known == "bound"
    largest = np.zeros(len(parts))
    for scale, seed in itertools.product([0, 0.1, 1, 10], range(3)):
        w = scale * random_model(data, seed)
        for i, part in enumerate(parts):
            eigenvalues = np.linalg.eigvalsh(dense_hessian(model, w, data.x_train[part], data.y_train[part]))
            assert curvature.convexity[i] <= eigenvalues[0] + 1e-8
            largest[i] = max(largest[i], eigenvalues[-1])
    assert (largest <= curvature.smoothness + 1e-8).all()
    # Of two classes at w = 0 every p is 1/2, and the bound is met.
    np.testing.assert_allclose(largest, curvature.smoothness, rtol=1e-7)


def test_an_svm_has_kinks():
    data, parts = problem()
    given = LinearProblem(SVM(), data, parts, 1)
    curvature = given.curvature(random_model(data))
    assert (curvature.L, curvature.mu, curvature.known) == (np.inf, 0, "exact")
    assert given.optimum() is None


def test_inputs_that_do_not_fit_are_converted_in_pieces(monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(0)
    x, y = rng.integers(256, size=(40, 6), dtype=np.uint8), np.arange(40) % 3
    data = Dataset(x, y, x[:2], y[:2]).prepared(True, "float32")
    parts, w = [np.arange(25), np.arange(20, 40)], rng.normal(size=21)
    held = [LinearProblem(model, data, parts, 3) for model in (Softmax(), LeastSquares())]
    whole = [(*p.local(w), *p.noise(np.stack([w, -w])), *p.curvature(w)[:2], p.optimum()) for p in held]
    monkeypatch.setattr(linear_problem, "HELD", 0)
    monkeypatch.setattr(linear_problem, "AT_ONCE", 6 * 7)
    pieces = [LinearProblem(model, data, parts, 3) for model in (Softmax(), LeastSquares())]
    for p, (*constants, optimum) in zip(pieces, whole, strict=True):
        found = *p.local(w), *p.noise(np.stack([w, -w])), *p.curvature(w)[:2]
        for a, b in zip(found, constants, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)
        found_optimum = p.optimum()
        assert found_optimum is not None
        assert optimum is not None
        np.testing.assert_allclose(found_optimum.model, optimum.model, rtol=0, atol=3e-10)


def test_a_problem_says_what_its_noise_is_estimated_from():
    data, parts = problem()
    fewest, most = min(map(len, parts)), max(map(len, parts))
    assert LinearProblem(Softmax(), data, parts, 2).noise_source is None
    assert LinearProblem(Softmax(), data, parts, 2, noise_samples=most).noise_source is None  # all are used
    assert LinearProblem(Softmax(), data, parts, "full", noise_samples=1).noise_source is None
    assert LinearProblem(Softmax(), data, parts, 2, noise_samples=fewest - 1).noise_source == (fewest - 1, "samples")
    backend = backend_for(YourOwn(Softmax()), data, Randomness(0))
    assert SampledProblem(backend, data, parts, 2, Randomness(0), draws=5).noise_source == (5, "mini-batches")
    assert SampledProblem(backend, data, parts, "full", Randomness(0)).noise_source is None


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("sizes", [(60, 60, 60), (30, 50, 100)])
def test_a_model_of_your_own_gets_the_same_constants(
    precision: str, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
):
    data, parts = problem(sizes, features=5, classes=3, precision=precision)
    monkeypatch.setattr(sampled_problem, "AT_ONCE", 40)  # several pieces
    model, randomness = Softmax(l2=0.1), Randomness(3)
    own = YourOwn(model)
    exact = LinearProblem(model, data, parts, 4)
    sampled = SampledProblem(backend_for(own, data, randomness), data, parts, 4, randomness, draws=200)
    w, tolerance = random_model(data), 1e-5 if precision == "float32" else 1e-12
    for a, b in zip(sampled.local(w), exact.local(w), strict=True):
        assert a.dtype == np.float64
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)

    models = np.stack([random_model(data, seed) for seed in range(3)])
    noise, want = sampled.noise(models), exact.noise(models)
    assert (np.abs(noise.variance - want.variance) <= 4 * noise.error).all()
    assert (noise.error < 0.2 * want.variance).all()
    np.testing.assert_array_equal(noise.variance, sampled.noise(models).variance)

    curvature, bound = sampled.curvature(w), exact.curvature(w)
    assert curvature.known == "estimate"
    assert (curvature.smoothness <= bound.smoothness + 1e-3).all()
    for i, part in enumerate(parts):
        x = data.x_train[part].astype(np.float64)
        eigenvalues = np.linalg.eigvalsh(dense_hessian(model, w, x, data.y_train[part]))
        assert curvature.smoothness[i] == pytest.approx(eigenvalues[-1], rel=0.01)
        assert curvature.convexity[i] == pytest.approx(eigenvalues[0], rel=0.2)
    assert sampled.optimum() is None


def test_estimates_of_a_hessian_with_few_eigenvalues():
    """Fewer dimensions than rounds: nothing is left to find, and rounding must not be mistaken for more."""
    data, parts = problem(features=1, classes=2)
    model, randomness = LeastSquares(l2=0.5), Randomness(0)
    sampled = SampledProblem(backend_for(YourOwn(model), data, randomness), data, parts, 2, randomness)
    curvature = sampled.curvature(random_model(data))
    exact = LinearProblem(model, data, parts, 2).curvature(np.zeros(4))
    np.testing.assert_allclose(curvature.smoothness, exact.smoothness, rtol=1e-6)
    np.testing.assert_allclose(curvature.convexity, exact.convexity, rtol=1e-6)


def test_a_hessian_that_is_not_positive():
    """F_i = -(3/2) w_0^2 + w_1^2 / 2 has the norm 3, and is not convex."""

    class Saddle(YourOwn):
        def __init__(self) -> None:
            self.parameters = lambda data: 2

        def loss_and_gradient(self, w: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return w[..., 1] ** 2 / 2 - 1.5 * w[..., 0] ** 2, w * np.array([-3, 1])

    data, parts = problem()
    sampled = SampledProblem(backend_for(Saddle(), data, Randomness(0)), data, parts, 2, Randomness(0))
    curvature = sampled.curvature(np.ones(2))
    np.testing.assert_allclose(curvature.smoothness, 3, rtol=1e-6)
    np.testing.assert_allclose(curvature.convexity, -3, rtol=1e-6)


def test_a_device_may_have_fewer_samples_than_there_are_pieces(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sampled_problem, "AT_ONCE", 2)
    data, parts = problem(sizes=(1, 9, 4))
    model, randomness = Softmax(l2=0.1), Randomness(0)
    sampled = SampledProblem(backend_for(YourOwn(model), data, randomness), data, parts, 1, randomness)
    w = random_model(data)
    np.testing.assert_allclose(sampled.local(w)[1], LinearProblem(model, data, parts, 1).local(w)[1], atol=1e-14)


def test_a_network_gets_finite_estimates():
    pytest.importorskip("torch")
    data, model, randomness = Digits().load(), MLP(hidden=(8,)), Randomness(0)
    parts = np.array_split(np.arange(len(data.y_train)), 4)  # sizes differ by one
    backend = backend_for(model, data, randomness)
    w = model.initial(data, np.random.default_rng(0))
    sampled = problem_for(model, data, parts, 16, backend, randomness)
    losses, gradients = sampled.local(w)
    noise, curvature = sampled.noise(np.tile(w, (4, 1))), sampled.curvature(w)
    assert np.isfinite([losses, noise.variance, noise.error, curvature.smoothness, curvature.convexity]).all()
    assert np.isfinite(gradients).all()
    assert (noise.error > 0).all()
    assert (noise.error < noise.variance).all()
    assert (np.abs(curvature.convexity) <= curvature.smoothness).all()
    # A step along the gradient lowers F_i as smoothness promises, twice over since it is estimated at w only.
    step = 1 / (2 * curvature.L)
    after = [sampled.local((w - step * gradient).astype(w.dtype))[0][i] for i, gradient in enumerate(gradients)]
    assert (after < losses).all()
