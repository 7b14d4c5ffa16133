"""Data of your own in an .npz file."""

from __future__ import annotations

import io
from typing import Literal

import numpy as np

from efhc.base.errors import InputError
from efhc.base.inputs import InputFile, parse_numpy, read_bytes, sha256
from efhc.learning.data.dataset import DataPolicy, Dataset, Standardize

ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def npz_content(data: Dataset) -> bytes | None:
    """Return the content of an .npz file from which `NpzFile` loads the same numbers, without the names of classes.

    Returns None if classes that only their name tells of would be lost.
    """
    if len(data.class_names) > max(data.y_train.max(), data.y_test.max()) + 1:
        return None
    arrays = {name: getattr(data, name) for name in ARRAYS}
    if data.groups is not None:
        arrays["groups"] = data.groups
    if (data.scale, data.shift) != (1.0, 0.0):
        arrays |= {name: data.inputs(arrays[name]) for name in ("x_train", "x_test")}
    if data.shape:
        arrays |= {name: arrays[name].reshape(-1, *data.shape) for name in ("x_train", "x_test")}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


class NpzFile(DataPolicy):
    """Your arrays x_train, y_train, x_test, y_test: one sample (of any shape) per row, labels from 0.

    An optional array `groups` (or `writers`) holds the group of each training sample, from 0.
    """

    kind: Literal["npz"] = "npz"
    path: InputFile
    """The .npz file."""
    standardize: Standardize = False
    """As for all data sets. Default: no scaling."""

    def load(self, precision: str = "float32") -> Dataset:
        allowed = f"a complete .npz file with {', '.join(ARRAYS)}, made by numpy.savez"
        content = read_bytes(self.path)
        file = parse_numpy(content, self.path, allowed)
        if missing := [name for name in ARRAYS if name not in file]:
            raise InputError("path", f"{self.path} without {missing[0]}", allowed)
        x_train, y_train, x_test, y_test = (file[name] for name in ARRAYS)
        checksum = {self.path.name: sha256(content)}
        data = Dataset(
            x_train,
            y_train,
            x_test,
            y_test,
            name=self.path.stem,
            sha256=checksum,
            groups=file.get("groups", file.get("writers")),
        )
        return data.prepared(self.standardize, precision)
