"""What was drawn for one run is kept for the others. No number depends on it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock

import numpy as np

from efhc.base.arrays import read_only

SHARED_BYTES = 1 << 24
"""Bytes up to which more than one block is kept for the readers that come later."""


class SharedBlocks:
    """Blocks that all runs of a scenario read, from several threads. Each is drawn once, as long as it is kept."""

    def __init__(self, draw: Callable[[int], np.ndarray], block_bytes: int) -> None:
        self._draw, self._most = draw, max(1, SHARED_BYTES // max(1, block_bytes))
        self._kept: dict[int, Future[np.ndarray]] = {}
        """By their numbers, the one that was asked for last at the end. Some may still be drawn."""
        self._looking = Lock()

    def __call__(self, number: int) -> np.ndarray:
        """Return a block, which nobody may write to."""
        with self._looking:
            found = self._kept.pop(number, None)
            block = self._kept[number] = found or Future()
            if len(self._kept) > self._most:
                del self._kept[next(iter(self._kept))]
        if found is None:
            try:
                block.set_result(read_only(self._draw(number)))
            except BaseException as error:
                block.set_exception(error)
                with self._looking:
                    self._kept.pop(number, None)
        return block.result()
