"""Credit on simulated links: the window finds the rate, keeps queues short, and shrinks when a link becomes slow.

And the rates that a node measures.
"""

from __future__ import annotations

import heapq
import select
import socket
import sys
from contextlib import suppress

import pytest

from efhc.runtime.bandwidth import (
    FIRST_WINDOW,
    LEAST_TOGETHER,
    Bucket,
    MeasuredBandwidth,
    NodeUplink,
    QueueDelay,
    RateMeter,
    SendWindow,
    UplinkMeter,
    data_segments,
    shortest_round_trip,
    unacknowledged_bytes,
)


class Link:
    """Connections that share one uplink of a given rate; acknowledgements take `back` seconds."""

    def __init__(self, rate, *, connections=1, forth=0.001, back=0.001, skew=1000.0):
        self.rate, self.forth, self.back, self.skew = rate, forth, back, skew
        self.uplink = NodeUplink()
        self.windows = [SendWindow() for _ in range(connections)]
        self.now, self.free_at = 0.0, 0.0
        self.events = []
        self.delivered = [0] * connections
        self.longest_queue = 0.0

    def ping(self):
        for window in self.windows:
            window.delay.add(self.skew + self.forth, self.now)

    def run(self, seconds):
        """Send as much as credit allows for so long. Returns the share of the rate that was used."""
        before, until = sum(self.delivered), self.now + seconds
        for window in range(len(self.windows)):
            self.pump(window)
        self.longest_queue = 0.0
        while self.events and self.events[0][0] <= until:
            self.now, which, total, arrived = heapq.heappop(self.events)
            new = self.windows[which].acknowledge(total, arrived, self.now)
            self.delivered[which] += new
            self.uplink.acknowledged(new, self.now)
            self.pump(which)
        self.now = until
        return (sum(self.delivered) - before) / seconds / self.rate

    def pump(self, which):
        window = self.windows[which]
        while True:
            window.refresh(self.now)
            size = min(window.chunk, max(window.room, window.chunk // 2))
            if size > window.room and window.on_way:
                return
            if not self.uplink.allows(window, size, self.now):
                self.uplink.wait(lambda: self.pump(which))
                return
            window.send(size, self.now)
            self.free_at = max(self.free_at, self.now) + size / self.rate
            self.longest_queue = max(self.longest_queue, self.free_at - self.now)
            arrived = self.free_at + self.forth
            heapq.heappush(self.events, (arrived + self.back, which, window.sent, arrived + self.skew))


@pytest.mark.parametrize("rate", [16e3, 125e3, 625e3, 2.5e6])
@pytest.mark.parametrize("back", [0.001, 0.3])
def test_the_link_is_busy_and_its_queue_short(rate, back):
    link = Link(rate, back=back)
    link.ping()
    link.run(10.0)
    assert link.run(20.0) > 0.9
    assert link.longest_queue < 0.8


def test_a_link_that_has_become_slow_while_nothing_was_sent_has_a_short_queue_at_once():
    link = Link(2.5e6)
    link.ping()
    link.run(5.0)
    assert link.windows[0].size > 100_000
    link.events.clear()
    link.windows[0].forget()
    link.now += 2.0
    link.rate, link.free_at = 16e3, 0.0
    link.run(10.0)
    assert link.longest_queue < 1.0


def test_a_link_that_becomes_slow_under_a_model_has_a_short_queue_once_that_is_over():
    link = Link(625e3)
    link.ping()
    link.run(5.0)
    link.rate = 16e3
    link.run(30.0)
    assert link.run(20.0) > 0.9
    assert link.longest_queue < 1.0


def test_nine_that_begin_at_the_same_moment_share_one_queue():
    link = Link(16e3, connections=9)
    link.ping()
    link.run(1e-9)
    assert sum(window.on_way for window in link.windows) <= LEAST_TOGETHER
    link.run(30.0)
    assert link.run(60.0) > 0.9
    assert link.longest_queue < 1.5
    assert min(link.delivered) > 0.3 * max(link.delivered)


def test_one_that_is_stalled_holds_up_nobody():
    uplink, stalled, other = NodeUplink(), SendWindow(), SendWindow()
    assert uplink.allows(stalled, 8000, 0.0)
    stalled.send(8000, 0.0)
    assert not uplink.allows(other, 4000, 1.0)
    assert uplink.allows(other, 4000, 2.0)


def test_an_acknowledgement_of_what_was_not_sent_is_refused():
    window = SendWindow()
    window.send(1000, 0.0)
    for total in (1001, -1):
        with pytest.raises(ValueError, match="acknowledged of 1000 sent"):
            window.acknowledge(total, 0.0, 1.0)
    assert window.acknowledge(1000, 0.0, 1.0) == 1000
    with pytest.raises(ValueError, match="1000 known"):
        window.acknowledge(999, 0.0, 1.0)
    assert window.size == 2 * FIRST_WINDOW


def test_the_shortest_way_is_forgotten_after_ten_minutes():
    delay = QueueDelay()
    assert delay.add(5.0, 0.0) == 0.0
    assert delay.add(5.5, 1.0) == 0.5
    for minute in range(1, 12):
        delay.add(5.5, 61.0 * minute)
    assert delay.add(5.5, 800.0) == 0.0


def test_the_rate_is_that_of_the_time_in_which_a_model_was_under_way():
    meter = RateMeter()
    assert meter.rate is None
    meter.begin(0.0)
    meter.acknowledged(1000, 0.5)
    meter.end(1.0)
    assert meter.rate == 1000.0
    meter.begin(100.0)  # the pause does not count
    meter.acknowledged(6000, 102.0)
    assert meter.rate == 1000.0 + 0.25 * (3000.0 - 1000.0)
    meter.drop()
    meter.end(200.0)
    assert meter.rate == 1500.0


def test_a_bucket_lets_small_messages_through_and_chunks_wait_for_them():
    bucket = Bucket(1000.0)
    assert bucket.wait(0.0) == 0.0
    bucket.take(1250, 0.0)
    assert bucket.wait(0.0) == 1.0
    bucket.take(500, 0.0)
    assert bucket.wait(0.0) == 1.5
    assert bucket.wait(1.5) == 0.0


# Measured rates


def test_a_measured_bandwidth_is_the_mean_over_links_in_parameters_per_second():
    bandwidth = MeasuredBandwidth(nominal=1000.0, parameter_bytes=4)
    assert bandwidth.update([]) == 1000.0  # nothing is known yet
    assert bandwidth.update([4000.0, 12000.0]) == 2000.0
    assert bandwidth.update([]) == 2000.0


def test_a_measured_bandwidth_is_bounded_and_warned_about_once():
    bandwidth = MeasuredBandwidth(nominal=1000.0, parameter_bytes=4)
    assert bandwidth.warning() is None
    assert bandwidth.update([1e12]) == 1e6
    assert "r belongs to the nominal bandwidth" in bandwidth.warning()
    assert bandwidth.warning() is None
    assert bandwidth.update([1e-9]) == 1.0


def test_no_link_is_faster_than_what_the_node_may_send():
    bandwidth = MeasuredBandwidth(nominal=1000.0, parameter_bytes=4, send_limit=20000.0)
    assert bandwidth.update([76000.0]) == 5000.0
    assert bandwidth.update([8000.0]) == 2000.0


# What an uplink carries


def uplink(rate: float, steps: int, wanted: int, latency: float = 0.0, seconds: float = 0.2) -> float:
    """Return what a meter says of an uplink of so many bytes per second that is given `wanted` bytes at each step."""
    meter, given, left = UplinkMeter(), 0, 0.0
    arrived = [(0.0, 0.0)]
    for step in range(1, steps + 1):
        now = step * seconds
        left = min(float(given), left + rate * seconds)
        arrived.append((now + latency, left))
        meter.sample(round(max(amount for at, amount in arrived if at <= now)), left < given, now)
        given += wanted
    assert meter.rate is not None
    return meter.rate


@pytest.mark.parametrize("rate", [800.0, 16_000.0])
def test_an_uplink_that_is_busy_all_the_time_is_measured_exactly(rate: float):
    assert uplink(rate, 40, wanted=round(rate)) == pytest.approx(rate, rel=0.05)
    assert uplink(rate, 60, wanted=round(rate), latency=0.3) == pytest.approx(rate, rel=0.05)


def test_an_uplink_on_which_nothing_waits_counts_as_a_quarter_faster_than_what_it_carried():
    assert uplink(1e9, 20, wanted=500) == pytest.approx(3125)


def test_nothing_is_known_before_something_was_sent():
    meter = UplinkMeter()
    for step in range(5):
        meter.sample(0, False, step)
    assert meter.rate is None


# The kernel's counts


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells")
def test_packets_with_data_are_counted_before_they_are_read():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()
        with receiver:
            assert data_segments(receiver) == 0
            sender.send(b"data")
            select.select([receiver], [], [], 60)
            assert data_segments(receiver) == 1
            assert data_segments(sender) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_what_the_other_end_has_no_room_for_is_counted():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()
        with receiver:
            assert unacknowledged_bytes(sender) == 0
            assert 0 < shortest_round_trip(sender) < 1
            sender.setblocking(False)
            with suppress(BlockingIOError):
                while True:
                    sender.send(bytes(65536))
            assert unacknowledged_bytes(sender) > 65536
    assert unacknowledged_bytes(sender) is None  # it is closed


def test_a_socket_that_does_not_tell_is_unknown():
    assert data_segments(None) is unacknowledged_bytes(None) is None
    assert shortest_round_trip(None) == 0
    one, other = socket.socketpair()
    with one, other:
        assert data_segments(one) is None
