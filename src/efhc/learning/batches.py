"""Mini-batches: at each iteration, each device draws distinct samples of its part uniformly at random."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from threading import Lock

import numpy as np

from efhc.base.arrays import Ints, read_only
from efhc.base.errors import InputError
from efhc.core.randomness import BlockReader, Purpose, Randomness


def draw_subsets(population: int, size: int, rows: int, stream: np.random.Generator) -> Ints:
    """Draw `rows` independent uniform subsets of 0 .. population-1 with `size` members each."""
    if 2 * size > population:  # to shuffle all members costs no more than to draw the subset
        return stream.permuted(np.tile(np.arange(population), (rows, 1)), axis=1)[:, :size]
    # Members that occur twice are drawn again until all differ. No member is preferred: all subsets are equally likely.
    subsets = np.sort(stream.integers(population, size=(rows, size)), axis=1)
    while (again := subsets[:, 1:] == subsets[:, :-1]).any():
        subsets[:, 1:][again] = stream.integers(population, size=int(again.sum()))
        subsets.sort(axis=1)
    return subsets


class MiniBatches:
    """The mini-batches of all devices, as numbers of training samples. Runs share it, and each has its own `reader`."""

    BLOCK = 256
    """Iterations drawn at once, from one stream per device and block. Part of a run's identity."""

    def __init__(self, parts: list[Ints], size: int, randomness: Randomness) -> None:
        for device, part in enumerate(parts):
            if size > len(part):
                raise InputError("batch_size", size, f"at most {len(part)}, the samples of device {device}, or 'full'")
        self.size, self._parts, self._randomness = size, parts, randomness
        self._blocks = SharedBlocks(self.block, 4 * self.BLOCK * len(parts) * size)

    def block(self, number: int) -> Ints:
        """Draw the batches of iterations number * BLOCK to (number + 1) * BLOCK - 1, (BLOCK, devices, batch size)."""
        samples = np.empty((self.BLOCK, len(self._parts), self.size), dtype=np.int32)
        for device in range(len(self._parts)):
            samples[:, device] = self._drawn(device, number)
        return samples

    def block_of(self, device: int, number: int) -> Ints:
        """Draw one device's batches of `block`, (BLOCK, batch size)."""
        return self._drawn(device, number).astype(np.int32)

    def _drawn(self, device: int, number: int) -> Ints:
        part, stream = self._parts[device], self._randomness.stream(Purpose.BATCHES, device, number)
        return part[draw_subsets(len(part), self.size, self.BLOCK, stream)]

    def reader(self, keep: int = 1) -> BlockReader:
        """Return a reader: `reader(k)` has the batches of iteration k, (devices, batch size)."""
        return BlockReader(self._blocks, self.BLOCK, keep)

    def of_device(self, device: int) -> BlockReader:
        """Return a reader of one device's batches: `reader(k)` has that of iteration k, (batch size,)."""
        return BlockReader(partial(self.block_of, device), self.BLOCK)


SHARED_BYTES = 1 << 24
"""Bytes up to which more than one block is kept for other readers."""


class SharedBlocks:
    """Blocks that all runs of a scenario read, from several threads. Each is drawn once, as long as it is kept."""

    def __init__(self, draw: Callable[[int], np.ndarray], block_bytes: int) -> None:
        self._draw, self._most = draw, max(1, SHARED_BYTES // max(1, block_bytes))
        self._kept: dict[int, Future[np.ndarray]] = {}
        """By number, the most recently used one last. Some may still be being drawn."""
        self._looking = Lock()

    def __call__(self, number: int) -> np.ndarray:
        """Return a block, which is read-only."""
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
