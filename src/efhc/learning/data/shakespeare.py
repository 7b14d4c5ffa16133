"""Shakespeare (LEAF, Caldas et al. 2018): predict the next character of a speech, by role of a play, 80 classes."""

from __future__ import annotations

import string
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from efhc.base.arrays import Ints
from efhc.learning.data.archives import Archive
from efhc.learning.data.dataset import Numbers, Standardize
from efhc.learning.data.leaf import LeafData, as_texts, leaf_archive

MARKS = "\n !\"&'(),-.", ":;>?"
ALPHABET = MARKS[0] + string.digits + MARKS[1] + string.ascii_uppercase + "[]" + string.ascii_lowercase + "}"
"""The 80 characters that LEAF tells apart, in its order."""
NUMBER = {character: number for number, character in enumerate(ALPHABET)}


class Shakespeare(LeafData):
    """Shakespeare as the scripts of LEAF write it, from `path` or `$EFHC_DATA`; all or some of its files.

    A sample is the last `characters` characters before the one to predict. Each is 80 bytes, of which the one of the
    character is 1 (all are 0 for one that LEAF does not know, and before the start of a text). Roles are groups.
    """

    kind: Literal["shakespeare"] = "shakespeare"
    characters: int = Field(default=20, ge=1, le=80)
    """Number of characters that a model sees, of the 80 that LEAF's files hold."""
    standardize: Standardize = False
    """As for all data sets. Default: none; inputs are 0 or 1."""
    archive: ClassVar[Archive] = leaf_archive("shakespeare", "-s niid --sf 0.2 -k 0 -t sample")
    layout: ClassVar[str] = (
        "LEAF's JSON: users, num_samples, and user_data with texts x and single characters y, of the 80 that LEAF knows"
    )
    names: ClassVar[tuple[str, ...]] = tuple(ALPHABET)
    unit: ClassVar[float] = 1.0

    def sample_shape(self) -> tuple[int, ...]:
        return self.characters, len(ALPHABET)

    def encoded(self, x: list[Any], y: list[Any], count: int) -> tuple[Numbers, Ints]:
        texts, following = as_texts(x, count), as_texts(y, count)
        if wrong := [one for one in following if one not in NUMBER]:
            raise ValueError(f"{wrong[0]!r:.40} as y")
        seen = np.zeros((count, *self.sample_shape()), dtype=np.uint8)
        for sample, text in enumerate(texts):
            last = text[-self.characters :]
            known = [
                (place, NUMBER[one]) for place, one in enumerate(last, self.characters - len(last)) if one in NUMBER
            ]
            places, numbers = zip(*known, strict=True) if known else ((), ())
            seen[sample, places, numbers] = 1
        return seen.reshape(count, -1), np.array([NUMBER[one] for one in following], dtype=np.int64)
