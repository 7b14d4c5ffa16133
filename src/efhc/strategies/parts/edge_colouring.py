"""A graph as few matchings: numbers for its links such that no device has two links of the same number."""

from __future__ import annotations

import numpy as np

from efhc.base.arrays import Ints
from efhc.core.graph import Graph


def matching_of_links(graph: Graph) -> Ints:
    """Return the number of a matching for each link, from 0 on: at most D + 1 where D is the largest degree.

    Misra & Gries (Information Processing Letters 1992), link by link: a link takes a number that is free at both ends.
    If there is none, others change theirs: with c free at u, the d/c path from u swaps its numbers, and the links of a
    fan of u, where the number of each is free at the end of the one before, pass their numbers on.
    """
    colouring = _Colouring(graph.devices, int(graph.degrees.max(initial=0)) + 1)
    for u, v in graph.links.tolist():
        colouring.add(u, v)
    numbers = [colouring.number(u, v) for u, v in graph.links.tolist()]
    without_gaps: Ints = np.unique(np.array(numbers, dtype=np.int64), return_inverse=True)[1]
    return without_gaps


class _Colouring:
    """The numbers of the links so far."""

    def __init__(self, devices: int, numbers: int) -> None:
        self._all = range(numbers)
        self._at: list[dict[int, int]] = [{} for _ in range(devices)]
        """For each device, its neighbours by the number of the link."""
        self._of: dict[tuple[int, int], int] = {}

    def number(self, u: int, v: int) -> int:
        return self._of[min(u, v), max(u, v)]

    def add(self, u: int, v: int) -> None:
        """Give the link of u and v a number."""
        both = next((one for one in self._all if one not in self._at[u] and one not in self._at[v]), None)
        if both is not None:
            self._put(u, v, both)
            return
        fan = self._fan(u, v)
        c, d = self._free(u), self._free(fan[-1])
        self._swap(u, d, c)
        self._pass_on(u, self._usable(fan, d), d)

    def _free(self, device: int) -> int:
        return next(one for one in self._all if one not in self._at[device])

    def _fan(self, u: int, v: int) -> list[int]:
        """Return neighbours of u from v on, as many as possible: each one's number is free at the one before."""
        fan = [v]
        while True:
            follow = (w for one, w in self._at[u].items() if one not in self._at[fan[-1]] and w not in fan)
            if (following := next(follow, None)) is None:
                return fan
            fan.append(following)

    def _swap(self, u: int, d: int, c: int) -> None:
        """Exchange the numbers d and c along the path of links d, c, d, ... from u: d becomes free at u."""
        path, here, one = [], u, d
        while one in self._at[here]:
            there = self._at[here][one]
            path.append((here, there, one))
            here, one = there, c + d - one
        for here, there, one in path:
            self._take(here, there, one)
        for here, there, one in path:
            self._put(here, there, c + d - one)

    def _usable(self, fan: list[int], d: int) -> list[int]:
        """Return the fan up to the first device at which d is free after the swap.

        It is a fan still. The swap changes one link of u at most, from d to c; d was free at the device before it in
        the fan. There either d is free still, and the fan ends there or earlier, or the path ended there, which makes c
        free.
        """
        last = next(place for place, device in enumerate(fan) if d not in self._at[device])
        return fan[: last + 1]

    def _pass_on(self, u: int, fan: list[int], d: int) -> None:
        """Give each link of the fan the number of the next one, and d to the last."""
        numbers = [self.number(u, device) for device in fan[1:]]
        for device, one in zip(fan[1:], numbers, strict=True):
            self._take(u, device, one)
        for device, one in zip(fan, [*numbers, d], strict=True):
            self._put(u, device, one)

    def _put(self, u: int, v: int, one: int) -> None:
        self._at[u][one], self._at[v][one] = v, u
        self._of[min(u, v), max(u, v)] = one

    def _take(self, u: int, v: int, one: int) -> None:
        del self._at[u][one], self._at[v][one]
