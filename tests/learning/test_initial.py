"""The models that devices start from: their own, one for all, zeros, or those of a file."""

from pathlib import Path

import numpy as np
import pytest

from efhc.base.errors import InputError
from efhc.core.randomness import Randomness
from efhc.learning.data import Dataset
from efhc.learning.initial import InitialModels, ModelFile, PerDevice, Shared, Zeros
from efhc.learning.models import SVM

SEED = Randomness(9)
DATA = Dataset(np.eye(4)[:3], np.arange(3), np.eye(4)[:3], np.arange(3)).load("float64")
SHAPE = {"model": SVM(), "data": DATA}
N = 15


def test_per_device_differ_and_do_not_depend_on_the_others():
    few, many = (PerDevice().models(**SHAPE, devices=m, randomness=SEED) for m in (3, 6))
    assert few.shape == (3, N)
    assert len(np.unique(many, axis=0)) == 6
    assert np.array_equal(few, many[:3])
    assert abs(many).max() <= 0.5
    assert not np.array_equal(few, PerDevice().models(**SHAPE, devices=3, randomness=Randomness(8)))


def test_shared_are_one_and_the_same():
    models = Shared().models(**SHAPE, devices=4, randomness=SEED)
    assert models.shape == (4, N)
    assert (models == models[0]).all()
    assert len(np.unique(models[0])) == N
    assert np.array_equal(models[:2], Shared().models(**SHAPE, devices=2, randomness=SEED))
    assert not np.array_equal(models, Shared().models(**SHAPE, devices=4, randomness=Randomness(8)))


def from_file(path: Path, devices: int = 3) -> np.ndarray:
    return ModelFile(path=path).models(**SHAPE, devices=devices, randomness=SEED)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_file_with_a_row_per_device_or_one_for_all(tmp_path: Path, dtype: str):
    path = tmp_path / "models.npy"
    rows = np.arange(3 * N).reshape(3, N).astype(dtype)
    np.save(path, rows)
    assert np.array_equal(from_file(path), rows)
    for one in (rows[1], rows[1:2]):
        np.save(path, one)
        models = from_file(path)
        assert np.array_equal(models, np.stack([rows[1]] * 3))
        models[0] = -1  # rows of their own
        assert np.array_equal(models[1], rows[1])


@pytest.mark.parametrize(
    ("array", "what"),
    [
        (np.zeros((2, N)), f"(2, {N})"),
        (np.zeros((3, N + 1)), f"(3, {N + 1})"),
        (np.zeros((N, 3)), f"({N}, 3)"),
        (np.zeros(3), "(3,)"),
        (np.zeros(()), "()"),
        (np.full((3, N), np.nan), "NaN"),
        (np.full(N, -np.inf), "NaN or infinity"),
        (np.zeros((3, N), complex), "not an array of numbers"),
        (np.array([["0"] * N] * 3), "not an array of numbers"),
        (np.array([[None] * N] * 3, dtype=object), "Python objects"),
    ],
    ids=lambda value: str(getattr(value, "shape", value)),
)
def test_file_refusals(tmp_path: Path, array: np.ndarray, what: str):
    path = tmp_path / "models.npy"
    np.save(path, array)
    with pytest.raises(InputError) as caught:
        from_file(path)
    text = str(caught.value)
    assert caught.value.field == "path"
    assert what in text
    assert str(path) in text
    assert f"(3, {N}) or ({N},)" in text
    assert "\n" not in text


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("policy", ["per-device", "shared", "zeros", "rows", "row"])
def test_the_model_of_one_device_is_its_row(tmp_path: Path, policy: str, dtype: str):
    data = Dataset(np.eye(4)[:3], np.arange(3), np.eye(4)[:3], np.arange(3)).load(dtype)
    given = np.random.default_rng(0).normal(size=(5, N))
    np.save(tmp_path / "rows.npy", given)
    np.save(tmp_path / "row.npy", given[0])
    drawn = {"per-device": PerDevice(), "shared": Shared(), "zeros": Zeros()}
    kind = drawn.get(policy) or ModelFile(path=tmp_path / f"{policy}.npy")
    models = kind.models(SVM(), data, 5, SEED)
    for device in (0, 3, 4):
        own = kind.model_of(device, SVM(), data, 5, SEED)
        assert own.dtype == models.dtype
        assert np.array_equal(own, models[device])
        own += 1
    assert np.array_equal(models, kind.models(SVM(), data, 5, SEED))


def test_a_kind_of_ones_own_needs_no_more_than_models():
    class Ramp(InitialModels):
        def models(self, model, data, devices, randomness):
            return np.arange(devices * N, dtype=data.precision).reshape(devices, N)

    assert Ramp().model_of(2, SVM(), DATA, 4, SEED).tolist() == list(range(2 * N, 3 * N))


def test_a_model_of_numbers_too_large_is_refused_alone_as_well(tmp_path: Path):
    data = Dataset(np.eye(4)[:3], np.arange(3), np.eye(4)[:3], np.arange(3)).load("float32")
    rows = np.zeros((3, N))
    rows[1, 4] = 1e300
    np.save(tmp_path / "models.npy", rows)
    kind = ModelFile(path=tmp_path / "models.npy")
    assert not kind.model_of(0, SVM(), data, 3, SEED).any()
    for call in (lambda: kind.model_of(1, SVM(), data, 3, SEED), lambda: kind.models(SVM(), data, 3, SEED)):
        with pytest.raises(InputError, match=r"^kind: cannot use numbers too large for float32"):
            call()
