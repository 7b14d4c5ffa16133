from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from efhc.core.schedules import Constant, Cosine, Diminishing, WarmUp


@given(st.integers(0, 10**6), st.floats(1e-6, 1e3), st.floats(1e-3, 1e6), st.floats(0, 1))
def test_diminishing_is_the_papers_formula(k, initial, timescale, power):
    alpha = Diminishing(initial=initial, timescale=timescale, power=power)
    assert alpha(k) == pytest.approx(initial / (1 + k / timescale) ** power, rel=1e-12)
    assert alpha(0) == initial
    assert alpha(k + 1) <= alpha(k)


def test_the_papers_step_size():
    assert [Diminishing()(k) for k in (0, 3, 99)] == pytest.approx([0.1, 0.05, 0.01])
    assert Diminishing()(17) == pytest.approx(0.1 / math.sqrt(18), rel=1e-15)


def test_constant_is_constant():
    assert {Constant(value=0.3)(k) for k in range(5)} == {0.3}


@pytest.mark.parametrize("bad", [{"initial": 0.0}, {"power": 2.0}, {"timescale": -1.0}, {"initial": float("nan")}])
def test_impossible_schedules_are_refused(bad):
    with pytest.raises(ValidationError):
        Diminishing(**bad)


def test_warm_up_grows_to_diminishing():
    schedule, plain = WarmUp(iterations=4, initial=0.2), Diminishing(initial=0.2)
    assert [schedule(k) / plain(k) for k in range(6)] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0])


def test_cosine_goes_from_the_initial_to_the_final_value():
    schedule = Cosine(initial=1.0, final=0.1, iterations=100, warm_up=10)
    assert [schedule(k) for k in (0, 4, 9)] == pytest.approx([0.1, 0.5, 1.0])
    assert schedule(10) == 1.0
    assert schedule(55) == pytest.approx(0.55)
    assert schedule(100) == schedule(1000) == pytest.approx(0.1)
