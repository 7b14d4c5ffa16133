"""How fast a link is, and how much may be on its way: rates that were measured, credit, and a limit for the node.

All of it is arithmetic on times that the caller reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from efhc.runtime.wire import LONGEST_CHUNK

FIRST_WINDOW = 4 * 1024
"""Bytes that may be on their way when nothing is known about the link, or what was known is old."""
LEAST_TOGETHER = 8 * 1024
"""Bytes that all connections of a node may have on their way, whatever is known: half a second at 128 kbit/s."""
STALLED_SECONDS = 1.5
"""Seconds without an acknowledgement after which a connection no longer counts among those that share the uplink."""
LEAST_WINDOW = 4 * 1024
LARGEST_WINDOW = 4 * 1024 * 1024
QUEUE_SECONDS = 0.15
"""The queue that is wanted in front of the link, in seconds of its rate, so that it never waits for this process."""
USUAL_CHUNK = 4 * 1024
"""Bytes of a chunk on slow links: a quarter of a second at 128 kbit/s."""
MEMORY_SECONDS = 60.0
MEMORIES = 10
"""The shortest way is that of the last 10 minutes: the clocks of two machines do not run equally fast."""
SHRINKING = 0.75
"""A window shrinks by a quarter at most with each acknowledgement."""
RATE_SECONDS = 1.0
"""The rate of the link is that of the last acknowledgements, over at least so long."""
FRESH_SECONDS = 1.0
"""Seconds without a model after which the rate of the link may be another one."""
SAMPLE_SECONDS = 2.0
"""A long transfer is measured in parts of so many seconds."""
SMOOTHING = 0.25
"""How far a sample moves the measured rate."""


class RateMeter:
    """Bytes of models per second that were acknowledged while a model was under way, smoothed.

    Time in which there was nothing to send does not count.
    """

    def __init__(self) -> None:
        self.rate: float | None = None
        self._since: float | None = None
        self._bytes = 0

    def begin(self, now: float) -> None:
        """A model is under way from now on, if none was."""
        if self._since is None:
            self._since, self._bytes = now, 0

    def acknowledged(self, size: int, now: float) -> None:
        """The other end has these bytes."""
        self._bytes += size
        if self._since is not None and now - self._since >= SAMPLE_SECONDS:
            self._sample(now)
            self._since = now

    def end(self, now: float) -> None:
        """Nothing is under way any more."""
        if self._since is not None:
            self._sample(now)
            self._since = None

    def drop(self) -> None:
        """The connection is gone: what was not yet measured says nothing about the link's rate."""
        self._since = None

    def _sample(self, now: float) -> None:
        assert self._since is not None
        if self._bytes and now > self._since:
            sample = self._bytes / (now - self._since)
            self.rate = sample if self.rate is None else self.rate + SMOOTHING * (sample - self.rate)
        self._bytes = 0


class UplinkMeter:
    """What the uplink of a node carries, by what has arrived from one local step to the next.

    While something waits for the uplink all the time, that is its rate. If nothing waits, it carries at least what has
    arrived, and perhaps more: a quarter more is tried.
    """

    PROBING = 1.25

    def __init__(self) -> None:
        self.rate: float | None = None
        """In bytes per second; None until something has arrived."""
        self._before: tuple[int, bool, float] | None = None

    def sample(self, carried: int, is_busy: bool, now: float) -> None:
        """`carried` bytes have arrived in all. `is_busy`: more wait for the uplink."""
        before = self._before
        if before is not None and carried <= before[0]:  # the time until something arrives counts
            self._before = before[0], before[1] and is_busy, before[2]
            return
        self._before = carried, is_busy, now
        if before is None or now <= before[2]:
            return
        sample = (carried - before[0]) / (now - before[2])
        if self.rate is None:
            self.rate = sample
        elif not is_busy:
            self.rate = max(self.rate, self.PROBING * sample)
        elif before[1]:
            self.rate += 2 * SMOOTHING * (sample - self.rate)


class Way:
    """How long bytes take to the other end, against the shortest time seen: what is longer is a queue.

    The clocks of the two ends need not agree: only differences count.
    """

    def __init__(self) -> None:
        self._shortest: deque[float] = deque(maxlen=MEMORIES)
        self._since = 0.0

    def took(self, seconds: float, now: float) -> float:
        """Note how long something took by the two clocks. Returns the seconds for which it queued."""
        if not self._shortest or now - self._since > MEMORY_SECONDS:
            self._shortest.append(seconds)
            self._since = now
        self._shortest[-1] = min(self._shortest[-1], seconds)
        return seconds - min(self._shortest)


class _Sent(NamedTuple):
    """A chunk that was sent."""

    until: int
    """`Window.sent` after it."""
    at: float


class Window:
    """The credit of a sender: how many bytes of models may be on their way.

    Acknowledgements say when bytes arrived, by the clock of the other end. They show the rate r at which they arrived,
    the seconds q for which they queued in front of the link, and the seconds d from sending to acknowledgement. So
    d - q is what the way takes without a queue of ours, there and back. With the wanted queue T,

        window = r (d - q + T) + chunk

    If the link is not busy, q is 0 and the window grows; if it is, r is the link's rate and the queue becomes T, beside
    the chunk that the link is busy with. Neither a queue on the way back nor a slow answer makes the window small.
    After a pause it starts small again: the link may have become slow meanwhile.
    """

    def __init__(self) -> None:
        self.size = FIRST_WINDOW
        self.sent = 0
        self.acknowledged = 0
        self.way = Way()
        self._last_time = 0.0
        self.way_back: float | None = None
        """d - q, smoothed."""
        self._on_way: deque[_Sent] = deque()
        self._arrivals: deque[tuple[float, int]] = deque(maxlen=64)
        """When, by the clock of the other end, how many bytes had arrived."""

    @property
    def on_way(self) -> int:
        """Bytes that were sent and not acknowledged."""
        return self.sent - self.acknowledged

    @property
    def room(self) -> int:
        """Bytes that may be sent now."""
        return self.size - self.on_way

    @property
    def chunk(self) -> int:
        """Bytes that go into one chunk at most: a quarter of the window, or half of a small one."""
        return min(LONGEST_CHUNK, max(self.size // 4, min(self.size // 2, USUAL_CHUNK)))

    def refresh(self, now: float) -> None:
        """Forget what is too old to be known. Call it before the size of a chunk is chosen."""
        if not self._on_way and now - self._last_time > FRESH_SECONDS:
            self.size = FIRST_WINDOW
            self._arrivals.clear()

    def send(self, size: int, now: float) -> None:
        """A chunk goes out."""
        self.sent += size
        self._last_time = now
        self._on_way.append(_Sent(self.sent, now))

    def acknowledge(self, total: int, arrived: float, now: float) -> int:
        """The other end had this many bytes at this time of its clock. Returns how many are new.

        Raises `ValueError` if that is more than was sent, or less than it said before.
        """
        if not self.acknowledged <= total <= self.sent:
            raise ValueError(f"{total} bytes acknowledged of {self.sent} sent and {self.acknowledged} known")
        new = total - self.acknowledged
        self.acknowledged = total
        last = None
        while self._on_way and self._on_way[0].until <= total:
            last = self._on_way.popleft()
        if last is not None:
            self._last_time = now
            queued = self.way.took(arrived - last.at, now)
            self._adapt(now - last.at, queued, self._rate(arrived))
            self._arrivals.append((arrived, total))
        return new

    def _rate(self, arrived: float) -> float | None:
        """Bytes per second at which chunks arrived lately."""
        while len(self._arrivals) > 2 and arrived - self._arrivals[1][0] > RATE_SECONDS:
            self._arrivals.popleft()
        if not self._arrivals or arrived <= self._arrivals[0][0]:
            return None
        return (self.acknowledged - self._arrivals[0][1]) / (arrived - self._arrivals[0][0])

    def _adapt(self, seconds: float, queued: float, rate: float | None) -> None:
        way = max(0.0, seconds - queued)
        self.way_back = way if self.way_back is None else self.way_back + SMOOTHING * (way - self.way_back)
        wanted = 2 * self.size
        if rate is not None:
            wanted = min(wanted, int(rate * (self.way_back + QUEUE_SECONDS)) + self.chunk)
        self.size = max(LEAST_WINDOW, int(SHRINKING * self.size), min(LARGEST_WINDOW, wanted))

    def is_stalled(self, now: float) -> bool:
        """Whether nothing was acknowledged for long, of what is on its way."""
        return bool(self._on_way) and now - max(self._last_time, self._on_way[0].at) > STALLED_SECONDS

    def forget(self) -> None:
        """The connection is gone, and with it what was on its way."""
        self.acknowledged = self.sent
        self._on_way.clear()


class Uplink:
    """What the connections of a node have on their way together.

    Each has a window of its own. But a node that begins to send to nine neighbours at the same moment would put nine
    windows in front of a slow uplink that they share. So the same formula holds for all of them together, with the rate
    at which all of them are acknowledged and the mean of their ways, and with at least `LEAST_TOGETHER`. Who finds no
    room waits until something was acknowledged. A connection that is stalled holds up nobody.
    """

    def __init__(self) -> None:
        self._windows: dict[Window, None] = {}
        self._waiting: deque[Callable[[], None]] = deque()
        self._total = 0
        self._acknowledged: deque[tuple[float, int]] = deque()
        """When how many bytes had been acknowledged, over the last `RATE_SECONDS`."""

    def allows(self, window: Window, size: int, now: float) -> bool:
        """Whether this connection may send so many bytes now."""
        self._windows[window] = None
        for idle in [each for each in self._windows if not each.on_way and each is not window]:
            del self._windows[idle]
        moving = [each for each in self._windows if not each.is_stalled(now)]
        on_way = sum(each.on_way for each in moving)
        if not on_way or on_way + size <= LEAST_TOGETHER:
            return True
        rate = self._rate(now)
        way = sum(each.on_way * (each.way_back or 0.0) for each in moving) / on_way
        return on_way <= rate * (way + QUEUE_SECONDS)

    def acknowledged(self, size: int, now: float) -> None:
        """One of the connections was told that these bytes have arrived. Those that wait try again, in their order."""
        if self._acknowledged and now - self._acknowledged[-1][0] > FRESH_SECONDS:
            self._acknowledged.clear()
        self._total += size
        self._acknowledged.append((now, self._total))
        self.wake()

    def _rate(self, now: float) -> float:
        known = self._acknowledged
        while len(known) > 2 and now - known[1][0] > RATE_SECONDS:
            known.popleft()
        return (known[-1][1] - known[0][1]) / (now - known[0][0]) if known and now > known[0][0] else 0.0

    def wait(self, again: Callable[[], None]) -> None:
        """Call this when there may be room."""
        if again not in self._waiting:
            self._waiting.append(again)

    def wake(self) -> None:
        """Let those that wait try again: a connection is gone, or time has passed."""
        waiting, self._waiting = self._waiting, deque()
        for again in waiting:
            again()


class Bucket:
    """At most `rate` bytes per second, for all connections of a node together.

    Small messages are never held up; what they take, chunks wait for.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._level = self.depth = max(rate / 4, 1.0)
        self._at = 0.0

    @property
    def chunk(self) -> int:
        """Bytes of a chunk that does not hold up small messages for long."""
        return max(1024, min(LONGEST_CHUNK, int(self.rate / 4)))

    def take(self, size: int, now: float) -> None:
        """These bytes are sent."""
        self._refill(now)
        self._level -= size

    def wait(self, now: float) -> float:
        """Return the seconds after which the next chunk may be sent."""
        self._refill(now)
        return max(0.0, -self._level / self.rate)

    def _refill(self, now: float) -> None:
        self._level = min(self.depth, self._level + (now - self._at) * self.rate)
        self._at = max(now, self._at)
