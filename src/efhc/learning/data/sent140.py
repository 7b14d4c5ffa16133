"""Sent140 (Go et al. 2009, in LEAF): whether a tweet is negative or positive, by user, two classes."""

from __future__ import annotations

import re
import zlib
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from efhc.base.arrays import Ints
from efhc.learning.data.archives import Archive
from efhc.learning.data.dataset import Numbers, Standardize
from efhc.learning.data.leaf import LeafData, as_labels, as_texts, leaf_archive

TEXT = 4
"""The column of the text in LEAF's rows: number, date, query, user, text."""
WORD = re.compile(r"[\w']+|[!?.:;)(]+")


class Sent140(LeafData):
    """Sent140 as the scripts of LEAF write it, from `path` or `$EFHC_DATA`; all or some of its files.

    A sample says how often each word is in the tweet: feature CRC-32(word) mod `words` counts the word in small letters
    (up to 255). Several words may share a feature. Users are groups.
    """

    kind: Literal["sent140"] = "sent140"
    words: int = Field(default=1000, ge=2)
    """Number of features that words are counted in."""
    standardize: Standardize = False
    """As for all data sets. Default: none; inputs are counts."""
    archive: ClassVar[Archive] = leaf_archive("sent140", "-s niid --sf 0.05 -k 3 -t sample")
    layout: ClassVar[str] = (
        "LEAF's JSON: users, num_samples, and user_data with rows x (number, date, query, user, text), labels y 0 or 1"
    )
    names: ClassVar[tuple[str, ...]] = ("negative", "positive")
    unit: ClassVar[float] = 1.0

    def sample_shape(self) -> tuple[int, ...]:
        return (self.words,)

    def encoded(self, x: list[Any], y: list[Any], count: int) -> tuple[Numbers, Ints]:
        if wrong := [row for row in x if not isinstance(row, list) or len(row) <= TEXT]:
            raise ValueError(f"{wrong[0]!r:.40} instead of a row with a text")
        counts = np.zeros((count, self.words), dtype=np.uint8)
        for sample, text in enumerate(as_texts([row[TEXT] for row in x], count)):
            features = [zlib.crc32(word.encode()) % self.words for word in WORD.findall(text.lower())]
            counts[sample] = np.minimum(np.bincount(features, minlength=self.words), 255) if features else 0
        return counts, as_labels(y, count, len(self.names))
