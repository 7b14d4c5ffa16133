import pytest

from efhc.runtime.bandwidth import MeasuredBandwidth, UplinkMeter


def test_it_is_the_mean_over_links_in_parameters_per_second():
    bandwidth = MeasuredBandwidth(nominal=1000.0, parameter_bytes=4)
    assert bandwidth.update([]) == 1000.0  # nothing is known yet
    assert bandwidth.update([4000.0, 12000.0]) == 2000.0
    assert bandwidth.update([]) == 2000.0


def test_it_is_bounded_and_warned_about_once():
    bandwidth = MeasuredBandwidth(nominal=1000.0, parameter_bytes=4)
    assert bandwidth.warning() is None
    assert bandwidth.update([1e12]) == 1e6
    assert "r belongs to the nominal bandwidth" in bandwidth.warning()
    assert bandwidth.warning() is None
    assert bandwidth.update([1e-9]) == 1.0


def test_no_link_is_faster_than_what_the_node_may_send():
    bandwidth = MeasuredBandwidth(nominal=1000.0, parameter_bytes=4, send_limit=20000.0)
    assert bandwidth.update([76000.0]) == 5000.0
    assert bandwidth.update([8000.0]) == 2000.0


# What an uplink carries


def uplink(rate: float, steps: int, wanted: int, latency: float = 0.0, seconds: float = 0.2) -> float:
    """Return what a meter says of an uplink of so many bytes per second that is given `wanted` bytes at each step."""
    meter, given, left = UplinkMeter(), 0, 0.0
    arrived = [(0.0, 0.0)]
    for step in range(1, steps + 1):
        now = step * seconds
        left = min(float(given), left + rate * seconds)
        arrived.append((now + latency, left))
        meter.sample(round(max(amount for at, amount in arrived if at <= now)), left < given, now)
        given += wanted
    assert meter.rate is not None
    return meter.rate


@pytest.mark.parametrize("rate", [800.0, 16_000.0])
def test_an_uplink_that_is_busy_all_the_time_is_measured_exactly(rate: float):
    assert uplink(rate, 40, wanted=round(rate)) == pytest.approx(rate, rel=0.05)
    assert uplink(rate, 60, wanted=round(rate), latency=0.3) == pytest.approx(rate, rel=0.05)


def test_an_uplink_on_which_nothing_waits_counts_as_a_quarter_faster_than_what_it_carried():
    assert uplink(1e9, 20, wanted=500) == pytest.approx(3125)


def test_nothing_is_known_before_something_was_sent():
    meter = UplinkMeter()
    for step in range(5):
        meter.sample(0, False, step)
    assert meter.rate is None
