"""Where all random numbers come from: one seed, one independent stream per purpose, device and block of iterations.

Nothing here keeps a state that runs along. The numbers of device i at iteration k are a function of (seed, purpose,
i, k) alone, so every driver draws the same ones in whatever order it asks, a resumed run continues as if it had never
stopped, and a device or a strategy more leaves the others' draws alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from efhc.base.arrays import Floats


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


@dataclass(frozen=True)
class Randomness:
    """All the random streams of one seed."""

    seed: int

    def stream(self, purpose: Purpose, *where: int) -> np.random.Generator:
        """A fresh generator for `purpose` at `where` (device, block, attempt ...): the same one each time."""
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(int(purpose), *where)))


class Coins:
    """One uniform number per device and iteration: `coins(k)[i]`. Randomized gossip fires where it is below p."""

    BLOCK = 256

    def __init__(self, randomness: Randomness, devices: int) -> None:
        self._randomness, self._devices = randomness, devices
        self._block, self._values = -1, np.empty((devices, 0))

    def __call__(self, k: int) -> Floats:
        block, position = divmod(k, self.BLOCK)
        if block != self._block:
            streams = (self._randomness.stream(Purpose.GOSSIP, i, block) for i in range(self._devices))
            self._block, self._values = block, np.stack([stream.random(self.BLOCK) for stream in streams])
        values: Floats = self._values[:, position]
        return values
