"""Messages in simulated time: hand-worked times are exact, pipes share fairly, and a checkpoint changes nothing."""

import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from efhc.core.randomness import Purpose, Randomness
from efhc.drivers.event_driven.links import InstantLinks, LinkPolicy, Notice, PerLink, SharedLinks, Transfers
from efhc.drivers.event_driven.rates import ConstantRates, MarkovRates
from efhc.drivers.event_driven.timed_transfers import link_draws

SEED = Randomness(5)
Log = list[tuple[float, int, str]]


class Course:
    """A rate model of the user's own: b_i until the first change, the same changes for every device."""

    def __init__(self, *changes: tuple[float, float]) -> None:
        self.times, self.values = [time for time, _ in changes], [value for _, value in changes]

    def over_time(self, bandwidths: Sequence[float], randomness: Randomness) -> "Course":
        self.bandwidths = bandwidths
        return self

    def rate(self, device: int, seconds: float) -> float:
        passed = bisect_right(self.times, seconds)
        return self.values[passed - 1] if passed else float(self.bandwidths[device])

    def next_change(self, device: int, seconds: float) -> float:
        return next((time for time in self.times if time > seconds), math.inf)


def carried_by(policy: LinkPolicy, *bandwidths: float, seed: Randomness = SEED) -> Transfers:
    return policy.transfers(np.array(bandwidths or (10.0, 10.0, 10.0, 10.0)), seed)


def rest(transfers: Transfers, until: float = math.inf) -> Log:
    """Take everything that happens until `until`: (time, ticket, what)."""
    log = []
    while (time := transfers.next_time()) <= until and time < math.inf:
        log += [(time, *notice) for notice in transfers.take(time)]
    return log


def arrivals(log: Log) -> dict[int, float]:
    return {ticket: time for time, ticket, what in log if what == "arrived"}


def with_sends(transfers: Transfers, *sends: tuple[float, int, int, float]) -> Log:
    """Send messages with the tickets 0, 1, ... and return all that happens."""
    log = []
    for ticket, (now, sender, receiver, size) in enumerate(sends):
        log += rest(transfers, now)
        transfers.send(now, sender, receiver, size, ticket)
    return log + rest(transfers)


TIMED = pytest.mark.parametrize("kind", [PerLink, SharedLinks])


# Hand-worked times


def test_instant():
    transfers = carried_by(InstantLinks())
    assert with_sends(transfers, (3.5, 0, 1, 1e9), (3.5, 1, 0, 0)) == [(3.5, 0, "arrived"), (3.5, 1, "arrived")]
    transfers.send(3.5, 0, 1, 1e9, 7)
    assert not transfers.is_stalled(7)
    assert transfers.cut(3.5, 0, 1) == [7]
    assert transfers.next_time() == math.inf


@TIMED
@given(start=st.floats(0, 1e6), size=st.integers(1, 10**9), rate=st.floats(1e-3, 1e9), latency=st.floats(0, 1e3))
def test_the_time_of_a_message_alone_is_exact(kind, start, size, rate, latency):
    transfers = carried_by(kind(latency=latency), rate, rate)
    assert with_sends(transfers, (start, 0, 1, size)) == [(start + size / rate + latency, 0, "arrived")]


@TIMED
def test_headers_take_their_latency_and_wait_for_nobody(kind):
    transfers = carried_by(kind(latency=0.5))
    log = with_sends(transfers, (0.0, 0, 1, 100), (1.0, 0, 1, 0), (1.0, 0, 2, 0), (1.0, 0, 1, 0))
    assert log == [(1.5, 1, "arrived"), (1.5, 2, "arrived"), (1.5, 3, "arrived"), (10.5, 0, "arrived")]
    assert with_sends(carried_by(kind()), (2.0, 0, 1, 0)) == [(2.0, 0, "arrived")]


# Rates over time


@TIMED
def test_the_rate_changes_under_way_stalls_and_recovers(kind):
    # 10/s until 3, 20/s until 5, nothing until 9, then 5/s: of 100, 20 + 40 are through at 5; 40 / 5 = 8 more seconds.
    transfers = carried_by(kind(latency=0.5, rates=Course((3.0, 20.0), (5.0, 0.0), (9.0, 5.0))))
    transfers.send(1.0, 0, 1, 100, 6)
    assert rest(transfers, 4.9) == []
    assert not transfers.is_stalled(6)
    assert rest(transfers, 8.9) == [(5.0, 6, "stalled")]
    assert transfers.is_stalled(6)
    assert rest(transfers, 9.0) == []
    assert not transfers.is_stalled(6)
    assert rest(transfers) == [(17.5, 6, "arrived")]
    assert not transfers.is_stalled(6)


@TIMED
def test_a_message_that_starts_on_a_dead_link_is_stalled_at_once(kind):
    transfers = carried_by(kind(rates=Course((2.0, 0.0), (4.0, 10.0))))
    transfers.send(2.5, 0, 1, 10, 6)
    assert transfers.is_stalled(6)
    assert transfers.next_time() == 2.5
    assert transfers.take(2.5) == [Notice(6, "stalled")]
    assert transfers.next_time() == 4.0
    assert rest(transfers) == [(5.0, 6, "arrived")]


@TIMED
def test_a_link_that_stays_dead_leaves_nothing_due(kind):
    transfers = carried_by(kind(rates=Course((2.0, 0.0))))
    log = with_sends(transfers, (0.0, 0, 1, 100), (3.0, 0, 1, 100), (3.0, 0, 1, 0), (3.0, 1, 0, 20))
    assert log == [(2.0, 0, "stalled"), (3.0, 1, "stalled"), (3.0, 2, "arrived"), (3.0, 3, "stalled")]
    assert transfers.next_time() == math.inf
    assert [transfers.is_stalled(ticket) for ticket in range(4)] == [True, True, False, True]


def test_a_message_that_is_through_when_its_rate_becomes_zero_has_arrived():
    transfers = carried_by(PerLink(latency=1.0, rates=Course((2.0, 0.0))))
    assert with_sends(transfers, (0.0, 0, 1, 20)) == [(3.0, 0, "arrived")]
    transfers = carried_by(SharedLinks(rates=Course((2.0, 0.0))))
    assert with_sends(transfers, (0.0, 0, 1, 10), (0.0, 0, 2, 10)) == [(2.0, 0, "arrived"), (2.0, 1, "arrived")]


def test_a_change_that_is_not_yet_taken_counts_for_what_is_sent_at_the_same_instant():
    transfers = carried_by(SharedLinks(rates=Course((2.0, 0.0))))
    transfers.send(0.0, 0, 1, 100, 0)
    assert transfers.next_time() == 2.0
    transfers.send(2.0, 0, 2, 100, 1)
    assert transfers.take(2.0) == [Notice(0, "stalled"), Notice(1, "stalled")]


# Jitter and loss


def draws(purpose: Purpose, sender: int, receiver: int, count: int) -> float:
    return float(SEED.stream(purpose, sender, receiver, count // 32).random(32)[count % 32])


def test_draws_are_those_of_seed_link_and_count_in_any_order():
    read = link_draws(SEED, Purpose.LINK_LOSS)
    for count in (0, 1, 31, 32, 100, 33, 5):
        assert read(count, 2, 3) == draws(Purpose.LINK_LOSS, 2, 3, count)
    assert read(0, 2, 3) != read(0, 3, 2)


@TIMED
def test_each_message_has_its_own_jitter(kind):
    transfers = carried_by(kind(latency=1.0, jitter=4.0))
    log = arrivals(with_sends(transfers, *((100.0 * n, 0, 1, 30 * (n % 2)) for n in range(40)), (5000.0, 1, 0, 0)))
    for n in range(40):
        through = 100.0 * n + 3.0 * (n % 2)
        assert log[n] == through + (1.0 + 4.0 * draws(Purpose.LINK_JITTER, 0, 1, n))
    assert log[40] == 5000.0 + (1.0 + 4.0 * draws(Purpose.LINK_JITTER, 1, 0, 0))


def test_a_message_on_one_link_does_not_change_the_draws_of_others():
    policy = PerLink(jitter=1.0, loss=0.3, when_lost="drop")
    sends = [(10.0 * n, 0, 1, 5) for n in range(20)]
    alone = with_sends(carried_by(policy), *sends)
    transfers = carried_by(policy)
    for n in range(20):
        transfers.send(0.0, 2, 1, 5, 100 + n)
    both = with_sends(transfers, *sends)
    assert [entry for entry in both if entry[1] < 100] == alone
    assert with_sends(carried_by(policy, seed=Randomness(6)), *sends) != alone


@TIMED
def test_dropped_messages_are_reported_when_they_would_have_arrived(kind):
    transfers = carried_by(kind(latency=1.0, loss=0.5, when_lost="drop"))
    log = with_sends(transfers, *((10.0 * n, 0, 1, 30) for n in range(64)))
    what = ["lost" if draws(Purpose.LINK_LOSS, 0, 1, n) < 0.5 else "arrived" for n in range(64)]
    assert {"lost", "arrived"} == set(what)
    assert log == [(10.0 * n + 4.0, n, what[n]) for n in range(64)]


@TIMED
def test_lost_messages_are_sent_again_as_often_as_needed(kind):
    transfers = carried_by(kind(latency=1.0, loss=0.5))
    log = with_sends(transfers, *((1000.0 * n, 0, 1, 30) for n in range(30)))
    count, expected = 0, []
    for n in range(30):
        attempts = 1
        while draws(Purpose.LINK_LOSS, 0, 1, count + attempts - 1) < 0.5:
            attempts += 1
        count += attempts
        expected.append((1000.0 * n + 4.0 * attempts, n, "arrived"))
    assert max(time % 1000 for time, *_ in expected) > 8
    assert log == expected


# Cancel and cut


def test_a_cancelled_message_frees_its_share():
    # Two at 5/s until 4: the first has 80 left, then 10/s.
    transfers = carried_by(SharedLinks())
    transfers.send(0.0, 0, 1, 100, 0)
    transfers.send(0.0, 0, 2, 100, 1)
    transfers.cancel(4.0, 1)
    transfers.cancel(4.0, 1)
    assert rest(transfers) == [(12.0, 0, "arrived")]


@TIMED
def test_a_cancelled_message_leaves_the_link_free(kind):
    transfers = carried_by(kind())
    transfers.send(0.0, 0, 1, 100, 0)
    transfers.cancel(4.0, 0)
    assert transfers.next_time() == math.inf
    transfers.send(4.0, 0, 1, 100, 1)
    assert rest(transfers) == [(14.0, 1, "arrived")]


def test_a_cancelled_message_is_not_reported_as_stalled():
    transfers = carried_by(SharedLinks(rates=Course((0.0, 0.0))))
    transfers.send(1.0, 0, 1, 100, 0)
    transfers.send(1.0, 0, 2, 100, 1)
    transfers.cancel(1.0, 0)
    assert rest(transfers) == [(1.0, 1, "stalled")]
    transfers.cancel(2.0, 1)
    assert transfers.state()["pipes"] == []


@TIMED
def test_a_cut_forgets_both_directions_and_nothing_else(kind):
    transfers = carried_by(kind())
    sends = [(0, 1, 40), (1, 0, 40), (0, 2, 40), (0, 1, 40), (2, 1, 40), (1, 0, 0)]
    for ticket, (sender, receiver, size) in enumerate(sends):
        transfers.send(0.0, sender, receiver, size, ticket)
    assert transfers.take(0.0) == [Notice(5, "arrived")]
    assert transfers.cut(0.0, 1, 0) == [1, 0, 3]
    assert transfers.cut(0.0, 0, 1) == []
    assert arrivals(rest(transfers)) == {2: 4.0, 4: 4.0}


def test_one_ticket_is_one_message():
    transfers = carried_by(PerLink())
    transfers.send(0.0, 0, 1, 40, 3)
    with pytest.raises(ValueError, match="ticket 3"):
        transfers.send(0.0, 0, 2, 40, 3)


@TIMED
def test_cancelling_for_ever_takes_no_more_memory(kind):
    transfers = carried_by(kind(rates=Course((0.5, 0.0))))
    transfers.send(0.0, 0, 1, 1e9, -1)
    for n in range(1000):
        transfers.send(1.0 + n, 0, 1, 1e9 + n, n)
        transfers.send(1.0 + n, 1, 2, 1e9, 10_000 + n)
        transfers.cancel(1.0 + n, n)
        transfers.cancel(1.0 + n, 10_000 + n)
    assert len(transfers._heap) < 100
    assert len(transfers._pipes[0 if kind is SharedLinks else 1].queue) < 100


# Laws on random schedules

CHANGES = st.lists(
    st.tuples(st.integers(1, 30).map(float), st.sampled_from([0.0, 1.0, 7.0, 30.0])),
    max_size=5,
    unique_by=lambda c: c[0],
).map(lambda changes: [*sorted(changes), (40.0, 3.0)])
SENDS = st.lists(
    st.tuples(st.integers(0, 60).map(lambda n: n / 2), st.integers(0, 2), st.integers(1, 2), st.integers(0, 60)),
    min_size=1,
    max_size=14,
).map(lambda sends: [(now, i, (i + step) % 3, size) for now, i, step, size in sorted(sends)])


def pipes(kind: type[LinkPolicy], sends: Iterable[tuple[float, int, int, float]]) -> dict[Any, list[int]]:
    """Return the tickets of each pipe, without headers."""
    found: dict[Any, list[int]] = {}
    for ticket, (_, sender, receiver, size) in enumerate(sends):
        if size:
            found.setdefault(sender if kind is SharedLinks else (sender, receiver), []).append(ticket)
    return found


def shared_exactly(course: Course, starts: list[tuple[Fraction, int, Fraction]]) -> dict[int, Fraction]:
    """Processor sharing in plain steps and exact numbers: starts of (time, ticket, size) to the times at the end."""
    left: dict[int, Fraction] = {}
    done: dict[int, Fraction] = {}
    waiting, now = sorted(starts), Fraction(0)
    while waiting or left:
        while waiting and waiting[0][0] <= now:
            left[waiting[0][1]] = waiting[0][2]
            waiting.pop(0)
        rate = Fraction(course.rate(0, float(now))) / max(len(left), 1)
        stops = [Fraction(time) for time in course.times if time > now] + [start for start, *_ in waiting[:1]]
        if left and rate:
            stops.append(now + min(left.values()) / rate)
        step = min(stops) - now
        left = {ticket: size - rate * step for ticket, size in left.items()}
        now += step
        done |= {ticket: now for ticket, size in left.items() if size == 0}
        left = {ticket: size for ticket, size in left.items() if size > 0}
    return done


@TIMED
@given(sends=SENDS, changes=CHANGES)
@settings(deadline=None)
def test_times_are_those_of_processor_sharing_in_exact_numbers(kind, sends, changes):
    changes = [(time + 0.0123456789, value) for time, value in changes]  # no instant at which rounding decides
    course = Course(*changes)
    arrived = arrivals(with_sends(carried_by(kind(rates=course), 10.0, 10.0, 10.0), *sends))
    for tickets in pipes(kind, sends).values():
        starts = [(Fraction(sends[one][0]), one, Fraction(sends[one][3])) for one in tickets]
        for ticket, time in shared_exactly(course, starts).items():
            assert arrived[ticket] == pytest.approx(float(time), rel=1e-9)


POLICIES = st.builds(
    lambda kind, latency, jitter, loss, when_lost, rates: kind(
        latency=latency, jitter=jitter, loss=loss, when_lost=when_lost, rates=rates
    ),
    st.sampled_from([PerLink, SharedLinks]),
    st.sampled_from([0.0, 1.5]),
    st.sampled_from([0.0, 2.0]),
    st.sampled_from([0.0, 0.4]),
    st.sampled_from(["resend", "drop"]),
    st.one_of(
        st.just(ConstantRates()),
        CHANGES.map(lambda changes: Course(*changes)),
        st.builds(
            MarkovRates, good_seconds=st.just(4.0), bad_seconds=st.just(2.0), bad_share=st.sampled_from([0, 0.3])
        ),
    ),
)
CALLS = st.lists(
    st.tuples(
        st.integers(0, 60).map(lambda n: n / 2),
        st.sampled_from(["send", "send", "send", "cancel", "cut"]),
        st.integers(0, 2),
        st.integers(1, 2),
        st.integers(0, 60),
        st.booleans(),
    ),
    max_size=25,
).map(sorted)


def logged(policy: LinkPolicy, calls: Sequence[Any], checkpoints: frozenset[int] = frozenset()) -> list[Any]:
    """Carry out the calls; at each checkpoint, go on with a new object that is restored from JSON."""
    transfers, log = carried_by(policy, 10.0, 3.0, 8.0), []
    for number, (now, what, i, step, size, first) in enumerate(calls):
        log += rest(transfers, now if first else np.nextafter(now, -1))
        if number in checkpoints:
            text = json.dumps(transfers.state(), allow_nan=False)
            transfers = carried_by(policy, 10.0, 3.0, 8.0)
            transfers.restore(json.loads(text))
            assert json.dumps(transfers.state()) == text
        j = (i + step) % 3
        if what == "send":
            transfers.send(now, i, j, size, number)
        elif what == "cancel":
            transfers.cancel(now, size % (number + 1))
        else:
            log.append(transfers.cut(now, i, j))
        log.append((transfers.next_time(), [transfers.is_stalled(ticket) for ticket in range(number + 1)]))
    return log + rest(transfers)


@given(policy=POLICIES, calls=CALLS, checkpoints=st.frozensets(st.integers(0, 24)))
@settings(deadline=None, max_examples=200)
def test_a_restored_run_goes_on_bit_by_bit(policy, calls, checkpoints):
    undisturbed = logged(policy, calls)
    assert logged(policy, calls) == undisturbed
    assert logged(policy, calls, checkpoints) == undisturbed


@given(policy=POLICIES, calls=CALLS)
@settings(deadline=None)
def test_every_message_ends_once_and_leaves_nothing_behind(policy, calls):
    transfers, log, gone = carried_by(policy, 10.0, 3.0, 8.0), [], []
    for number, (now, what, i, step, size, _) in enumerate(calls):
        log += rest(transfers, now)
        j = (i + step) % 3
        if what == "send":
            transfers.send(now, i, j, size, number)
        else:
            gone += transfers.cut(now, i, j)
    log += rest(transfers)
    ended = [ticket for _, ticket, what in log if what != "stalled"]
    assert sorted(ended + gone) == [number for number, call in enumerate(calls) if call[1] == "send"]
    assert [time for time, *_ in log] == sorted(time for time, *_ in log)
    left = transfers.state()
    assert not any(left[name] for name in left if name not in ("serial", "counts"))
    assert not transfers._on_link


@TIMED
def test_taking_late_gives_the_same_notices_in_the_same_order(kind):
    sends = [(0.0, 0, 1 + n % 3, 10 * n) for n in range(8)]
    policy = kind(latency=0.5, jitter=1.0, loss=0.3, rates=Course((3.0, 0.0), (5.0, 2.0)))
    prompt = with_sends(carried_by(policy), *sends)
    late = carried_by(policy)
    for ticket, send in enumerate(sends):
        late.send(*send, ticket)
    assert late.take(1e6) == [Notice(ticket, what) for _, ticket, what in prompt]
