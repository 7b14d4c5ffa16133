"""Handwritten digits that ship with efhc: 1797 images of 8x8, ten classes. Nothing has to be downloaded."""

from __future__ import annotations

import gzip
import io
from importlib.resources import files
from typing import Literal

import numpy as np

from efhc.base.arrays import Floats, Ints
from efhc.base.inputs import sha256
from efhc.learning.data.dataset import DataPolicy, Dataset

SHA256 = "f6d9e39f37dc45d327f6db33428ee58970ccceabb2535a5c179de35886b70443"
"""The SHA-256 of pixels and labels as they were published."""


class Digits(DataPolicy):
    """The 1797 handwritten digits that ship with efhc; every fifth sample is a test sample."""

    kind: Literal["digits"] = "digits"

    def load(self, precision: str = "float32") -> Dataset:
        pixels, labels = read_digits()
        test = np.arange(len(labels)) % 5 == 4
        checksum = {"digits": sha256(pixels.tobytes() + labels.tobytes())}
        return Dataset(
            pixels[~test] / 16, labels[~test], pixels[test] / 16, labels[test], "digits", (8, 8), checksum
        ).prepared(self.standardize, precision)


def read_digits() -> tuple[Floats, Ints]:
    """Pixels from 0 to 16, (1797, 64), and labels, (1797,), in the order of the file.

    The file and its licence are in `files/`: the test set of "Optical Recognition of Handwritten Digits" (UCI).
    """
    packed = files("efhc.learning.data").joinpath("files", "digits.csv.gz").read_bytes()
    table = np.loadtxt(io.BytesIO(gzip.decompress(packed)), delimiter=",", dtype=np.int64)
    return table[:, :-1].astype(np.float64), table[:, -1].copy()
