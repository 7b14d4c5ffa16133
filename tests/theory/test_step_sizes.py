from __future__ import annotations

import independent_theory as own
import pytest
from hypothesis import given
from hypothesis import strategies as st

from efhc.core.schedules import Constant, Diminishing
from efhc.theory.bounds import Constants
from efhc.theory.step_sizes import LABELS, Limits, limits, theorem_for


def own_function(k):
    return 0.1 / (1 + k)


def diminishing(power, initial=0.1):
    return Diminishing(initial=initial, timescale=2.0, power=power)


@pytest.mark.parametrize(
    ("schedule", "convexity", "name"),
    [
        (Constant(value=0.1), 1.0, "constant"),
        (diminishing(0.5), 1.0, "diminishing"),
        (diminishing(1), 1.0, "diminishing"),
        (own_function, 1.0, "non_increasing"),
        (Constant(value=0.1), 0.0, "nonconvex"),
        (diminishing(0.5), -1.0, "nonconvex"),
        (own_function, 0.0, "nonconvex"),
    ],
)
def test_theorem_for(schedule, convexity, name):
    assert theorem_for(schedule, convexity) == name
    assert name in Limits._fields


def test_every_limit_has_a_label():
    assert set(LABELS) == set(Limits._fields)


@given(
    st.integers(2, 30), st.floats(0.1, 20), st.floats(0, 0.99), st.integers(1, 12), st.floats(0, 5), st.floats(0, 5)
)  # fmt: skip
def test_limits_are_those_of_the_theorems(m, L, rho, B, delta, sigma):
    n = own.Numbers(m=m, L=L, mu=L / 3, delta=delta, sigma=sigma, rho=rho, B=B)
    constant = own.constant_limit(n)
    expected = (constant, constant, own.diminishing_limit(n), own.nonconvex_limit(n))
    found = limits(Constants(m, L, L / 3, delta, sigma**2, B, rho))
    assert found == pytest.approx(expected, rel=1e-10)
