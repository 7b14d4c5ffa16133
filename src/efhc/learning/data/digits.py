"""The digits data set that ships with scikit-learn: 1797 images of 8x8, ten classes. Nothing to download."""

from __future__ import annotations

from typing import Literal

import numpy as np

from efhc.base.inputs import sha256
from efhc.learning.data.dataset import DataPolicy, Dataset


class Digits(DataPolicy):
    """scikit-learn's digits; every fifth sample is a test sample."""

    kind: Literal["digits"] = "digits"

    def load(self, precision: str = "float32") -> Dataset:
        from sklearn.datasets import load_digits

        pixels, labels = load_digits(return_X_y=True)
        test = np.arange(len(labels)) % 5 == 4
        checksum = {"digits": sha256(pixels.tobytes() + labels.astype(np.int64).tobytes())}
        return Dataset(
            pixels[~test] / 16, labels[~test], pixels[test] / 16, labels[test], "digits", (8, 8), checksum
        ).prepared(self.standardize, precision)
