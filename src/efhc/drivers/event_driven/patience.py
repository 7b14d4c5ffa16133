"""Patience: an end of an exchange that does not get on for too long withdraws it, or asks how it ended.

An end gets on when it says something about the exchange, and both do when a model arrives; what an end hears again and
again is no progress. Each end has one deadline at a time.
"""

from __future__ import annotations

from heapq import heappush
from typing import Any

from efhc.drivers.event_driven.run import RETRY, Run

End = tuple[int, int]
"""A device, and the neighbour that it waits for."""


class Patience:
    """The patience of all devices of one run."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: dict[End, float] = {}
        """When an end last got on."""
        self._planned: set[End] = set()
        """The ends whose deadline is on the heap."""

    def watches(self, number: int, neighbour: int) -> bool:
        """Whether an end is watched: something was late or lost on its link before."""
        return (number, neighbour) in self._since

    def watch(self, run: Run, number: int, neighbour: int) -> None:
        """Something may be late: unless the end gets on, its patience ends."""
        end = number, neighbour
        if end not in self._planned:
            self._since[end] = run.now
            self._plan(run, end, run.now)

    def end(self, number: int, neighbour: int) -> None:
        """A deadline has come, and there is nothing to wait for."""
        self._planned.discard((number, neighbour))

    def got_on(self, run: Run, number: int, neighbour: int) -> None:
        """An end has got on: its patience begins anew."""
        end = number, neighbour
        self._since[end] = run.now
        if end not in self._planned:
            self._plan(run, end, run.now)

    def is_over(self, run: Run, number: int, neighbour: int, *, moves: bool) -> bool:
        """A deadline has come: return whether the end has not got on since, and nothing `moves`; else it waits on."""
        end = number, neighbour
        self._planned.discard(end)
        since = run.now if moves else self._since.get(end, run.now)
        if since + self._seconds > run.now:
            self._plan(run, end, since)
            return False
        return True

    def forget(self, number: int, neighbour: int) -> None:
        """The link is cut. A deadline that is planned comes for nothing."""
        self._since.pop((number, neighbour), None)

    def _plan(self, run: Run, end: End, since: float) -> None:
        self._planned.add(end)
        heappush(run.due, (since + self._seconds, RETRY, *end))

    def state(self) -> dict[str, Any]:
        """Return plain data that `restore` goes on from."""
        return {"since": self._since, "planned": self._planned}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._since, self._planned = state["since"], state["planned"]
