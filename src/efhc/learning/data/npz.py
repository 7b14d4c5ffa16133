"""Your own data in an .npz file."""

from __future__ import annotations

import io
import zipfile
from typing import Literal

import numpy as np

from efhc.core.errors import InputError
from efhc.inputs import InputFile, read_bytes, sha256
from efhc.learning.data.dataset import DataPolicy, Dataset, Moments

ARRAYS = ("x_train", "y_train", "x_test", "y_test")


class NpzFile(DataPolicy):
    """Arrays x_train, y_train, x_test, y_test: one sample a row (or an image of any shape), labels from 0."""

    kind: Literal["npz"] = "npz"
    path: InputFile
    standardize: bool | Moments = False
    """Scale inputs to (x - mean) / std. By default your numbers are used as they are."""

    def load(self, precision: str = "float32") -> Dataset:
        content = read_bytes(self.path)
        allowed = f"a complete .npz file with {', '.join(ARRAYS)}, made by numpy.savez"
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as file:
                if missing := [name for name in ARRAYS if name not in file]:
                    raise InputError("path", f"{self.path} without {missing[0]}", allowed)
                x_train, y_train, x_test, y_test = (file[name] for name in ARRAYS)
        except (ValueError, EOFError, OSError, zipfile.BadZipFile, AttributeError, TypeError) as error:
            raise InputError("path", f"{self.path}, corrupt or of another kind ({error})", allowed) from error
        data = Dataset(x_train, y_train, x_test, y_test, name=self.path.stem, sha256={self.path.name: sha256(content)})
        return data.prepared(self.standardize, precision)
