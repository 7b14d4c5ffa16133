"""Timers of the two link laws: when an end of a link withdraws, asks or sends again. Nothing here reads a clock."""

from __future__ import annotations

from heapq import heappush
from typing import TYPE_CHECKING, ClassVar

from efhc.core.uplink import smoothed
from efhc.drivers.event_driven.checkpoints import Saved
from efhc.drivers.event_driven.clocked_links import RETRY

if TYPE_CHECKING:
    from efhc.drivers.event_driven.simulator import Simulator

End = tuple[int, int]
"""A device, and the neighbour at the other end of the link."""
FIRST_TIMEOUT = 1.0
"""Seconds after which an unacknowledged frame is sent again, before a round trip was measured."""
MARGIN_SECONDS = 0.01
"""Seconds that are added to twice the measured round trip."""
PACED_FACTOR = 1.5
"""A paced device waits longer by this factor, because its neighbours acknowledge with their next frame."""
MOST_DOUBLINGS = 6
"""How often a paced device doubles its waiting time."""
LOST_AFTER = 1.25
"""A frame that is not acknowledged after this many round trips is lost, if messages of the other end arrive."""


class Timers(Saved):
    """At most one timer per end of a link."""

    def __init__(self) -> None:
        self._planned: set[End] = set()
        """The ends whose timer is on the heap."""

    def _plan(self, run: Simulator, end: End, seconds: float) -> None:
        if end not in self._planned:
            self._planned.add(end)
            heappush(run.due, (run.now + seconds, RETRY, *end))

    def stop(self, end: End) -> None:
        """The timer of an end has run out, or there is nothing to wait for."""
        self._planned.discard(end)


class ProgressTimers(Timers):
    """Timers of exchanges: an end that makes no progress for too long withdraws the exchange, or asks how it ended.

    An end makes progress when it sends a message about the exchange, and both ends do when a model arrives. A message
    that arrives repeatedly is not progress. Each end has at most one timer on the heap.
    """

    SAVED: ClassVar = ("_since", "_planned")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        super().__init__()
        self._since: dict[End, float] = {}
        """When an end last made progress."""

    def is_watched(self, number: int, neighbour: int) -> bool:
        """Return whether a message on the link of an end was late or lost before."""
        return (number, neighbour) in self._since

    def watch(self, run: Simulator, number: int, neighbour: int) -> None:
        """Start the timer of an end, unless it runs already."""
        if (number, neighbour) not in self._planned:
            self.note_progress(run, number, neighbour)

    def note_progress(self, run: Simulator, number: int, neighbour: int) -> None:
        """An end has made progress: its time begins anew."""
        self._since[number, neighbour] = run.now
        self._plan(run, (number, neighbour), self._seconds)

    def has_expired(self, run: Simulator, number: int, neighbour: int, *, moves: bool) -> bool:
        """A timer has run out: return whether the end made no progress since and nothing `moves`; else it goes on."""
        end = number, neighbour
        self.stop(end)
        since = run.now if moves else self._since.get(end, run.now)
        if since + self._seconds > run.now:
            self._planned.add(end)
            heappush(run.due, (since + self._seconds, RETRY, *end))
            return False
        return True

    def forget(self, number: int, neighbour: int) -> None:
        """The link is cut. A timer on the heap runs out without effect."""
        self._since.pop((number, neighbour), None)


class FrameTimes(Timers):
    """When frames of half-steps were sent, how long acknowledgements take, and when to send a frame again."""

    SAVED: ClassVar = ("_sent_at", "_last_sent", "round_trips", "_resends", "_repeated_at", "_planned", "_resent")

    def __init__(self, *, is_paced: bool) -> None:
        super().__init__()
        self._is_paced = is_paced
        self._sent_at: dict[tuple[int, int, int], tuple[float, int]] = {}
        """By sender, receiver and number of an unacknowledged frame: when it was first sent, and its bytes so far."""
        self._last_sent: dict[End, float] = {}
        """When an end sent its last frame."""
        self.round_trips: dict[End, float] = {}
        """Seconds from a frame of an end to its acknowledgement, smoothed."""
        self._resends: dict[End, int] = {}
        """How often an end has sent again since the last acknowledgement."""
        self._repeated_at: dict[End, float] = {}
        """When an end has last sent again."""
        self._resent: set[End] = set()
        """The ends whose unacknowledged frames were sent more than once."""

    def note_sent(self, now: float, end: End, number: int, size: int) -> None:
        """An end has sent the frame with this number, of `size` bytes, possibly again."""
        first, before = self._sent_at.get((*end, number), (now, 0))
        self._sent_at[*end, number] = first, before + size
        self._last_sent[end] = now

    def note_acknowledged(self, now: float, end: End, numbers: range) -> None:
        """Frames of an end are acknowledged: measure the round trip, unless frames were sent more than once."""
        was_resent = end in self._resent
        self._resent.discard(end)
        self._resends.pop(end, None)
        found = [self._sent_at.pop((*end, number), None) for number in numbers]
        if found and found[-1] is not None and not was_resent:
            weight = 1 / 4 if self._is_paced else 1 / 8
            self.round_trips[end] = smoothed(self.round_trips.get(end), now - found[-1][0], weight)

    def note_repeat(self, now: float, end: End) -> None:
        """An end sends unacknowledged frames again."""
        self._resent.add(end)
        self._resends[end] = self._resends.get(end, 0) + 1
        self._repeated_at[end] = now

    def first_sent(self, now: float, end: End, number: int) -> tuple[float, int]:
        """Return when a frame was first sent, and its bytes so far; (now, 0) if that is not known."""
        return self._sent_at.get((*end, number), (now, 0))

    def since_last(self, now: float, end: End) -> float:
        """Return the seconds since an end has sent its last frame; 0 if it has sent none."""
        return now - self._last_sent.get(end, now)

    def is_lost(self, now: float, end: End, oldest: int) -> bool:
        """Return whether the oldest unacknowledged frame of an end must be lost, given that its neighbour sends."""
        trip = self.round_trips.get(end)
        since = max(self.first_sent(now, end, oldest)[0], self._repeated_at.get(end, 0.0))
        return trip is not None and now - since > LOST_AFTER * trip

    def plan_retry(self, run: Simulator, end: End) -> None:
        """Start the timer of an end, unless it runs already."""
        trip = self.round_trips.get(end)
        wait = FIRST_TIMEOUT if trip is None else 2 * trip + MARGIN_SECONDS
        if self._is_paced:
            wait *= PACED_FACTOR * 2 ** min(MOST_DOUBLINGS, self._resends.get(end, 0))
        self._plan(run, end, wait)

    def forget(self, end: End) -> None:
        """A link went down: nothing that was sent over it is timed any more."""
        for key in [key for key in self._sent_at if key[:2] == end]:
            del self._sent_at[key]
        self._resent.discard(end)
        self._resends.pop(end, None)
