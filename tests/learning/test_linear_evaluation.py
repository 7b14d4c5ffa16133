"""The accuracies of linear models are those of their plain scores, and do not depend on how the work is cut."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from efhc.learning.backends import linear_backend
from efhc.learning.backends.linear_backend import LinearBackend, panels_of
from efhc.learning.data import Dataset
from efhc.learning.models.linear import SVM, LinearModel


def problem(precision, samples=37, features=7, classes=3, models=4, kind=np.uint8):
    """A data set with test samples of a kind, and models."""
    stream = np.random.default_rng(samples)
    x = (stream.integers(0, 256, (samples, features)) * stream.integers(0, 2, (samples, features))).astype(kind)
    x[:, ::3] = 0  # all samples lack some features
    y = np.arange(samples) % classes
    plain = Dataset(x_train=x, y_train=y, x_test=x, y_test=y)
    data = plain.prepared({"mean": 0.3, "std": 0.4}, precision, unit=255.0)
    return data, stream.normal(size=(models, classes * (features + 1))).astype(precision)


def accuracies(data, models, threads=1):
    return LinearBackend(SVM(), data, threads=threads).accuracies(models, {})


def plain_accuracies(data, models):
    """Of float64 scores, which no rounding can turn."""
    scores = LinearModel.scores(models.astype(np.float64), data.inputs(data.x_test).astype(np.float64)[None])
    return (scores.argmax(axis=-1) == data.y_test).mean(axis=-1)


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("kind", [np.uint8, np.float32])
@pytest.mark.parametrize(("samples", "features", "classes", "models"), [(37, 7, 3, 4), (16, 1, 2, 1), (130, 33, 11, 3)])
def test_accuracies_are_those_of_plain_scores(precision, kind, samples, features, classes, models):
    data, drawn = problem(precision, samples, features, classes, models, kind)
    assert np.allclose(accuracies(data, drawn), plain_accuracies(data, drawn), atol=1e-12)


def test_the_work_may_be_cut_anywhere(monkeypatch: pytest.MonkeyPatch):
    data, models = problem("float32", 1000, 40, 10, 30)
    want = accuracies(data, models)
    assert np.array_equal(accuracies(data, models, threads=3), want)
    assert panels_of(data) is panels_of(data)  # laid out once for all runs
    assert np.array_equal(np.concatenate([accuracies(data, model[None]) for model in models]), want)
    monkeypatch.setattr(linear_backend, "AT_ONCE", 1)
    in_pieces = dataclasses.replace(data)
    assert len(panels_of(in_pieces)) > len(panels_of(data))
    assert np.array_equal(accuracies(in_pieces, models, threads=2), want)


def test_of_equal_scores_the_first_counts():
    data, models = problem("float32", 20, 5, 4, 2)
    assert accuracies(data, models * 0).tolist() == [0.25, 0.25]
