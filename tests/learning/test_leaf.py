"""LEAF's files are read as its scripts write them: bytes or texts, a number per user; a misshapen file is refused."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from efhc.base.errors import InputError
from efhc.learning.data import FEMNIST, Dataset, Sent140, Shakespeare
from efhc.learning.data.leaf import ALPHABET, LeafData

Write = Callable[..., Path]


def leaf(**users: Any) -> dict[str, Any]:
    return {"users": list(users), "num_samples": [len(data["y"]) for data in users.values()], "user_data": users}


def user(samples: int, label: int = 0, value: float = 1.0) -> dict[str, Any]:
    """Images of one writer."""
    return {"x": [[value] * 783 + [0.2]] * samples, "y": [label] * samples}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A folder with these training files and this test file; by default, good ones of FEMNIST."""

    def put(*train: Any, test: Any = None) -> Path:
        contents = {f"train/{n}.json": content for n, content in enumerate(train or [leaf(ann=user(2, 3))])}
        contents["test/0.json"] = test or leaf(ann=user(1, 3, 0.0))
        for name, content in contents.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
        return tmp_path

    return put


# FEMNIST


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


def test_values_rounded_to_three_decimals_are_the_bytes_they_were(write: Write):
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


# Texts


SPEECH = (
    "From fairest creatures we desire increase, that thereby beauty's rose might never die, but as the riper should by "
    "time decease, his tender heir might bear his memory. "
)


def windows(text: str) -> dict[str, list[str]]:
    """LEAF's samples of a speech: 80 characters, and the next one."""
    starts = range(len(text) - 80)
    return {"x": [text[n : n + 80] for n in starts], "y": [text[n + 80] for n in starts]}


def tweet(user: str, text: str) -> list[str]:
    return ["1467810369", "Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY", user, text]


def test_characters_are_one_hot_and_roles_are_groups(write: Write):
    roles = {f"SONNET_{n}": windows((SPEECH * 3)[n * 40 : n * 40 + 300]) for n in (2, 1, 0)}
    data = Shakespeare(path=write(leaf(**roles), test=leaf(SONNET_1=windows(SPEECH[:150]))), characters=5).load()
    assert data.x_train.dtype == np.uint8
    assert data.x_train.shape == (3 * 220, 5 * 80)
    assert (data.shape, data.classes, data.name) == ((5, 80), 80, "shakespeare")
    texts, following = windows((SPEECH * 3)[80:380]).values()  # SONNET_2, the first in the file
    hot = data.x_train[:220].reshape(220, 5, 80)
    assert (hot.sum(axis=2) == 1).all()
    assert ["".join(ALPHABET[n] for n in sample.argmax(axis=1)) for sample in hot] == [text[-5:] for text in texts]
    assert [data.label_names[y] for y in data.y_train[:220]] == following
    assert data.groups is not None
    assert data.groups.tolist() == [2] * 220 + [1] * 220 + [0] * 220
    inputs = data.inputs(data.x_train)
    assert set(np.unique(inputs)) == {0.0, 1.0}


def test_short_texts_and_unknown_characters_are_zeros(write: Write):
    known = leaf(a={"x": ["ab", "é" * 80], "y": ["c", "d"]})
    data = Shakespeare(path=write(known, test=known), characters=3).load()
    hot = data.x_train.reshape(2, 3, 80)
    assert hot.sum(axis=2).tolist() == [[0, 1, 1], [0, 0, 0]]
    assert hot[0, 1].argmax() == ALPHABET.index("a")


def test_words_are_counted_by_their_checksums(write: Write):
    texts = ["love this :)", "What a great day!", "so happy", "I hate rain :(", "so sad", "awful, awful day"]

    def of(user: str, times: int) -> dict[str, Any]:
        return {"x": [tweet(user, text) for text in texts] * times, "y": ([1] * 3 + [0] * 3) * times}

    folder = write(leaf(zoe=of("zoe", 4), ann=of("ann", 4)), test=leaf(ann=of("ann", 1)))
    data = Sent140(path=folder, words=64).load()
    assert (data.x_train.shape, data.class_names) == ((48, 64), ("negative", "positive"))
    expected = np.zeros(64, np.uint8)
    for word in ("awful", "awful", "day"):
        expected[zlib.crc32(word.encode()) % 64] += 1
    assert np.array_equal(data.x_train[5], expected)  # the comma is no word
    assert data.groups is not None
    assert np.bincount(data.groups).tolist() == [24, 24]
    assert data.groups[0] == 1  # zoe comes first in the file
    assert data.inputs(data.x_train).max() == 2


@pytest.mark.parametrize(
    ("policy", "x", "y", "message"),
    [
        (Shakespeare, ["ab"], ["é"], "'é' as y"),
        (Shakespeare, ["ab"], ["cd"], "'cd' as y"),
        (Shakespeare, [[1, 2]], ["c"], "[1, 2] instead of a text"),
        (Shakespeare, ["ab", "ab"], ["c"], "x of 2 samples, num_samples 1"),
        (Sent140, ["a text"], [1], "'a text' instead of a row with a text"),
        (Sent140, [tweet("a", "b")], [4], "labels 4 to 4"),
        (Sent140, [["1", "2", "3", "4", 5]], [1], "5 instead of a text"),
    ],
)
def test_texts_that_are_refused(write: Write, policy: type[LeafData], x: list[Any], y: list[Any], message: str):
    users = leaf(a={"x": x, "y": y})
    with pytest.raises(InputError) as caught:
        policy(path=write(users, test=users)).load()
    assert caught.value.field == "files"
    assert message in str(caught.value)
    assert "user a of" in str(caught.value)
    assert "\n" not in str(caught.value)
