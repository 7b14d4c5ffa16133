"""Cables that are pulled, and packets that vanish without a word."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from audit import assert_the_sum_is_kept
from counts import Counts, of
from faulty_network import Fault
from fleet import FAST, LAWS, SLOW, TRIANGLE, Fleet, running


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("fault", ["carrier", "silent"])
def test_a_cut_at_a_random_moment(folder: Path, counted: Callable[[str], Counts], fault: Fault, law: str):
    counts, moments = counted(f"{law}: {fault} cut, at a random moment"), random.Random(f"cut {fault}")
    with running(folder, dict.fromkeys(range(3), FAST), TRIANGLE, law=law) as fleet:
        for number in range(of(20)):
            with counts.one():
                cut_once(fleet, counts, moments.uniform(0, 2.5), fault, lasts=(6.0, 12.0)[number % 2])
        assert_the_sum_is_kept(fleet, counts)


def cut_once(fleet: Fleet, counts: Counts, moment: float, fault: Fault, lasts: float) -> None:
    """Cut device 1 off while 0 and 2 go on, and all three train on."""
    fleet.wait_for_exchange(0, 1)
    time.sleep(moment)
    iterations = [fleet.status(device)["iteration"] for device in fleet.devices]
    elsewhere = fleet.committed(0, 2)
    fleet.network.cut(1, fault)
    cut = time.monotonic()
    ends = [(0, 1), (1, 0), (1, 2), (2, 1)]
    counts.found(
        fleet.wait(lambda: not any(fleet.connected(*end) for end in ends), 60, f"all ends notice the {fault} cut")
    )
    time.sleep(max(0.0, cut + lasts - time.monotonic()))
    fleet.wait(lambda: fleet.committed(0, 2) > elsewhere, 60, "devices 0 and 2 go on meanwhile")
    for device, before in zip(fleet.devices, iterations, strict=True):  # a device that waits makes no step
        assert fleet.status(device)["iteration"] > before, f"device {device} trained on"
    fleet.network.heal(1)
    fleet.wait(fleet.all_connected, 60, "the link heals")
    for one, other in TRIANGLE:
        fleet.wait_for_exchange(one, other)


@pytest.mark.parametrize("how", ["carrier", "silent", "one way"])
def test_a_cut_between_ready_and_commit(folder: Path, counted: Callable[[str], Counts], how: str):
    """Device 1 sends slowly: it has said Ready long before device 0, which decides, has its model.

    A cut of one way lets device 0 hear the end of it and decide, while device 1 does not hear what was decided.
    """
    counts, moments = counted(f"{how} cut, between ready and commit"), random.Random(f"doubt {how}")
    unheard = 0
    with running(folder, {0: 20e6, 1: SLOW}, [(0, 1)], model_bytes=200_000) as fleet:
        network = fleet.network
        for _ in range(of(10)):
            with counts.one():
                fleet.wait_for_exchange(0, 1)
                fleet.wait(lambda: fleet.status(1)["in_doubt"] == 1, 60, "device 1 is in doubt")
                time.sleep(moments.uniform(0, 1.2) if how == "one way" else 0)
                if how == "one way":
                    network.cut_link(0, 1, one_way=True)
                else:
                    network.cut(1, how)  # type: ignore[arg-type] # it is one of the two
                gone = lambda: not fleet.connected(0, 1) and not fleet.connected(1, 0)  # noqa: E731
                counts.found(fleet.wait(gone, 60, "both ends notice"))
                unheard += fleet.committed(0, 1) > fleet.committed(1, 0)
                network.heal_link(0, 1)
                network.heal(1)
                fleet.wait(fleet.all_connected, 60, "the link heals")
                fleet.wait_for_exchange(0, 1)
        counts.note = f"{unheard} decided but not heard" if how == "one way" else ""
        assert_the_sum_is_kept(fleet, counts)
