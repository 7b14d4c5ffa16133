"""Which models are on the disk, so that none is written twice."""

from __future__ import annotations

import weakref

import numpy as np


class ArrayNumbers:
    """The numbers of the arrays that are on the disk. An array is known by its identity, and is not kept alive.

    The same array is the `sent` of all exchanges that a device begins in an iteration, and it is in a journal both
    while its exchange is in doubt and when its step is committed. Arrays that are given must not be changed.
    """

    def __init__(self) -> None:
        self.next = 0
        """The number of the next array that is new."""
        self._known: dict[int, tuple[weakref.ref[np.ndarray], int]] = {}

    def find(self, array: np.ndarray) -> int | None:
        """Return the number of an array, or None if it has none."""
        known, number = self._known.get(id(array), (None, None))
        return number if known is not None and known() is array else None

    def add(self, array: np.ndarray, number: int | None = None) -> int:
        """Give an array a number (default: the next one), and return it."""
        number = self.next if number is None else number
        self.next = max(self.next, number + 1)
        known, name = self._known, id(array)
        # Once the array is gone, another one may get its id. The callback runs before that, in whatever thread.
        known[name] = weakref.ref(array, lambda _: known.pop(name, None)), number
        return number

    def forget(self, array: np.ndarray) -> None:
        """Take the number of an array away: it is not on the disk after all."""
        self._known.pop(id(array), None)
