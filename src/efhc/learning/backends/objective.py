"""What a network is trained by, its loss, and what it is tested by, its metrics: one file for every kind of labels.

scores  (devices, samples, ...), as the network of each device returns them
labels  (devices, samples, ...), y of the data set

A device is trained by the mean loss of its batch. A test sample has a value for each metric; that of the metric `loss`
is its own loss, without class weights.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch.nn import functional

from efhc.base.errors import EfhcError, InputError
from efhc.base.own_code import imported, in_one_line
from efhc.learning.data.dataset import Dataset
from efhc.learning.measures import CLASSIFICATION, Metrics
from efhc.learning.models.modules import ModuleModel

LARGEST_WEIGHT = 1e12
"""Of a class, far beyond what frequencies of labels give: losses stay finite, also in float32."""

Values = dict[str, torch.Tensor]
"""Metrics by name, (devices, samples) each."""


class Objective(ABC):
    """A loss, with the metrics that belong to it and those of the user's own."""

    standard: ClassVar[Metrics] = CLASSIFICATION

    def __init__(self, model: ModuleModel, data: Dataset) -> None:
        self._data, given = data, model.metrics or {}
        self._own = {name: imported(metric["function"], f"metrics.{name}") for name, metric in given.items()}
        self.metrics: Metrics = {**self.standard, **{name: metric["better"] for name, metric in given.items()}}

    @abstractmethod
    def check(self, scores: torch.Tensor, y: torch.Tensor) -> None:
        """Raise `InputError` unless one device's scores of two samples go with their labels."""

    @abstractmethod
    def sample_losses(self, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return each device's loss on each sample, (devices, samples)."""

    def losses(self, scores: torch.Tensor, y: torch.Tensor, place: Callable[[int], tuple[int, int]]) -> torch.Tensor:
        """Return the mean loss of each device, (devices,). `place` returns the device and iteration of a row."""
        return self.sample_losses(scores, y).mean(dim=1)

    @abstractmethod
    def largest(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the scores that must be finite for a prediction, (devices, ...)."""

    def values(self, scores: torch.Tensor, y: torch.Tensor) -> Values:
        """Return all metrics of all test samples."""
        found = {"loss": self.sample_losses(scores, y), **self._standard_values(scores, y)}
        for name, function in self._own.items():
            of_devices = [
                _per_sample(name, _called(f"metrics.{name}", function, *one)) for one in zip(scores, y, strict=True)
            ]
            found[name] = torch.stack(of_devices)
            if found[name].shape != scores.shape[:2]:
                shape, samples = tuple(of_devices[0].shape), scores.shape[1]
                given = f"a function that returns a Tensor of shape {shape} for {samples} samples"
                raise InputError(f"metrics.{name}", given, f"one number per sample, shape ({samples},)")
            # Scores that are not finite are an error of their own, which names the device.
            usable = torch.isfinite(self.largest(scores).flatten(1)).all(dim=1, keepdim=True)
            if (wrong := found[name][~torch.isfinite(found[name]) & usable]).numel():
                given = f"a function that returns {wrong[0].item()} for finite scores of a test sample"
                raise InputError(f"metrics.{name}", given, "a function that returns finite numbers")
        return found

    @abstractmethod
    def _standard_values(self, scores: torch.Tensor, y: torch.Tensor) -> Values:
        """Return the metrics of `standard` besides the loss."""


def _per_sample(name: str, values: Any) -> torch.Tensor:
    if not isinstance(values, torch.Tensor):
        given = f"a function that returns a {type(values).__name__}"
        raise InputError(f"metrics.{name}", given, "a function that returns a Tensor with one number per sample")
    if values.is_complex():
        raise InputError(f"metrics.{name}", "a function that returns complex numbers", "one that returns real numbers")
    return values


def _called(field: str, function: Callable[..., Any], scores: torch.Tensor, y: torch.Tensor) -> Any:
    """Return what a function of the user's own returns. Raises `InputError` for its field if it fails."""
    try:
        return function(scores, y)
    except EfhcError:
        raise
    except Exception as error:
        shapes = f"scores of shape {tuple(scores.shape)} and labels of shape {tuple(y.shape)}"
        raise InputError(field, f"a function that fails on {shapes} ({in_one_line(error)})", "one for both") from error


def _mean_of_each(values: torch.Tensor) -> torch.Tensor:
    """Return the mean over the further axes of (devices, samples, ...)."""
    return values.flatten(2).mean(dim=2) if values.ndim > 2 else values


class _Classes(Objective):
    """Scores (samples, classes), or (samples, classes, ...) for labels (samples, ...), as torch has it."""

    def __init__(self, model: ModuleModel, data: Dataset) -> None:
        super().__init__(model, data)
        self._weights: torch.Tensor | None = None
        if (weights := model.weights_by_class(data)) is not None:
            self._weights = torch.tensor(weights, dtype=getattr(torch, data.precision))
            if (unusable := (self._weights < 1 / LARGEST_WEIGHT) | (self._weights > LARGEST_WEIGHT)).any():
                given = f"a weight of {float(weights[int(unusable.nonzero()[0])]):g}"
                raise InputError("class_weights", given, f"{1 / LARGEST_WEIGHT:g} to {LARGEST_WEIGHT:g}")
        self._name = model.loss
        self._loss: Any = functional.multi_margin_loss if model.loss == "multi-margin" else functional.cross_entropy

    def check(self, scores: torch.Tensor, y: torch.Tensor) -> None:
        if self._data.label_kind == "number" or (self._loss is functional.multi_margin_loss and y.ndim > 1):
            given = f"labels of {self._data.name} that are {self._data.label_words}, for {self._name}"
            raise InputError("loss", given, "'mean-squared-error' for numbers, 'cross-entropy' for classes")
        shape = tuple(scores.shape)
        if scores.ndim < 2 or (len(shape), shape[0], *shape[2:]) != (y.ndim + 1, len(y), *y.shape[1:]):
            places = "".join(f", {size}" for size in y.shape[1:])
            raise InputError("module", f"outputs {shape} for {len(y)} samples", f"scores (samples, classes{places})")
        if shape[1] < self._data.classes:
            raise InputError("module", f"{shape[1]} outputs", f"{self._data.classes}, one per class of the data")

    def sample_losses(self, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        each: torch.Tensor = self._loss(scores.flatten(0, 1), y.flatten(0, 1), reduction="none")
        return _mean_of_each(each.view(y.shape))

    def losses(self, scores: torch.Tensor, y: torch.Tensor, place: Callable[[int], tuple[int, int]]) -> torch.Tensor:
        if self._weights is None:
            return super().losses(scores, y, place)
        weights = self._weights.to(scores.device)
        each = self._loss(scores.flatten(0, 1), y.flatten(0, 1), weight=_padded(weights, scores), reduction="none")
        of_labels: torch.Tensor = weights[y].flatten(1).sum(dim=1)
        totals: torch.Tensor = each.view(y.shape).flatten(1).sum(dim=1)
        return totals / of_labels

    def largest(self, scores: torch.Tensor) -> torch.Tensor:
        return scores.amax(dim=2)  # NaN if any is

    def _standard_values(self, scores: torch.Tensor, y: torch.Tensor) -> Values:
        return {"accuracy": _mean_of_each((scores.argmax(dim=2) == y).to(scores.dtype))}


def _padded(weights: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Return a weight for every score of a sample: a network may have more outputs than there are classes."""
    return functional.pad(weights, (0, scores.shape[2] - len(weights)), value=1.0)


class _Shaped(Objective):
    """As many scores per sample as it has labels."""

    def check(self, scores: torch.Tensor, y: torch.Tensor) -> None:
        if len(scores) != len(y) or scores.numel() != y.numel():
            allowed = f"scores of shape {tuple(y.shape)}, one per label"
            raise InputError("module", f"outputs {tuple(scores.shape)} for {len(y)} samples", allowed)

    def largest(self, scores: torch.Tensor) -> torch.Tensor:
        return scores


class _Numbers(_Shaped):
    standard: ClassVar[Metrics] = {"mean_absolute_error": "lower", "loss": "lower"}

    def check(self, scores: torch.Tensor, y: torch.Tensor) -> None:
        if self._data.label_kind == "class":
            given = f"labels of {self._data.name} that are classes, for mean-squared-error"
            raise InputError("loss", given, "'cross-entropy', or data with label_kind = 'number'")
        super().check(scores, y)

    def sample_losses(self, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return _mean_of_each((scores.reshape(y.shape) - y).square())

    def _standard_values(self, scores: torch.Tensor, y: torch.Tensor) -> Values:
        return {"mean_absolute_error": _mean_of_each((scores.reshape(y.shape) - y).abs())}


class _SeveralLabels(_Shaped):
    def check(self, scores: torch.Tensor, y: torch.Tensor) -> None:
        super().check(scores, y)
        for labels in (self._data.y_train, self._data.y_test):
            if labels.min() < 0 or labels.max() > 1:
                given = (
                    f"labels of {self._data.name} from {labels.min():g} to {labels.max():g}, for binary-cross-entropy"
                )
                raise InputError("loss", given, "labels from 0 to 1, or 'cross-entropy'")

    def sample_losses(self, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        every = scores.reshape(y.shape)
        losses = functional.binary_cross_entropy_with_logits(every, y.to(scores.dtype), reduction="none")
        return _mean_of_each(losses)

    def _standard_values(self, scores: torch.Tensor, y: torch.Tensor) -> Values:
        right = (scores.reshape(y.shape) > 0) == (y > 0.5)
        return {"accuracy": _mean_of_each(right.to(scores.dtype))}


class _Own(Objective):
    """A loss of the user's own: a function (scores, labels) of one device that returns the mean loss of a batch.

    The loss of a test sample is that of a batch of one. There is an accuracy if samples are of one class each and have
    a score per class.
    """

    def __init__(self, model: ModuleModel, data: Dataset, scores: torch.Tensor) -> None:
        self._is_classifier = data.has_classes and scores.ndim == 2 and scores.shape[1] >= data.classes
        if not self._is_classifier:
            self.standard = {"loss": "lower"}  # type: ignore[misc]
        super().__init__(model, data)
        self._loss = imported(model.loss, "loss")

    def check(self, scores: torch.Tensor, y: torch.Tensor) -> None:
        if not len(scores.shape) or len(scores) != len(y):
            raise InputError("module", f"outputs {tuple(scores.shape)} for {len(y)} samples", "scores (samples, ...)")
        with torch.enable_grad():
            loss = _called("loss", self._loss, scores.detach().requires_grad_(), y)
        self._check_one_number(loss, "")
        if loss.is_complex() or math.isnan(float(loss)):
            what = "complex numbers" if loss.is_complex() else "NaN"
            raise InputError("loss", f"a function that returns {what} for a new model", "finite numbers")
        if not loss.requires_grad:
            given = "a function whose result has no gradient: it is constant, or computed from detached scores"
            raise InputError("loss", given, "a function that torch can differentiate by the scores")

    @staticmethod
    def _check_one_number(loss: Any, where: str) -> None:
        if not isinstance(loss, torch.Tensor) or loss.ndim:
            what = f"Tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise InputError("loss", f"a function that returns a {what}{where}", "the batch's mean, one number")

    def losses(self, scores: torch.Tensor, y: torch.Tensor, place: Callable[[int], tuple[int, int]]) -> torch.Tensor:
        found = []
        for row, one in enumerate(zip(scores, y, strict=True)):
            found.append(self._loss(*one))
            if not isinstance(found[-1], torch.Tensor) or found[-1].ndim:
                device, k = place(row)
                self._check_one_number(found[-1], f" for device {device} at iteration {k}")
        return torch.stack(found)

    def sample_losses(self, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        def each(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            singles = range(len(y))
            return torch.stack([self._loss(scores[one : one + 1], y[one : one + 1]) for one in singles])

        return torch.stack([each(*one) for one in zip(scores, y, strict=True)])

    def largest(self, scores: torch.Tensor) -> torch.Tensor:
        return scores.amax(dim=2) if self._is_classifier else scores

    def _standard_values(self, scores: torch.Tensor, y: torch.Tensor) -> Values:
        return {"accuracy": (scores.argmax(dim=2) == y).to(scores.dtype)} if self._is_classifier else {}


KINDS: dict[str, type[Objective]] = {
    "cross-entropy": _Classes,
    "multi-margin": _Classes,
    "mean-squared-error": _Numbers,
    "binary-cross-entropy": _SeveralLabels,
}


def objective_of(model: ModuleModel, data: Dataset, scores: Any, y: torch.Tensor) -> Objective:
    """Return the objective of a model on this data, tried on what a device says of two samples.

    Raises `InputError` if scores, labels, loss and metrics do not go together.
    """
    if not isinstance(scores, torch.Tensor):
        raise InputError("module", f"outputs {type(scores).__name__} for {len(y)} samples", "scores, a Tensor")
    kind = KINDS.get(model.loss) if isinstance(model.loss, str) else None
    found = _Own(model, data, scores) if kind is None else kind(model, data)
    found.check(scores, y)
    found.values(scores[None], y[None])
    return found
