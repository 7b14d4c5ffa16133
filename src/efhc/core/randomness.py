"""Where all random numbers come from: one seed, one independent stream per purpose, device and block of iterations.

Nothing here keeps a state that runs along. The numbers of device i at iteration k are a function of (seed, purpose,
i, k) alone. So every driver draws the same ones, in whatever order it asks; a resumed run continues as if it had never
stopped; and one more device or strategy does not change the draws of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any, ClassVar

import numpy as np

from efhc.base.arrays import Floats, Ints


class Purpose(IntEnum):
    """What a stream is for. The numbers are part of a run's identity: append, never renumber."""

    TOPOLOGY = 0
    LINKS = 1
    MOBILITY = 2
    BANDWIDTHS = 3
    PARTITION = 4
    INITIAL_MODELS = 5
    BATCHES = 6
    GOSSIP = 7
    NOISE = 8
    VALIDATION = 9
    COMPUTE_TIMES = 10
    LINK_LOSS = 11
    LINK_JITTER = 12
    LINK_RATES = 13
    CHURN = 14
    STRATEGY = 15
    MESSAGE_LOSS = 16
    TEST_SAMPLES = 17
    OTHER_BANDWIDTHS = 18
    EVALUATIONS = 19


@dataclass(frozen=True)
class Randomness:
    """All the random streams of one seed."""

    seed: int

    def stream(self, purpose: Purpose, *where: int) -> np.random.Generator:
        """Return a new generator for `purpose` at `where` (device, block, attempt ...): the same one each time."""
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(int(purpose), *where)))


class BlockReader:
    """Reads a sequence over iterations that is drawn in blocks, and keeps the `keep` blocks that were read last.

    It remembers where it is, so every run needs a reader of its own.
    """

    def __init__(self, draw: Callable[[int], np.ndarray], block: int, keep: int = 1) -> None:
        self._draw, self._block, self._keep = draw, block, keep
        self._kept: dict[int, np.ndarray] = {}
        """The kept blocks by their numbers, the one that was read last at the end."""
        self._number, self._rows = -1, np.empty(0)

    def rows(self, k: int, most: int = 1) -> np.ndarray:
        """Return the rows of iterations k, k + 1, ...: at most `most`, and none beyond the end of k's block."""
        number, row = divmod(k, self._block)
        if number != self._number:
            self._turn_to(number)
        return self._rows[row : row + most]

    def of_many(self, k: Ints) -> np.ndarray:
        """Return the rows of iterations that follow one another, a column (iterations, 1)."""
        first, count = int(k[0, 0]), len(k)
        found = [self.rows(first, count)]
        while (made := sum(map(len, found))) < count:
            found.append(self.rows(first + made, count - made))
        return found[0] if len(found) == 1 else np.concatenate(found)

    def __call__(self, k: int) -> Any:
        """Return the row of iteration k, which is a number if a row is one."""
        number, row = divmod(k, self._block)
        if number != self._number:
            self._turn_to(number)
        return self._rows[row]

    def _turn_to(self, number: int) -> None:
        rows = self._kept.pop(number, None)
        if rows is None:
            if len(self._kept) == self._keep:
                del self._kept[next(iter(self._kept))]
            rows = self._draw(number)
        self._kept[number] = rows
        self._number, self._rows = number, rows


class Sequences:
    """One sequence per device or link, drawn block by block: `sequences(k, *where)` is its row k.

    `draw(stream, *where)` makes a block from the stream of (seed, purpose, where, number of the block).
    """

    def __init__(self, randomness: Randomness, purpose: Purpose, block: int, draw: Callable[..., np.ndarray]) -> None:
        self._randomness, self._purpose, self._block, self._draw = randomness, purpose, block, draw
        self._readers: dict[tuple[int, ...], BlockReader] = {}

    def __call__(self, k: int, *where: int) -> Any:
        reader = self._readers.get(where)
        if reader is None:

            def draw(block: int) -> np.ndarray:
                return self._draw(self._randomness.stream(self._purpose, *where, block), *where)

            reader = self._readers[where] = BlockReader(draw, self._block)
        return reader(k)


@dataclass(frozen=True)
class Coins:
    """One uniform number per device and iteration. Randomized gossip fires where it is below p."""

    randomness: Randomness
    devices: int

    BLOCK: ClassVar = 256
    """Iterations drawn at once, from one stream per device and block. Part of a run's identity."""

    def block(self, number: int) -> Floats:
        """Return the coins of iterations number * BLOCK to (number + 1) * BLOCK - 1, (iterations, devices)."""
        return np.stack([self.block_of(device, number) for device in range(self.devices)], axis=1)

    def block_of(self, device: int, number: int) -> Floats:
        """Return one device's column of `block`, (iterations,)."""
        return self.randomness.stream(Purpose.GOSSIP, device, number).random(self.BLOCK)

    def reader(self, keep: int = 1) -> BlockReader:
        """Return a reader: `reader(k)[i]` is the coin of device i at iteration k."""
        return BlockReader(self.block, self.BLOCK, keep)

    def of_device(self, device: int) -> BlockReader:
        """Return a reader of one device's coins: `reader(k)` is a number."""
        return BlockReader(partial(self.block_of, device), self.BLOCK)
