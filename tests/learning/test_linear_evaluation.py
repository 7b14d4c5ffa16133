"""The accuracies of linear models are those of their plain scores, and do not depend on how the work is cut."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest

from efhc.kernels import evaluation
from efhc.learning.backends import linear_evaluation
from efhc.learning.backends.linear_evaluation import LinearEvaluation
from efhc.learning.data import Dataset
from efhc.learning.models.linear import LinearModel


def problem(precision, samples=37, features=7, classes=3, models=4, kind=np.uint8):
    """A data set with test samples of a kind, and models."""
    stream = np.random.default_rng(samples)
    x = (stream.integers(0, 256, (samples, features)) * stream.integers(0, 2, (samples, features))).astype(kind)
    x[:, ::3] = 0  # all samples lack some features
    y = np.arange(samples) % classes
    plain = Dataset(x_train=x, y_train=y, x_test=x, y_test=y)
    data = plain.prepared({"mean": 0.3, "std": 0.4}, precision, unit=255.0)
    return data, stream.normal(size=(models, classes * (features + 1))).astype(precision)


def plain_accuracies(data, models):
    """Of float64 scores, which no rounding can turn."""
    scores = LinearModel.scores(models.astype(np.float64), data.inputs(data.x_test).astype(np.float64)[None])
    return (scores.argmax(axis=-1) == data.y_test).mean(axis=-1)


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("kind", [np.uint8, np.float32])
@pytest.mark.parametrize(("samples", "features", "classes", "models"), [(37, 7, 3, 4), (16, 1, 2, 1), (130, 33, 11, 3)])
def test_accuracies_are_those_of_plain_scores(precision, kind, samples, features, classes, models):
    data, drawn = problem(precision, samples, features, classes, models, kind)
    assert np.allclose(LinearEvaluation(data, classes).accuracies(drawn, 1), plain_accuracies(data, drawn), atol=1e-12)


def test_the_work_may_be_cut_anywhere(monkeypatch: pytest.MonkeyPatch):
    data, models = problem("float32", 1000, 40, 10, 30)
    whole = LinearEvaluation(data, 10)
    want = whole.accuracies(models, 1)
    assert np.array_equal(whole.accuracies(models, 3), want)
    assert LinearEvaluation(data, 10)._panels() is whole._panels()  # laid out once for all runs
    monkeypatch.setattr(linear_evaluation, "AT_ONCE", 1)
    in_pieces = LinearEvaluation(dataclasses.replace(data), 10)
    assert len(in_pieces._panels()) > len(whole._panels())
    assert np.array_equal(in_pieces.accuracies(models, 2), want)
    assert np.array_equal(np.concatenate([whole.accuracies(model[None], 1) for model in models]), want)


def test_of_equal_scores_the_first_counts():
    data, models = problem("float32", 20, 5, 4, 2)
    assert LinearEvaluation(data, 4).accuracies(models * 0, 1).tolist() == [0.25, 0.25]


SCORING = [
    (evaluation.scale_panel, evaluation.score_rows),
    (evaluation.scale_panel.py_func, evaluation.score_rows.py_func),
]
READ_ANSWERS = [evaluation.read_answers, evaluation.read_answers.py_func]


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("precision", [np.float32, np.float64])
@pytest.mark.parametrize("classes", [2, 5, 7])
def test_the_loops_do_what_their_text_says(precision, classes):
    data, models = problem(np.dtype(precision).name, 21, 6, classes, 3)
    whole = LinearEvaluation(data, classes)
    panels, starts = whole._laid(0, 21), whole._starts(models)
    shape = len(panels.ranks), 3
    starts[1, -1] = np.nan
    room = evaluation.room_for(panels, models, starts)
    arguments = room, panels, models, starts, np.zeros(shape, np.int64), np.zeros(shape, bool), 0, shape[0]
    plain = copy.deepcopy(arguments)
    evaluation.count_right(*arguments)
    with np.errstate(invalid="ignore"):
        evaluation.count_right.py_func(*plain)
    for one, other in zip(arguments[4:6], plain[4:6], strict=True):
        assert np.array_equal(one, other)
    assert arguments[5].any(axis=0).tolist() == [False, True, False]
    wide = panels.ranks.shape[1]
    inputs, scores = (np.zeros((2, count * wide), precision) for count in (6, 3 * classes + evaluation.ROWS))
    for part, (scale_panel, score_rows) in enumerate(SCORING):
        scale_panel(panels, 1, inputs[part])
        for row in range(0, 3 * classes, evaluation.ROWS):
            score_rows(panels, 1, inputs[part], models, starts, row, scores[part])
    assert np.array_equal(*inputs)
    np.testing.assert_allclose(*scores, rtol=1e-4, atol=1e-5)
    for model in range(3):
        answers = [read(scores[0], panels.ranks, 1, model, classes) for read in READ_ANSWERS]
        assert answers[0] == answers[1]
        assert answers[0][1] == (model == 1)
