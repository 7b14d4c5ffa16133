"""Fashion-MNIST (Xiao, Rasul, Vollgraf 2017): 60,000 training and 10,000 test images of 28x28, ten classes."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from efhc.base.errors import InputError
from efhc.learning.data.archives import Archive, StoredData, StoredFile
from efhc.learning.data.dataset import Dataset
from efhc.learning.data.download import GzipFiles

SHA256 = {
    "train-images-idx3-ubyte.gz": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte.gz": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte.gz": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte.gz": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
ARCHIVE = GzipFiles(
    name="fashion-mnist",
    files=tuple(SHA256),
    sha256=SHA256,
    address="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    advice="put its files into $EFHC_DATA/fashion-mnist, or install Debian's package dataset-fashion-mnist",
    system_folder=Path("/usr/share/datasets/fashion-mnist"),
)
CLASS_NAMES = (
    "T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip


class FashionMNIST(StoredData):
    """Fashion-MNIST from `path`, `$EFHC_DATA`, the user's cache, Debian's package, or a download."""

    kind: Literal["fashion-mnist"] = "fashion-mnist"
    archive: ClassVar[Archive] = ARCHIVE

    def parse(self, files: Iterator[StoredFile]) -> Dataset:
        x_train, y_train, x_test, y_test = (parse_idx(file.content, str(file.path)) for file in files)
        return Dataset(x_train, y_train, x_test, y_test, class_names=CLASS_NAMES)


def parse_idx(content: bytes, origin: str = "a file") -> NDArray[np.uint8]:
    """Return the array of an IDX file of bytes: magic 0, 0, 8, dimensions; one big-endian size each; the values."""
    try:
        zero, kind, dimensions = struct.unpack_from(">HBB", content)
        shape = struct.unpack_from(f">{dimensions}I", content, 4)
        start = 4 + 4 * dimensions
        fits = (zero, kind) == (0, 8) and len(content) == start + math.prod(shape)
    except struct.error:
        fits = False
    if not fits:
        raise InputError("files", f"{origin}, whose IDX header does not fit it", "IDX files of unsigned bytes")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
