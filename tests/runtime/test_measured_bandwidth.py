from efhc.runtime.measured_bandwidth import MeasuredBandwidth


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
