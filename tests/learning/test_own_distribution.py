"""Measures on devices' own distributions, against plain loops that share no code with ours."""

from __future__ import annotations

import math
from statistics import fmean, pstdev

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import efhc
from efhc.core.randomness import Randomness
from efhc.learning.backends.linear_backend import LinearBackend
from efhc.learning.data import Dataset, Digits
from efhc.learning.learner import Learner
from efhc.learning.models import SVM, Softmax
from efhc.learning.own_distribution import OwnDistributions
from efhc.learning.partition import IID, Dirichlet, Groups, LabelsPerDevice, Partition, Quantities

CLOSE = 1e-6


# By hand


def hinge(scores: list[float], label: int) -> float:
    """The loss of the SVM on one sample."""
    margins = (max(0.0, 1 - scores[label] + s) for c, s in enumerate(scores) if c != label)
    return sum(margins) / len(scores)


def on_samples(model: np.ndarray, x: np.ndarray, y: np.ndarray, classes: int) -> tuple[list[float], list[float]]:
    """Whether the model is right, and the loss, on each sample."""
    weights, biases = np.split(model.astype(np.float64), [classes * x.shape[1]])
    table = (x.astype(np.float64) @ weights.reshape(classes, -1).T + biases).tolist()
    right = [
        float(max(range(classes), key=scores.__getitem__) == label) for scores, label in zip(table, y, strict=True)
    ]
    return right, [hinge(scores, int(label)) for scores, label in zip(table, y, strict=True)]


def on_own(values: list[float], held: list[int], tested: list[int], *, by_group: bool) -> float:
    """The mean of the values over the test samples of a device.

    `held` and `tested` are the labels (or groups) of its training samples and of all test samples. By label, the test
    samples of a label weigh as much as the device's training samples of that label; by group, each of its own as much.
    """
    shared = [cell for cell in held if cell in tested]
    if not shared:
        return math.nan
    if by_group:
        return fmean(value for value, cell in zip(values, tested, strict=True) if cell in shared)
    of_cell = {c: fmean(v for v, cell in zip(values, tested, strict=True) if cell == c) for c in set(shared)}
    return fmean(of_cell[cell] for cell in shared)


def tenth(values: list[float], *, from_above: bool = False) -> float:
    """The value that a tenth of the values is worse than, between the two next to it in proportion."""
    ordered = sorted(values, reverse=from_above)
    whole, part = divmod((len(values) - 1) / 10, 1)
    low = int(whole)
    return ordered[low] + part * (ordered[min(low + 1, len(values) - 1)] - ordered[low])


def measures_by_hand(
    models: np.ndarray, data: Dataset, parts: list[np.ndarray], *, by_group: bool = False
) -> dict[str, float]:
    """All measures of an evaluation."""
    kinds = (data.groups, data.test_groups) if by_group else (data.y_train, data.y_test)
    cells, tested = (list(map(int, one)) for one in kinds)
    mean_model = models.astype(np.float64).mean(axis=0).astype(models.dtype)
    x_test = data.inputs(data.x_test)
    scored = [on_samples(model, x_test, data.y_test, data.classes) for model in (*models, mean_model)]
    found: dict[str, float] = {}
    for place, metric in enumerate(("accuracy", "loss")):
        *each, of_mean = (one[place] for one in scored)
        held = [[cells[sample] for sample in part] for part in parts]
        own = [
            on_own(values, of_device, tested, by_group=by_group) for values, of_device in zip(each, held, strict=True)
        ]
        for prefix, values in (("", [fmean(one) for one in each]), ("own_", own)):
            decile = "p90" if metric == "loss" else "p10"
            found |= {
                f"{prefix}{metric}": fmean(values),
                f"{prefix}{metric}_min": min(values),
                f"{prefix}{metric}_max": max(values),
                f"{prefix}{metric}_{decile}": tenth(values, from_above=metric == "loss"),
                f"{prefix}{metric}_std": pstdev(values),
            }
        found[f"mean_model_{metric}"] = fmean(of_mean)
        found[f"mean_model_own_{metric}"] = fmean(on_own(of_mean, one, tested, by_group=by_group) for one in held)
    return found


def evaluated(data: Dataset, parts: list[np.ndarray], partition: Partition, models: np.ndarray) -> dict[str, float]:
    learner = Learner(LinearBackend(SVM(), data), data, parts, 1, Randomness(0), partition)
    return learner.evaluate(models, {}).columns


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return Digits().load("float64")


PARTITIONS = st.one_of(
    st.builds(LabelsPerDevice, labels_per_device=st.integers(1, 5)),
    st.builds(Dirichlet, concentration=st.floats(0.2, 5)),
    st.just(IID()),
    st.just(Quantities()),
)


@settings(deadline=None, max_examples=15)
@given(partition=PARTITIONS, devices=st.integers(2, 12), seed=st.integers(0, 99), spread=st.floats(0.01, 1))
def test_all_measures_are_those_counted_by_hand(
    digits: Dataset, partition: Partition, devices: int, seed: int, spread: float
):
    rng = np.random.default_rng(seed)
    parts = partition.split(digits, devices, Randomness(seed))
    models = spread * rng.normal(size=(devices, digits.classes * (digits.features + 1)))
    found, expected = evaluated(digits, parts, partition, models), measures_by_hand(models, digits, parts)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=CLOSE), name


def test_the_models_of_a_run_are_scored_on_their_own_labels():
    result = efhc.simulate(iterations=60, evaluate_every=20, seeds=(0, 1), partition={"kind": "dirichlet"})
    data = Digits().load("float32")
    last = result.metrics.filter(iteration=59)
    for (strategy, seed), models in result.models.items():
        parts = result.experiment.partition.split(data, 10, Randomness(seed))
        (row,) = last.filter(strategy=strategy, seed=seed).iter_rows(named=True)
        for name, value in measures_by_hand(models, data, parts).items():
            assert row[name] == pytest.approx(value, abs=CLOSE), name


def test_what_a_device_sets_aside_for_validation_is_its_own_data():
    settings = {"iterations": 40, "evaluate_every": 20, "seeds": 3, "validation": 0.2, "strategies": {"ZT": "zt"}}
    result = efhc.simulate(**settings, partition={"kind": "labels", "labels_per_device": 2})
    data, randomness = Digits().load("float32"), Randomness(3)
    parts = result.experiment.partition.split(data, 10, randomness)
    _, aside = efhc.learning.partition.set_aside(parts, 0.2, randomness)
    models = result.models["ZT", 3]
    own = [
        fmean(on_samples(model, data.x_train[one], data.y_train[one], 10)[0])
        for model, one in zip(models, aside, strict=True)
    ]
    together = np.concatenate(aside)
    every = [fmean(on_samples(model, data.x_train[together], data.y_train[together], 10)[0]) for model in models]
    (row,) = result.metrics.filter(iteration=39).iter_rows(named=True)
    assert row["own_accuracy"] == pytest.approx(fmean(own), abs=CLOSE)
    assert row["own_accuracy_min"] == pytest.approx(min(own), abs=CLOSE)
    assert row["accuracy"] == pytest.approx(fmean(every), abs=CLOSE)
    sizes = [len(part) - len(one) for part, one in zip(parts, aside, strict=True)]
    assert result.devices["samples"].to_list() == sizes


@pytest.mark.slow
def test_writers_of_femnist_are_scored_on_leafs_own_test_files(femnist: Dataset):
    devices = 20
    partition = Groups()
    parts = partition.split(femnist, devices, Randomness(1))
    models = 0.1 * np.random.default_rng(1).normal(size=(devices, 62 * 785)).astype(np.float32)
    found, expected = (
        evaluated(femnist, parts, partition, models),
        measures_by_hand(models, femnist, parts, by_group=True),
    )
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=CLOSE, rel=CLOSE), name
    assert found["own_accuracy_std"] > 0


# What data cannot give


def test_a_device_without_test_samples_has_no_own_measures(digits: Dataset):
    tested = np.flatnonzero(digits.y_test != 7)
    data = Dataset(digits.x_train, digits.y_train, digits.x_test[tested], digits.y_test[tested]).load("float64")
    parts = [np.flatnonzero(digits.y_train == label) for label in (1, 7)] + [np.flatnonzero(digits.y_train > 5)]
    models = np.random.default_rng(0).normal(size=(3, 650))
    learner = Learner(LinearBackend(SVM(), data), data, parts, 1, Randomness(0), IID())
    own = learner.evaluate(models, {}).scores["accuracy"].own
    assert np.isnan(own).tolist() == [False, True, False]
    columns = evaluated(data, parts, IID(), models)
    assert columns["own_accuracy"] is columns["own_accuracy_p10"] is columns["mean_model_own_loss"] is None
    assert columns["accuracy"] is not None
    right, _ = on_samples(models[2], data.x_test, data.y_test, 10)
    labels = digits.y_train[parts[2]].tolist()  # among them the 7, which is left out
    assert own[2] == pytest.approx(on_own(right, labels, data.y_test.tolist(), by_group=False), abs=CLOSE)
    sevens = labels.count(7) / len(labels)
    assert learner.own.coverage.tolist() == pytest.approx([1, 0, 1 - sevens])
    assert "device 1" in str(learner.own.problem())


def test_devices_that_set_nothing_aside_are_named():
    own = OwnDistributions.of_devices_apart(np.array([2, 0, 1]))
    assert own.coverage.tolist() == [1, 0, 1]
    (values,) = own.of_devices(own.sums_by_cell(np.array([[[1.0, 0.0, 1.0]] * 3])) / own.sizes, np.arange(3))
    assert values.tolist() == pytest.approx([0.5, np.nan, 1.0], nan_ok=True)
    assert "device 1" in str(own.problem())


def test_some_devices_alone_are_scored_as_among_all(digits: Dataset):
    partition = LabelsPerDevice(labels_per_device=2)
    parts = partition.split(digits, 6, Randomness(2))
    models = np.random.default_rng(0).normal(size=(6, 650))
    learner = Learner(LinearBackend(Softmax(), digits), digits, parts, 1, Randomness(0), partition)
    everyone = learner.evaluate(models, {}).scores["loss"].own
    some = np.array([4, 1])
    assert learner.evaluate(models[some], {}, some).scores["loss"].own == pytest.approx(everyone[some], rel=1e-12)
