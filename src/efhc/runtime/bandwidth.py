"""Flow control: the kernel's counts, measured rates of links, the credit of each connection, a limit for the node.

Nothing here reads a clock: callers pass the time.
"""

from __future__ import annotations

import math
import socket
import struct
import sys
from asyncio.trsock import TransportSocket
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from efhc.core.uplink import smoothed
from efhc.runtime.wire import LONGEST_CHUNK

if sys.platform == "linux":
    import fcntl
    import termios

FIRST_WINDOW = 4 * 1024
"""Bytes that may be on their way while the rate of the link is unknown or its last measurement is old."""
LEAST_TOGETHER = 8 * 1024
"""Bytes that all connections of a node may have on their way in any case: half a second at 128 kbit/s."""
STALLED_SECONDS = 1.5
"""Seconds without an acknowledgement after which a connection does not count as a user of the uplink."""
LEAST_WINDOW = 4 * 1024
LARGEST_WINDOW = 4 * 1024 * 1024
QUEUE_SECONDS = 0.15
"""The wanted queue in front of the link, in seconds of its rate, so that the link never waits for this process."""
USUAL_CHUNK = 4 * 1024
"""Bytes of a chunk on slow links: a quarter of a second at 128 kbit/s."""
MEMORY_SECONDS = 60.0
MEMORIES = 10
"""The shortest time counts for 10 minutes: the clocks of two machines do not run equally fast."""
SHRINKING = 0.75
"""A window shrinks by a quarter at most with each acknowledgement."""
RATE_SECONDS = 1.0
"""Seconds of acknowledgements, at least, from which the rate of a link is computed."""
FRESH_SECONDS = 1.0
"""Seconds without a model after which the rate of the link must be measured again."""
SAMPLE_SECONDS = 2.0
"""Seconds of each part in which a long transfer is measured."""
SMOOTHING = 0.25
"""How far a sample moves the measured rate."""
WIDEST = 1000.0
"""The measured b_i stays within this factor of the nominal bandwidth."""
SUSPICIOUS = 10.0
"""A measured b_i that differs by this factor from the nominal one is worth a warning: r belongs to the nominal."""


class RateMeter:
    """Bytes of models per second that were acknowledged while a model was under way, smoothed.

    Time in which there was nothing to send does not count.
    """

    def __init__(self) -> None:
        self.rate: float | None = None
        self._since: float | None = None
        self._bytes = 0

    def begin(self, now: float) -> None:
        if self._since is None:
            self._since, self._bytes = now, 0

    def acknowledged(self, size: int, now: float) -> None:
        """Note that the other end has `size` more bytes."""
        self._bytes += size
        if self._since is not None and now - self._since >= SAMPLE_SECONDS:
            self._sample(now)
            self._since = now

    def end(self, now: float) -> None:
        if self._since is not None:
            self._sample(now)
            self._since = None

    def drop(self) -> None:
        """Discard the present sample: the connection is gone."""
        self._since = None

    def _sample(self, now: float) -> None:
        assert self._since is not None
        if self._bytes and now > self._since:
            self.rate = smoothed(self.rate, self._bytes / (now - self._since), SMOOTHING)
        self._bytes = 0


class UplinkMeter:
    """The rate of a node's uplink, measured by the bytes that arrive from one local step to the next.

    While something waits for the uplink all the time, that is its rate. If nothing waits, it carries at least what has
    arrived, and perhaps more: a quarter more is tried.
    """

    PROBING = 1.25

    def __init__(self) -> None:
        self.rate: float | None = None
        """In bytes per second; None until something has arrived."""
        self._before: tuple[int, bool, float] | None = None

    def sample(self, carried: int, is_busy: bool, now: float) -> None:
        """Note that `carried` bytes have arrived in all; `is_busy` if more wait for the uplink."""
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
            self.rate = smoothed(self.rate, sample, 2 * SMOOTHING)


class QueueDelay:
    """The time that bytes spend in queues on their way: the time they took, less the shortest time seen.

    The clocks of the two ends need not agree: only differences count.
    """

    def __init__(self) -> None:
        self._shortest: deque[float] = deque(maxlen=MEMORIES)
        self._since = 0.0

    def add(self, seconds: float, now: float) -> float:
        """Note how long bytes took by the two clocks. Returns the seconds for which they queued."""
        if not self._shortest or now - self._since > MEMORY_SECONDS:
            self._shortest.append(seconds)
            self._since = now
        self._shortest[-1] = min(self._shortest[-1], seconds)
        return seconds - min(self._shortest)


class _SentChunk(NamedTuple):
    """A chunk that was sent."""

    until: int
    """`SendWindow.sent` after it."""
    at: float


class SendWindow:
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
        self.delay = QueueDelay()
        self._last_time = 0.0
        self.base_round_trip: float | None = None
        """d - q, smoothed."""
        self._on_way: deque[_SentChunk] = deque()
        self._arrivals: deque[tuple[float, int]] = deque(maxlen=64)
        """Pairs of a time of the other end's clock and the number of bytes that had arrived by then."""

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
        """Discard old measurements. Call it before the size of a chunk is chosen."""
        if not self._on_way and now - self._last_time > FRESH_SECONDS:
            self.size = FIRST_WINDOW
            self._arrivals.clear()

    def send(self, size: int, now: float) -> None:
        self.sent += size
        self._last_time = now
        self._on_way.append(_SentChunk(self.sent, now))

    def acknowledge(self, total: int, arrived: float, now: float) -> int:
        """The other end had this many bytes at this time of its clock. Returns how many are new.

        Raises `ValueError` if that is more than was sent, or less than the last acknowledgement.
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
            queued = self.delay.add(arrived - last.at, now)
            self._arrivals.append((arrived, total))
            self._adapt(now - last.at, queued, _recent_rate(self._arrivals, arrived, least=3))
        return new

    def _adapt(self, seconds: float, queued: float, rate: float | None) -> None:
        self.base_round_trip = smoothed(self.base_round_trip, max(0.0, seconds - queued), SMOOTHING)
        wanted = 2 * self.size
        if rate is not None:
            wanted = min(wanted, int(rate * (self.base_round_trip + QUEUE_SECONDS)) + self.chunk)
        self.size = max(LEAST_WINDOW, int(SHRINKING * self.size), min(LARGEST_WINDOW, wanted))

    def is_stalled(self, now: float) -> bool:
        """Return whether bytes are on their way and none was acknowledged for long."""
        return bool(self._on_way) and now - max(self._last_time, self._on_way[0].at) > STALLED_SECONDS

    def forget(self) -> None:
        """Discard the bytes on their way: the connection is gone."""
        self.acknowledged = self.sent
        self._on_way.clear()


def _recent_rate(totals: deque[tuple[float, int]], now: float, least: int = 2) -> float | None:
    """Return the rate at which a total has grown over the last `RATE_SECONDS`; None if it is unknown.

    `totals` are pairs of a time and the total at that time. Those that are too old are removed, but for the `least`
    newest ones.
    """
    while len(totals) > least and now - totals[1][0] > RATE_SECONDS:
        totals.popleft()
    if not totals or now <= totals[0][0]:
        return None
    return (totals[-1][1] - totals[0][1]) / (now - totals[0][0])


class NodeUplink:
    """The bytes that all connections of a node have on their way.

    Each has a window of its own. But a node that begins to send to nine neighbours at the same moment would put nine
    windows in front of a slow uplink that they share. So the same formula holds for all of them together, with the rate
    at which all of them are acknowledged and the mean of their round trips, and with at least `LEAST_TOGETHER`. A
    connection without room waits until something was acknowledged. A stalled connection delays no other.
    """

    def __init__(self) -> None:
        self._windows: dict[SendWindow, None] = {}
        self._waiting: deque[Callable[[], None]] = deque()
        self._total = 0
        self._acknowledged: deque[tuple[float, int]] = deque()
        """Pairs of a time and the number of bytes acknowledged by then, over the last `RATE_SECONDS`."""

    def allows(self, window: SendWindow, size: int, now: float) -> bool:
        """Return whether this connection may send `size` bytes now."""
        self._windows[window] = None
        for idle in [each for each in self._windows if not each.on_way and each is not window]:
            del self._windows[idle]
        moving = [each for each in self._windows if not each.is_stalled(now)]
        on_way = sum(each.on_way for each in moving)
        if not on_way or on_way + size <= LEAST_TOGETHER:
            return True
        rate = _recent_rate(self._acknowledged, now) or 0.0
        way = sum(each.on_way * (each.base_round_trip or 0.0) for each in moving) / on_way
        return on_way <= rate * (way + QUEUE_SECONDS)

    def acknowledged(self, size: int, now: float) -> None:
        """Note that bytes of one connection have arrived, and let waiting connections try again in their order."""
        if self._acknowledged and now - self._acknowledged[-1][0] > FRESH_SECONDS:
            self._acknowledged.clear()
        self._total += size
        self._acknowledged.append((now, self._total))
        self.wake()

    def wait(self, again: Callable[[], None]) -> None:
        """Call `again` when there may be room."""
        if again not in self._waiting:
            self._waiting.append(again)

    def wake(self) -> None:
        """Let waiting connections try again: a connection is gone, or time has passed."""
        waiting, self._waiting = self._waiting, deque()
        for again in waiting:
            again()


class Bucket:
    """At most `rate` bytes, or messages, per second, and at most `depth` at once (default: a quarter of a second's).

    For all connections of a node together, small messages are never held up; what they take, chunks wait for.
    """

    def __init__(self, rate: float, depth: float | None = None) -> None:
        self.rate = rate
        self._level = self.depth = max(rate / 4, 1.0) if depth is None else depth
        self._at = 0.0

    @property
    def chunk(self) -> int:
        """Bytes of a chunk that does not delay small messages for long."""
        return max(1024, min(LONGEST_CHUNK, int(self.rate / 4)))

    def take(self, size: int, now: float) -> None:
        self._refill(now)
        self._level -= size

    def wait(self, now: float) -> float:
        """Return the seconds after which the next chunk may be sent."""
        self._refill(now)
        return max(0.0, -self._level / self.rate)

    def _refill(self, now: float) -> None:
        self._level = min(self.depth, self._level + (now - self._at) * self.rate)
        self._at = max(now, self._at)


class MeasuredBandwidth:
    """b_i: the mean over links of the parameters per second that were acknowledged while a model was under way."""

    def __init__(self, nominal: float, parameter_bytes: int, send_limit: float | None = None) -> None:
        """`nominal` is b_M, which counts until a rate was measured; `parameter_bytes` is the size of a parameter.

        `send_limit` are the bytes per second that the node sends at most: no link can do better.
        """
        self._nominal, self._bytes = nominal, parameter_bytes
        self._most = math.inf if send_limit is None else send_limit / parameter_bytes
        self._warned = False
        self.value = nominal

    def update(self, rates: Sequence[float]) -> float:
        """Return b_i, given the known rates of links in bytes of models per second."""
        if rates:
            measured = min(sum(rates) / len(rates) / self._bytes, self._most)
            self.value = min(max(measured, self._nominal / WIDEST), self._nominal * WIDEST)
        return self.value

    def warning(self) -> str | None:
        """Return one line, once, if the measured bandwidth is far from the nominal one."""
        factor = self.value / self._nominal
        if self._warned or 1 / SUSPICIOUS < factor < SUSPICIOUS:
            return None
        self._warned = True
        return (
            f"the measured bandwidth is {self.value:.3g} parameters per second, {factor:.2g} times the nominal "
            f"{self._nominal:.3g}; r belongs to the nominal bandwidth: set bandwidths.nominal and r accordingly"
        )


# The kernel's counts of a TCP connection: bytes and packets that have arrived, and bytes that wait

CAN_COUNT = sys.platform == "linux"
"""Whether the kernel counts the bytes that have arrived at the other end."""
_ACKNOWLEDGED, _SHORTEST_ROUND_TRIP, _DATA_SEGMENTS = (120, "=Q"), (148, "=I"), (152, "=I")
"""Where and what `tcpi_bytes_acked`, `tcpi_min_rtt` and `tcpi_data_segs_in` are in Linux' `struct tcp_info`, which is
only extended at its end."""
_NO_ROUND_TRIP = 2**32 - 1


def data_segments(connection: TransportSocket | None) -> int | None:
    """Return the number of packets with data that have arrived on a TCP connection, or None if it is unknown.

    After a loss, packets arrive that cannot be read until the lost one has come again, and a TLS record can be read
    only once it is whole. On a slow link each may take seconds, in which the other end is well and alive. The kernel of
    a process that hangs acknowledges what it is sent, but sends no data: so this number stands still then.
    """
    return _tcp_info(connection, *_DATA_SEGMENTS)


def unacknowledged_bytes(connection: TransportSocket | None) -> int | None:
    """Return the bytes that were written and that the kernel of the other end has not acknowledged, or None.

    They wait in this kernel and in front of the link, or are on their way.
    """
    if connection is None or sys.platform != "linux":
        return None
    try:
        return int.from_bytes(fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except (OSError, ValueError):  # it is closed
        return None


def acknowledged_bytes(connection: TransportSocket | None) -> int | None:
    """Return the bytes that the kernel of the other end has acknowledged since the connection began, or None."""
    return _tcp_info(connection, *_ACKNOWLEDGED)


def shortest_round_trip(connection: TransportSocket | None) -> float:
    """Return the seconds of the shortest way there and back that was seen lately; 0 if it is unknown."""
    found = _tcp_info(connection, *_SHORTEST_ROUND_TRIP)
    return 0.0 if found is None or found == _NO_ROUND_TRIP else found / 1e6


def _tcp_info(connection: TransportSocket | None, offset: int, code: str) -> int | None:
    if connection is None or not CAN_COUNT:
        return None
    end = offset + struct.calcsize(code)
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, end)
    except OSError:
        return None
    return int(struct.unpack_from(code, info, offset)[0]) if len(info) >= end else None
