"""The small parts of a node: the threads beside the loop, the order of what is carried out, the counts of two ends."""

import asyncio
import threading

import pytest

from efhc.core.protocol import Accept, Commit, Offer, Ready
from efhc.runtime.free_running_exchange import ExchangeNeighbour
from efhc.runtime.node_messages import Hello
from efhc.runtime.status import NeighbourStatus
from efhc.runtime.workers import STATE, Outbox, Worker


async def test_a_worker_does_not_hold_the_loop_up():
    worker, go_on = Worker("test"), threading.Event()
    slow = asyncio.create_task(worker.call(go_on.wait, 60))
    await asyncio.sleep(0)  # the loop runs while the worker waits for it
    go_on.set()
    assert await slow
    assert await worker.call(lambda: threading.current_thread().name) == "test"
    with pytest.raises(ZeroDivisionError):
        await worker.call(lambda: 1 / 0)
    assert worker.close(60)


async def test_what_follows_a_write_waits_for_the_disk():
    done, disk = [], Worker("disk")
    outbox = Outbox(disk)
    outbox.do(1, done.append, "at once")
    go_on = threading.Event()
    outbox.write([1], lambda: (go_on.wait(60), done.append("written")))
    outbox.do(1, done.append, "after")
    outbox.write([1], done.append, "written again")
    outbox.do(1, done.append, "after both")
    assert done == ["at once"]
    go_on.set()
    await outbox.wait()
    outbox.do(1, done.append, "later")
    disk.close(60)
    assert [done[0], done[-2], done[-1]] == ["at once", "after both", "later"]
    assert done.index("written") < done.index("after")  # the second write may be over by then
    assert done.index("written") < done.index("written again")


async def test_a_lane_does_not_wait_for_another():
    done, disk = [], Worker("disk")
    outbox = Outbox(disk)
    go_on = threading.Event()
    outbox.write([STATE], lambda: (go_on.wait(60), done.append("checkpoint")))
    outbox.do(1, done.append, "said to 1")
    outbox.write([2], done.append, "kept for 2")
    outbox.do(2, done.append, "said to 2")
    outbox.do(1, done.append, "said to 1 again")
    go_on.set()
    await outbox.wait()
    disk.close(60)
    assert done == ["said to 1", "said to 1 again", "checkpoint", "kept for 2", "said to 2"]


async def test_nothing_is_said_after_a_write_that_failed():
    done, disk = [], Worker("disk")
    outbox = Outbox(disk)
    outbox.on_failure = lambda: done.append("failed")
    outbox.write([1], lambda: 1 / 0)
    outbox.do(1, done.append, "said")
    outbox.write([2], done.append, "written")
    outbox.do(2, done.append, "said to another")
    with pytest.raises(ZeroDivisionError):
        await outbox.wait()
    outbox.do(3, done.append, "said later")
    disk.close(60)
    assert set(done) <= {"failed", "written"}


@pytest.mark.parametrize(
    ("mine", "theirs", "here", "there", "lost", "after"),
    [
        (5, 5, (0, 0), (0, 0), 0, (5, 5)),
        (5, 4, (0, 0), (0, 1), 0, (5, 4)),  # they wait for my commit, and will count it then
        (5, 4, (0, 0), (0, 0), 1, (5, 5)),  # they lost what I applied
        (4, 7, (0, 1), (0, 0), 2, (6, 7)),
        (9, 0, (0, 0), (0, 0), 9, (9, 9)),  # they lost everything
        (5, 4, (0, 0), (1, 0), 0, (5, 5)),  # they gave up what I had committed: that is unresolved, not lost
        (5, 5, (0, 0), (1, 0), 0, (5, 5)),  # they gave up what nobody had committed
        (5, 3, (0, 0), (1, 0), 1, (5, 5)),
    ],
)
def test_two_ends_count_what_was_lost_alike(mine, theirs, here, there, lost, after):
    """`here` and `there` are what each end gave up, and what is in doubt there."""
    for swap in (False, True):
        counts, open_ = ([mine, theirs], [here, there]) if not swap else ([theirs, mine], [there, here])
        ends = [ExchangeNeighbour(NeighbourStatus(1 - i), counts[i], open_[i][0]) for i in (0, 1)]
        hellos = [Hello(i, 1, {}, 0, counts[i], sum(open_[i])) for i in (0, 1)]
        assert [ends[i].settle(hellos[1 - i], bool(open_[i][1])) for i in (0, 1)] == [lost, lost]
        assert [end.committed for end in ends] == list(after if not swap else after[::-1])


def test_an_exchange_is_begun_once_and_by_its_own_neighbour():
    record = ExchangeNeighbour(NeighbourStatus(2, session=7))
    assert record.problem_with(Offer((2, 7, 1), 0.5, 0)) is None
    assert record.problem_with(Accept((2, 7, 4), (0, 1, 1), 0.5, 0)) is None
    for replayed in (1, 4):
        assert "after exchange 4" in record.problem_with(Offer((2, 7, replayed), 0.5, 0))
    assert "as device 1 would" in record.problem_with(Offer((1, 7, 9), 0.5, 0))
    assert "another session" in record.problem_with(Offer((2, 6, 9), 0.5, 0))
    # How an exchange of an earlier session ended may be told and asked at any time.
    assert record.problem_with(Commit((2, 6, 3), (0, 1, 1))) is None
    assert record.problem_with(Ready((2, 6, 3), (0, 1, 1))) is None
    assert "as device 0 would" in record.problem_with(Commit((0, 6, 3), (0, 1, 1)))
    record.status.session = 8
    assert record.problem_with(Offer((2, 8, 1), 0.5, 0)) is None
