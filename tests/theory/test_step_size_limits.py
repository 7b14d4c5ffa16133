from __future__ import annotations

import independent_theory as own
import numpy as np
import pytest
from hypothesis import given

from efhc.core.schedules import Constant, Diminishing
from efhc.theory import bounds
from efhc.theory.bounds import Constants, StepSizeLimits, step_size_limits
from efhc.theory.checks import check_schedule, check_step_size, theorem_for
from tests.theory.drawn import numbers, ours

CONSTANTS = Constants(
    4, smoothness=2.0, convexity=0.5, diversity=0.7, noise=0.3, window=3, contraction=0.6, dependent=False
)


def own_function(k):
    return 0.1 / (1 + k)


def diminishing(power, initial=0.1):
    return Diminishing(initial=initial, timescale=2.0, power=power)


@pytest.mark.parametrize("schedule", [Constant(value=0.1), diminishing(0)])
def test_a_constant_schedule_holds(schedule):
    assert check_schedule(schedule, 100)[:4] == ("step-sizes", "assump:stepsizes-(a)", "held", "constant")


@pytest.mark.parametrize(
    ("power", "verdict"), [(0.3, "broken"), (0.5, "broken"), (0.500001, "held"), (0.75, "held"), (1, "held")]
)
def test_a_diminishing_schedule_needs_summable_squares(power, verdict):
    check = check_schedule(diminishing(power), 100)
    assert (check.label, check.verdict) == ("assump:stepsizes-(b)", verdict)
    assert check.values == {"theta": power}
    assert check.reason == {0.3: "not-summable", 0.5: "half"}.get(power, "summable")


@pytest.mark.parametrize(("power", "converges"), [(0.3, False), (0.5, False), (0.75, True), (1, True)])
def test_the_verdict_is_that_of_the_sums(power, converges):
    # By the integral test: the sum from K to 8K of alpha^2 shrinks in K exactly if all of it is finite.
    squares = [sum(diminishing(power)(k) ** 2 for k in range(first, 8 * first)) for first in (200, 1600)]
    assert (squares[1] < 0.9 * squares[0]) == converges
    assert (check_schedule(diminishing(power), 100).verdict == "held") == converges


@pytest.mark.parametrize(
    ("schedule", "found"),
    [(own_function, ("not checkable", None)), (lambda k: 0.1 if k < 5 else 0.2, ("broken", 5))],
    ids=["falls", "rises"],
)
def test_a_function_of_ones_own_must_not_rise_and_nothing_else_is_checked(schedule, found):
    check = check_schedule(schedule, 100)
    assert (check.label, check.verdict, check.iteration) == ("assump:stepsizes", *found)


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
    assert name in StepSizeLimits._fields


@given(numbers())
def test_limits_are_those_of_the_theorems(n):
    constant, diminishing = own.constant_limit(n), own.diminishing_limit(n)
    found = step_size_limits(ours(n))
    assert found == pytest.approx((constant, constant, diminishing, own.nonconvex_limit(n)), rel=1e-10)
    if not n.dependent:
        assert constant == pytest.approx(own.printed_constant_limit(n), rel=1e-10)
        assert diminishing == pytest.approx(own.printed_diminishing_limit(n), rel=1e-10)
    assert found.diminishing <= found.constant <= 1 / 8 * 2 / (n.mu + n.L) * (1 + 1e-12)
    assert 0 < found.nonconvex < 1 / (2 * n.L)


@given(numbers())
def test_limits_fall_with_window_smoothness_and_contraction(n):
    for changed in ({"window": n.B + 1}, {"smoothness": n.L * 1.01}, {"contraction": n.rho + 0.01}):
        assert (np.array(step_size_limits(ours(n)._replace(**changed))) < step_size_limits(ours(n))).all()


def test_a_step_size_between_both_limits_is_too_large_only_for_triggers_that_look_at_the_models():
    alpha = 0.99 * bounds.largest_step_size(CONSTANTS)
    verdicts = [check_step_size(Constant(value=alpha), CONSTANTS._replace(dependent=d)).verdict for d in (False, True)]
    assert verdicts == ["held", "broken"]


@pytest.mark.parametrize(
    ("schedule", "convexity", "label", "limit"),
    [
        (Constant, 0.5, "theorem:constant", bounds.largest_step_size),
        (lambda value: diminishing(0.5, value), 0.5, "theorem:diminishing", bounds.largest_diminishing_step_size),
        (lambda value: lambda k: value / (1 + k), 0.5, "proposition:nonIncreasing", bounds.largest_step_size),
        (Constant, 0.0, "theorem:nonconvex", bounds.largest_nonconvex_step_size),
    ],
)
def test_a_step_size_against_its_limit(schedule, convexity, label, limit):
    constants = CONSTANTS._replace(convexity=convexity)
    largest = limit(constants)
    make = (lambda value: Constant(value=value)) if schedule is Constant else schedule
    held, broken = (check_step_size(make(share * largest), constants) for share in (0.999, 2.0))
    assert (held.label, held.verdict, held.iteration) == (label, "held", None)
    assert (broken.label, broken.verdict, broken.iteration) == (label, "broken", 0)
    assert broken.values["times"] == pytest.approx(2)
    assert held.values["limit"] == broken.values["limit"] == largest


@pytest.mark.parametrize("schedule", [Constant(value=1e9), diminishing(0.5, 1e9), own_function])
def test_without_curvature_every_step_size_holds(schedule):
    flat = CONSTANTS._replace(smoothness=0.0, convexity=0.0)
    assert step_size_limits(flat) == (float("inf"),) * 4
    check = check_step_size(schedule, flat)
    assert (check.verdict, check.iteration, check.values["limit"]) == ("held", None, float("inf"))


@pytest.mark.parametrize("contraction", [1.0, 1.0 + 1e-12, 1.1])
@pytest.mark.parametrize("schedule", [Constant(value=1e-9), diminishing(0.5, 1e-9), own_function])
def test_without_contraction_every_step_size_is_too_large(schedule, contraction):
    none = CONSTANTS._replace(contraction=contraction)
    assert step_size_limits(none) == (0, 0, 0, 0)
    check = check_step_size(schedule, none)
    assert (check.verdict, check.reason) == ("broken", "none")
