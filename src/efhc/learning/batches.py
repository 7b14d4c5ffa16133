"""Mini-batches: at each iteration a device draws distinct samples of its own, uniformly, anew."""

from __future__ import annotations

import numpy as np

from efhc.base.arrays import Ints
from efhc.base.errors import InputError
from efhc.core.randomness import Purpose, Randomness


def draw_subsets(population: int, size: int, rows: int, stream: np.random.Generator) -> Ints:
    """`rows` independent uniform subsets of 0 .. population-1, `size` members each."""
    if 2 * size > population:  # shuffling everybody costs no more than the subset itself
        return stream.permuted(np.tile(np.arange(population), (rows, 1)), axis=1)[:, :size]
    # Members that occur twice are drawn again until all differ. No member is preferred, so all subsets are as likely.
    subsets = np.sort(stream.integers(population, size=(rows, size)), axis=1)
    while (again := subsets[:, 1:] == subsets[:, :-1]).any():
        subsets[:, 1:][again] = stream.integers(population, size=int(again.sum()))
        subsets.sort(axis=1)
    return subsets


class MiniBatches:
    """The mini-batches of all devices, as numbers of training samples."""

    BLOCK = 256
    """Iterations drawn at once, from one stream per device and block. Part of a run's identity."""

    def __init__(self, parts: list[Ints], size: int, randomness: Randomness) -> None:
        for device, part in enumerate(parts):
            if size > len(part):
                raise InputError("batch_size", size, f"at most {len(part)}, the samples of device {device}, or 'full'")
        self._parts, self.size, self._randomness = parts, size, randomness
        self.forget()

    def forget(self) -> None:
        """Let go of the memory; what is asked for again is drawn again."""
        self._block, self._samples = -1, np.empty((0, 0, 0), dtype=np.int32)

    def samples(self, k: int, most: int = 1) -> Ints:
        """(iterations, devices, batch size), from iteration k to the end of its block, but at most so many."""
        block, row = divmod(k, self.BLOCK)
        if block != self._block:
            self._samples = np.empty((self.BLOCK, len(self._parts), self.size), dtype=np.int32)
            for device, part in enumerate(self._parts):
                stream = self._randomness.stream(Purpose.BATCHES, device, block)
                self._samples[:, device] = part[draw_subsets(len(part), self.size, self.BLOCK, stream)]
            self._block = block
        return self._samples[row : row + most]
