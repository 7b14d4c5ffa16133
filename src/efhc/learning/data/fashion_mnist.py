"""Fashion-MNIST (Xiao, Rasul, Vollgraf 2017): 60,000 + 10,000 images of 28x28, ten classes."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from efhc.core.errors import InputError
from efhc.learning.data.dataset import DataPolicy, Dataset
from efhc.learning.data.store import Archive

ARCHIVE = Archive(
    name="fashion-mnist",
    address="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    sha256={
        "train-images-idx3-ubyte.gz": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte.gz": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte.gz": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte.gz": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
    system_folder=Path("/usr/share/datasets/fashion-mnist"),
    system_package="dataset-fashion-mnist",
)


class FashionMNIST(DataPolicy):
    """Fashion-MNIST from `$EFHC_DATA`, the user's cache, Debian's package, or its home on the web."""

    kind: Literal["fashion-mnist"] = "fashion-mnist"
    archive: ClassVar[Archive] = ARCHIVE

    def load(self, precision: str = "float32") -> Dataset:
        found = ARCHIVE.find()
        folder = found[1] if found else ARCHIVE.fetch()
        x_train, y_train, x_test, y_test = map(parse_idx, ARCHIVE.read(folder).values())
        pixel = np.dtype(precision).type(255)
        return Dataset(
            x_train.astype(precision) / pixel,
            y_train.astype(np.int64),
            x_test.astype(precision) / pixel,
            y_test.astype(np.int64),
            ARCHIVE.name,
            x_train.shape[1:],
            ARCHIVE.sha256,
        ).prepared(self.standardize, precision)


def parse_idx(content: bytes) -> NDArray[np.uint8]:
    """The array of an IDX file of bytes: magic 0, 0, 8, dimensions; one big-endian size each; the values."""
    zero, kind, dimensions = struct.unpack_from(">HBB", content)
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    start = 4 + 4 * dimensions
    if (zero, kind) != (0, 8) or len(content) != start + math.prod(shape):
        raise InputError("files", "an IDX header that does not fit its file", "IDX files of unsigned bytes")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
