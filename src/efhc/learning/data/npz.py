"""Data of your own in an .npz file."""

from __future__ import annotations

from typing import Literal

from efhc.base.errors import InputError
from efhc.base.inputs import InputFile, parse_numpy, read_bytes, sha256
from efhc.learning.data.dataset import DataPolicy, Dataset, Standardize

ARRAYS = ("x_train", "y_train", "x_test", "y_test")


class NpzFile(DataPolicy):
    """Your arrays x_train, y_train, x_test, y_test: one sample (of any shape) per row, labels from 0.

    An optional array `writers` holds the writer of each training sample, numbered from 0.
    """

    kind: Literal["npz"] = "npz"
    path: InputFile
    """The .npz file."""
    standardize: Standardize = False
    """Scale inputs to (x - mean) / std, as for the other data sets. Default: your numbers are used as they are."""

    def load(self, precision: str = "float32") -> Dataset:
        allowed = f"a complete .npz file with {', '.join(ARRAYS)}, made by numpy.savez"
        content = read_bytes(self.path)
        file = parse_numpy(content, self.path, allowed)
        if missing := [name for name in ARRAYS if name not in file]:
            raise InputError("path", f"{self.path} without {missing[0]}", allowed)
        x_train, y_train, x_test, y_test = (file[name] for name in ARRAYS)
        checksum = {self.path.name: sha256(content)}
        data = Dataset(
            x_train, y_train, x_test, y_test, name=self.path.stem, sha256=checksum, writers=file.get("writers")
        )
        return data.prepared(self.standardize, precision)
