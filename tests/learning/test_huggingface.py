"""Data sets of Hugging Face are read as their library wrote them, and never from the network."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from efhc.base.errors import InputError
from efhc.learning.data import HuggingFace
from efhc.learning.data.images import read_digits

datasets = pytest.importorskip("datasets")
datasets.disable_progress_bars()


def flowers(count: int = 12, **columns: Any) -> Any:
    table = {
        "length": [n / 2 for n in range(count)],
        "petals": list(range(count)),
        "note": [f"note {n}" for n in range(count)],
        "garden": [f"garden {n % 3}" for n in range(count)],
        "label": ["rose" if n % 2 else "lily" for n in range(count)],
    }
    return datasets.Dataset.from_dict(table | columns)


@pytest.fixture
def save(tmp_path: Path) -> Callable[[Any], Path]:
    def put(data: Any) -> Path:
        data.save_to_disk(str(tmp_path / "kept"))
        return tmp_path / "kept"

    return put


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks up a name or connects fails the test."""

    def forbidden(*_: object, **__: object) -> None:
        pytest.fail("the network was asked")

    monkeypatch.setattr(socket, "getaddrinfo", forbidden)
    monkeypatch.setattr(socket.socket, "connect", forbidden)


def refused(policy: HuggingFace) -> InputError:
    with pytest.raises(InputError) as caught:
        policy.load()
    assert "\n" not in str(caught.value)
    return caught.value


def test_images_of_a_folder_are_the_digits(save: Callable[[Any], Path], offline: None):
    pixels, labels = read_digits()
    pixels = (pixels * 15).astype(np.uint8).reshape(-1, 8, 8)[:200]
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list("9876543210"))})

    def split(rows: slice) -> Any:
        images = [Image.fromarray(one) for one in pixels[rows]]
        return datasets.Dataset.from_dict({"image": images, "label": 9 - labels[:200][rows]}, features=kinds)

    path = save(datasets.DatasetDict(train=split(slice(150)), test=split(slice(150, 200))))
    data = HuggingFace(path=path).load()
    assert np.array_equal(data.x_train, pixels[:150].reshape(150, 64))
    assert data.x_train.dtype == np.uint8
    assert data.shape == (8, 8)
    assert data.class_names == tuple("9876543210")  # in their own order
    assert np.array_equal(data.y_test, 9 - labels[150:200])
    inputs = data.inputs(data.x_train)
    assert (abs(inputs.mean()) < 1e-5, abs(inputs.std() - 1) < 1e-4) == (True, True)
    raw = HuggingFace(path=path, standardize=False).load()
    np.testing.assert_allclose(raw.inputs(raw.x_train), raw.x_train / 255, rtol=1e-6)


def test_columns_of_numbers(save: Callable[[Any], Path], offline: None):
    path = save(flowers())
    data = HuggingFace(path=path, group="garden", standardize=False, test_share=0.5).load()
    assert data.feature_names == ("length", "petals")
    assert data.unused == ("note",)
    assert data.class_names == ("lily", "rose")
    assert np.bincount(data.y_test).tolist() == [3, 3]
    assert data.groups is not None
    assert np.array_equal(data.groups, data.x_train[:, 1] % 3)
    assert np.array_equal(data.y_train, data.x_train[:, 1] % 2)


def test_missing_values_and_categories_are_those_of_tables(save: Callable[[Any], Path], offline: None):
    table = {"x": [1.0, None, 3.0, 4.0] * 3, "colour": ["red", "blue", None] * 4, "label": ["a", "b"] * 6}
    path = save(datasets.Dataset.from_dict(table))
    data = HuggingFace(path=path, missing="most-frequent", categories="one-hot", standardize=False).load()
    assert data.feature_names == ("x", "colour=blue", "colour=red")
    assert data.columns[0].missing + data.columns[0].missing_in_test == 3
    assert set(data.x_train[:, 1:].sum(axis=1)) == {1}
    dropped = HuggingFace(path=path, missing="drop", categories="one-hot", standardize=False).load()
    assert len(dropped.y_train) + len(dropped.y_test) == 6


def test_arrays_and_rgb_images_keep_their_shape(save: Callable[[Any], Path]):
    arrays = np.random.default_rng(0).random((12, 2, 3))
    colours = [Image.fromarray(np.full((4, 5, 3), (n, 0, 255), np.uint8)) for n in range(12)]
    path = save(flowers(vector=arrays.tolist(), photo=colours))
    data = HuggingFace(path=path, features=["vector"], standardize=False).load("float64")
    assert data.shape == (2, 3)
    assert np.isin(data.x_train, arrays).all()
    images = HuggingFace(path=path).load()
    assert images.shape == (3, 4, 5)
    assert sorted(images.x_train[:, 0].tolist() + images.x_test[:, 0].tolist()) == list(range(12))
    assert (images.x_train[:, -1] == 255).all()


def test_the_checksum_is_that_of_the_samples(save: Callable[[Any], Path], tmp_path: Path):
    flowers().save_to_disk(str(tmp_path / "first"))
    flowers().save_to_disk(str(tmp_path / "shards"), num_shards=3)
    flowers(length=[0.25] * 12).save_to_disk(str(tmp_path / "changed"))
    first, shards, changed = (
        HuggingFace(path=tmp_path / name).load().sha256[name] for name in ("first", "shards", "changed")
    )
    assert first == shards != changed


def test_a_name_is_found_in_the_cache_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: None):
    """The cache is made by the library itself; then only its folder gets the name that one of the Hub has."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "flowers").mkdir()
    flowers().to_parquet(str(tmp_path / "flowers" / "train.parquet"))
    datasets.load_dataset(str(tmp_path / "flowers"), cache_dir=str(tmp_path / "cache"))
    (tmp_path / "cache" / "flowers").rename(tmp_path / "cache" / "somebody___flowers")
    data = HuggingFace(name="somebody/flowers").load()
    assert (data.name, len(data.y_train) + len(data.y_test)) == ("somebody/flowers", 12)
    error = refused(HuggingFace(name="nobody/flowers"))
    assert error.field == "name"
    assert "datasets.load_dataset('nobody/flowers')" in str(error)


@pytest.mark.parametrize(
    ("policy", "field", "message"),
    [
        ({"label": "kind"}, "label", "one of length, petals"),
        ({"features": ["width"]}, "features", "'width'"),
        ({"features": ["note"]}, "path", "'note 0', which is no finite number, in row 0"),
        ({"features": ["vector", "length"]}, "features", "it alone"),
        ({"label": "vector", "features": ["length"]}, "label", "'vector', a column of List"),
        ({"train": "all"}, "train", "no split of"),
        ({"test": "validation"}, "test", "no split of"),
        ({"features": ["ragged"]}, "features", "arrays of one shape"),
    ],
)
def test_refusals(save: Callable[[Any], Path], policy: dict[str, Any], field: str, message: str):
    data = flowers(vector=[[1.0, 2.0]] * 12, ragged=[[1.0]] * 11 + [[1.0, 2.0]])
    error = refused(HuggingFace(path=save(datasets.DatasetDict(train=data)), **policy))
    assert error.field == field
    assert message in str(error)


def test_images_of_two_sizes_and_missing_ones(save: Callable[[Any], Path], tmp_path: Path):
    grey = [Image.fromarray(np.zeros((4, 4), np.uint8))] * 12
    other = [*grey[:7], Image.fromarray(np.zeros((4, 5), np.uint8)), *grey[8:]]
    assert "(4, 5) in row 7" in str(refused(HuggingFace(path=save(flowers(image=other)))))
    clear = [*grey[:3], Image.fromarray(np.zeros((4, 4, 4), np.uint8)), *grey[4:]]
    flowers(image=clear).save_to_disk(str(tmp_path / "clear"))
    assert "mode RGBA in row 3" in str(refused(HuggingFace(path=tmp_path / "clear")))
    flowers(image=[*grey[:11], None]).save_to_disk(str(tmp_path / "gap"))
    assert "a missing image in row 11" in str(refused(HuggingFace(path=tmp_path / "gap")))


def test_folders_that_are_none(tmp_path: Path):
    assert "no such folder" in str(refused(HuggingFace(path=tmp_path / "gone")))
    assert "save_to_disk" in str(refused(HuggingFace(path=tmp_path)))


@pytest.mark.parametrize(
    "policy",
    [{}, {"path": "a", "name": "b"}, {"path": "a", "subset": "b"}, {"name": "b", "test": "t", "test_share": 0.1}],
)
def test_settings_that_contradict_each_other(policy: dict[str, Any]):
    with pytest.raises(ValueError, match=r"a path, for a folder|given by its name|one of test and test_share"):
        HuggingFace(**policy)
