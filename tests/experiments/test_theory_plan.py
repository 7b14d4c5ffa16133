"""What is expected of a run, held against the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import efhc
from efhc.experiments.config.files import build_experiment
from efhc.experiments.studies import theory_plan
from efhc.experiments.studies.theory_check import check_run
from efhc.experiments.studies.theory_plan import StrategyPlan, plan_theory
from efhc.theory.bounds import Constants, step_size_limits

pytestmark = pytest.mark.usefixtures("no_comparison")

ZT, RG = {"ZT": {"kind": "zt"}}, {"RG": {"kind": "rg", "probability": 0.3}}


def settings(**fields: Any) -> dict[str, Any]:
    return {
        "devices": 4,
        "iterations": 60,
        "seeds": (0, 1),
        "evaluate_every": 100,
        "model": {"kind": "softmax", "l2": 0.5},
        "network": {"kind": "ring"},
        "step_size": {"kind": "constant", "value": 0.001},
        "strategies": {"EF-HC": {"kind": "ef-hc", "r": 1000.0}, **ZT, **RG},
        **fields,
    }


def planned(rehearse: int = 200, **fields: Any) -> dict[str, StrategyPlan]:
    plans = plan_theory(build_experiment(settings(**fields)), rehearse)
    assert all(plan.strategy == name for plan, name in zip(plans, settings(**fields)["strategies"], strict=True))
    return {plan.strategy: plan for plan in plans}


def broadcasts(plan: StrategyPlan) -> dict[int, float]:
    return {seed: found.broadcast.length for seed, found in plan.seeds.items()}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("planned") / "run"
    efhc.simulate(**settings(), out=out)
    return out


@pytest.fixture(scope="module")
def checks(run: Path) -> dict[str, Any]:
    return {check.strategy: check for check in check_run(run, 5)}


@pytest.mark.parametrize("rehearse", [1, 7, 200])
def test_coins_and_zero_thresholds_are_known_beforehand(checks, rehearse):
    plans = planned(rehearse)
    for name in ("ZT", "RG"):
        for seed, found in plans[name].seeds.items():
            assert found == checks[name].seeds[seed].connectivity
        assert plans[name].window == checks[name].window
        assert plans[name].silent == {}
        assert plans[name].limits == checks[name].promises.limits
        assert plans[name].contraction == checks[name].promises.constants.contraction
    for found in plans["ZT"].seeds.values():
        assert (found.physical.length, found.broadcast.length, found.promised) == (1, 1, 3)


def test_a_rehearsal_of_the_whole_run_is_the_run(checks):
    plan, check = planned(60)["EF-HC"], checks["EF-HC"]
    assert {seed: found.connectivity for seed, found in check.seeds.items()} == plan.seeds
    assert plan.limits == check.promises.limits


def test_a_short_rehearsal_comes_close(checks):
    plan = planned(20)["EF-HC"]
    for seed, length in broadcasts(plan).items():
        seen = checks["EF-HC"].seeds[seed].connectivity.broadcast.length
        assert seen / 3 <= length <= 3 * seen


@pytest.mark.parametrize("network", ["random-links", "rotating", "waypoint"])
def test_networks_that_change_are_known_beforehand(tmp_path, network):
    fields = {"network": {"kind": network}, "strategies": ZT | RG, "seeds": (1,)}
    plans = planned(5, **fields)
    efhc.simulate(**settings(**fields), out=tmp_path / "run")
    for check in check_run(tmp_path / "run", 3):
        assert {seed: found.connectivity for seed, found in check.seeds.items()} == plans[check.strategy].seeds


def test_an_exchange_at_the_start_is_known_beforehand():
    fields = {"exchange_at_start": True, "strategies": {"never": {"kind": "never"}}}
    plan = planned(5, **fields)["never"]
    for found in plan.seeds.values():
        assert found.observed.length == 60
    assert plan.silent == {0: [0, 1, 2, 3], 1: [0, 1, 2, 3]}


@pytest.mark.parametrize("rehearse", [10, 60])
def test_devices_that_never_fire_are_named(rehearse):
    huge = planned(rehearse, strategies={"EF-HC": {"kind": "ef-hc", "r": 1e9}})["EF-HC"]
    assert huge.silent == {0: [0, 1, 2, 3], 1: [0, 1, 2, 3]}
    assert huge.limits is None
    assert huge.window is None
    assert huge.contraction is None
    small = planned(rehearse, strategies={"EF-HC": {"kind": "ef-hc", "r": 10.0}})["EF-HC"]
    assert small.silent == {}
    assert small.limits is not None


def test_window_contraction_and_limits_are_of_one_kind():
    """Where a device does not fire no B is expected: all is computed with the observed one, and says so."""
    bandwidths = {"kind": "list", "values": [5000.0, 5000.0, 1e-6, 5000.0]}
    plan = planned(60, strategies={"EF-HC": {"kind": "ef-hc", "r": 10.0}}, bandwidths=bandwidths)["EF-HC"]
    assert plan.chosen is not None
    assert plan.limits is not None
    assert all(found.promised > 60 for found in plan.seeds.values())
    assert plan.chosen == (max(found.observed.length for found in plan.seeds.values()), "observed")
    numbers = plan.as_dict()
    assert (numbers["window"], numbers["window_is"]) == plan.chosen
    found = plan.curvature
    constants = Constants(len(found.smoothness), found.L, found.mu, 0.0, 0.0, plan.chosen.length, plan.contraction)
    assert plan.limits == step_size_limits(constants)


def test_devices_stop_firing_if_the_threshold_stays_and_the_steps_do_not(tmp_path):
    """They fire at first, then ever more seldom: B2 is predicted to be much of the run, and is."""
    fields = {
        "step_size": {"kind": "diminishing", "initial": 0.05, "power": 1.0},
        "threshold_decay": {"kind": "constant", "value": 1.0},
        "strategies": {"EF-HC": {"kind": "ef-hc", "r": 100.0}},
        "bandwidths": {"kind": "constant"},
        "iterations": 400,
    }
    steady = {**fields, "threshold_decay": None}
    stops, goes_on = planned(50, **fields)["EF-HC"], planned(50, **steady)["EF-HC"]
    efhc.simulate(**settings(**fields), out=tmp_path / "run")
    (check,) = check_run(tmp_path / "run", 3)
    for seed, length in broadcasts(stops).items():
        assert length > 100 > 5 * broadcasts(goes_on)[seed]
        assert check.seeds[seed].connectivity.broadcast.length > 100


def test_devices_that_fell_silent_are_doubtful():
    """A slow device is silent in the second half of the rehearsal, and predicted to fire later: that is a guess."""
    fields = {"strategies": {"EF-HC": {"kind": "ef-hc", "r": 1000.0}, **ZT}, "seeds": (0,)}
    fields["bandwidths"] = {"kind": "list", "values": [5000.0, 5000.0, 200.0, 5000.0]}
    made = planned(60, **fields)["EF-HC"]  # all of it, so nothing is guessed
    assert made.silent == made.doubtful == {}
    plans = planned(20, **fields)
    assert plans["EF-HC"].silent == {}
    assert plans["EF-HC"].doubtful == {0: [2]}
    assert plans["EF-HC"].as_dict()["seeds"]["0"]["may_never_fire"] == [2]
    assert plans["ZT"].doubtful == {}


def test_a_drift_that_has_come_to_a_stop_reaches_no_threshold():
    """Models arrive at their minimisers, half the way to the threshold: at their mean speed they would get there."""
    fields = {
        "step_size": {"kind": "constant", "value": 0.05},
        "strategies": {"EF-HC": {"kind": "ef-hc", "r": 12800.0}},
        "bandwidths": {"kind": "constant"},
        "batch_size": "full",
        "iterations": 1500,
        "seeds": (0,),
    }
    assert planned(500, **fields)["EF-HC"].silent == {0: [0, 1, 2, 3]}
    assert not any(efhc.simulate(**settings(**fields)).events["fired"].to_list())


def test_step_sizes_are_judged(checks):
    assert planned(1)["ZT"].step_size == next(one for one in checks["ZT"].checks if one.subject == "step-size-limit")
    limit = planned(1, step_size={"kind": "constant", "value": 1.0})["ZT"].step_size
    assert (limit.verdict, limit.reason) == ("broken", "above")


def test_a_network_of_neurons_has_estimates():
    pytest.importorskip("torch")
    network = {"model": {"kind": "mlp", "hidden": (4,)}, "backend": "stacked"}  # nothing has to be compiled
    plan = planned(2, **network, strategies=ZT, devices=3)["ZT"]
    assert plan.curvature.known == "estimate"
    assert plan.limits is not None


def test_plain_numbers():
    fields = {"strategies": {"EF-HC": {"kind": "ef-hc", "r": 1e9}, **ZT}}
    silent, sound = (plan.as_dict() for plan in planned(5, **fields).values())
    for numbers in (silent, sound):
        text = json.dumps(numbers)
        assert "NaN" not in text
        assert "Infinity" not in text
    assert silent["seeds"]["1"] == {
        "B1": 1,
        "B2": 61,
        "B_promised": 63,
        "B_observed": 61,
        "lower_limits": ["B2", "B_observed", "B_promised"],
        "never_fire": [0, 1, 2, 3],
        "may_never_fire": [],
    }
    assert silent["step_size_limits"] is None
    assert (sound["window"], sound["window_is"]) == (3, "expected")
    assert 0 < sound["rho"] < 1
    assert set(sound["step_size_limits"]) == {"non_increasing", "constant", "diminishing", "nonconvex"}


def test_the_step_sizes_of_the_whole_run_are_judged_not_only_those_predicted(monkeypatch):
    monkeypatch.setattr(theory_plan, "HORIZON", 5)
    plan = planned(2, strategies=ZT)["ZT"]
    assert plan.window == 3
    assert plan.limits is not None
