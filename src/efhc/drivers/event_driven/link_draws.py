"""The random numbers of links: one per attempt to send a message. All come from the seed."""

from __future__ import annotations

from array import array

from efhc.core.randomness import Purpose, Randomness


class LinkDraws:
    """One uniform number per attempt on a link direction: a function of (seed, purpose, sender, receiver, count)."""

    BLOCK = 32
    """Numbers drawn at once, from one stream per link direction and block. Part of a run's identity."""

    def __init__(self, randomness: Randomness, purpose: Purpose) -> None:
        self._randomness, self._purpose = randomness, purpose
        self._blocks: dict[tuple[int, int], tuple[int, array[float]]] = {}

    def __call__(self, sender: int, receiver: int, count: int) -> float:
        """Return the number of attempt `count` from `sender` to `receiver`."""
        number, place = divmod(count, self.BLOCK)
        found = self._blocks.get((sender, receiver))
        if found is None or found[0] != number:
            stream = self._randomness.stream(self._purpose, sender, receiver, number)
            found = self._blocks[sender, receiver] = (number, array("d", stream.random(self.BLOCK)))
        return found[1][place]
