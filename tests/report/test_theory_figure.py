"""The theory's numbers as JSON and as a picture."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import efhc
from efhc.experiments.studies.theory_check import check_run
from efhc.report.theory_data import as_dict, plain
from efhc.report.theory_figure import theory_figure
from efhc.theory.checks import StrategyCheck

FIELDS: dict[str, Any] = {
    "devices": 3,
    "iterations": 30,
    "seeds": (0, 1),
    "evaluate_every": 100,
    "model": {"kind": "softmax", "l2": 0.5},
    "network": {"kind": "ring"},
    "step_size": {"kind": "constant", "value": 1e-5},
    "strategies": {"ZT": {"kind": "zt"}, "never": {"kind": "never"}},
}


@pytest.fixture(scope="module", autouse=True)
def no_comparison() -> Iterator[None]:
    """The picture that every run draws takes longer than the run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(efhc.Result, "plot", lambda self, path=None: None)
        yield


@pytest.fixture(scope="module")
def checks(tmp_path_factory: pytest.TempPathFactory) -> list[StrategyCheck]:
    """With promises, and without."""
    out = tmp_path_factory.mktemp("figure") / "run"
    efhc.simulate(**FIELDS, out=out)
    return check_run(out, 8)


# Plain numbers


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.float64(2.0), 2),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (True, True),
        (None, None),
        ("words", "words"),
        (math.nan, None),
        (np.float32("nan"), None),
        (math.inf, "infinite"),
        (np.float64("inf"), "infinite"),
        (3.0, 3),
        (1e300, 1e300),
        (-0.25, -0.25),
        ((1.0, math.nan), [1, None]),
        (np.array([[1.5, np.inf], [np.nan, 2.0]]), [[1.5, "infinite"], [None, 2]]),
        (np.array(["a"]), ["a"]),
        ({1: {2.5: np.zeros(2)}}, {"1": {"2.5": [0, 0]}}),
        ([], []),
        (np.empty((0, 2)), []),
    ],
    ids=repr,
)
def test_plain(value, expected):
    found = plain(value)
    assert found == expected
    assert type(found) is type(expected)
    json.dumps(found, allow_nan=False)


def test_a_check_as_plain_numbers(checks):
    sound, silent = (as_dict(check) for check in checks)
    for numbers in (sound, silent):
        json.dumps(numbers, allow_nan=False)
        assert {*numbers} >= {"strategy", "findings", "window", "curvature", "measured", "seeds", "iterations"}
        assert set(numbers["seeds"]) == {"0", "1"}
        assert {*numbers["seeds"]["0"]} >= {"B1", "B2", "B_promised", "B_observed", "rho", "measured"}
        assert all(set(finding) >= {"label", "what", "verdict", "detail"} for finding in numbers["findings"])
        assert {len(values) for values in numbers["measured"].values()} == {len(numbers["iterations"])}
    assert sound["window"] == 3
    assert set(sound["step_size_limits"]) == {"non_increasing", "constant", "diminishing", "nonconvex"}
    assert np.shape(sound["error_bound"]) == (len(sound["iterations"]), 2)
    assert np.shape(sound["gradient_bound"]) == (len(sound["iterations"]),)
    assert len(sound["asymptotic_gap"]) == 2
    assert set(sound["theorem_nonconvex_weights"]) == {"w1", "w2", "w3", "w4"}
    assert all(weight > 0 for weight in sound["theorem_nonconvex_weights"].values())
    assert silent["theorem_nonconvex_weights"] is None
    assert sound["seeds"]["0"]["windows"] == len(sound["seeds"]["0"]["rho_per_window"]) == 28
    assert sound["seeds"]["0"]["rho"] == max(sound["seeds"]["0"]["rho_per_window"].values())
    assert silent["error_bound"] is silent["step_size_limits"] is silent["constants"] is silent["window"] is None
    assert silent["seeds"]["0"]["B2"] == "infinite"
    mean = np.mean([sound["seeds"][seed]["measured"]["loss"] for seed in ("0", "1")], axis=0)
    assert sound["measured"]["loss"] == pytest.approx(mean.tolist())


# The picture


def labels(axes: Any) -> list[str]:
    return [line.get_label() for line in axes.lines]


def test_a_row_per_strategy_with_bounds_where_there_are_some(checks):
    figure = theory_figure(checks)
    assert len(figure.axes) == 8
    sound, silent = figure.axes[:4], figure.axes[4:]
    assert [row[0].get_title(loc="left") for row in (sound, silent)] == ["ZT", "never"]
    for axes in sound[:3]:
        assert labels(axes) == ["measured", "bound"]
        measured, bound = (line.get_ydata() for line in axes.lines)
        assert (measured <= bound * (1 + 1e-6)).all()
        assert axes.get_yscale() == axes.get_xscale() == "log"
    for axes in silent[:3]:
        assert labels(axes) == ["measured"]
    assert labels(sound[3])[:2] == ["seed 0", "seed 1"]
    assert sound[3].get_title() == "B = 3"
    assert len(silent[3].lines) == 1  # only the line at 1
    ks = sound[0].lines[0].get_xdata()
    assert ks.tolist() == (checks[0].iterations + 1).tolist()
    expected = checks[0].of_seeds("optimisation_error").mean(axis=0)
    assert sound[0].lines[0].get_ydata().tolist() == expected.tolist()


def test_without_a_minimiser_the_panel_says_so(tmp_path):
    fields = {**FIELDS, "model": {"kind": "svm"}, "strategies": {"ZT": {"kind": "zt"}}, "seeds": (4,)}
    efhc.simulate(**fields, out=tmp_path / "run")
    figure = theory_figure(check_run(tmp_path / "run", 5))
    assert [text.get_text() for text in figure.axes[0].texts] == ["no $w^\\star$"]
    assert labels(figure.axes[1]) == ["measured"]
    assert labels(figure.axes[3])[0] == "seed 4"
    figure.draw_without_rendering()


def test_models_that_agree_are_drawn_too(tmp_path):
    """A consensus error of 0, which no logarithmic axis has: of one device always, of shared models at first."""
    fields = {**FIELDS, "strategies": {"ZT": {"kind": "zt"}}, "seeds": (0,)}
    checks = []
    for name, change in {"one": {"devices": 1}, "shared": {"initial_models": {"kind": "shared"}}}.items():
        efhc.simulate(**{**fields, **change}, out=tmp_path / name)
        checks += check_run(tmp_path / name, 5)
    figure = theory_figure(checks)
    assert figure.axes[1].get_yscale() == "linear"
    figure.draw_without_rendering()
