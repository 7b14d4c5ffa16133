"""How fast a run is made."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta

SPEED_SECONDS = 30.0
"""The time over which speed is measured."""


@dataclass
class Speed:
    """The mean number of iterations per second in the last half minute."""

    _points: deque[tuple[float, int]] = field(default_factory=deque)
    """Times, and how many iterations had been made by then."""

    def note(self, at: float, made: int) -> None:
        """At the time `at`, in seconds, `made` iterations have been made."""
        self._points.append((at, made))
        while len(self._points) > 2 and self._points[1][0] < at - SPEED_SECONDS:
            self._points.popleft()

    @property
    def per_second(self) -> float | None:
        """Iterations per second. None: too early to say."""
        if len(self._points) < 2:
            return None
        (began, first), (now, last) = self._points[0], self._points[-1]
        return (last - first) / (now - began) if now > began and last > first else None

    def words(self, left: int) -> list[str]:
        """Return how fast it goes, and how long `left` iterations will take, in words."""
        if (speed := self.per_second) is None:
            return []
        digits = 0 if speed >= 10 else 2
        return [f"{speed:,.{digits}f} it/s", f"{timedelta(seconds=round(left / speed))} left"]
