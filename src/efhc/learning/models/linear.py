"""Linear classifiers with their losses and gradients, for any number of devices at once.

A model is a flat vector of n = classes * (features + 1) numbers: the weights, class by class, then the biases, as in
`torch.nn.Linear`. Every function takes leading axes: w (..., n), x (..., batch, features), y (..., batch).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import numpy as np
from pydantic import Field

from efhc.base.arrays import Floats, Ints
from efhc.base.policy import Policy
from efhc.learning.data.dataset import Dataset


class LinearModel(Policy):
    """Scores s = A x + c, one per class; the class with the largest score is the prediction."""

    @staticmethod
    def parameters(data: Dataset) -> int:
        """Return n, the number of parameters."""
        return data.classes * (data.features + 1)

    @staticmethod
    def parameter_sizes(data: Dataset) -> dict[str, int]:
        """Return the number of parameters by name, in their order."""
        return {"weight": data.classes * data.features, "bias": data.classes}

    @staticmethod
    def initial(data: Dataset, stream: np.random.Generator) -> Floats:
        """Draw every parameter uniformly from +-1/sqrt(features), as `torch.nn.Linear` does."""
        bound = 1 / np.sqrt(data.features)
        return stream.uniform(-bound, bound, LinearModel.parameters(data))

    @staticmethod
    def scores(w: Floats, x: Floats) -> Floats:
        """Return one score per sample and class, (..., batch, classes)."""
        features = x.shape[-1]
        classes = w.shape[-1] // (features + 1)
        weights = w[..., : classes * features].reshape(*w.shape[:-1], classes, features)
        scores: Floats = x @ weights.swapaxes(-1, -2) + w[..., None, classes * features :]
        return scores

    @abstractmethod
    def score_loss(self, scores: Floats, y: Ints) -> tuple[Floats, Floats]:
        """Return the loss of each sample and its derivative with respect to each score."""

    def loss_and_gradient(self, w: Floats, x: Floats, y: Ints) -> tuple[Floats, Floats]:
        """Return the mean loss over the batch, (...,), and its gradient with respect to w, (..., n)."""
        losses, by_score = self.score_loss(self.scores(w, x), y)
        by_score = by_score / by_score.dtype.type(x.shape[-2])
        by_weights = by_score.swapaxes(-1, -2) @ x
        gradient = np.concatenate([by_weights.reshape(*w.shape[:-1], -1), by_score.sum(axis=-2)], axis=-1)
        return losses.mean(axis=-1), gradient


class SVM(LinearModel):
    """Linear multi-class SVM: loss (1/C) sum_{c != y} max(0, 1 - s_y + s_c), torch's `MultiMarginLoss`."""

    kind: Literal["svm"] = "svm"

    def score_loss(self, scores: Floats, y: Ints) -> tuple[Floats, Floats]:
        one, classes = scores.dtype.type(1), scores.dtype.type(scores.shape[-1])
        target = y[..., None]
        margins = np.maximum(one - np.take_along_axis(scores, target, axis=-1) + scores, 0)
        np.put_along_axis(margins, target, 0, axis=-1)
        by_score = (margins > 0).astype(scores.dtype)
        np.put_along_axis(by_score, target, -by_score.sum(axis=-1, keepdims=True), axis=-1)
        return margins.sum(axis=-1) / classes, by_score / classes


class Regularized(LinearModel):
    """A convex loss + (l2/2) ||w||^2 over all of w, including the biases: l2-strongly convex."""

    l2: float = Field(default=0.01, ge=0)
    """The weight of the L2 term."""

    def loss_and_gradient(self, w: Floats, x: Floats, y: Ints) -> tuple[Floats, Floats]:
        losses, gradient = super().loss_and_gradient(w, x, y)
        l2 = w.dtype.type(self.l2)
        return losses + l2 / 2 * np.square(w).sum(axis=-1), gradient + l2 * w


class Softmax(Regularized):
    """Softmax regression: cross-entropy + (l2/2) ||w||^2 over w and biases. Smooth and l2-strongly convex."""

    kind: Literal["softmax"] = "softmax"

    def score_loss(self, scores: Floats, y: Ints) -> tuple[Floats, Floats]:
        target = y[..., None]
        shifted = scores - scores.max(axis=-1, keepdims=True)
        exponentials = np.exp(shifted)
        totals = exponentials.sum(axis=-1, keepdims=True)
        losses = (np.log(totals) - np.take_along_axis(shifted, target, axis=-1))[..., 0]
        by_score = exponentials / totals
        np.put_along_axis(by_score, target, np.take_along_axis(by_score, target, axis=-1) - 1, axis=-1)
        return losses, by_score


class LeastSquares(Regularized):
    """Least squares: (1/2) ||s - e_y||^2 + (l2/2) ||w||^2 over w and biases, with e_y one-hot.

    A quadratic: the Hessian of each class is the mean of z z^T with z = (x, 1), + l2 I; between classes it is 0.
    """

    kind: Literal["least-squares"] = "least-squares"

    def score_loss(self, scores: Floats, y: Ints) -> tuple[Floats, Floats]:
        target = y[..., None]
        by_score = scores.copy()
        np.put_along_axis(by_score, target, np.take_along_axis(scores, target, axis=-1) - 1, axis=-1)
        return np.square(by_score).sum(axis=-1) / 2, by_score
