"""How fast a link is, and how much may be on its way: rates that were measured, credit, and a limit for the node.

All of it is arithmetic on times that the caller reads.
"""

from __future__ import annotations

from collections import deque

from efhc.runtime.wire import LONGEST_CHUNK

FIRST_WINDOW = 4 * 1024
"""Bytes that may be on their way when nothing is known about the link, or what was known is old. Nine neighbours to
which a node begins to send at the same moment share its uplink: at 128 kbit/s these bytes take 2.3 s."""
SPARE = 8 * 1024
"""Bytes that may be on their way beyond what the link's rate and delay ask for: half a second at 128 kbit/s."""
SPARE_SECONDS = 0.5
"""The same on slower links."""
LEAST_WINDOW = 2 * 1024
LARGEST_WINDOW = 4 * 1024 * 1024
QUEUE_SECONDS = 0.1
"""How long a queue may be, in seconds of the link's rate, so that the link never waits for this process."""
LONGEST_DELAY = 2.0
"""Seconds of delay of a path that the window makes up for; it does not grow without end with its own queue."""
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


class Window:
    """The credit of a sender: how many bytes of models may be on their way.

    With the rate r that acknowledgements show, and the delay d of a path on which nothing else is,

        window = min(SPARE, r SPARE_SECONDS) + r (d + QUEUE_SECONDS)

    That keeps the link busy, and what queues in front of a small message short: a slow link has a small window. After a
    pause the window starts small again, because the link may have become slow meanwhile.
    """

    def __init__(self) -> None:
        self.size = FIRST_WINDOW
        self.sent = 0
        self.acknowledged = 0
        self._rate = 0.0
        self._delays: deque[float] = deque(maxlen=8)
        self._last_time = 0.0
        self._on_way: deque[tuple[int, float, int, float, bool]] = deque()
        """Per chunk: `sent` after it, when, `acknowledged` by then and when that was, whether it was alone."""

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
        """Bytes that go into one chunk at most: half a window, so that one is on its way while one is acknowledged."""
        return max(LEAST_WINDOW // 2, min(LONGEST_CHUNK, self.size // 2))

    def send(self, size: int, now: float) -> None:
        """A chunk goes out."""
        alone = not self._on_way
        if alone:
            if now - self._last_time > FRESH_SECONDS:
                self.size = FIRST_WINDOW
                self._rate = 0.0
            self._last_time = now
        self._on_way.append((self.sent + size, now, self.acknowledged, self._last_time, alone))
        self.sent += size

    def acknowledge(self, total: int, now: float) -> int:
        """The other end has this many bytes since the connection was made. Returns how many are new.

        Raises `ValueError` if that is more than was sent, or less than it said before.
        """
        if not self.acknowledged <= total <= self.sent:
            raise ValueError(f"{total} bytes acknowledged of {self.sent} sent and {self.acknowledged} known")
        new = total - self.acknowledged
        self.acknowledged = total
        sample = None
        while self._on_way and self._on_way[0][0] <= total:
            _, at, before, before_at, alone = self._on_way.popleft()
            sample = (total - before) / max(now - before_at, 1e-6)
            if alone:
                self.measured_delay(now - at)
        if new:
            self._last_time = now
        if sample is not None:
            # Twice as fast as known is news at once; slower is believed by and by, or at once if it is much slower.
            known = self._rate
            self._rate = sample if not known / 4 < sample < 2 * known else (known + sample) / 2
            spare = min(SPARE, self._rate * SPARE_SECONDS)
            wanted = spare + self._rate * (self.delay + QUEUE_SECONDS)
            self.size = int(max(LEAST_WINDOW, min(LARGEST_WINDOW, wanted, 2 * self.size)))
        return new

    def measured_delay(self, seconds: float) -> None:
        """A message that had the way for itself was answered after so long."""
        self._delays.append(seconds)

    @property
    def delay(self) -> float:
        """Seconds there and back on a path without queues, as far as is known."""
        return min(min(self._delays, default=0.0), LONGEST_DELAY)


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
