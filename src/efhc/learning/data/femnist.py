"""FEMNIST (LEAF, Caldas et al. 2018): handwritten digits and letters of 28x28 by writer, 62 classes, black on white.

LEAF writes `train/*.json` and `test/*.json`, each `{users, num_samples, user_data: {user: {x, y}}}`.
"""

from __future__ import annotations

import json
import string
from collections.abc import Iterator
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from efhc.base.arrays import Ints
from efhc.base.errors import InputError
from efhc.learning.data.archives import Archive, StoredData, StoredFile
from efhc.learning.data.dataset import Dataset, Numbers

SHAPE = (28, 28)
PIXELS = 28 * 28
CLASS_NAMES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
ARCHIVE = Archive(
    name="femnist",
    files=("train/*.json", "test/*.json"),
    advice="LEAF makes it: in data/femnist of https://github.com/TalwalkarLab/leaf run "
    "`./preprocess.sh -s niid --sf 0.05 -k 0 -t sample`, then put its data/train and data/test into "
    "$EFHC_DATA/femnist, or give their folder as data.path",
)
LAYOUT = f"LEAF's JSON: users, num_samples, and user_data with rows x of {PIXELS} numbers 0 to 1, labels y 0 to 61"


class FEMNIST(StoredData):
    """FEMNIST as the scripts of LEAF write it, from `path` or `$EFHC_DATA`; all or some of its files."""

    kind: Literal["femnist"] = "femnist"
    archive: ClassVar[Archive] = ARCHIVE

    def parse(self, files: Iterator[StoredFile]) -> Dataset:
        parts: dict[str, list[Writer]] = {"train": [], "test": []}
        for file in files:
            parts[file.name.partition("/")[0]] += parse_leaf(file.content, str(file.path))
        if empty := [folder for folder, part in parts.items() if not part]:
            raise InputError("files", f"no samples in {empty[0]}", LAYOUT)
        train, test = parts.values()
        are_bytes = all(writer.x.dtype == np.uint8 for writer in train + test)
        x_train, x_test = (
            np.concatenate([writer.x if are_bytes else _as_floats(writer.x) for writer in part])
            for part in (train, test)
        )
        y_train, y_test = (np.concatenate([writer.y for writer in part]) for part in (train, test))
        _, numbers = np.unique([writer.name for writer in train], return_inverse=True)
        writers = np.repeat(numbers, [len(writer.y) for writer in train])
        return Dataset(x_train, y_train, x_test, y_test, shape=SHAPE, writers=writers, class_names=CLASS_NAMES)


class Writer(NamedTuple):
    """The samples of one writer in one file."""

    name: str
    x: Numbers
    y: Ints


def parse_leaf(content: bytes, origin: str) -> Iterator[Writer]:
    """Yield the samples of every user who has any."""
    try:
        table = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError("files", f"{origin} ({error})", LAYOUT) from None
    for key, kind in (("users", list), ("num_samples", list), ("user_data", dict)):
        if not isinstance(table, dict) or not isinstance(table.get(key), kind):
            raise InputError("files", f"{origin} without {key}", LAYOUT)
    users, counts, samples = table["users"], table["num_samples"], table["user_data"]
    if len(users) != len(counts):
        raise InputError("files", f"{len(users)} users with {len(counts)} num_samples in {origin}", LAYOUT)
    for user, count in zip(users, counts, strict=True):
        try:
            if count or samples[user]["x"]:
                yield _parse_user(str(user), count, samples[user])
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else error
            raise InputError("files", f"user {user} of {origin} ({reason})", LAYOUT) from None


def _parse_user(name: str, count: Any, samples: dict[str, Any]) -> Writer:
    x, y = np.array(samples["x"], np.float64), np.array(samples["y"])
    if x.shape != (count, PIXELS):
        raise ValueError(f"x of shape {x.shape}, num_samples {count}")
    if y.shape != (count,):
        raise ValueError(f"y of shape {y.shape}, num_samples {count}")
    if y.dtype.kind != "i" or y.min() < 0 or y.max() >= len(CLASS_NAMES):
        raise ValueError(f"labels {y.min()} to {y.max()}")
    if not ((x >= 0) & (x <= 1)).all():
        raise ValueError(f"x from {x.min()} to {x.max()}")
    # LEAF divides bytes by 255 and may round to three decimals. Converted back to bytes, they take 1/8 of the memory.
    near = np.rint(x * 255)
    return Writer(name, near.astype(np.uint8) if (abs(x - near / 255) <= 1e-3).all() else x, y)


def _as_floats(x: Numbers) -> Numbers:
    return x / 255 if x.dtype == np.uint8 else x
