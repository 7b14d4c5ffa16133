"""Losses and gradients are torch's, for one device and for all at once."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from efhc.learning.data import Dataset
from efhc.learning.models import SVM, AnyModel, LeastSquares, LinearModel, Softmax

MODELS = [SVM(), Softmax(l2=0), Softmax(l2=0.3), LeastSquares(l2=0), LeastSquares(l2=0.3)]


def problem(
    seed: int, features: int = 5, classes: int = 4, batch: int = 7, devices: int | None = None, scale: float = 1.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    lead = () if devices is None else (devices,)
    w = scale * rng.normal(size=(*lead, classes * (features + 1)))
    return w, rng.normal(size=(*lead, batch, features)), rng.integers(classes, size=(*lead, batch))


def torch_linear(w: np.ndarray, features: int, classes: int) -> torch.nn.Linear:
    linear = torch.nn.Linear(features, classes, dtype=torch.float64)
    torch.nn.utils.vector_to_parameters(torch.from_numpy(w.copy()), linear.parameters())
    return linear


def torch_squared(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    one_hot = torch.nn.functional.one_hot(target, scores.shape[-1])
    return torch.nn.functional.mse_loss(scores, one_hot.double(), reduction="sum") / (2 * len(target))


def torch_loss_and_gradient(
    model: LinearModel, w: np.ndarray, x: np.ndarray, y: np.ndarray, classes: int
) -> tuple[float, np.ndarray]:
    linear = torch_linear(w, x.shape[-1], classes)
    scores, target = linear(torch.from_numpy(x)), torch.from_numpy(y)
    if isinstance(model, SVM):
        loss = torch.nn.MultiMarginLoss()(scores, target)
    else:
        of_scores = {Softmax: torch.nn.functional.cross_entropy, LeastSquares: torch_squared}
        norm = sum(parameter.square().sum() for parameter in linear.parameters())
        loss = of_scores[type(model)](scores, target) + model.l2 / 2 * norm
    loss.backward()
    gradient = torch.nn.utils.parameters_to_vector([parameter.grad for parameter in linear.parameters()])
    return loss.item(), gradient.numpy()


@pytest.mark.parametrize("model", MODELS, ids=repr)
@given(
    seed=st.integers(0, 10_000), features=st.integers(1, 9), classes=st.integers(2, 7), batch=st.integers(1, 9),
    scale=st.sampled_from([0.0, 0.1, 1.0, 30.0]),
)  # fmt: skip
@settings(max_examples=30, deadline=None)
def test_loss_and_gradient_are_torchs(
    model: LinearModel, seed: int, features: int, classes: int, batch: int, scale: float
):
    w, x, y = problem(seed, features, classes, batch, scale=scale)
    loss, gradient = model.loss_and_gradient(w, x, y)
    want_loss, want_gradient = torch_loss_and_gradient(model, w, x, y, classes)
    np.testing.assert_allclose(loss, want_loss, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(gradient, want_gradient, rtol=1e-12, atol=1e-12)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_svm_takes_torchs_subgradient_on_the_margin_itself(seed: int):
    rng = np.random.default_rng(seed)
    w, x = rng.integers(-1, 2, 4 * 3).astype(float), rng.integers(-1, 2, (20, 2)).astype(float)
    y = rng.integers(4, size=20)
    loss, gradient = SVM().loss_and_gradient(w, x, y)
    want_loss, want_gradient = torch_loss_and_gradient(SVM(), w, x, y, 4)
    assert loss == pytest.approx(want_loss, abs=1e-12)
    np.testing.assert_allclose(gradient, want_gradient, atol=1e-12)


def test_softmax_does_not_overflow():
    w, x, y = problem(0, scale=1e4)
    loss, gradient = Softmax(l2=0).loss_and_gradient(w, x, y)
    want_loss, want_gradient = torch_loss_and_gradient(Softmax(l2=0), w, x, y, 4)
    assert loss == pytest.approx(want_loss)
    np.testing.assert_allclose(gradient, want_gradient, atol=1e-12)


@pytest.mark.parametrize("model", MODELS, ids=repr)
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_all_devices_at_once_are_one_at_a_time(model: LinearModel, precision: str):
    w, x, y = problem(1, devices=6)
    w, x = w.astype(precision), x.astype(precision)
    losses, gradients = model.loss_and_gradient(w, x, y)
    assert losses.shape == (6,)
    assert gradients.shape == w.shape
    assert losses.dtype == gradients.dtype == precision
    tolerance = 1e-5 if precision == "float32" else 1e-13
    for i in range(6):
        loss, gradient = model.loss_and_gradient(w[i], x[i], y[i])
        np.testing.assert_allclose(losses[i], loss, rtol=tolerance)
        np.testing.assert_allclose(gradients[i], gradient, rtol=tolerance, atol=tolerance)


def data_of(features: int, classes: int) -> Dataset:
    x, y = np.zeros((classes, features)), np.arange(classes)
    return Dataset(x, y, x, y)


def test_initial_numbers_fill_torchs_range():
    drawn = SVM.initial(data_of(100, 40), np.random.default_rng(0))
    assert drawn.shape == (4040,)
    assert abs(drawn).max() <= 0.1
    assert abs(drawn).max() > 0.099
    assert abs(drawn.mean()) < 4 * 0.1 / np.sqrt(3 * 4040)


def test_a_table_without_a_kind_is_the_svm_and_l2_is_not_negative():
    assert TypeAdapter(AnyModel).validate_python({}) == SVM()
    with pytest.raises(ValidationError):
        Softmax(l2=-0.1)
    with pytest.raises(ValidationError):
        LeastSquares(l2=-0.1)


@pytest.mark.parametrize("l2", [0, 0.3])
def test_least_squares_is_the_quadratic_of_its_hessian(l2: float):
    (w, x, y), features, classes = problem(6), 5, 4
    z = np.column_stack([x, np.ones(len(x))])
    of_one_class = z.T @ z / len(z) + l2 * np.eye(features + 1)
    # Kronecker's order has a class's bias after its weights; ours has all biases at the end.
    places = np.arange(classes * (features + 1)).reshape(classes, features + 1)
    places = np.concatenate([places[:, :-1].ravel(), places[:, -1]])
    hessian = np.kron(np.eye(classes), of_one_class)[np.ix_(places, places)]
    loss, gradient = LeastSquares(l2=l2).loss_and_gradient(w, x, y)
    at_zero, slope = LeastSquares(l2=l2).loss_and_gradient(0 * w, x, y)
    assert at_zero == pytest.approx(0.5)
    np.testing.assert_allclose(gradient, slope + hessian @ w, atol=1e-12)
    assert loss == pytest.approx(at_zero + slope @ w + w @ hessian @ w / 2)
