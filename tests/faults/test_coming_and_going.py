"""Devices that join, leave and return, and half an hour in which something breaks every twenty seconds."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from audit import assert_the_sum_is_kept
from counts import Counts, of
from faulty_network import FaultyNetwork
from fleet import FAST, TRIANGLE, Fleet, running


def test_a_third_device_joins_leaves_and_returns_after_a_kill(folder: Path, counted: Callable[[str], Counts]):
    counts = counted("join by a copy, leave, return, kill -9, return")
    with FaultyNetwork(range(3), dict.fromkeys(range(3), FAST)) as network, Fleet(folder, network, TRIANGLE) as fleet:
        fleet.write_node(2, pace=0.2, join="copy")
        with counts.one():
            fleet.start(0, 1)
            fleet.wait(lambda: fleet.connected(0, 1), 300, "two learn together")
            fleet.wait(lambda: fleet.status(0)["iteration"] > 20, 60, "they have learnt something")
            fleet.start(2)
            fleet.wait(fleet.all_connected, 60, "a third joins")
            for one, other in TRIANGLE:
                fleet.wait_for_exchange(one, other)
            assert fleet.status(2)["iteration"] >= 20, "it has copied a model and its k"
            fleet.stop(2)
            fleet.wait(lambda: not fleet.connected(0, 2) and not fleet.connected(1, 2), 60, "it has left")
            fleet.wait_for_exchange(0, 1)
            fleet.start(2)
            fleet.wait(fleet.all_connected, 60, "it is back")
            fleet.wait_for_exchange(0, 2)
            iteration = fleet.status(2)["iteration"]
            fleet.kill(2)
            fleet.start(2)
            fleet.wait(fleet.all_connected, 60, "it is back after a kill")
            fleet.wait_for_exchange(0, 2)
            assert fleet.status(2)["iteration"] > iteration - 50, "it went on from its checkpoint"
        assert_the_sum_is_kept(fleet, counts)


LINKS = [(i, (i + 1) % 10) for i in range(10)] + [(i, (i + 4) % 10) for i in range(0, 10, 2)]


def test_ten_devices_with_a_fault_every_twenty_seconds(folder: Path, counted: Callable[[str], Counts]):
    """Half an hour, three minutes or one. Devices 7 to 9 are killed; the others never restart, and stay small."""
    counts, moments = counted("ten devices, a fault every 20 s"), random.Random("half an hour")
    links = [(min(link), max(link)) for link in LINKS]
    with running(folder, dict.fromkeys(range(10), FAST), links, model_bytes=100_000, pace=0.5) as fleet:
        faults = of(90)
        memory: list[dict[int, float]] = []
        for number in range(faults):
            began = time.monotonic()
            iterations = {device: fleet.status(device)["iteration"] for device in range(7)}
            with counts.one():
                break_something(fleet, moments, number)
                time.sleep(max(0.0, began + 20 - time.monotonic()))
                for device, before in iterations.items():
                    assert fleet.status(device)["iteration"] > before, f"device {device} trained on"
            memory.append({device: fleet.memory(device) for device in range(7)})
        early, late = memory[len(memory) // 3], memory[-1]
        grown = max(late[device] - early[device] for device in early)
        counts.note = f"memory grew by {grown:.1f} MB at most, of {max(late.values()):.0f} MB"
        assert grown < 10 + 0.05 * max(early.values())
        assert_the_sum_is_kept(fleet, counts)


def break_something(fleet: Fleet, moments: random.Random, number: int) -> None:
    """One fault, and its end, within fifteen seconds."""
    fault = ("carrier", "silent", "link", "kill", "stop", "rate")[number % 6]
    if fault in ("carrier", "silent"):
        device = moments.randrange(10)
        fleet.network.cut(device, "carrier" if fault == "carrier" else "silent")
        time.sleep(moments.uniform(1, 12))
        fleet.network.heal(device)
    elif fault == "link":
        one, other = moments.choice(fleet.links)
        fleet.network.cut_link(one, other)
        time.sleep(moments.uniform(1, 12))
        fleet.network.heal_link(one, other)
    elif fault == "kill":
        device = moments.randrange(7, 10)
        fleet.kill(device)
        time.sleep(moments.uniform(0, 4))
        fleet.start(device)
    elif fault == "stop":
        device = moments.randrange(7, 10)
        fleet.signal(device, signal.SIGSTOP)
        time.sleep(moments.uniform(1, 8))
        fleet.signal(device, signal.SIGCONT)
    else:
        device = moments.randrange(10)
        fleet.network.limit(device, 128e3)
        time.sleep(moments.uniform(5, 14))
        fleet.network.limit(device, FAST)
