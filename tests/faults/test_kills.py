"""Processes that end without a word, and one that is stopped for a while."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from audit import assert_the_sum_is_kept, audit
from counts import Counts, of
from fleet import FAST, LAWS, SLOW, TRIANGLE, Fleet, running


def kill_once(fleet: Fleet, counts: Counts, victim: int, away: float) -> None:
    """Kill device 0 or 1, and start it again after so many seconds."""
    iteration = fleet.status(2)["iteration"]
    fleet.kill(victim)
    other = 1 - victim
    counts.found(fleet.wait(lambda: not fleet.connected(other, victim), 60, "the neighbour notices"))
    time.sleep(away)
    fleet.start(victim)
    fleet.wait(fleet.all_connected, 60, "the device returns")
    assert fleet.status(2)["iteration"] > iteration, "device 2 trained on"
    for one, another in TRIANGLE:
        fleet.wait_for_exchange(one, another)


@pytest.mark.parametrize("law", LAWS)
def test_a_kill_at_a_random_moment_of_an_exchange(folder: Path, counted: Callable[[str], Counts], law: str):
    counts, moments = counted(f"{law}: kill -9, at a random moment"), random.Random("kill")
    with running(folder, dict.fromkeys(range(3), FAST), TRIANGLE, law=law) as fleet:
        for number in range(of(20)):
            with counts.one():
                fleet.wait_for_exchange(0, 1)
                time.sleep(moments.uniform(0, 2.5))
                kill_once(fleet, counts, victim=number % 2, away=moments.uniform(0, 3))
        assert_the_sum_is_kept(fleet, counts)


def test_a_kill_between_ready_and_commit(folder: Path, counted: Callable[[str], Counts]):
    """Of either end, while device 1 waits to hear what device 0 decides."""
    counts, moments = counted("kill -9, between ready and commit"), random.Random("kill in doubt")
    with running(folder, {0: 20e6, 1: SLOW, 2: 20e6}, TRIANGLE, model_bytes=200_000) as fleet:
        for number in range(of(20)):
            with counts.one():
                fleet.wait_for_exchange(0, 1)
                fleet.wait(lambda: fleet.status(1)["in_doubt"] > 0, 60, "device 1 is in doubt")
                time.sleep(moments.uniform(0, 1.5))
                kill_once(fleet, counts, victim=number % 2, away=0)
        assert_the_sum_is_kept(fleet, counts)


def test_without_a_journal_what_a_kill_loses_is_counted_on_both_ends(folder: Path, counted: Callable[[str], Counts]):
    counts = counted("kill -9 without a journal")
    settings = {"journal": False, "checkpoint_seconds": 10_000.0}
    with running(folder, 2, [(0, 1)], settings=settings) as fleet:
        for number in range(of(10)):
            with counts.one():
                fleet.wait_for_exchange(0, 1)
                victim = number % 2
                fleet.kill(victim)
                fleet.start(victim)
                fleet.wait(fleet.all_connected, 60, "the device returns")
                fleet.wait_for_exchange(0, 1)
                lost = fleet.neighbour(0, 1)["lost"], fleet.neighbour(1, 0)["lost"]
                assert lost[0] > 0
                assert lost[0] == lost[1], "both ends count alike"
        fleet.stop()
        found = audit(fleet.state(device) for device in fleet.devices)
        counts.note = f"{found.lost // 2} exchanges lost, as counted"
        assert not found.holds, "what was lost is missing in the sum"
        assert found.in_doubt == 0


@pytest.mark.parametrize("law", LAWS)
def test_a_device_that_is_stopped_for_a_while(folder: Path, counted: Callable[[str], Counts], law: str):
    counts = counted(f"{law}: stopped for 8 s")
    with running(folder, dict.fromkeys(range(3), FAST), TRIANGLE, law=law) as fleet:
        for _ in range(of(10)):
            with counts.one():
                fleet.wait_for_exchange(0, 1)
                before = fleet.committed(0, 2), fleet.status(0)["iteration"]
                fleet.signal(1, signal.SIGSTOP)
                stopped = time.monotonic()
                gone = lambda: not fleet.connected(0, 1) and not fleet.connected(2, 1)  # noqa: E731
                counts.found(fleet.wait(gone, 60, "both neighbours notice"))
                time.sleep(max(0.0, stopped + 8 - time.monotonic()))
                fleet.wait(lambda: fleet.committed(0, 2) > before[0], 60, "devices 0 and 2 go on meanwhile")  # noqa: B023
                fleet.wait(lambda: fleet.status(0)["iteration"] > before[1], 60, "device 0 trains")  # noqa: B023
                fleet.signal(1, signal.SIGCONT)
                fleet.wait(fleet.all_connected, 60, "the device returns")
                for one, other in TRIANGLE:
                    fleet.wait_for_exchange(one, other)
        assert_the_sum_is_kept(fleet, counts)
