"""The learner's gradients are those of the devices' own samples; its accuracies can be counted by hand."""

from collections.abc import Callable

import numpy as np
import pytest

from efhc.core.randomness import Randomness
from efhc.learning.backends.backend import ArraysBackend, Batch, ScoresNotFinite
from efhc.learning.backends.linear_backend import LinearBackend
from efhc.learning.batches import MiniBatches
from efhc.learning.data import Dataset, Digits
from efhc.learning.learner import Learner
from efhc.learning.models import SVM, LeastSquares, LinearModel, Softmax
from efhc.learning.partition import LabelsPerDevice

SEED = Randomness(4)
MODELS = [SVM(), Softmax(l2=0.1), LeastSquares(l2=0.1)]


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return Digits().load("float64")


@pytest.fixture(scope="module")
def parts(digits: Dataset) -> list[np.ndarray]:
    return LabelsPerDevice(labels_per_device=3).split(digits, 4, SEED)


@pytest.fixture(params=[LinearBackend, ArraysBackend])
def learner_of(request: pytest.FixtureRequest) -> Callable[..., Learner]:
    """Makes learners: with compiled loops, and with the model's own functions."""

    def make(model: LinearModel, data: Dataset, parts: list[np.ndarray], size: int | str, seed: Randomness) -> Learner:
        return Learner(request.param(model, data), data, parts, size, seed)

    return make


def gradients(learner: Learner, W: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    out = np.empty_like(W)
    samples = learner.batches.reader()(k) if learner.batches else learner.parts
    losses, _ = learner.backend.grads(W, Batch(k, samples), {}, out)
    return out, losses


def weights(learner: Learner, devices: int = 4) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(devices, learner.backend.parameters)) / 8


@pytest.mark.parametrize("model", MODELS, ids=repr)
@pytest.mark.parametrize("batch_size", [1, 16, "full"])
def test_a_gradient_is_the_mean_over_its_samples(
    learner_of: Callable[..., Learner], digits: Dataset, parts: list[np.ndarray], model: LinearModel, batch_size
):
    learner = learner_of(model, digits, parts, batch_size, SEED)
    W = weights(learner)
    for k in (0, 5, 256):
        samples = parts if batch_size == "full" else MiniBatches(parts, batch_size, SEED).reader()(k)
        G, losses = gradients(learner, W, k)
        for i, mine in enumerate(samples):
            assert set(mine) <= set(parts[i])
            each = [model.loss_and_gradient(W[i], digits.x_train[[s]], digits.y_train[[s]]) for s in mine]
            np.testing.assert_allclose(G[i], np.mean([gradient for _, gradient in each], axis=0), atol=1e-12)
            assert losses[i] == pytest.approx(np.mean([loss for loss, _ in each]))


def test_mini_batch_gradients_are_unbiased(learner_of: Callable[..., Learner], digits: Dataset):
    parts = [np.arange(12)]
    mini, full = (learner_of(Softmax(), digits, parts, size, SEED) for size in (2, "full"))
    W = weights(full, 1)
    drawn = np.stack([gradients(mini, W, k)[0][0] for k in range(3000)])
    error = drawn.std(axis=0) / np.sqrt(3000)
    assert (abs(drawn.mean(axis=0) - gradients(full, W, 0)[0][0]) <= 5 * error + 1e-12).all()


def test_accuracies_by_hand(learner_of: Callable[..., Learner]):
    x_test = np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 1.0], [-1.0, 3.0]])
    data = Dataset(np.eye(2), np.array([0, 1]), x_test, np.array([0, 1, 1, 1])).load("float64")
    learner = learner_of(SVM(), data, [np.array([0]), np.array([1]), np.array([0, 1])], 1, SEED)
    copies = [1.0, 0, 0, 1, 0, 0]  # class 0 scores x_0, class 1 scores x_1: answers 0, 1, 0, 1
    swapped = [0.0, 1, 1, 0, 0, 0]  # answers 1, 0, 1, 0
    always_one = [0.0, 0, 0, 0, 0, 1]  # by its bias
    found = learner.evaluate(np.array([copies, swapped, always_one]), {}).scores["accuracy"]
    assert found.every.tolist() == [0.75, 0.25, 0.75]
    assert found.mean_model == 0.75  # it scores (x_0 + x_1) / 3 for both, and the bias decides


def test_the_mean_model_is_averaged_in_double_precision():
    """In single precision the mean of these biases is 0 for class 0, and the tie goes to it."""
    x_test = np.zeros((2, 1))
    data = Dataset(np.eye(2)[:, :1], np.array([0, 1]), x_test, np.array([1, 1])).load("float32")
    learner = Learner(ArraysBackend(SVM(), data), data, [np.array([0])] * 3, 1, SEED)
    models = np.zeros((3, 4), np.float32)  # two weights, two biases
    models[:, 3] = [1e8, 1, -1e8]
    assert models.mean(axis=0)[3] == 0
    assert learner.evaluate(models, {}).scores["accuracy"].mean_model == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_scores_that_are_not_finite_are_no_accuracy(learner_of: Callable[..., Learner], bad: float):
    data = Dataset(np.eye(2), np.array([0, 1]), np.eye(2), np.array([0, 1])).load("float64")
    learner = learner_of(SVM(), data, [np.array([0])] * 200, 1, SEED)
    models = np.zeros((200, 6))
    models[150, 4] = bad
    with pytest.raises(ScoresNotFinite, match="device 150"):
        learner.evaluate(models, {})
    models[150, 4:] = -np.inf, 0  # a class that is ruled out
    learner.backend.accuracies(models, {})
    models = np.zeros((200, 6))
    models[:, 4] = 1.7e308  # each is finite, their sum is not
    with pytest.raises(ScoresNotFinite, match="the mean model"), np.errstate(over="ignore"):
        learner.evaluate(models, {})
