"""What followers hear of a run in which every device has its own clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest

import efhc
from efhc.base.arrays import Floats
from efhc.core.triggers import Bandwidths, TriggerPolicy
from efhc.experiments.runs.draw import draw_scenario
from efhc.experiments.runs.live.followers import DeviceSample, Follower, Row
from efhc.experiments.runs.make import make_run
from efhc.experiments.runs.run import Runs
from efhc.experiments.runs.store import MemoryStore

DEVICES = 5


class Listener(Follower):
    """Notes down the k of all it hears."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.reached_k: list[int] = []
        self.samples: list[tuple[int, DeviceSample]] = []
        """The k of the row before, and the sample."""
        self.events: list[tuple[int, int]] = []

    def reached(self, k: int) -> None:
        self.reached_k.append(k)

    def evaluated(self, row: Row) -> None:
        self.rows.append(int(row["steps"] or 0) // DEVICES)
        assert self.reached_k[-1] == self.rows[-1]

    def sampled(self, devices: DeviceSample) -> None:
        self.samples.append((self.rows[-1], devices))

    def happened(self, events) -> None:
        self.events += [(self.reached_k[-1], event.k) for event in events]


def heard(strategy: object, **driver: object) -> Listener:
    listener = Listener()
    (run,) = Runs().of(
        efhc.Experiment(
            devices=DEVICES, iterations=100, evaluate_every=3, seeds=(0,), network=efhc.Ring(),
            strategies={"one": strategy}, driver={"kind": "event-driven", **driver},
        )
    )  # fmt: skip
    with MemoryStore().keeper(run) as keeper:
        scenario = draw_scenario(run.whole, run.data, run.seed)
        make_run(run, scenario, keeper, followers=[lambda run: listener])
    return listener


@pytest.mark.parametrize("seconds", [None, 30.0])
def test_k_is_the_mean_number_of_steps_also_of_a_run_that_ends_at_a_second(seconds: float | None) -> None:
    listener = heard(efhc.EventTriggered(), seconds=seconds)
    assert listener.rows[-1] == listener.reached_k[-1] == (100 if seconds is None else 30)
    assert listener.samples
    assert all(sample.k == k for k, sample in listener.samples)
    assert listener.events
    assert all(event == reached for reached, event in listener.events)


class Counting(TriggerPolicy):
    """Fails when it is asked for what the run itself does not ask for."""

    asked: ClassVar[Counter[int]] = Counter()

    def thresholds(self, k: int, gamma: float, bandwidths: Bandwidths, coins: Callable[[int], Floats]) -> Floats:
        self.asked[k] += 1
        if k > 0 and self.asked[k] > DEVICES:  # with k = 0, it is tried before the run
            raise RuntimeError("each device asks once")
        return np.full(DEVICES, 0.01)


def test_an_own_trigger_that_fails_for_followers_alone_does_not_fail_the_run() -> None:
    # With measured bandwidths, the trigger is asked anew for each device.
    Counting.asked.clear()
    listener = heard(Counting(), seconds=30.0, bandwidth="measured")
    assert listener.rows[-1] == 30
    assert listener.samples[-1][1].threshold is None
    assert all(sample.drift is not None for _, sample in listener.samples)
