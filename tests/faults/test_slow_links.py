"""Links that are slow, or become slow, and still deliver: no false alarm, nothing that waits for the slow one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from audit import assert_the_sum_is_kept
from counts import WHOLE, Counts, of
from fleet import Fleet

from efhc.experiments.nodes.namespaces import Namespaces


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
    rates = {} if warm else {0: rate, 1: rate}
    with (
        Namespaces(range(2), rates) as network,
        Fleet(folder, network, [(0, 1)], model_bytes=model_bytes) as fleet,
    ):
        fleet.start_and_connect()
        if warm:
            for _ in range(3):
                fleet.wait_for_exchange(0, 1)
            time.sleep(5)
            for device in (0, 1):
                network.limit(device, rate)
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
    rate, slow, seconds = 2e6, 9, 60 if WHOLE else 30
    links = [(0, other) for other in range(1, 10)]
    with (
        Namespaces(range(10), dict.fromkeys(range(10), rate)) as network,
        Fleet(folder, network, links, model_bytes=50_000, pace=0.5) as fleet,
    ):
        fleet.start_and_connect()

        def within(period: float) -> tuple[float, float]:
            """Steps of device 0, and the median over the eight others of their exchanges with it, per second."""
            steps, before = fleet.status(0)["iteration"], [fleet.committed(0, other) for other in range(1, slow)]
            time.sleep(period)
            after = [fleet.committed(0, other) for other in range(1, slow)]
            made = [b - a for a, b in zip(before, after, strict=True)]
            return (fleet.status(0)["iteration"] - steps) / period, statistics.median(made) / period

        with counts.one():
            steps, exchanges = within(seconds)
            network.limit(slow, rate / 100)
            slow_steps, slow_exchanges = within(seconds)
            counts.note = (
                f"steps {slow_steps / steps:.2f}, exchanges of the others {slow_exchanges / exchanges:.2f} of before"
            )
            assert slow_steps > 0.8 * steps
            assert slow_exchanges > 0.7 * exchanges
            fleet.wait_for_exchange(0, slow, seconds=180)
            for one, other in links:
                assert fleet.neighbour(one, other)["downs"] == fleet.neighbour(other, one)["downs"] == 0
        assert_the_sum_is_kept(fleet, counts)
