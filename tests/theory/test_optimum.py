"""The minimiser is one, as close as its certificate says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from efhc.base.errors import EfhcError
from efhc.learning.data import Dataset, Digits
from efhc.learning.models import LeastSquares, Softmax
from efhc.theory.linear_problem import CLOSE, LinearProblem, least_squares_optimum, smooth_optimum


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As runs have it: many small products."""
    with threadpool_limits(1, "blas"):
        yield


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return Digits().load("float32")


def of_digits(model: Any, data: Dataset) -> LinearProblem:
    """Ten devices, one label each, so that their numbers of samples differ."""
    return LinearProblem(model, data, [np.flatnonzero(data.y_train == label) for label in range(10)], 10)


@pytest.mark.parametrize("model", [Softmax(l2=0.01), Softmax(l2=1.0), LeastSquares(l2=0.01)], ids=repr)
def test_the_optimum_of_digits(model: Any, digits: Dataset):
    problem = of_digits(model, digits)
    optimum = problem.optimum()
    assert optimum is not None
    losses, gradients = problem.local(optimum.model)
    assert optimum.loss == pytest.approx(losses.mean(), rel=1e-14)
    assert optimum.distance <= CLOSE
    norm = float(np.linalg.norm(gradients.mean(axis=0)))
    assert norm / model.l2 <= 2 * CLOSE
    rng = np.random.default_rng(0)
    for size in (1e-3, 1e-1, 10):
        other = optimum.model + size * rng.normal(size=len(optimum.model)) / np.sqrt(len(optimum.model))
        losses, _ = problem.local(other)
        square = float(np.square(other - optimum.model).sum())
        assert losses.mean() >= optimum.loss + model.l2 / 2 * square * (1 - 1e-6)


def test_every_device_weighs_the_same(digits: Dataset):
    """F is the mean over devices, not over samples: a device with its samples twice over changes nothing."""
    parts = [np.arange(50), np.arange(50, 400)]
    doubled = [np.tile(parts[0], 2), parts[1]]
    for model in (Softmax(l2=0.1), LeastSquares(l2=0.1)):
        one, other = (LinearProblem(model, digits, each, 1).optimum() for each in (parts, doubled))
        assert one is not None
        assert other is not None
        np.testing.assert_allclose(one.model, other.model, atol=one.distance + other.distance)


def test_no_optimum_without_a_certificate(digits: Dataset):
    assert of_digits(Softmax(l2=0), digits).optimum() is None
    # Some pixels of digits are the same in every image: S is singular.
    assert of_digits(LeastSquares(l2=0), digits).optimum() is None


def test_least_squares_is_numpys(digits: Dataset):
    rows = np.arange(300)
    varying = digits.x_train[rows].std(axis=0) > 0.1  # pixels that hardly vary make S nearly singular
    x, y = digits.x_train[rows][:, varying].astype(np.float64), digits.y_train[rows]
    data = Dataset(x, y, x, y).load("float64")
    optimum = LinearProblem(LeastSquares(l2=0), data, [rows[:150], rows[150:]], 1).optimum()
    assert optimum is not None
    want = np.linalg.lstsq(np.column_stack([x, np.ones(300)]), np.eye(10)[y], rcond=None)[0]
    np.testing.assert_allclose(optimum.model, np.concatenate([want[:-1].T.ravel(), want[-1]]), atol=1e-12)
    assert optimum.distance < 1e-11


def quadratic(hessian: np.ndarray, linear: np.ndarray) -> Any:
    def value_and_gradient(model: np.ndarray) -> tuple[float, np.ndarray]:
        image = model @ hessian
        return float(np.vdot(model, image / 2 - linear)), image - linear

    return value_and_gradient


def test_newton_steps_are_shortened():
    """F = sqrt(1 + w^2) + w^2/200: from far away, where L-BFGS is not allowed to help, a whole step overshoots."""

    def value_and_gradient(w: np.ndarray) -> tuple[float, np.ndarray]:
        root = np.sqrt(1 + w[0] ** 2)
        return float(root + w[0] ** 2 / 200), np.array([w[0] / root + w[0] / 100])

    def hessian_product(w: np.ndarray) -> Any:
        return lambda v: ((1 + w[0] ** 2) ** -1.5 + 0.01) * v

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("efhc.theory.linear_problem.LBFGS_GRADIENT", np.inf)
        found = smooth_optimum(value_and_gradient, hessian_product, np.array([5.0]), 0.01)
    assert abs(found.model[0]) <= found.distance <= CLOSE


def test_what_rounding_forbids_is_said_in_one_line():
    """The gradient is only known to within 1e-6."""
    hessian = np.diag([1.0, 3.0])

    def rough(w: np.ndarray) -> tuple[float, np.ndarray]:
        return float(w @ hessian @ w / 2), np.floor(hessian @ w * 1e6) * 1e-6 + 5e-7

    with pytest.raises(EfhcError, match=r"known to within .* only, not 1e-10.*try a larger l2") as caught:
        smooth_optimum(rough, lambda _: lambda v: hessian @ v, np.ones(2), 1.0)
    assert "\n" not in str(caught.value)


def test_least_squares_are_as_close_as_anything_else_or_say_so():
    """The same gradient, off by 5e-7 in one entry, is close enough for a steep F and not for a flat one."""

    def off(convexity: float) -> Any:
        hessian = convexity * np.eye(2)
        exact = quadratic(hessian, np.array([[convexity, 0.0]]))

        def value_and_gradient(model: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = exact(model)
            return value, np.where(model > 0.5, 5e-7, gradient)

        return least_squares_optimum(value_and_gradient, hessian, (1, 2))

    found = off(1e4)
    assert found is not None
    assert found.distance == pytest.approx(5e-11)
    assert found.distance <= CLOSE
    with pytest.raises(EfhcError, match=r"known to within 5.0e-07 only, not 1e-10.*try a larger l2") as caught:
        off(1.0)
    assert "\n" not in str(caught.value)
