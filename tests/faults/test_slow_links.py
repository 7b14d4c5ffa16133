"""Links that are slow, or become slow, and still deliver: no false alarm, nothing that waits for the slow one."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from audit import assert_the_sum_is_kept
from counts import WHOLE, Counts, of
from fleet import running


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "after a fast warm-up"])
@pytest.mark.parametrize(
    ("rate", "model_bytes", "exchanges"),
    [(20e6, 4_000_000, 30), (1e6, 1_000_000, 10), (128e3, 1_000_000 if WHOLE else 250_000, 10)],
    ids=["20 Mbit", "1 Mbit", "128 kbit"],
)
def test_a_slow_link_delivers_without_a_false_alarm(
    folder: Path, counted: Callable[[str], Counts], rate: float, model_bytes: int, exchanges: int, warm: bool
):
    counts = counted(f"{rate / 1e3:.0f} kbit/s, {'after a fast warm-up' if warm else 'cold'}")
    alone = 8 * model_bytes / rate
    with running(folder, 2 if warm else {0: rate, 1: rate}, [(0, 1)], model_bytes=model_bytes) as fleet:
        if warm:
            for _ in range(3):
                fleet.wait_for_exchange(0, 1)
            time.sleep(5)
            for device in (0, 1):
                fleet.network.limit(device, rate)
        for _ in range(of(exchanges)):
            with counts.one():
                fleet.wait_for_exchange(0, 1, seconds=30 + 4 * alone)
        for one, other in ((0, 1), (1, 0)):
            seen = fleet.neighbour(one, other)
            assert (seen["downs"], seen["interruptions"]) == (0, 0), seen
            assert seen["exchanges"]["withdrawn"] == 0, seen
        assert_the_sum_is_kept(fleet, counts)


def test_one_of_nine_neighbours_at_a_hundredth_of_the_rate(folder: Path, counted: Callable[[str], Counts]):
    counts = counted("one of nine at 1/100 of the rate")
    rate, slow = 2e6, 9
    links = [(0, other) for other in range(1, 10)]
    with running(folder, dict.fromkeys(range(10), rate), links, model_bytes=50_000, pace=0.5) as fleet:

        def until_each_has(exchanges: int) -> tuple[int, int]:
            """Wait until the eight others have each exchanged this often. Returns the steps of device 0 and of all."""
            before = [fleet.committed(0, other) for other in range(1, slow)]
            steps = fleet.status(0)["iteration"], fleet.committed(0, slow)
            for other, first in enumerate(before, 1):
                fleet.wait(lambda: fleet.committed(0, other) >= first + exchanges, 300, f"device {other} goes on")  # noqa: B023
            return fleet.status(0)["iteration"] - steps[0], fleet.committed(0, slow) - steps[1]

        with counts.one():
            fleet.network.limit(slow, rate / 100)
            steps, of_the_slow_one = until_each_has(20 if WHOLE else 8)
            counts.note = f"{steps} steps, {of_the_slow_one} exchanges of the slow one meanwhile"
            assert of_the_slow_one < 8, "the others do not wait for it"
            assert steps > of_the_slow_one
            fleet.wait_for_exchange(0, slow, seconds=180)
            for one, other in links:
                assert fleet.neighbour(one, other)["downs"] == fleet.neighbour(other, one)["downs"] == 0
        assert_the_sum_is_kept(fleet, counts)
