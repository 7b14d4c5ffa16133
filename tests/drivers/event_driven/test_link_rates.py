"""Rates over time are piecewise constant functions of config and seed, whatever is asked first."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from simulated import csv_writer, refusal

from efhc.base.errors import InputError
from efhc.core.randomness import Randomness
from efhc.drivers.event_driven.rates import MarkovRates, RateFile, Rates, draw_rates

SEED = Randomness(11)
BANDWIDTHS = np.array([10.0, 20.0, 30.0])
Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    return csv_writer(tmp_path / "rates.csv")


def read(path: Path) -> Rates:
    return RateFile(path=path).over_time(BANDWIDTHS, SEED)


def changes(rates: Rates, device: int, until: float) -> list[float]:
    found, time = [], 0.0
    while (time := rates.next_change(device, time)) <= until:
        found.append(time)
    return found


# Files


@pytest.mark.parametrize(
    "content",
    [
        "seconds,device,rate\n1,0,5\n2.5,0,0\n4,0,7\n0,2,1\n",
        "seconds,device,rate\n0,2,1\n1,0,5\n2.5,0,0\n4,0,7\n",
        "\ufeffrate, Device ,note,seconds\r\n5,0,a,1\r\n\r\n0, 0,b,2.5\r\n1,2,c,-0\r\n7,0,d,4\r\n",
    ],
    ids=["by device", "by time", "columns in another order"],
)
def test_file(write: Write, content: str):
    rates = read(write(content))
    times = [0.0, 0.99, 1.0, 2.0, 2.5, 3.9, 4.0, 1e9]
    assert [rates.rate(0, time) for time in times] == [10, 10, 5, 5, 0, 0, 7, 7]
    assert [rates.next_change(0, time) for time in times] == [1, 1, 2.5, 2.5, 4, 4, math.inf, math.inf]
    assert (rates.rate(1, 50.0), rates.next_change(1, 0.0)) == (20, math.inf)
    assert (rates.rate(2, 0.0), rates.next_change(2, 0.0)) == (1, math.inf)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("", "with the columns none. Use the columns seconds, device, rate"),
        ("seconds,device\n1,0\n", "with the columns seconds, device. Use the columns seconds, device, rate"),
        ("time,device,rate\n1,0,5\n", "with the columns time, device, rate"),
        ("1,0,5\n", "with the columns 1, 0, 5"),
        ("seconds,device,rate\n", "without a line below the header"),
        ("seconds,device,rate,Rate\n1,0,5,6\n", "with two columns rate. Use each column once"),
        ("seconds,device,rate\n-1,0,5\n", "seconds '-1' in line 2"),
        ("seconds,device,rate\nnan,0,5\n", "seconds 'nan' in line 2"),
        ("seconds,device,rate\ninf,0,5\n", "seconds 'inf' in line 2"),
        ("seconds,device,rate\n1e400,0,5\n", "seconds '1e400' in line 2"),
        ("seconds,device,rate\n,0,5\n", "seconds '' in line 2"),
        ("seconds,device,rate\n1,0,5\n1_0,0,5\n", "seconds '1_0' in line 3"),
        ("seconds,device,rate\n1,0,nan\n", "rate 'nan' in line 2"),
        ("seconds,device,rate\n1,0,1-2\n", "rate '1-2' in line 2"),
        ("seconds,device,rate\n1,0,-5\n", "rate '-5' in line 2"),
        ("seconds,device,rate\n1,0,fast\n", "rate 'fast' in line 2"),
        ("seconds,device,rate\n1,0,1e-300\n", "rate '1e-300' in line 2"),
        ("seconds,device,rate\n1,0,1e300\n", "rate '1e300' in line 2"),
        ("seconds,device,rate\n1,0\n", "rate '' in line 2"),
        ("seconds,device,rate\n1,0,5,\n2,,5\n", "device '' in line 3"),
        ("seconds,device,rate\n1,3,5\n", "device '3' in line 2"),
        ("seconds,device,rate\n1,-1,5\n", "device '-1' in line 2"),
        ("seconds,device,rate\n1,1.0,5\n", "device '1.0' in line 2"),
        ("seconds,device,rate\n1,\u0663,5\n", "device"),
        ("seconds,device,rate\n2,0,5\n3,1,5\n1,0,5\n", "second 1 after second 2 for device 0 in line 4"),
        ("seconds,device,rate\n2,0,5\n2,0,6\n", "second 2 after second 2 for device 0 in line 3"),
        ("seconds,device,rate\n1,0," + "1" * 200_000 + "\n", "rates.csv"),
    ],
    ids=lambda text: text[:40],
)
def test_file_refusals(write: Write, content: str, what: str):
    path = write(content)
    text = refusal(lambda: read(path))
    assert text.startswith("path: ")
    assert what in text
    assert str(path) in text


# Two states


def markov(seed: int = 11, devices: int = 3, **settings: float) -> Rates:
    return MarkovRates(**settings).over_time(np.full(devices, 10.0), Randomness(seed))


@given(
    seed=st.integers(0, 50),
    times=st.lists(st.tuples(st.integers(0, 2), st.floats(0, 2000)), min_size=1, max_size=30),
    bad_share=st.sampled_from([0.0, 0.25]),
)
@settings(deadline=None)
def test_a_time_has_one_rate_whatever_was_asked_before(seed: int, times: list[tuple[int, float]], bad_share: float):
    settings = {"good_seconds": 3.0, "bad_seconds": 5.0, "bad_share": bad_share}
    rates = markov(seed, **settings)
    for device, time in times:
        fresh = markov(seed, devices=device + 1, **settings)
        change = rates.next_change(device, time)
        assert change == fresh.next_change(device, time) > time
        assert rates.rate(device, time) == fresh.rate(device, time) in (10.0, 10.0 * bad_share)
        assert rates.rate(device, np.nextafter(change, 0)) == rates.rate(device, time)
        assert rates.rate(device, change) != rates.rate(device, time)


def test_durations_are_exponential_and_states_alternate():
    rates = markov(devices=1, good_seconds=6.0, bad_seconds=2.0, bad_share=0.5)
    times = changes(rates, 0, 8000.0)
    durations = np.diff(times)
    is_good = np.array([rates.rate(0, time) == 10.0 for time in times[:-1]])
    assert (is_good[1:] != is_good[:-1]).all()
    assert len(durations) > 1500
    assert stats.kstest(durations[is_good], stats.expon(scale=6.0).cdf).pvalue > 1e-3
    assert stats.kstest(durations[~is_good], stats.expon(scale=2.0).cdf).pvalue > 1e-3


@pytest.mark.parametrize("time", [0.0, 40.0])
def test_the_share_of_good_devices_is_the_same_at_all_times(time: float):
    rates = markov(devices=1000, good_seconds=6.0, bad_seconds=2.0)
    good = sum(rates.rate(i, time) == 10.0 for i in range(1000))
    assert abs(good - 750) < 4 * math.sqrt(1000 * 0.75 * 0.25)


def test_other_seeds_and_devices_have_other_courses():
    times = {rates.next_change(i, 100.0) for rates in (markov(1), markov(2)) for i in range(3)}
    assert len(times) == 6


def test_states_too_short_for_the_clock_are_refused_rather_than_drawn_for_ever():
    rates = markov(good_seconds=1e-9, bad_seconds=1e-9)
    assert 1e-7 < rates.next_change(0, 1e-7) < 1e-6
    for ask in (rates.rate, rates.next_change):
        with pytest.raises(
            InputError, match=r"^driver\.links\.rates: cannot use states that last 1e-09 seconds .* at second 3"
        ):
            ask(0, 3.0)


# Of the user's own


class Own:
    """Rates whose answers a test chooses."""

    def __init__(self, rate: object = 5.0, change: object = math.inf) -> None:
        self.answer, self.change = rate, change

    def over_time(self, bandwidths: object, randomness: object) -> "Own":
        return self

    def rate(self, device: int, seconds: float) -> object:
        return self.answer

    def next_change(self, device: int, seconds: float) -> object:
        return self.change


def test_own_rates_are_plain_numbers():
    rates = draw_rates(Own(np.float32(2.5), np.int64(7)), BANDWIDTHS, SEED)
    assert [type(one) for one in (rates.rate(0, 1.0), rates.next_change(0, 1.0))] == [float, float]
    assert (rates.rate(0, 1.0), rates.next_change(0, 1.0)) == (2.5, 7.0)


@pytest.mark.parametrize("rate", [math.nan, -1.0, math.inf, None, True, "5"], ids=str)
def test_own_rates_are_numbers_from_0(rate: object):
    with pytest.raises(InputError, match=r"^driver\.links\.rates: cannot use .* from rate\(2, 1\). Use 0 or a number"):
        draw_rates(Own(rate), BANDWIDTHS, SEED).rate(2, 1.0)


@pytest.mark.parametrize("change", [math.nan, 0.5, 1.0, None, -math.inf], ids=str)
def test_own_rates_change_later(change: object):
    with pytest.raises(InputError, match=r"from next_change\(2, 1\). Use a time after 1, or infinity"):
        draw_rates(Own(change=change), BANDWIDTHS, SEED).next_change(2, 1.0)


def test_own_rates_that_fail_are_told_in_one_line():
    class Failing(Own):
        def rate(self, device: int, seconds: float) -> object:
            raise KeyError(device)

        def over_time(self, bandwidths: object, randomness: object) -> object:
            return self if bandwidths is BANDWIDTHS else None

    with pytest.raises(InputError, match=r"^driver\.links\.rates: your .*Failing raised KeyError.*: 0"):
        draw_rates(Failing(), BANDWIDTHS, SEED).rate(0, 0.0)
    with pytest.raises(InputError, match="kind: cannot use a NoneType from over_time"):
        draw_rates(Failing(), BANDWIDTHS[:2], SEED)
