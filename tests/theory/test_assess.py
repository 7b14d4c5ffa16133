"""The judging of what runs showed, on small typed inputs: no run is made here."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from efhc.core.schedules import Constant, Diminishing
from efhc.theory import bounds
from efhc.theory.bounds import Constants, step_size_limits
from efhc.theory.checks import (
    FEW_SEEDS,
    StrategyCheck,
    assess,
    check_bound,
    check_contraction,
    check_problem,
    check_rate,
    check_windows,
)
from efhc.theory.connectivity import ChosenWindow, Connectivity, Window
from efhc.theory.contractions import Contractions
from efhc.theory.findings import SUBJECTS, Certainty, Check, worst_checks
from efhc.theory.problem import Curvature, Measured, Optimum
from efhc.theory.promises import Promises, SeedCheck, only_grows

CONSTANTS = Constants(
    4, smoothness=2.0, convexity=0.5, diversity=0.7, noise=0.3, window=3, contraction=0.6, dependent=False
)
CERTAIN = Certainty()
ITERATIONS = np.array([0, 1, 5, 20, 60])


def diminishing(power, initial=0.1):
    return Diminishing(initial=initial, timescale=2.0, power=power)


def curvature(known: Any = "exact", smoothness=(2.0, 3.0), convexity=(0.5, 0.6)) -> Curvature:
    return Curvature(np.array(smoothness), np.array(convexity), known)


def windows(physical: float = 1, broadcast: float = 1, observed: float = 1) -> Connectivity:
    return Connectivity(Window(physical), Window(broadcast, device=0), Window(observed))


def contractions(largest: float = 0.6, looked: int = 4, of: int = 4) -> Contractions:
    values = np.full(looked, largest)
    return Contractions(3, np.arange(looked), values, of)


def measured(scale: float = 1.0, points: int = len(ITERATIONS), **fields: Any) -> Measured:
    """Errors that halve from point to point."""
    falling = scale * 0.5 ** np.arange(points)
    rows = {field.name: falling for field in dataclasses.fields(Measured)}
    return Measured(**{**rows, "noise_error": np.zeros(points), **fields})


def seed_check(scale: float = 1.0, **fields: Any) -> SeedCheck:
    given = {
        "checks": [Check("weights", "assump:weights", "held", "sound", {"iterations": 60})],
        "connectivity": windows(),
        "contractions": contractions(),
        "curvature": curvature(),
        "optimum": Optimum(np.zeros(2), 0.1, 0.0),
        "measured": measured(scale),
    }
    return SeedCheck(**{**given, **fields})


def assessed(seeds: int = 2, schedule: Any = None, firing: Any = "fixed", **fields: Any) -> StrategyCheck:
    given = {seed: seed_check(**fields) for seed in range(seeds)}
    chosen = ChosenWindow(3, "promised")
    return assess("ZT", given, schedule or Constant(value=1e-3), 60, ITERATIONS, chosen, firing)


def found(check: StrategyCheck, subject: str) -> Check:
    (one,) = (each for each in check.checks if each.subject == subject)
    return one


def verdicts(check: StrategyCheck) -> dict[str, str]:
    return {each.subject: each.verdict for each in check.checks}


# A whole strategy


def test_each_subject_is_judged_once():
    check = assessed(5)
    assert sorted(verdicts(check)) == sorted(set(SUBJECTS) - {"links-used", "same-run", "rate"})
    assert len(check.checks) == 14
    assert (found(check, "step-sizes").label, found(check, "step-size-limit").label) == (
        "assump:stepsizes-(a)",
        "theorem:constant",
    )
    assert check.promises is not None
    assert check.promises.gap is not None


def test_bounds_start_from_each_seed_and_their_mean_is_that_of_the_mean_start():
    seeds = {n: seed_check(scale) for n, scale in enumerate((1.0, 4.0))}
    schedule = Constant(value=1e-3)
    check = assess("ZT", seeds, schedule, 60, ITERATIONS, ChosenWindow(3, "promised"), "fixed")
    assert check.promises is not None
    assert check.promises.bounds[:, 0, 0].tolist() == [1.0, 4.0]
    alone = bounds.error_bound(check.promises.constants, np.full(60, 1e-3), np.array([2.5, 2.5]))
    assert check.promises.bound == pytest.approx(alone[ITERATIONS], rel=1e-12)
    gap, start = 2.5 - 0.1, 2.5
    gradient = bounds.running_mean_bound(check.promises.constants, np.full(61, 1e-3), gap, start)
    assert check.promises.gradient_bound == pytest.approx(gradient[ITERATIONS], rel=1e-12)


def test_constants_are_the_worst_of_all_seeds():
    seeds = {
        0: seed_check(
            1.0, curvature=curvature(smoothness=(2, 9), convexity=(0.5, 0.6)), contractions=contractions(0.8)
        ),
        1: seed_check(
            3.0, curvature=curvature(smoothness=(4, 4), convexity=(0.2, 0.9)), contractions=contractions(0.6)
        ),
    }
    check = assess("ZT", seeds, Constant(value=1e-4), 60, ITERATIONS, ChosenWindow(3, "promised"), "fixed")
    assert check.promises is not None
    assert check.promises.constants == (2, 9, 0.2, 3.0, 3.0, 3, 0.8, False)


def test_no_theorem_applies_without_smoothness():
    kinks = curvature(smoothness=(math.inf, math.inf), convexity=(0, 0))
    check = assessed(2, curvature=kinks, measured=Measured.of_consensus(np.ones(len(ITERATIONS))), optimum=None)
    assert check.promises is None
    assert found(check, "step-size-limit")[2:4] == ("not checkable", "no-smoothness")
    assert found(check, "smoothness")[2:4] == ("broken", "kinks")
    assert found(check, "convexity")[2:4] == ("broken", "flat")  # which blames nobody
    assert found(check, "convexity").device is None
    assert found(check, "diversity").verdict == found(check, "noise").verdict == "not checkable"
    assert {"optimisation-bound", "consensus-bound", "gradient-bound"}.isdisjoint(verdicts(check))
    assert found(check, "contraction").verdict == "held"


def test_no_theorem_applies_without_a_window():
    seeds = {0: seed_check(connectivity=windows(1, math.inf, math.inf), contractions=None)}
    check = assess("never", seeds, Constant(value=1e-3), 60, ITERATIONS, None, "fixed")
    assert check.promises is None
    assert check.window is None
    for subject in ("step-size-limit", "contraction"):
        assert found(check, subject)[2:4] == ("not checkable", "no-window")


@pytest.mark.parametrize("value", [1e-3, 10.0])
def test_what_rests_on_estimates_is_not_checkable(value):
    check = assessed(5, Constant(value=value), curvature=curvature("estimate"))
    for subject in ("smoothness", "convexity", "step-size-limit", "consensus-bound", "gradient-bound"):
        assert (found(check, subject).verdict, found(check, subject).iteration) == ("not checkable", None)
    assert found(check, "step-size-limit").values["estimate"]


def test_a_window_shorter_than_the_observed_one_promises_nothing():
    seeds = {0: seed_check(connectivity=windows(1, 5, 4))}
    check = assess("ZT", seeds, Constant(value=1e-3), 60, ITERATIONS, ChosenWindow(3, "given"), "fixed")
    for subject in ("contraction", "step-size-limit"):
        assert found(check, subject)[2:4] == ("not checkable", "short")
        assert found(check, subject).values["observed"] == 4


@pytest.mark.parametrize(("sought", "reason"), [(True, "no-optimum"), (False, "optimum-not-sought")])
def test_without_a_minimiser_only_its_distance_has_no_bound(sought, reason):
    unknown = measured(optimisation_error=np.full(len(ITERATIONS), np.nan))
    seeds = {n: seed_check(measured=unknown, optimum=None) for n in range(5)}
    chosen = ChosenWindow(3, "promised")
    check = assess("ZT", seeds, Constant(value=1e-3), 60, ITERATIONS, chosen, "fixed", optimum_sought=sought)
    assert found(check, "optimisation-bound")[2:4] == ("not checkable", reason)
    assert check.promises is not None
    assert check.promises.gap is None
    assert np.isfinite(check.promises.bound[:, 1]).all()


# Several seeds


def test_the_worst_seed_is_named_where_seeds_differ():
    def some(verdict: Any, reason: str) -> Check:
        return Check("weights", "assump:weights", verdict, reason)

    held, unknown, bad = some("held", "sound"), some("not checkable", "x"), some("broken", "diagonal")
    for given, worst in (
        ([held, held], held),
        ([held, bad], bad._replace(seed=7)),
        ([unknown, bad], bad._replace(seed=7)),
        ([bad, bad._replace(device=3)], bad._replace(seed=3)),
        ([unknown, unknown], unknown),
        ([some("held where looked", "y"), some("undecided", "z")], some("undecided", "z")._replace(seed=7)),
    ):
        assert worst_checks([3, 7], [[each] for each in given]) == [worst]


def test_windows_over_seeds_are_the_largest():
    physical, broadcast, promise = check_windows({0: windows(1, 4, 2), 3: windows(2, 3, 3)}, 60, CERTAIN)
    assert (physical.values["B1"], broadcast.values["B2"], promise.values["promised"]) == (2, 4, 6)
    assert all(check.verdict == "held" and check.values["at_most"] for check in (physical, broadcast, promise))
    same = check_windows({0: windows(1, 4, 2), 3: windows(1, 4, 2)}, 60, CERTAIN)
    assert not any(check.values["at_most"] for check in same)


def test_windows_of_a_seed_that_is_cut_off_are_its_own():
    cut = Connectivity(Window(41, witness=20), Window(1, device=0), Window(41, witness=20))
    physical, _, promise = check_windows({0: windows(), 3: cut}, 60, CERTAIN)
    assert (physical.verdict, physical.seed, physical.values["B1"]) == ("not checkable", 3, 41)
    assert (promise.verdict, promise.seed) == ("not checkable", 3)


# Contraction


@pytest.mark.parametrize(
    ("found", "verdict"),
    [(contractions(0.9), "held"), (contractions(0.9, 2, 4), "held where looked"), (contractions(1.0), "broken")],
)
def test_contraction(found, verdict):
    check = check_contraction({0: seed_check(contractions=found)}, ChosenWindow(3, "observed"), CERTAIN)
    assert (check.verdict, check.values["B"], check.values["kind"]) == (verdict, 3, "observed")
    assert check.values["rho"] == found.largest


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [("observed", "not checkable"), ("given", "not checkable"), ("promised", "held where looked")],
)
def test_a_window_that_the_end_of_the_run_cuts_off_is_none_to_judge_by(kind: Any, verdict):
    """Four windows of B = 3 are a run of six iterations; its links are last connected at iteration 3."""
    cut = Connectivity(Window(1), Window(1, device=0), Window(3, witness=4))
    check = check_contraction({0: seed_check(connectivity=cut)}, ChosenWindow(3, kind), CERTAIN)
    assert (check.verdict, check.reason) == (verdict, "contracts" if kind == "promised" else "no-window")


@pytest.mark.parametrize("chosen", [None, ChosenWindow(55, "given")], ids=["none", "given"])
def test_a_network_that_is_cut_for_good_has_no_limits(chosen):
    """Its links are last connected at iteration 9 of 60."""
    cut = Connectivity(Window(51, witness=10), Window(1, device=0), Window(51, witness=10))
    seeds = {0: seed_check(connectivity=cut, contractions=chosen and contractions(0.5, 6, 6))}
    check = assess("ZT", seeds, Constant(value=1e-3), 60, ITERATIONS, chosen, "fixed")
    assert check.promises is None
    found = verdicts(check)
    assert found["contraction"] == found["step-size-limit"] == found["physical-graph"] == "not checkable"
    assert "consensus-bound" not in found


@pytest.mark.parametrize(("firing", "links_by_chance"), [("coins", False), ("fixed", True), ("drift", True)])
def test_what_rests_on_chance_is_held_where_looked(firing, links_by_chance):
    seeds = {0: seed_check()}
    chosen = ChosenWindow(3, "expected")
    schedule = Constant(value=1e-4)
    check = assess("RG", seeds, schedule, 60, ITERATIONS, chosen, firing, links_by_chance=links_by_chance)
    found = verdicts(check)
    assert found["information-flow"] == found["contraction"] == found["step-size-limit"] == "held where looked"
    sure = verdicts(assess("ZT", seeds, schedule, 60, ITERATIONS, ChosenWindow(3, "promised"), "fixed"))
    assert sure["information-flow"] == sure["contraction"] == sure["step-size-limit"] == "held"


# The problem


def problem(curved: Curvature, noise: float = 0.3, error: float = 0.0) -> dict[str, Check]:
    of = [np.full((2, 3), value) for value in (0.7, noise, error)]
    return {check.subject: check for check in check_problem(curved, *of, total_iterations=60)}


def test_one_device_that_is_not_strongly_convex_is_named():
    found = problem(curvature(convexity=(0.5, 0.0)))["convexity"]
    assert (found.verdict, found.reason, found.device) == ("broken", "flat-device", 1)


def test_diversity_is_held_where_looked_at_most():
    softmax = problem(curvature("bound"))["diversity"]
    assert (softmax.verdict, softmax.reason, softmax.values["points"]) == ("held where looked", "visited", 3)
    # quadratics with unequal Hessians have gradients that are arbitrarily far apart
    assert problem(curvature("exact"))["diversity"].reason == "unbounded"
    alike = curvature("exact", smoothness=(2, 2), convexity=(0.5, 0.5))
    assert problem(alike)["diversity"].reason == "visited"


def test_noise_is_held_where_looked_at_most():
    for error, reason in ((0.0, "exact"), (0.1, "estimate")):
        found = problem(curvature(), error=error)["noise"]
        assert (found.verdict, found.reason, found.values["error"]) == ("held where looked", reason, error)


# Bounds


def promises(noise: float = 0.3, **fields: Any) -> Promises:
    constants = CONSTANTS._replace(noise=noise)
    given = {
        "constants": constants,
        "limits": step_size_limits(constants),
        "bounds": np.ones((1, 5, 2)),
        "gap": None,
        "gradient_bounds": np.ones((1, 5)),
        "growing": frozenset[str](),
        "printed_weights": bounds.printed_weights(constants, 0.01),
    }
    return Promises(**{**given, **fields})


def bounded(values: list[float], seeds: int, spread: float = 0.0, **fields: Any) -> Check:
    """Seeds whose errors are `values`, give or take `spread`, under a bound of 1 from their common start."""
    offsets = np.linspace(-spread, spread, seeds)[:, None]
    errors = np.array([1.0, *values]) + offsets
    bound = np.ones((seeds, len(values) + 1))
    of = promises(**fields)
    return check_bound("consensus-bound", errors, bound, ITERATIONS[: len(values) + 1], of)


@pytest.mark.parametrize("values", [[0.5, 0.1], [0.5, 3.0]], ids=["below", "above"])
@pytest.mark.parametrize("seeds", [1, FEW_SEEDS - 1])
def test_few_noisy_seeds_decide_nothing_whether_below_or_above(values, seeds):
    check = bounded(values, seeds)
    assert (check.verdict, check.reason, check.iteration) == ("undecided", "few-seeds", None)


def test_many_noisy_seeds_decide_by_their_interval():
    assert bounded([0.5, 0.1], 5, 0.01)[2:4] == ("held where looked", "below")
    above = bounded([0.5, 3.0], 5, 0.01)
    assert above[2:4] == ("broken", "above")
    assert above.iteration == above.values["k"] == 5
    assert above.values["measured"] == pytest.approx(3.0)
    for value in (0.9, 1.1):
        assert bounded([0.5, value], 5, 1.0)[2:4] == ("undecided", "interval")


def test_without_noise_every_seed_must_keep_to_its_bound():
    assert bounded([0.5, 0.1], 1, noise=0.0)[2:4] == ("held where looked", "below")
    assert bounded([0.5, 1.1], 1, noise=0.0)[2:4] == ("broken", "above")
    assert bounded([0.5, 0.99], 3, 0.1, noise=0.0)[2:4] == ("broken", "above")  # one of the three
    assert bounded([0.5, 1 + 5e-7], 1, noise=0.0)[2:4] == ("held where looked", "below")  # rounding


def test_a_bound_that_only_grows_says_nothing():
    grows = frozenset({"consensus-bound"})
    assert bounded([0.5, 0.1], 5, growing=grows)[2:4] == ("not checkable", "grows")
    assert bounded([0.5, 3.0], 5, growing=grows).verdict == "broken"


def test_bounds_near_the_largest_number_are_no_trouble():
    """Warnings are errors here: sums over seeds, and squares, are too large for a number."""
    check = bounded([0.5, 0.1], 6, 0.01)
    assert check.verdict == "held where looked"
    errors, bound = np.ones((6, 3)), np.full((6, 3), 1.5e308)
    for noise in (0.0, 0.3):
        found = check_bound("consensus-bound", errors, bound, ITERATIONS[:3], promises(noise))
        assert (found.verdict, found.values["bound"]) == ("held where looked", math.inf)
    several = promises(bounds=np.full((6, 3, 2), 1.5e308), gradient_bounds=np.full((6, 3), 1.5e308))
    assert np.isinf(several.bound).all()
    assert np.isinf(several.gradient_bound).all()


def test_a_bound_with_nothing_to_compare():
    def compared(errors: Any, bound: Any, **fields: Any) -> tuple[str, str]:
        errors, bound = np.atleast_2d(errors), np.atleast_2d(bound)
        check = check_bound("consensus-bound", errors, bound, ITERATIONS, promises(**fields), "no-optimum")
        return check.verdict, check.reason

    assert compared([1.0], [1.0]) == ("not checkable", "only-start")
    assert compared([1.0, np.nan], [1.0, 1.0]) == ("not checkable", "no-optimum")
    assert compared([1.0, 0.5], [1.0, np.inf]) == ("not checkable", "infinite-step")
    stuck = CONSTANTS._replace(contraction=1.0)
    assert compared([1.0, 0.5], [1.0, np.inf], constants=stuck) == ("not checkable", "infinite-rho")


@pytest.mark.parametrize(
    ("curve", "window", "grows"),
    [
        ([1, 2, 3, 4], 1, True),
        ([4, 3, 2, 1], 1, False),
        ([0, 0, 0, 0], 1, False),
        ([4.0, 4.58, 4.3, 4.05], 1, False),  # it rises, and falls towards less than it began with
        ([1, 0.5, 2, 3], 1, False),
        ([1, 5, 9, 1.5, 5, 9, 2, 5, 9, 2.5], 1, False),
        ([1, 5, 9, 1.5, 5, 9, 2.0, 5, 9, 2.5], 3, True),  # within a block a bound rises in any case
        ([3, 5, 9, 2.5, 5, 9, 2.0, 5, 9, 1.0], 3, False),
        ([1.0, 2.0], 5, True),
        ([1.0, 0.5], 5, False),
    ],
)
def test_only_grows(curve, window, grows):
    assert only_grows(np.array(curve, dtype=float), window) == grows


@pytest.mark.parametrize(("firing", "dependent"), [("fixed", False), ("coins", False), ("drift", True)])
def test_the_bound_is_the_one_that_is_proved_for_who_fires(firing, dependent):
    """If devices fire by their drift, P depends on the noise, and the printed recursion is not proved."""
    check = assessed(5, firing=firing)
    assert check.promises is not None
    assert check.promises.constants.dependent == dependent
    start = np.array([1.0, 1.0])
    bound = bounds.error_bound(check.promises.constants, np.full(60, 1e-3), start)
    assert check.promises.bound == pytest.approx(bound[ITERATIONS], rel=1e-12)


# Rates


def rate(power: float, low: float, high: float, seeds: int = 4) -> Check:
    slope = bounds.Slope((low + high) / 2, low, high, seeds)
    promised = bounds.rate(power) and bounds.envelope_slope(power, np.array([10, 100, 1000]))
    (check,) = check_rate(slope, promised, diminishing(power))
    return check


def test_a_rate_is_neither_held_nor_broken_by_a_finite_run():
    assert rate(0.75, -2.0, -1.0)[1:4] == ("appendix:generalTheta", "held where looked", "as-fast")
    assert rate(0.5, -2.0, -1.0)[1:4] == ("theorem:diminishing", "held where looked", "as-fast")
    assert rate(0.75, -2.0, -0.1)[2:4] == ("undecided", "slower")
    assert rate(0.75, -0.1, 0.1)[2:4] == ("undecided", "slower")
    assert rate(0.75, -2.0, -1.0, seeds=1)[2:4] == ("undecided", "one-seed")
    assert rate(0.25, -2.0, -1.0)[2:4] == ("not checkable", "no-rate")
    assert check_rate(None, None, diminishing(0.5)) == []
