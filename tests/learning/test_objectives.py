"""Every loss and every metric is what plain torch computes, in every backend; and what does not fit is one line."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn
from torch.nn import functional

import efhc
from efhc.base.errors import InputError
from efhc.core.randomness import Randomness
from efhc.drivers.event_driven.record import TIMELINE
from efhc.drivers.record import METRICS, SUMS
from efhc.experiments.config.files import build_experiment
from efhc.learning.backends import backend_for
from efhc.learning.backends.backend import Batch, ScoresNotFinite
from efhc.learning.backends.module_backend import LoopBackend, ModuleBackend
from efhc.learning.backends.stacked import StackedBackend
from efhc.learning.data.dataset import Dataset
from efhc.learning.learner import Learner
from efhc.learning.measures import evaluated
from efhc.learning.models import MLP, SVM, Module, ModuleModel
from efhc.learning.partition import IID, Dirichlet, Groups, LabelsPerDevice, Shards, set_aside
from efhc.report.claims.leads import frontier_curves
from efhc.report.figure_data import SettingData

BACKENDS = [LoopBackend, StackedBackend]
DEVICES, SAMPLES = 5, 24
rng = np.random.default_rng(0)
X = rng.normal(size=(2, SAMPLES, 6))


def data_of(y: np.ndarray, precision: str = "float64", **facts: Any) -> Dataset:
    return Dataset(X[0], y[0], X[1], y[1], **facts).load(precision)


CLASSES = data_of(rng.integers(0, 4, (2, SAMPLES)))
POSITIONS = data_of(rng.integers(0, 4, (2, SAMPLES, 3)))
SEVERAL = data_of(rng.integers(0, 2, (2, SAMPLES, 3)))
NUMBERS = data_of(rng.normal(size=(2, SAMPLES)), label_kind="number")
VECTORS = data_of(rng.normal(size=(2, SAMPLES, 3)), label_kind="number")
WEIGHTS = (0.5, 1.0, 2.0, 4.0)


class ByPosition(nn.Module):
    """Scores (samples, 4 classes, 3 positions)."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = torch.tanh(self.layer(x)).view(-1, 4, 3)
        return scores


def huber(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.huber_loss(scores[:, 0], y)


def within_one(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return ((scores[:, 0] - y).abs() < 1).to(scores.dtype)


def logits(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.binary_cross_entropy_with_logits(scores, y.to(scores.dtype))


def weighted(weights: Any) -> Any:
    return lambda scores, y: functional.cross_entropy(scores, y, weight=torch.tensor(weights, dtype=scores.dtype))


def share_right(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (scores.argmax(1) == y).double().flatten(1).mean(1) if y.ndim > 1 else (scores.argmax(1) == y).double()


BALANCED = SAMPLES / (4 * np.bincount(CLASSES.y_train, minlength=4))
HIDDEN = {"hidden": (5,)}
CASES: dict[str, tuple[ModuleModel, Dataset, Any, Any, dict[str, Any]]] = {
    "classes": (MLP(**HIDDEN), CLASSES, functional.cross_entropy, None, {"accuracy": share_right}),
    "weights": (MLP(**HIDDEN, class_weights=WEIGHTS), CLASSES, weighted(WEIGHTS), functional.cross_entropy, {}),
    "balanced": (MLP(**HIDDEN, class_weights="balanced"), CLASSES, weighted(BALANCED), functional.cross_entropy, {}),
    "positions": (Module(module=ByPosition), POSITIONS, functional.cross_entropy, None, {"accuracy": share_right}),
    "weights of positions": (
        Module(module=ByPosition, class_weights=WEIGHTS), POSITIONS, weighted(WEIGHTS), functional.cross_entropy, {},
    ),
    "several labels": (
        MLP(**HIDDEN, loss="binary-cross-entropy"), SEVERAL, logits, None,
        {"accuracy": lambda scores, y: ((scores > 0) == (y > 0)).double().mean(1)},
    ),
    "numbers": (
        MLP(**HIDDEN, loss="mean-squared-error"), NUMBERS, lambda scores, y: functional.mse_loss(scores[:, 0], y), None,
        {"mean_absolute_error": lambda scores, y: (scores[:, 0] - y).abs()},
    ),
    "vectors": (
        MLP(**HIDDEN, loss="mean-squared-error"), VECTORS, functional.mse_loss, None,
        {"mean_absolute_error": lambda scores, y: (scores - y).abs().mean(1)},
    ),
    "own": (
        MLP(**HIDDEN, loss=huber, metrics={"within_one": {"function": within_one, "better": "higher"}}),
        NUMBERS, huber, None, {"within_one": within_one},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_losses_gradients_and_metrics_are_those_of_plain_torch(kind: type[ModuleBackend], case: str):
    model, data, loss, test_loss, metrics = CASES[case]
    backend = kind(model, data, Randomness(0), threads=2)
    streams = [np.random.default_rng(i) for i in range(DEVICES)]
    models = np.stack([model.initial(data, stream) for stream in streams]).astype("float64")
    samples = np.random.default_rng(7).integers(0, SAMPLES, (DEVICES, 8))
    out = np.empty_like(models)
    losses, _ = backend.grads(models, Batch(0, samples), {}, out)
    found = backend.scored(models, {})
    assert found.keys() == backend.metrics.keys() >= {*metrics, "loss"}
    for device in range(DEVICES):
        module = model.build(data).double()
        nn.utils.vector_to_parameters(torch.from_numpy(models[device]), module.parameters())
        rows = samples[device]
        want = loss(module(torch.from_numpy(data.x_train[rows])), torch.from_numpy(data.y_train[rows]))
        gradient = torch.cat([one.ravel() for one in torch.autograd.grad(want, list(module.parameters()))])
        np.testing.assert_allclose(losses[device], want.item(), rtol=1e-12)
        np.testing.assert_allclose(out[device], gradient.numpy(), rtol=1e-10, atol=1e-13)
        with torch.no_grad():
            scores, y = module(torch.from_numpy(data.x_test)), torch.from_numpy(data.y_test)
            ones = [(scores[i : i + 1], y[i : i + 1]) for i in range(SAMPLES)]
            wants = {name: metric(scores, y) for name, metric in metrics.items()}
            wants["loss"] = torch.stack([(test_loss or loss)(*one) for one in ones])
        for name, values in wants.items():
            np.testing.assert_allclose(found[name][device], values.numpy(), rtol=1e-10, atol=1e-13, err_msg=name)


@pytest.mark.parametrize("case", ["weights", "positions", "several labels", "numbers", "own"])
def test_auto_leaves_to_torch_what_compiled_loops_do_not_know(case: str):
    model, data, *_ = CASES[case]
    assert isinstance(backend_for(model, data, Randomness(0)), ModuleBackend)
    with pytest.raises(InputError, match="'auto'"):
        backend_for(model, data, Randomness(0), "compiled")


def test_a_loss_of_ones_own_has_an_accuracy_only_where_samples_have_a_class():
    of_classes = backend_for(MLP(loss=functional.cross_entropy), CLASSES, Randomness(0))
    assert of_classes.metrics == {"accuracy": "higher", "loss": "lower"}
    assert backend_for(MLP(loss=functional.mse_loss), VECTORS, Randomness(0)).metrics == {"loss": "lower"}


def test_no_metric_has_the_name_of_another_column():
    result = efhc.simulate(iterations=4, devices=3, evaluate_every=2, seeds=(0,))
    columns = {*METRICS, *TIMELINE, *SUMS, *result.at_budget(1.0).columns, *result.summary().columns}
    columns |= {*frontier_curves(SettingData("a", "a", evaluated(result.metrics), 0.1)).columns, "mean_absolute_error"}
    for name in (*columns, "own_x", "x_min", "failed", "runs", "radius"):
        with pytest.raises(InputError):
            build_experiment({"model": MLP(metrics={name: {"function": within_one, "better": "higher"}})})
    with pytest.raises(ValidationError):
        MLP(metrics={"X": {"function": within_one, "better": "higher"}})


def linear(outputs: int) -> Module:
    return Module(module=lambda: nn.Linear(6, outputs))


def with_loss(loss: Any, outputs: int = 4) -> Module:
    return Module(module=lambda: nn.Linear(6, outputs), loss=loss)


def with_metric(function: Any) -> MLP:
    return MLP(metrics={"mine": {"function": function, "better": "lower"}})


@pytest.mark.parametrize(
    ("model", "data", "field", "given"),
    [
        (MLP(), NUMBERS, "model.loss", "numbers"),
        (MLP(loss="multi-margin"), POSITIONS, "model.loss", "several per sample"),
        (MLP(loss="mean-squared-error"), CLASSES, "model.loss", "that are classes"),
        (MLP(loss="binary-cross-entropy"), CLASSES, "model.loss", "from 0 to 3"),
        (MLP(), POSITIONS, "model.module", "(2, 4)"),
        (with_loss("mean-squared-error", 2), VECTORS, "model.module", "(2, 2)"),
        (with_loss(lambda scores, y: scores.mean(1)), CLASSES, "model.loss", "shape (2,)"),
        (with_loss(lambda scores, y: 0.5), CLASSES, "model.loss", "float"),
        (with_loss(lambda scores, y: scores.mean() * torch.nan), CLASSES, "model.loss", "NaN"),
        (with_metric(lambda scores, y: scores), CLASSES, "model.metrics.mine", "(2, 4)"),
        (with_metric(lambda scores, y: scores.mean()), CLASSES, "model.metrics.mine", "()"),
        (with_metric(lambda scores, y: 3.0), CLASSES, "model.metrics.mine", "float"),
        (with_metric(lambda scores, y: scores[:, 0] * torch.inf), CLASSES, "model.metrics.mine", "inf"),
        (with_metric(lambda scores, y: scores[:, 0] + 1j), CLASSES, "model.metrics.mine", "complex"),
        (with_metric(lambda scores, y: scores @ scores), CLASSES, "model.metrics.mine", "fails on scores"),
        (with_loss(lambda scores, y: torch.tensor(1.0)), CLASSES, "model.loss", "no gradient"),
        (with_loss(lambda scores, y: scores.detach().mean()), CLASSES, "model.loss", "no gradient"),
        (with_loss(lambda scores, y: scores.mean() + 1j), CLASSES, "model.loss", "complex"),
        (with_loss(lambda scores, y: (scores @ scores).mean()), CLASSES, "model.loss", "fails on scores"),
        (MLP(class_weights=(1.0, 2.0)), CLASSES, "model.class_weights", "2 weights"),
        (MLP(class_weights=(1.0, 1.0, 1e300, 1.0)), CLASSES, "model.class_weights", "1e+300"),
        (SVM(), NUMBERS, "model", "numbers"),
        (SVM(), POSITIONS, "model", "several per sample"),
    ],
)
def test_what_does_not_go_together_is_one_line(model: Any, data: Dataset, field: str, given: str):
    with pytest.raises(InputError) as caught:
        backend_for(model, data, Randomness(0))
    assert caught.value.field == field
    assert given in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", BACKENDS)
def test_a_metric_that_later_is_not_finite_is_refused_unless_the_scores_are_not(kind: type[ModuleBackend]):
    model = with_metric(lambda scores, y: torch.log(1e3 - scores[:, 0]))
    backend = kind(model, CLASSES, Randomness(0))
    models = np.stack([model.initial(CLASSES, np.random.default_rng(i)) for i in range(3)]).astype("float64")
    assert np.isfinite(backend.scored(models, {})["mine"]).all()
    models[1] *= 1e4
    with pytest.raises(InputError, match=r"metrics\.mine: .* nan for finite scores"):
        backend.scored(models, {})
    models[1] = np.nan
    with pytest.raises(ScoresNotFinite, match="device 1"):
        backend.scored(models, {})


@pytest.mark.parametrize("kind", BACKENDS)
def test_a_loss_that_later_is_no_number_names_device_and_iteration(kind: type[ModuleBackend]):
    model = with_loss(lambda scores, y: functional.cross_entropy(scores, y, reduction="none" if len(y) > 2 else "mean"))
    backend = kind(model, CLASSES, Randomness(0))
    models = np.ones((3, backend.parameters))
    with pytest.raises(InputError, match=r"loss: .* for device 0 at iteration 6"):
        backend.grads(models, Batch(6, np.zeros((3, 4), np.int64)), {}, np.empty_like(models))


def test_class_weights_need_the_cross_entropy_and_every_class():
    with pytest.raises(ValidationError):
        MLP(loss="multi-margin", class_weights="balanced")
    with pytest.raises(InputError, match="balanced"):
        MLP(class_weights="balanced").weights_by_class(data_of(np.array([[0, 2] * 12] * 2)))


# Labels that are no classes


def test_numbers_stay_numbers_and_need_to_be_said():
    y = np.linspace(-1, 1, SAMPLES)
    data = Dataset(X[0], y, X[1], y, label_kind="number").load("float32")
    assert data.y_train.dtype == np.float32
    assert (data.classes, data.label_names, data.outputs) == (0, (), 1)
    whole = Dataset(X[0], np.arange(SAMPLES), X[1], np.arange(SAMPLES), label_kind="number").load()
    assert whole.y_train.dtype == np.float32
    with pytest.raises(InputError, match="label_kind"):
        Dataset(X[0], y, X[1], y).load()
    y[3] = np.inf
    with pytest.raises(InputError, match="inf for sample 3"):
        Dataset(X[0], y, X[1], y, label_kind="number").load()


def test_partitions_by_class_say_which_ones_there_are():
    for partition in (LabelsPerDevice(), Dirichlet()):
        for data in (NUMBERS, POSITIONS):
            with pytest.raises(InputError, match="iid, quantities, groups"):
                partition.split(data, 3, Randomness(0))
    parts = Shards(shards_per_device=1).split(NUMBERS, 3, Randomness(0))
    ranges = sorted((NUMBERS.y_train[part].min(), NUMBERS.y_train[part].max()) for part in parts)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(ranges))
    with pytest.raises(InputError, match="shards"):
        Shards().split(POSITIONS, 3, Randomness(0))


def test_own_measures_without_classes_are_global_by_chance_by_group_or_unknown():
    model = MLP(loss="mean-squared-error", hidden=(3,))
    backend = backend_for(model, NUMBERS, Randomness(0))
    models = np.stack([model.initial(NUMBERS, np.random.default_rng(i)) for i in range(3)]).astype("float64")

    def evaluated(data: Dataset, partition: Any) -> tuple[Any, Learner]:
        learner = Learner(backend, data, partition.split(data, 3, Randomness(0)), 2, Randomness(0), partition)
        return learner.evaluate(models, {}).scores["loss"], learner

    scores, learner = evaluated(NUMBERS, IID())
    np.testing.assert_allclose(scores.own, scores.every, rtol=1e-12)
    assert learner.own.problem() is None

    class ByChance(Shards):
        own_by = "nothing"

    np.testing.assert_allclose(evaluated(NUMBERS, ByChance())[0].own, scores.every, rtol=1e-12)
    scores, learner = evaluated(NUMBERS, Shards())
    assert np.isnan(scores.own).all()
    assert "no classes" in str(learner.own.problem())
    of_groups = np.arange(SAMPLES) % 3
    data = data_of(
        np.stack([NUMBERS.y_train, NUMBERS.y_test]), label_kind="number", groups=of_groups, test_groups=of_groups
    )
    scores, learner = evaluated(data, Groups())
    values = backend.scored(models, {})["loss"]
    for device, part in enumerate(learner.parts):
        mine = of_groups == of_groups[part[0]]
        np.testing.assert_allclose(scores.own[device], values[device, mine].mean(), rtol=1e-12)


def test_a_share_of_numbers_is_set_aside_for_validation():
    parts = np.array_split(np.arange(len(NUMBERS.y_train)), 3)
    kept, aside = set_aside(parts, 0.25, Randomness(0))
    assert [*map(len, kept), *map(len, aside)] == [6, 6, 6, 2, 2, 2]
    assert NUMBERS.with_test_samples(aside[1]).y_test.tolist() == NUMBERS.y_train[aside[1]].tolist()
