"""What time does to a run: slow devices, links that carry nothing, when it ends, and what it keeps in memory."""

from __future__ import annotations

import gc
import math
import weakref
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulated import Firing, run, simulator_of, tiny

import efhc
from efhc.core.state import Diverged
from efhc.experiments.runs.draw import draw_scenario, load_data


def exchanges_among(simulator: Any, devices: set[int]) -> int:
    return sum(row[8] == "committed" and {row[2], row[3]} <= devices for row in simulator.record.exchanges)


@pytest.mark.parametrize(
    "links", [efhc.PerLink(latency=0.05), efhc.SharedLinks(latency=0.05)], ids=["per link", "shared"]
)
@pytest.mark.parametrize("network", [efhc.Geometric(radius=0.6), efhc.Complete()], ids=["geometric", "complete"])
def test_a_slow_device_does_not_keep_the_others_from_exchanging(links, network):
    """Under ZT, one device of ten at 1/100 of the rate: nobody waits for it."""
    counts = []
    for slow in (1.0, 0.01):
        driver = efhc.EventDriven(links=links, seconds=60.0, sample_seconds=60.0)
        simulator = run(tiny(10, network, [8.0] * 9 + [8.0 * slow], driver=driver))
        counts.append(exchanges_among(simulator, set(range(9))))
        steps = [row for row in simulator.record.steps if row[0] == 9]
        assert len(steps) == 60  # its gradients wait for no message either
    assert counts[1] > 0.9 * counts[0] > 100


def rates(folder: Path, *rows: tuple[float, int, float]) -> efhc.RateFile:
    path = folder / "rates.csv"
    path.write_text("seconds,device,rate\n" + "".join(f"{s},{d},{rate}\n" for s, d, rate in rows))
    return efhc.RateFile(path=path)


def test_a_link_of_rate_0_is_reported_and_the_run_ends(tmp_path):
    links = efhc.PerLink(latency=0.25, rates=rates(tmp_path, (0.75, 1, 0.0)))
    driver = efhc.EventDriven(links=links, patience_seconds=5.0, sample_seconds=100.0)
    simulator = run(tiny(2, [[0, 1]], iterations=20, driver=driver))
    assert [row[2] for row in simulator.record.steps if row[0] == 1] == [k + 1.0 for k in range(20)]
    assert not any(row[8] == "committed" for row in simulator.record.exchanges)
    assert simulator.warnings == ["device 1 could send nothing from second 0.75 on: its rate is 0"]
    assert 20.0 <= simulator.now < 100.0


@pytest.mark.parametrize("seconds", [7.0, 7.3, 0.01])
def test_a_run_ends_exactly_at_its_last_second(seconds):
    driver = efhc.EventDriven(seconds=seconds, sample_seconds=2.0, links={"latency": 0.1})
    simulator = run(tiny(3, efhc.Ring(), driver=driver, iterations=2))
    assert simulator.now == seconds
    assert simulator.progress == 1.0
    times = [row["seconds"] for row in simulator.record.timeline]
    assert times == [*(t for t in (0.0, 2.0, 4.0, 6.0) if t < seconds), seconds]
    assert [row[2] for row in simulator.record.steps] == [t for t in range(1, int(seconds) + 1) for _ in range(3)]
    assert all(row[1] <= seconds for row in simulator.record.exchanges)


def test_samples_are_taken_when_they_are_due_and_count_what_was_made_until_then():
    driver = efhc.EventDriven(links={"latency": 0.125}, compute={"seconds": [1.0, 0.5]}, sample_seconds=0.75)
    simulator = run(tiny(2, [[0, 1]], driver=driver, iterations=6))
    record = simulator.record
    times = [row["seconds"] for row in record.timeline]
    assert times[:-1] == [0.75 * sample for sample in range(len(times) - 1)]
    assert times[-1] == simulator.now
    for row in record.timeline:
        assert row["steps"] == sum(step[2] <= row["seconds"] for step in record.steps)
        over = (one for one in record.exchanges if one[1] <= row["seconds"])
        assert row["exchanges"] == sum(one[8] == "committed" for one in over)
        assert row["devices"] == 2
    for name in ("steps", "broadcasts", "exchanges", "bytes"):
        values = [row[name] for row in record.timeline]
        assert all(a <= b for a, b in pairwise(values)), name
    assert record.timeline[-1]["steps"] == 12


def test_the_default_sample_is_evaluate_every_median_steps():
    driver = efhc.EventDriven(compute={"seconds": [1.0, 2.0, 30.0]}, seconds=100.0)
    simulator = run(tiny(3, efhc.Ring(), driver=driver, evaluate_every=10))
    assert [row["seconds"] for row in simulator.record.timeline] == [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]


def test_drawn_samples_are_one_in_each_window_and_a_function_of_the_seed():
    driver = efhc.EventDriven(sample_seconds=2.0, seconds=41.0)
    experiment = tiny(3, efhc.Ring(), driver=driver)
    for seed in (0, 1):
        times = []
        for _ in range(2):
            simulator = simulator_of(experiment, seed, draws_samples=True)
            while not simulator.is_over:
                simulator.advance()
            times.append([row["seconds"] for row in simulator.record.timeline])
        assert times[0] == times[1]
        first, *drawn, last = times[0]
        assert (first, last) == (0.0, 41.0)
        assert [math.ceil(seconds / 2) for seconds in drawn] == list(range(1, len(drawn) + 1))
        assert len({seconds % 2 for seconds in drawn}) == len(drawn)
        assert 20 <= len(drawn) <= 21


def test_devices_learn_their_bandwidth_from_what_they_send():
    """With equal latency, what is measured is n / (n / b_i + latency), and slow devices fire less than fast ones."""
    driver = efhc.EventDriven(bandwidth="measured", links={"latency": 0.05}, seconds=60.0, sample_seconds=60.0)
    bandwidths = [2.0, 8.0, 32.0, 128.0]
    experiment = tiny(4, efhc.Complete(), bandwidths, driver=driver, strategies={"S": efhc.EventTriggered(r=4.0)})
    fired = {}
    for kind in ("measured", "true"):
        settings = driver.model_copy(update={"bandwidth": kind})
        simulator = run(experiment.model_copy(update={"driver": settings}))
        fired[kind] = [sum(row[3] for row in simulator.record.steps if row[0] == device) for device in range(4)]
    assert fired["true"][0] < fired["true"][3]
    assert fired["measured"][0] < fired["measured"][3]
    assert fired["measured"] != fired["true"]


LINKS = [efhc.PerLink(latency=0.1), efhc.SharedLinks(latency=0.1), efhc.InstantLinks()]


@pytest.mark.parametrize("links", LINKS, ids=["per link", "shared", "instant"])
def test_memory_is_four_models_a_device_and_one_per_model_in_flight(links):
    """Models, last broadcasts, gradients, models offered; and models that were sent and not yet mixed."""
    devices = 12
    driver = efhc.EventDriven(links=links, compute=efhc.LognormalCompute(), seconds=20.0, sample_seconds=0.7)
    simulator = simulator_of(tiny(devices, efhc.Complete(), [2.0, 4.0, 8.0] * 4, driver=driver))
    while not simulator.is_over:
        simulator.advance()
        used = len(simulator.checkpoint()[0]["arrays"])
        in_flight = 0
        for device in simulator.devices:
            in_flight += len(device.steps) + sum(link.exchange is not None for link in device.links.values())
        assert used <= 4 * devices + in_flight, f"at second {simulator.now}"


def test_a_run_is_freed_as_soon_as_nobody_holds_it():
    driver = efhc.EventDriven(churn=efhc.ChurnRates(crash_every=3.0, restart_after=1.0), seconds=9.0)
    simulator = run(tiny(3, efhc.Complete(), driver=driver))
    whole = weakref.ref(simulator)
    gc.disable()
    try:
        del simulator
        assert whole() is None
    finally:
        gc.enable()


def test_training_that_diverges_names_the_device_and_its_iteration():
    driver = efhc.EventDriven(compute={"seconds": [1.0, 0.25]}, sample_seconds=1.0)
    experiment = tiny(2, [[0, 1]], model=efhc.LeastSquares(), step_size=lambda k: 1e200, driver=driver, iterations=50)
    told = r"^training diverged at iteration \d+: the .* device"
    with np.errstate(all="ignore"), pytest.raises(Diverged, match=told):
        run(experiment)


def test_a_run_is_a_function_of_its_seed():
    driver = efhc.EventDriven(
        links=efhc.SharedLinks(latency=0.1, jitter=0.2, loss=0.1), compute="lognormal", seconds=20.0, sample_seconds=5.0
    )
    experiment = tiny(4, efhc.Complete(), driver=driver)
    first, again, other = (run(experiment, seed) for seed in (0, 0, 1))
    assert first.record.exchanges == again.record.exchanges
    assert first.models.tobytes() == again.models.tobytes()
    assert first.record.exchanges != other.record.exchanges


def test_strategies_of_one_seed_meet_the_same_faults():
    """The compute times of a device do not depend on what it sends."""
    driver = efhc.EventDriven(links=efhc.PerLink(jitter=0.2, loss=0.1), compute="lognormal", seconds=20.0)
    experiment = tiny(4, efhc.Complete(), driver=driver)
    scenario = draw_scenario(experiment, load_data(experiment), 0)
    steps = []
    for trigger in (efhc.ZeroThreshold(), efhc.Never()):
        simulator = simulator_of(experiment, trigger=trigger, scenario=scenario)
        while not simulator.is_over:
            simulator.advance()
        steps.append([row[:3] for row in simulator.record.steps])
    assert steps[0] == steps[1]


def test_who_has_finished_still_answers():
    """Device 0 makes its 2 steps in 2 s. Device 1 fires in its k = 1, at 8 s: device 0 answers, and applies at once."""
    driver = efhc.EventDriven(compute={"seconds": [1.0, 8.0]}, sample_seconds=100.0)
    experiment = tiny(2, [[0, 1]], iterations=2, driver=driver, step_size=lambda k: 0.0)
    simulator = run(experiment, trigger=Firing({1: {1}}))
    assert [row[:7] for row in simulator.record.exchanges] == [(8.0, 9.0, 1, 0, 1, 2, 0.5)]
    assert [row[2] for row in simulator.record.steps] == [1.0, 2.0, 8.0, 16.0]
    assert np.allclose(simulator.models[0], simulator.models[1], rtol=0, atol=1e-15)
