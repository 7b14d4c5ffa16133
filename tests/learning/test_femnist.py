"""FEMNIST is what LEAF's files say: bytes, 62 classes, a number per writer; a misshapen file is refused by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from efhc.base.errors import InputError
from efhc.learning.data import FEMNIST, Dataset

Write = Callable[..., Path]


def user(samples: int, label: int = 0, value: float = 1.0) -> dict[str, Any]:
    return {"x": [[value] * 783 + [0.2]] * samples, "y": [label] * samples}


def leaf(**users: Any) -> dict[str, Any]:
    return {"users": list(users), "num_samples": [len(data["y"]) for data in users.values()], "user_data": users}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A folder with these training files, a good one by default, and a good test file."""

    def put(*train: Any) -> Path:
        for n, content in enumerate(train or [leaf(ann=user(2, 3))]):
            file = tmp_path / "train" / f"{n}.json"
            file.parent.mkdir(exist_ok=True)
            file.write_text(content if isinstance(content, str) else json.dumps(content))
        (tmp_path / "test").mkdir()
        (tmp_path / "test" / "0.json").write_text(json.dumps(leaf(ann=user(1, 3, 0.0))))
        return tmp_path

    return put


# The real thing


def test_the_sample_is_what_its_description_says(femnist: Dataset):
    assert femnist.x_train.shape == (9619, 784)
    assert femnist.x_test.shape == (2405, 784)
    assert femnist.x_train.dtype == femnist.x_test.dtype == np.uint8
    assert (femnist.shape, femnist.classes, femnist.name) == ((28, 28), 62, "femnist")
    per_writer = np.bincount(femnist.groups)
    assert (len(per_writer), per_writer.min(), per_writer.max()) == (74, 70, 146)
    per_class = np.bincount(femnist.y_train, minlength=62)
    assert (per_class[:10].min(), per_class[:10].max()) == (657, 751)
    assert (per_class[10:].min(), per_class[10:].max()) == (33, 76)
    assert femnist.label_names[9:12] == ("9", "A", "B")
    assert femnist.sha256 == {
        "train/all_data_0.json": "1fcbbf022bf95db7bf8f4ae194056ff04b4163f56be1abec2e62cbb41a55ce4f",
        "test/all_data_0.json": "f8ac450b5dcdbe16ce55638e04e15ced6bf930b2718b36bacae72d11973e796f",
    }
    inputs = femnist.inputs(femnist.x_train)
    assert inputs.dtype == np.float32
    assert inputs.mean(dtype=np.float64) == pytest.approx(0, abs=1e-5)
    assert inputs.std(dtype=np.float64) == pytest.approx(1, abs=1e-5)


def test_bytes_and_writers_are_those_of_the_original(femnist: Dataset, femnist_files: Path):
    """The same samples, kept as the bytes they were before LEAF divided them, in another file and another order."""
    original = np.load(femnist_files / "all_writers_uint8.npz")
    users = json.loads((femnist_files / "test" / "all_data_0.json").read_bytes())["users"]
    names = np.array(original["users"])[original["user"]]
    chosen = ~original["is_test"].astype(bool) & np.isin(names, users)

    def rows(writers: Any, labels: np.ndarray, pixels: np.ndarray) -> list[tuple[str, int, bytes]]:
        return sorted(zip(writers, labels.tolist(), map(bytes, pixels), strict=True))

    mine = rows(np.array(sorted(users))[femnist.groups].tolist(), femnist.y_train, femnist.x_train)
    assert mine == rows(names[chosen].tolist(), original["y"][chosen], original["x"][chosen])


# Files of any LEAF


def test_all_files_are_read_and_writers_are_numbered_by_their_sorted_names(write: Write):
    folder = write(leaf(zoe=user(2, 61), bob=user(1, 5)), leaf(ann=user(3, 7), bob=user(1, 6), eve=user(0)))
    data = FEMNIST(path=folder).load()
    assert data.y_train.tolist() == [61, 61, 5, 7, 7, 7, 6]
    assert data.groups.tolist() == [2, 2, 1, 0, 0, 0, 1]  # ann, bob, zoe; eve wrote nothing
    assert set(data.sha256) == {"train/0.json", "train/1.json", "test/0.json"}


def test_values_that_are_no_bytes_stay_as_they_are(write: Write):
    folder = write(leaf(ann=user(1, value=1.0), bob=user(1, value=0.4 / 255)))
    data = FEMNIST(path=folder, standardize=False).load("float64")
    assert data.x_train.dtype == np.float64
    assert data.x_train[:, 0].tolist() == [1.0, 0.4 / 255]
    assert data.x_test[0, 0] == 0.0


def test_values_rounded_to_three_decimals_are_the_bytes_they_were(tmp_path: Path, write: Write):
    everything = [round(k / 255, 3) for k in range(256)] + [1.0] * (784 - 256)
    data = FEMNIST(path=write(leaf(ann={"x": [everything], "y": [0]}))).load()
    assert data.x_train[0, :256].tolist() == list(range(256))


def one(**changed: Any) -> dict[str, Any]:
    return leaf(ann=user(1), bob={**user(2), **changed})


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("", "line 1"),
        ("[" * 100_000, "recursion"),
        ("[1, 2]", "without users"),
        ({"users": [], "num_samples": []}, "without user_data"),
        ({"users": ["ann"], "num_samples": [], "user_data": {}}, "1 users with 0 num_samples"),
        ({"users": ["ann"], "num_samples": [1], "user_data": {}}, "user ann"),
        ({"users": [["ann"]], "num_samples": [1], "user_data": {}}, "user ['ann']"),
        ({"users": ["ann"], "num_samples": [3], "user_data": {"ann": user(2)}}, "num_samples 3"),
        ({"users": ["ann"], "num_samples": [0], "user_data": {"ann": user(2)}}, "num_samples 0"),
        (one(x=[[1.0] * 784, [1.0] * 783]), "user bob"),
        (one(x=[[1.0] * 783] * 2), "x of shape (2, 783)"),
        (one(x=[["dark"] * 784] * 2), "user bob"),
        (one(x=[[10**400] * 784] * 2), "user bob"),
        (one(x=[[255] * 784] * 2), "x from 255"),
        (one(x=[[float("nan")] * 784] * 2), "x from nan"),
        (one(y=[0, 62]), "labels 0 to 62"),
        (one(y=[0, 0.5]), "labels 0.0 to 0.5"),
        (one(y=[[0], [1]]), "y of shape (2, 1)"),
        (leaf(), "train, which has no samples"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 40 else "",
)
def test_misshapen_files_are_refused_by_file_and_user(write: Write, content: Any, what: str):
    folder = write(content)
    with pytest.raises(InputError) as caught:
        FEMNIST(path=folder).load()
    text = str(caught.value)
    assert caught.value.field == "files"
    assert what in text
    assert what == "train, which has no samples" or str(folder / "train" / "0.json") in text
    assert "\n" not in text
