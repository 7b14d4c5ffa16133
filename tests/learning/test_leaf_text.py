"""Texts in LEAF's files become inputs that a model can learn from; a misshapen file is refused by name."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from efhc.base.errors import InputError
from efhc.learning.data import Sent140, Shakespeare
from efhc.learning.data.leaf import ALPHABET, LeafData

SPEECH = (
    "From fairest creatures we desire increase, that thereby beauty's rose might never die, but as the riper should by "
    "time decease, his tender heir might bear his memory. "
)


def leaf(users: dict[str, tuple[list[Any], list[Any]]]) -> dict[str, Any]:
    return {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {name: {"x": x, "y": y} for name, (x, y) in users.items()},
    }


def write(folder: Path, train: dict[str, Any], test: dict[str, Any]) -> Path:
    for name, content in (("train", train), ("test", test)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "all_data_niid_0.json").write_text(json.dumps(content))
    return folder


def windows(text: str) -> tuple[list[str], list[str]]:
    """LEAF's samples of a speech: 80 characters, and the next one."""
    return [text[n : n + 80] for n in range(len(text) - 80)], [text[n + 80] for n in range(len(text) - 80)]


@pytest.fixture
def plays(tmp_path: Path) -> Path:
    roles = {f"SONNET_{n}": windows((SPEECH * 3)[n * 40 : n * 40 + 300]) for n in (2, 1, 0)}
    return write(tmp_path / "shakespeare", leaf(roles), leaf({"SONNET_1": windows(SPEECH[:150])}))


def tweet(user: str, text: str) -> list[str]:
    return ["1467810369", "Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY", user, text]


@pytest.fixture
def tweets(tmp_path: Path) -> Path:
    good, bad = ["love this :)", "What a great day!", "so happy"], ["I hate rain :(", "so sad", "awful, awful day"]

    def of(user: str, times: int) -> tuple[list[Any], list[int]]:
        return [tweet(user, text) for text in (good + bad) * times], ([1] * 3 + [0] * 3) * times

    train = leaf({name: of(name, 4) for name in ("zoe", "ann")})
    return write(tmp_path / "sent140", train, leaf({"ann": of("ann", 1)}))


def test_characters_are_one_hot_and_roles_are_groups(plays: Path):
    data = Shakespeare(path=plays, characters=5).load()
    assert data.x_train.dtype == np.uint8
    assert data.x_train.shape == (3 * 220, 5 * 80)
    assert (data.shape, data.classes, data.name) == ((5, 80), 80, "shakespeare")
    texts, following = windows((SPEECH * 3)[80:380])  # SONNET_2, the first in the file
    hot = data.x_train[:220].reshape(220, 5, 80)
    assert (hot.sum(axis=2) == 1).all()
    assert ["".join(ALPHABET[n] for n in sample.argmax(axis=1)) for sample in hot] == [text[-5:] for text in texts]
    assert [data.label_names[y] for y in data.y_train[:220]] == following
    assert data.groups is not None
    assert data.groups.tolist() == [2] * 220 + [1] * 220 + [0] * 220
    inputs = data.inputs(data.x_train)
    assert set(np.unique(inputs)) == {0.0, 1.0}


def test_short_texts_and_unknown_characters_are_zeros(tmp_path: Path):
    known = leaf({"a": (["ab", "é" * 80], ["c", "d"])})
    data = Shakespeare(path=write(tmp_path, known, known), characters=3).load()
    hot = data.x_train.reshape(2, 3, 80)
    assert hot.sum(axis=2).tolist() == [[0, 1, 1], [0, 0, 0]]
    assert hot[0, 1].argmax() == ALPHABET.index("a")


def test_words_are_counted_by_their_checksums(tweets: Path):
    data = Sent140(path=tweets, words=64).load()
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
    ("policy", "users", "told"),
    [
        (Shakespeare, {"a": (["ab"], ["é"])}, "'é' as y"),
        (Shakespeare, {"a": (["ab"], ["cd"])}, "'cd' as y"),
        (Shakespeare, {"a": ([[1, 2]], ["c"])}, "[1, 2] instead of a text"),
        (Shakespeare, {"a": (["ab", "ab"], ["c"])}, "x of 2 samples, num_samples 1"),
        (Sent140, {"a": (["a text"], [1])}, "'a text' instead of a row with a text"),
        (Sent140, {"a": ([tweet("a", "b")], [4])}, "labels 4 to 4"),
        (Sent140, {"a": ([["1", "2", "3", "4", 5]], [1])}, "5 instead of a text"),
    ],
)
def test_refusals(tmp_path: Path, policy: type[LeafData], users: Any, told: str):
    with pytest.raises(InputError) as caught:
        policy(path=write(tmp_path, leaf(users), leaf(users))).load()
    assert caught.value.field == "files"
    assert told in str(caught.value)
    assert "user a of" in str(caught.value)
    assert "\n" not in str(caught.value)
