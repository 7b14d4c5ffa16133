"""CIFAR-10 (Krizhevsky 2009), binary version: 50,000 training and 10,000 test images of 3x32x32, ten classes.

A record is one byte with the label, then the red, green and blue values, each row by row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from efhc.base.errors import InputError
from efhc.learning.data.archives import Archive, StoredData, StoredFile
from efhc.learning.data.dataset import Dataset
from efhc.learning.data.download import TarFile

SHAPE = (3, 32, 32)
RECORD = 1 + 3 * 32 * 32
CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
TEST = "test_batch.bin"
FOLDER = "cifar-10-batches-bin"
ARCHIVE = TarFile(
    name="cifar-10",
    files=("data_batch_[1-5].bin", TEST),
    subfolders=(FOLDER,),
    address="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    members={name: f"{FOLDER}/{name}" for name in (*(f"data_batch_{n}.bin" for n in range(1, 6)), TEST)},
    advice=f"put the .bin files of its binary version, or some of them, into $EFHC_DATA/{FOLDER}, "
    "or give their folder as data.path",
)


class CIFAR10(StoredData):
    """CIFAR-10 (binary version) from `path`, `$EFHC_DATA`, the user's cache, or a download."""

    kind: Literal["cifar-10"] = "cifar-10"
    archive: ClassVar[Archive] = ARCHIVE

    def parse(self, files: Iterator[StoredFile]) -> Dataset:
        batches = {file.name: parse_records(file.content, str(file.path)) for file in files}
        x_test, y_test = batches.pop(TEST)
        images, labels = zip(*batches.values(), strict=True)
        return Dataset(np.concatenate(images), np.concatenate(labels), x_test, y_test, class_names=CLASS_NAMES)


def parse_records(content: bytes, origin: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return the images, (samples, 3, 32, 32), and the labels, (samples,)."""
    records, rest = divmod(len(content), RECORD)
    if rest or not records:
        raise InputError("files", f"{origin} of {len(content)} bytes", f"one or more whole records of {RECORD} bytes")
    table = np.frombuffer(content, np.uint8).reshape(records, RECORD)
    labels = table[:, 0]
    if (wrong := np.flatnonzero(labels >= len(CLASS_NAMES))).size:
        given = f"label {labels[wrong[0]]} in record {wrong[0]} of {origin}"
        raise InputError("files", given, f"labels 0 to {len(CLASS_NAMES) - 1}")
    return table[:, 1:].reshape(records, *SHAPE), labels
