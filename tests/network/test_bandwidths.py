"""Bandwidths are positive, one per device, of the distribution that was asked, or of the file as it stands."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from scipy import stats

from efhc.base.errors import InputError
from efhc.core.randomness import Randomness
from efhc.network import AnyBandwidths
from efhc.network.bandwidths import BandwidthFile, BetaBandwidth, ConstantBandwidth, GivenBandwidths, UniformBandwidth

SEED = Randomness(3)
Write = Callable[[str], Path]


def refused(path: Path, devices: int = 3) -> str:
    with pytest.raises(InputError) as caught:
        BandwidthFile(path=path).draw(devices, SEED)
    assert caught.value.field == "path"
    assert "\n" not in str(caught.value)
    return str(caught.value)


@given(nominal=st.floats(0.1, 1e6), spread=st.floats(0, 0.99), seed=st.integers(0, 100))
@settings(max_examples=30, deadline=None)
def test_uniform_stays_in_its_range(nominal: float, spread: float, seed: int):
    drawn = UniformBandwidth(nominal=nominal, spread=spread).draw(50, Randomness(seed))
    assert drawn.values.shape == (50,)
    assert drawn.values.min() >= (1 - spread) * nominal * (1 - 1e-12)
    assert drawn.values.max() <= (1 + spread) * nominal * (1 + 1e-12)
    assert drawn.values.min() > 0
    assert drawn.nominal == nominal


def test_uniform_is_uniform():
    drawn = UniformBandwidth(nominal=5000, spread=0.9).draw(2000, SEED)
    assert stats.kstest(drawn.values, stats.uniform(500, 9000).cdf).pvalue > 1e-3


def test_beta_is_beta_above_its_floor():
    policy = BetaBandwidth(nominal=5000, a=0.5, b=0.5, floor=0.1)
    drawn = policy.draw(4000, SEED)
    assert drawn.nominal == 5000
    assert drawn.values.min() == 0.1 * 5000
    assert drawn.values.max() <= 5000
    at_floor, share = (drawn.values == 500).mean(), stats.beta(0.5, 0.5).cdf(0.1)
    assert abs(at_floor - share) < 4 * np.sqrt(share * (1 - share) / 4000)
    above = drawn.values[drawn.values > 500] / 5000
    assert stats.kstest(above, lambda x: (stats.beta(0.5, 0.5).cdf(x) - share) / (1 - share)).pvalue > 1e-3


@pytest.mark.parametrize("policy", [UniformBandwidth(), BetaBandwidth()], ids=repr)
def test_same_seed_same_draw_and_a_further_device_leaves_the_others_alone(policy: UniformBandwidth):
    assert np.array_equal(policy.draw(10, SEED).values, policy.draw(14, SEED).values[:10])
    assert not np.array_equal(policy.draw(10, SEED).values, policy.draw(10, Randomness(4)).values)


def test_list_and_its_nominal():
    assert ConstantBandwidth(value=123.0).draw(2, SEED).values.tolist() == [123.0] * 2
    assert GivenBandwidths(values=[1.0, 2.0, 6.0]).draw(3, SEED).values.tolist() == [1, 2, 6]
    with pytest.raises(InputError, match=r"^values: cannot use 3 bandwidths. .*4"):
        GivenBandwidths(values=[1.0, 2.0, 6.0]).draw(4, SEED)
    assert GivenBandwidths(values=[1.0, 2.0, 6.0]).draw(3, SEED).nominal == 3
    assert GivenBandwidths(values=(1.0, 2.0), nominal=7).draw(2, SEED).nominal == 7


@pytest.mark.parametrize(
    "table",
    [
        {"kind": "list", "values": [1.0, 0.0]},
        {"kind": "list", "values": [1.0, -3.0]},
        {"kind": "list", "values": [1.0, float("nan")]},
        {"kind": "list", "values": [1.0, float("inf")]},
        {"kind": "list", "values": [1.0, "fast"]},
        {"kind": "constant", "value": 0.0},
        {"kind": "uniform", "spread": 1.0},
        {"kind": "uniform", "nominal": -1.0},
        {"kind": "beta", "floor": 0.0},
        {"kind": "beta", "a": 0.0},
        {"kind": "list", "values": [1.0, 1e308]},
        {"kind": "list", "values": [1.0], "nominal": 5e-324},
        {"kind": "csv", "path": "b.csv", "nominal": 1e308},
    ],
    ids=str,
)
def test_impossible_numbers_are_refused_when_given(table: dict[str, object]):
    with pytest.raises(ValidationError):
        TypeAdapter(AnyBandwidths).validate_python(table)


def test_a_table_without_a_kind_is_uniform():
    assert TypeAdapter(AnyBandwidths).validate_python({"spread": 0.5}) == UniformBandwidth(spread=0.5)


# Files


@pytest.mark.parametrize(
    ("content", "values"),
    [
        ("100\n250.5\n3e3\n", [100, 250.5, 3000]),
        ("100\r\n200\r\n300", [100, 200, 300]),
        ("\n100\n\n200\n300\n\n", [100, 200, 300]),
        ("bandwidth\n1\n2\n3\n", [1, 2, 3]),
        ("device,bandwidth\n2,30\n0,10\n1,20\n", [10, 20, 30]),
        ("\ufeffdevice,bandwidth\n2,30\n0,10\n1,20\n", [10, 20, 30]),  # spreadsheets write a mark in front
        ("bandwidth, device, note\n30, 2, slow\n10, 0, fast\n20, 1,\n", [10, 20, 30]),
    ],
)
def test_file_layouts(write: Write, content: str, values: list[float]):
    drawn = BandwidthFile(path=write(content)).draw(3, SEED)
    assert drawn.values.tolist() == values
    assert drawn.nominal == pytest.approx(np.mean(values))
    assert BandwidthFile(path=write(content), nominal=50).draw(3, SEED).nominal == 50


BAD = ["nan", "0", "-5", "inf", "fast", "1 2", "", "1e400", "1_000", "0x10", "\u0663", "1e308", "5e-324", "1e-101"]


@pytest.mark.parametrize("bad", BAD)
def test_file_with_a_bad_number_names_it(write: Write, bad: str):
    content = f"device,bandwidth\n0,10\n1,{bad}\n2,30\n"
    path = write(content)
    text = refused(path)
    assert f"bandwidth {bad!r} in line 3 of {path}" in text
    if bad:
        assert f"bandwidth {bad!r} in line 2 of {path}" in refused(write(f"10\n{bad}\n30\n"))


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("1\n2\n", "2 bandwidths"),
        ("1\n2\n3\n4\n", "4 bandwidths"),
        ("", "at least one line"),
        ("device,bandwidth\n0,1\n2,3\n", "2 bandwidths"),
        ("device,bandwidth\n0,1\n1,2\n3,3\n", "device '3'"),
        ("device,bandwidth\n0,1\n1,2\nx,3\n", "device 'x'"),
        ("device,bandwidth\n0,1\n1,2\n-1,3\n", "device '-1'"),
        ("device,bandwidth\n0,1\n1,2\n,3\n", "device ''"),
        ("device,bandwidth\n0,1\n1,2\n1,3\n", "each device once"),
        ("device,bandwidth\n0,1\n1,2\n2\n", "line 4"),
        ("1,2,3\n", "'1,2,3'"),
        ("node,speed\n0,1\n1,2\n2,3\n", "'node,speed'"),
        ("1" * 200_000, "a CSV file"),  # cells that Python itself cannot read
        ("device,bandwidth\n" + "1" * 5000 + ",4\n", "device '1111"),
    ],
)
def test_file_refusals(write: Write, content: str, what: str):
    assert what in refused(write(content))


def test_a_floor_that_makes_bandwidths_vanish_is_refused():
    with pytest.raises(InputError, match="floor"):
        BetaBandwidth(a=0.001, b=5.0, floor=5e-324).draw(50, Randomness(0))
