"""The small parts of a node: the threads beside the loop, the order of what is carried out, the counts of two ends."""

import asyncio
import threading
import time

import pytest

from efhc.runtime.messages import Hello
from efhc.runtime.neighbours import NeighbourRecord
from efhc.runtime.outbox import STATE, Outbox
from efhc.runtime.status import NeighbourStatus
from efhc.runtime.worker import Worker


def test_a_worker_does_not_hold_the_loop_up():
    async def run():
        worker, ticks = Worker("test"), 0
        slow = asyncio.create_task(worker.call(time.sleep, 0.3))
        while not slow.done():
            ticks += 1
            await asyncio.sleep(0.01)
        assert await worker.call(lambda: threading.current_thread().name) == "test"
        with pytest.raises(ZeroDivisionError):
            await worker.call(lambda: 1 / 0)
        assert worker.close(5)
        return ticks

    assert asyncio.run(run()) > 10


def test_what_follows_a_write_waits_for_the_disk():
    async def run():
        done, disk = [], Worker("disk")
        outbox = Outbox(disk)
        outbox.do(1, done.append, "at once")
        outbox.write(1, lambda: (time.sleep(0.05), done.append("written")))
        outbox.do(1, done.append, "after")
        outbox.write(1, done.append, "written again")
        outbox.do(1, done.append, "after both")
        assert done == ["at once"]
        await outbox.wait()
        outbox.do(1, done.append, "later")
        disk.close(5)
        return done

    done = asyncio.run(run())
    assert [done[0], done[-2], done[-1]] == ["at once", "after both", "later"]
    assert done.index("written") < done.index("after")  # the second write may be over by then
    assert done.index("written") < done.index("written again")


def test_a_lane_does_not_wait_for_another():
    async def run():
        done, disk = [], Worker("disk")
        outbox = Outbox(disk)
        outbox.write(STATE, lambda: (time.sleep(0.1), done.append("checkpoint")))
        outbox.do(1, done.append, "said to 1")
        outbox.write(2, done.append, "kept for 2")
        outbox.do(2, done.append, "said to 2")
        outbox.do(1, done.append, "said to 1 again")
        await outbox.wait()
        disk.close(5)
        return done

    assert asyncio.run(run()) == ["said to 1", "said to 1 again", "checkpoint", "kept for 2", "said to 2"]


def test_nothing_is_said_after_a_write_that_failed():
    async def run():
        done, disk = [], Worker("disk")
        outbox = Outbox(disk)
        outbox.on_failure = lambda: done.append("failed")
        outbox.write(1, lambda: 1 / 0)
        outbox.do(1, done.append, "said")
        outbox.write(2, done.append, "written")
        outbox.do(2, done.append, "said to another")
        with pytest.raises(ZeroDivisionError):
            await outbox.wait()
        outbox.do(3, done.append, "said later")
        disk.close(5)
        return done

    assert set(asyncio.run(run())) <= {"failed", "written"}


@pytest.mark.parametrize(
    ("mine", "theirs", "in_doubt_here", "in_doubt_there", "lost", "after"),
    [
        (5, 5, False, False, 0, 5),
        (5, 4, False, True, 0, 5),  # they wait for my commit
        (4, 5, True, False, 0, 4),  # I wait for theirs, and will count it then
        (5, 4, False, False, 1, 5),  # they lost what I applied
        (4, 5, False, False, 1, 5),  # I lost what they applied
        (4, 7, True, False, 2, 6),
        (9, 0, False, False, 9, 9),  # they lost everything
    ],
)
def test_two_ends_count_what_was_lost_alike(mine, theirs, in_doubt_here, in_doubt_there, lost, after):
    here, there = NeighbourRecord(NeighbourStatus(1), mine), NeighbourRecord(NeighbourStatus(0), theirs)
    assert here.settle(Hello(1, 1, {}, 0, theirs, in_doubt_there), in_doubt_here) == lost
    assert there.settle(Hello(0, 1, {}, 0, mine, in_doubt_here), in_doubt_there) == lost
    assert here.committed == after
    assert abs(here.committed - there.committed) == int(in_doubt_here or in_doubt_there)
