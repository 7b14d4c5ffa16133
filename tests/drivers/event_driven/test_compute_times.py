"""Compute times are positive and finite, depend on (seed, device, k) alone, and are those that the setting says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from simulated import csv_writer, refusal

from efhc.core.randomness import Randomness
from efhc.drivers.event_driven.compute import (
    ComputeFile,
    ComputeTimes,
    ConstantCompute,
    LognormalCompute,
    LognormalTimes,
    draw_compute_times,
)

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    return csv_writer(tmp_path / "compute.csv")


def times(policy: ComputeTimes, devices: int, steps: int, seed: int = 3) -> np.ndarray:
    clock = draw_compute_times(policy, devices, Randomness(seed))
    return np.array([[clock.seconds(device, k) for k in range(steps)] for device in range(devices)])


def refused(policy: Any, devices: int = 2, steps: int = 1) -> str:
    return refusal(lambda: times(policy, devices, steps))


def test_constant_times_are_those_given_for_all_devices_or_for_each():
    assert times(ConstantCompute(seconds=2.5), 2, 3).tolist() == [[2.5] * 3] * 2
    assert times(ConstantCompute(seconds=(1.0, 4.0)), 2, 2).tolist() == [[1.0, 1.0], [4.0, 4.0]]
    assert "driver.compute.seconds: cannot use 3 compute times. Use one for all, or one per device, 2" in refused(
        ConstantCompute(seconds=(1.0, 2.0, 3.0))
    )


def test_lognormal_times_have_the_given_median_and_spreads():
    logs = np.log(times(LognormalCompute(median=2.0, sigma=0.4), 4, 1000) / 2.0)
    assert stats.kstest(logs.ravel() / 0.4, "norm").pvalue > 1e-3
    devices = np.log(times(LognormalCompute(sigma=0.0, device_sigma=0.7), 800, 2))
    assert (devices[:, 0] == devices[:, 1]).all()
    assert stats.kstest(devices[:, 0] / 0.7, "norm").pvalue > 1e-3
    of_each = times(LognormalCompute(median=(1.0, 100.0), sigma=0.1), 2, 200)
    assert of_each[0].max() < of_each[1].min()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3 * LognormalTimes.BLOCK)), min_size=1), st.integers(0, 9))
def test_lognormal_times_do_not_depend_on_the_order_in_which_they_are_asked(asked: list[tuple[int, int]], seed: int):
    policy = LognormalCompute(sigma=1.5, device_sigma=0.5)
    clock = draw_compute_times(policy, 4, Randomness(seed))
    found = [clock.seconds(*where) for where in asked]
    fresh = [draw_compute_times(policy, 6, Randomness(seed)).seconds(*where) for where in asked]
    assert found == fresh
    assert all(0 < one < np.inf for one in found)


def test_the_widest_spread_stays_positive_and_finite():
    for median in (1e-9, 1e9):
        widest = times(LognormalCompute(median=median, sigma=10.0, device_sigma=10.0), 20, 300)
        assert (widest >= 1e-9).all()
        assert np.isfinite(widest).all()
    assert (times(LognormalCompute(median=1e-9), 2, 100) == 1e-9).mean(axis=1).min() > 0.3


def test_a_file_has_one_time_per_device_or_a_trace_that_is_repeated(write: Write):
    assert times(ComputeFile(path=write("Seconds, device\n2,1\n.5,0\n")), 2, 2).tolist() == [[0.5, 0.5], [2.0, 2.0]]
    trace = write("device,k,seconds,note\n0,1,2\n1,0,7,slow\n\n0,0,1\n")
    assert times(ComputeFile(path=trace), 2, 4).tolist() == [[1, 2, 1, 2], [7, 7, 7, 7]]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "with the columns none. Use the columns device, seconds or the columns device, k, seconds"),
        ("device,seconds\n0,1\n1,0\n", "seconds '0' in line 3"),
        ("device,seconds\n0,1e300\n1,1\n", "Use numbers from 1e-09 to 1e+09"),
        ("device,seconds\n0,1\n2,1\n", "device '2' in line 3"),
        ("device,seconds\n0,1\n", "no time of device 1 in"),
        ("device,seconds\n0,1\n1,1\n0,1\n", "device '0' in line 4"),
        ("device,k,seconds\n0,0,1\n0,2,1\n1,0,1\n", "no time of device 0 at k = 1"),
        ("device,k,seconds\n0,1,1\n1,0,1\n", "no time of device 0 at k = 0"),
        ("device,k,seconds\n0,0,1\n0,0,1\n1,0,1\n", "each step once"),
        ("device,k,seconds\n0,x,1\n1,0,1\n", "k 'x' in line 2"),
    ],
)
def test_a_bad_file_is_one_line(write: Write, content: str, said: str):
    text = refused(ComputeFile(path=write(content)))
    assert text.startswith("driver.compute.path: cannot use ")
    assert said in text


class Slow(ComputeTimes):
    """Gives whatever it was told to give."""

    gives: Any = 3

    def over_time(self, devices: int, randomness: Randomness) -> Any:
        return SimpleNamespace(seconds=lambda device, k: self.gives)


@pytest.mark.parametrize("wrong", [0, -1.0, float("nan"), float("inf"), None, "1", True])
def test_what_own_code_gives_is_checked(wrong: Any):
    assert times(Slow(gives=np.float32(2)), 2, 2).tolist() == [[2.0, 2.0]] * 2
    said = refused(Slow.model_construct(gives=wrong))
    assert f"driver.compute: cannot use {wrong!r} for device 0 at k = 0. Use compute times that are positive" in said


def test_own_code_that_fails_or_counts_its_calls_is_one_line():
    class Counts(Slow):
        def over_time(self, devices: int, randomness: Randomness) -> Any:
            calls = iter(range(1, 100))
            return SimpleNamespace(seconds=lambda device, k: next(calls))

    class Fails(Slow):
        def over_time(self, devices: int, randomness: Randomness) -> Any:
            return SimpleNamespace(seconds=lambda device, k: 1 / 0)

    class GivesNothing(Slow):
        def over_time(self, devices: int, randomness: Randomness) -> Any:
            return None

    assert "times that depend on the arguments only" in refused(Counts())
    assert "Fails raised ZeroDivisionError" in refused(Fails())
    assert "a NoneType from over_time. Use an object with the method seconds" in refused(GivesNothing())
