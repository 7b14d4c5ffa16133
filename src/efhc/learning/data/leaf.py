"""The JSON files of LEAF (Caldas et al. 2018): samples by user, for training in `train/`, for the test in `test/`.

Each file is `{users, num_samples, user_data: {user: {x, y}}}`; what x and y are, each data set says. Users are groups.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np

from efhc.base.arrays import Ints
from efhc.base.errors import InputError
from efhc.learning.data.archives import Archive, StoredData, StoredFile
from efhc.learning.data.dataset import Dataset, Numbers


def leaf_archive(name: str, options: str) -> Archive:
    """Return where a data set of LEAF is looked for, and how to make it by its script with these options."""
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
            raise InputError("files", f"no samples in {empty[0]}", self.layout)
        train, test = parts.values()
        are_bytes = all(user.x.dtype == np.uint8 for user in train + test)
        x_train, x_test = (
            np.concatenate([user.x if are_bytes else self._as_floats(user.x) for user in part])
            for part in (train, test)
        )
        y_train, y_test = (np.concatenate([user.y for user in part]) for part in (train, test))
        _, numbers = np.unique([user.name for user in train], return_inverse=True)
        groups = np.repeat(numbers, [len(user.y) for user in train])
        shape = self.sample_shape()
        return Dataset(x_train, y_train, x_test, y_test, shape=shape, groups=groups, class_names=self.names)

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
