"""Devices on their own clocks against devices in lockstep: the same work, per step of one device, on one core."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks.measure import Ratio, Row, by_turns, timed
from benchmarks.workloads import Work, Workload, sparse
from efhc.core.randomness import Randomness
from efhc.drivers.event_driven.compute import LognormalCompute
from efhc.drivers.event_driven.links import InstantLinks, LinkPolicy, PerLink
from efhc.drivers.event_driven.simulator import Simulator
from efhc.drivers.settings import EventDriven

STEPS = 40_000
"""Steps of all devices in a round, or two steps per device if that is more."""
LOCKSTEP, OWN_CLOCKS = "lockstep", "own clocks"


class ClockWorkload(NamedTuple):
    """What is timed in both ways."""

    about: str
    devices: int
    strategy: str
    driver: EventDriven
    goal: str


def _driver(links: LinkPolicy, **settings: Any) -> EventDriven:
    return EventDriven(links=links, sample_seconds=1e9, seconds=1e9, **settings)


NO_DELAY = _driver(InstantLinks())
DELAYS = _driver(PerLink(), compute=LognormalCompute())
WITH_LATENCY = _driver(PerLink(latency=0.05), compute=LognormalCompute())
ABOUT_DELAYS = "EF-HC, lognormal compute times, n/b_i s per model"
CLOCK_WORKLOADS = {
    "no-delay": ClockWorkload("EF-HC, equal compute times, no delay", 100, "EF-HC", NO_DELAY, "2x"),
    "no-delay-zt": ClockWorkload("ZT, equal compute times, no delay", 100, "ZT", NO_DELAY, "4x"),
    "delays-m100": ClockWorkload(ABOUT_DELAYS, 100, "EF-HC", DELAYS, ""),
    "delays-m1000": ClockWorkload(ABOUT_DELAYS, 1000, "EF-HC", DELAYS, "3x"),
    "delays-m10000": ClockWorkload(ABOUT_DELAYS, 10000, "EF-HC", DELAYS, ""),
    "latency-m1000": ClockWorkload(f"{ABOUT_DELAYS}, latency 0.05 s", 1000, "EF-HC", WITH_LATENCY, ""),
}


def clock_sides(workload: ClockWorkload) -> dict[str, Work]:
    """Steps of devices in lockstep and on their own clocks; both go on from where they were.

    Each call makes `STEPS` steps or somewhat more, and returns how many.
    """
    iterations = max(2, math.ceil(STEPS / workload.devices))
    fields = sparse(workload.devices) | {"batch_size": 16}
    base = Workload("clocks", "", "", fields, 1, iterations)
    experiment, scenario = base.scenario()
    in_lockstep = base.run(workload.strategy, 0)
    simulator = Simulator(scenario, experiment.strategies[workload.strategy], workload.driver, 1, Randomness(0))

    def on_own_clocks() -> int:
        before = simulator.steps
        while simulator.steps < before + iterations * workload.devices:
            simulator.advance()
        simulator.record.take()
        return simulator.steps - before

    return {LOCKSTEP: lambda: in_lockstep() * workload.devices, OWN_CLOCKS: on_own_clocks}


def measure(rounds: int) -> Iterator[Row]:
    """Processor time per step of one device in both ways, and how many times longer it takes on own clocks."""
    for name, workload in CLOCK_WORKLOADS.items():
        found = by_turns({side: timed(work) for side, work in clock_sides(workload).items()}, rounds)
        row = {"workload": name, "about": workload.about, "devices": f"{workload.devices:,}"}
        row |= {side: f"{1e6 * statistics.median(each):.0f} us" for side, each in found.items()}
        yield row | Ratio.of(found[OWN_CLOCKS], found[LOCKSTEP]).row() | {"goal": workload.goal}
