"""FEMNIST (LEAF, Caldas et al. 2018): handwritten digits and letters of 28x28 by writer, 62 classes, black on white."""

from __future__ import annotations

import string
from typing import Any, ClassVar, Literal

import numpy as np

from efhc.base.arrays import Ints
from efhc.learning.data.archives import Archive
from efhc.learning.data.dataset import Numbers
from efhc.learning.data.leaf import LeafData, as_labels, leaf_archive

SHAPE = (28, 28)
PIXELS = 28 * 28
CLASS_NAMES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)


class FEMNIST(LeafData):
    """FEMNIST as the scripts of LEAF write it, from `path` or `$EFHC_DATA`; all or some of its files."""

    kind: Literal["femnist"] = "femnist"
    archive: ClassVar[Archive] = leaf_archive("femnist", "-s niid --sf 0.05 -k 0 -t sample")
    layout: ClassVar[str] = (
        f"LEAF's JSON: users, num_samples, and user_data with rows x of {PIXELS} numbers 0 to 1, labels y 0 to 61"
    )
    names: ClassVar[tuple[str, ...]] = CLASS_NAMES

    def sample_shape(self) -> tuple[int, ...]:
        return SHAPE

    def encoded(self, x: list[Any], y: list[Any], count: int) -> tuple[Numbers, Ints]:
        pixels = np.array(x, np.float64)
        if pixels.shape != (count, PIXELS):
            raise ValueError(f"x of shape {pixels.shape}, num_samples {count}")
        labels = as_labels(y, count, len(CLASS_NAMES))
        if not ((pixels >= 0) & (pixels <= 1)).all():
            raise ValueError(f"x from {pixels.min()} to {pixels.max()}")
        # LEAF divides bytes by 255 and may round to three decimals. As bytes they take 1/8 of the memory.
        near = np.rint(pixels * 255)
        return near.astype(np.uint8) if (abs(pixels - near / 255) <= 1e-3).all() else pixels, labels
