"""The data sets of LEAF (Caldas et al. 2018).

FEMNIST       handwritten digits and letters of 28x28 by writer, black on white, 62 classes
Sent140       whether a tweet is negative or positive, by user (Go et al. 2009)
Shakespeare   the next character of a speech, by role of a play, 80 classes

Samples are JSON by user, for training in `train/`, for the test in `test/`. Each file is
`{users, num_samples, user_data: {user: {x, y}}}`; each data set says what x and y are. Users are groups.
"""

from __future__ import annotations

import json
import re
import string
import zlib
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from efhc.base.arrays import Ints
from efhc.base.errors import InputError
from efhc.learning.data.archives import Archive, StoredData, StoredFile
from efhc.learning.data.dataset import Dataset, Numbers, Standardize


def leaf_archive(name: str, options: str) -> Archive:
    """Return the archive of a data set of LEAF, with advice on how to make it by its script with these options."""
    return Archive(
        name=name,
        files=("train/*.json", "test/*.json"),
        advice=f"LEAF makes it: in data/{name} of https://github.com/TalwalkarLab/leaf run "
        f"`./preprocess.sh {options}`, then put its data/train and data/test into "
        f"$EFHC_DATA/{name}, or give their folder as data.path",
    )


class User(NamedTuple):
    """The samples of one user in one file."""

    name: str
    x: Numbers
    y: Ints


class LeafData(StoredData):
    """A data set that LEAF's scripts write."""

    layout: ClassVar[str]
    """What the files must hold, as errors say it."""
    names: ClassVar[tuple[str, ...]]
    """The names of the classes."""

    @abstractmethod
    def sample_shape(self) -> tuple[int, ...]:
        """Return the shape of one sample."""

    @abstractmethod
    def encoded(self, x: list[Any], y: list[Any], count: int) -> tuple[Numbers, Ints]:
        """Return the `count` samples of a user as rows of numbers, and their labels. Raises `ValueError` for others."""

    def parse(self, files: Iterator[StoredFile]) -> Dataset:
        parts: dict[str, list[User]] = {"train": [], "test": []}
        for file in files:
            parts[file.name.partition("/")[0]] += self._users(file.content, str(file.path))
        if empty := [folder for folder, part in parts.items() if not part]:
            raise InputError("files", f"{empty[0]}, which has no samples", self.layout)
        train, test = parts.values()
        are_bytes = all(user.x.dtype == np.uint8 for user in train + test)
        x_train, x_test = (
            np.concatenate([user.x if are_bytes else self._as_floats(user.x) for user in part])
            for part in (train, test)
        )
        y_train, y_test = (np.concatenate([user.y for user in part]) for part in (train, test))
        _, numbers = np.unique([user.name for user in train + test], return_inverse=True)
        of_users = np.repeat(numbers, [len(user.y) for user in train + test])
        groups, test_groups = np.split(of_users, [len(y_train)])
        data = Dataset(x_train, y_train, x_test, y_test, shape=self.sample_shape(), class_names=self.names)
        return replace(data, groups=groups, test_groups=test_groups)

    def _users(self, content: bytes, origin: str) -> Iterator[User]:
        """Yield the samples of every user who has any."""
        try:
            table = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise InputError("files", f"{origin} ({error})", self.layout) from None
        for key, kind in (("users", list), ("num_samples", list), ("user_data", dict)):
            if not isinstance(table, dict) or not isinstance(table.get(key), kind):
                raise InputError("files", f"{origin} without {key}", self.layout)
        users, counts, samples = table["users"], table["num_samples"], table["user_data"]
        if len(users) != len(counts):
            raise InputError("files", f"{len(users)} users with {len(counts)} num_samples in {origin}", self.layout)
        for user, count in zip(users, counts, strict=True):
            try:
                if count or samples[user]["x"]:
                    yield User(str(user), *self.encoded(samples[user]["x"], samples[user]["y"], count))
            except (ValueError, TypeError, KeyError, OverflowError) as error:
                reason = f"no {error}" if isinstance(error, KeyError) else error
                raise InputError("files", f"user {user} of {origin} ({reason})", self.layout) from None

    def _as_floats(self, x: Numbers) -> Numbers:
        return x / self.unit if x.dtype == np.uint8 else x


def as_labels(y: Any, count: int, classes: int) -> Ints:
    """Return whole numbers from 0 to classes - 1. Raises `ValueError` for anything else."""
    labels = np.array(y)
    if labels.shape != (count,):
        raise ValueError(f"y of shape {labels.shape}, num_samples {count}")
    if labels.dtype.kind != "i" or labels.min() < 0 or labels.max() >= classes:
        raise ValueError(f"labels {labels.min()} to {labels.max()}")
    return labels


def as_texts(x: Any, count: int) -> list[str]:
    """Return the texts of a user. Raises `ValueError` unless there are `count` of them."""
    if not isinstance(x, list) or len(x) != count:
        raise ValueError(f"x of {len(x)} samples, num_samples {count}")
    if wrong := [one for one in x if not isinstance(one, str)]:
        raise ValueError(f"{wrong[0]!r:.40} instead of a text")
    return x


class FEMNIST(LeafData):
    """FEMNIST as the scripts of LEAF write it, from `path` or `$EFHC_DATA`; all or some of its files."""

    kind: Literal["femnist"] = "femnist"
    archive: ClassVar[Archive] = leaf_archive("femnist", "-s niid --sf 0.05 -k 0 -t sample")
    layout: ClassVar[str] = (
        "LEAF's JSON: users, num_samples, and user_data with rows x of 784 numbers 0 to 1, labels y 0 to 61"
    )
    names: ClassVar[tuple[str, ...]] = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)

    def sample_shape(self) -> tuple[int, ...]:
        return 28, 28

    def encoded(self, x: list[Any], y: list[Any], count: int) -> tuple[Numbers, Ints]:
        pixels = np.array(x, np.float64)
        if pixels.shape != (count, 28 * 28):
            raise ValueError(f"x of shape {pixels.shape}, num_samples {count}")
        labels = as_labels(y, count, len(self.names))
        if not ((pixels >= 0) & (pixels <= 1)).all():
            raise ValueError(f"x from {pixels.min()} to {pixels.max()}")
        # LEAF divides bytes by 255 and may round to three decimals. As bytes they take 1/8 of the memory.
        near = np.rint(pixels * 255)
        return near.astype(np.uint8) if (abs(pixels - near / 255) <= 1e-3).all() else pixels, labels


TEXT = 4
"""The column of the text in LEAF's rows: number, date, query, user, text."""
WORD = re.compile(r"[\w']+|[!?.:;)(]+")


class Sent140(LeafData):
    """Sent140 as the scripts of LEAF write it, from `path` or `$EFHC_DATA`; all or some of its files.

    A sample says how often each word is in the tweet: feature CRC-32(word) mod `words` counts the word in small letters
    (up to 255). Several words may share a feature. Users are groups.
    """

    kind: Literal["sent140"] = "sent140"
    words: int = Field(default=1000, ge=2)
    """Number of features that words are counted in."""
    standardize: Standardize = False
    """As for all data sets. Default: none; inputs are counts."""
    archive: ClassVar[Archive] = leaf_archive("sent140", "-s niid --sf 0.05 -k 3 -t sample")
    layout: ClassVar[str] = (
        "LEAF's JSON: users, num_samples, and user_data with rows x (number, date, query, user, text), labels y 0 or 1"
    )
    names: ClassVar[tuple[str, ...]] = ("negative", "positive")
    unit: ClassVar[float] = 1.0

    def sample_shape(self) -> tuple[int, ...]:
        return (self.words,)

    def encoded(self, x: list[Any], y: list[Any], count: int) -> tuple[Numbers, Ints]:
        if wrong := [row for row in x if not isinstance(row, list) or len(row) <= TEXT]:
            raise ValueError(f"{wrong[0]!r:.40} instead of a row with a text")
        counts = np.zeros((count, self.words), dtype=np.uint8)
        for sample, text in enumerate(as_texts([row[TEXT] for row in x], count)):
            features = [zlib.crc32(word.encode()) % self.words for word in WORD.findall(text.lower())]
            counts[sample] = np.minimum(np.bincount(features, minlength=self.words), 255) if features else 0
        return counts, as_labels(y, count, len(self.names))


MARKS = "\n !\"&'(),-.", ":;>?"
ALPHABET = MARKS[0] + string.digits + MARKS[1] + string.ascii_uppercase + "[]" + string.ascii_lowercase + "}"
"""The 80 characters that LEAF tells apart, in its order."""
NUMBER = {character: number for number, character in enumerate(ALPHABET)}


class Shakespeare(LeafData):
    """Shakespeare as the scripts of LEAF write it, from `path` or `$EFHC_DATA`; all or some of its files.

    A sample is the last `characters` characters before the one to predict. Each is 80 bytes, of which the one of the
    character is 1 (all are 0 for one that LEAF does not know, and before the start of a text). Roles are groups.
    """

    kind: Literal["shakespeare"] = "shakespeare"
    characters: int = Field(default=20, ge=1, le=80)
    """Number of characters that a model sees, of the 80 that LEAF's files hold."""
    standardize: Standardize = False
    """As for all data sets. Default: none; inputs are 0 or 1."""
    archive: ClassVar[Archive] = leaf_archive("shakespeare", "-s niid --sf 0.2 -k 0 -t sample")
    layout: ClassVar[str] = (
        "LEAF's JSON: users, num_samples, and user_data with texts x and single characters y, of the 80 that LEAF knows"
    )
    names: ClassVar[tuple[str, ...]] = tuple(ALPHABET)
    unit: ClassVar[float] = 1.0

    def sample_shape(self) -> tuple[int, ...]:
        return self.characters, len(ALPHABET)

    def encoded(self, x: list[Any], y: list[Any], count: int) -> tuple[Numbers, Ints]:
        texts, following = as_texts(x, count), as_texts(y, count)
        if wrong := [one for one in following if one not in NUMBER]:
            raise ValueError(f"{wrong[0]!r:.40} as y")
        seen = np.zeros((count, *self.sample_shape()), dtype=np.uint8)
        for sample, text in enumerate(texts):
            last = text[-self.characters :]
            known = [
                (place, NUMBER[one]) for place, one in enumerate(last, self.characters - len(last)) if one in NUMBER
            ]
            places, numbers = zip(*known, strict=True) if known else ((), ())
            seen[sample, places, numbers] = 1
        return seen.reshape(count, -1), np.array([NUMBER[one] for one in following], dtype=np.int64)
