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
from efhc.report.theory import as_dict, plain, theory_figure
from efhc.theory.bounds import Constants
from efhc.theory.checks import StrategyCheck
from efhc.theory.connectivity import ChosenWindow
from efhc.theory.contractions import Contractions
from efhc.theory.problem import Measured
from efhc.theory.promises import Promises, SeedCheck

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
    assert (silent["seeds"]["0"]["B2"], sound["seeds"]["0"]["lower_limits"]) == ("infinite", [])
    assert silent["seeds"]["0"]["lower_limits"] == ["B_observed"]
    mean = np.mean([sound["seeds"][seed]["measured"]["loss"] for seed in ("0", "1")], axis=0)
    assert sound["measured"]["loss"] == pytest.approx(mean.tolist())


# The figure

ITERATIONS = np.array([0, 1, 2, 5, 10, 20, 50])
POINTS = len(ITERATIONS)
FALLING = 1.0 / (1 + ITERATIONS)
NOTHING = np.full(POINTS, math.nan)


def contractions_of(*values: float) -> Contractions:
    return Contractions(3, np.arange(len(values)), np.array(values), len(values))


def strategy_check(
    name: str = "ZT",
    optimisation: Any = FALLING,
    consensus: Any = FALLING,
    gradients: Any = FALLING,
    bound: Any = None,
    contractions: Contractions | None = None,
    dependent: bool = False,
) -> StrategyCheck:
    """What was found of a strategy in two alike runs, as far as the figure shows it."""
    measured = Measured(optimisation, consensus, NOTHING, NOTHING, gradients, NOTHING, NOTHING, NOTHING)
    unused: Any = None
    promises = None
    if bound is not None:
        constants = Constants(2, 1.0, 0.5, 0.0, 0.0, 3, 0.5, dependent)
        curves = np.broadcast_to(np.array(bound)[None, :, None], (2, POINTS, 2))
        promises = Promises(constants, unused, curves, None, curves[..., 0], frozenset(), printed_weights=unused)
    seed = SeedCheck([], unused, contractions, unused, None, measured)
    chosen = ChosenWindow(3, "observed") if contractions else None
    return StrategyCheck(name, {0: seed, 1: seed}, ITERATIONS, [], unused, chosen, promises, None, None, 50)


def labels(axes: Any) -> list[str]:
    return [line.get_label() for line in axes.lines]


def quantities(figure: Any) -> list[str]:
    """What the panels show, by a word that their labels hold."""
    words = {r"w^\star": "optimisation", r"\mathbf{1}": "consensus", "nabla": "gradients", r"\rho": "contraction"}
    return [next(word for part, word in words.items() if part in axes.get_ylabel()) for axes in figure.axes]


EVERY_PANEL = ["optimisation", "consensus", "gradients", "contraction"]


def test_measured_under_its_bound():
    figure = theory_figure([strategy_check(bound=2 * FALLING, contractions=contractions_of(0.5, 0.7))])
    assert quantities(figure) == EVERY_PANEL
    assert figure.axes[0].get_title(loc="left") == "ZT"
    assert figure.axes[3].get_title() == "B = 3"
    for axes, statement in zip(figure.axes, ["Eq. (19)", "Eq. (19)", "Lemma K.3"], strict=False):
        assert labels(axes) == ["measured", f"bound, {statement}"]
        measured, bound = axes.lines
        assert measured.get_xdata().tolist() == (ITERATIONS + 1).tolist()
        assert bound.get_ydata().tolist() == (2 * FALLING).tolist()
        assert axes.get_yscale() == axes.get_xscale() == "log"
    assert figure.axes[0].lines[0].get_ydata().tolist() == FALLING.tolist()


def test_a_bound_for_mixing_that_depends_on_the_noise_says_so():
    figure = theory_figure([strategy_check("EF-HC", bound=FALLING, dependent=True)])
    assert labels(figure.axes[0])[1] == "bound, Eq. (19), P dependent"


def test_bounds_that_are_infinite_are_not_drawn():
    figure = theory_figure([strategy_check(bound=np.full(POINTS, np.inf))])
    assert labels(figure.axes[0]) == ["measured"]
    grows = np.where(ITERATIONS < 10, 2.0, np.inf)
    bound = theory_figure([strategy_check(bound=grows)]).axes[0].lines[1].get_ydata()
    assert np.nanmax(bound) == 2
    assert np.isnan(bound[ITERATIONS >= 10]).all()


@pytest.mark.parametrize("of", ["measured", "bound"])
def test_no_line_goes_to_zero_on_a_logarithmic_axis(of):
    """Shared models start with no consensus error, and so does its bound."""
    from_zero = np.where(ITERATIONS == 0, 0.0, FALLING)
    check = strategy_check(consensus=from_zero, bound=from_zero if of == "bound" else FALLING)
    figure = theory_figure([check])
    figure.draw_without_rendering()
    axes = figure.axes[1]
    for line in axes.lines:
        values = line.get_ydata()
        assert not (values <= 0).any()
    assert np.isnan(axes.lines[0].get_ydata()[0])
    assert axes.get_ylim()[0] > FALLING.min() / 10
    for band in axes.collections:
        heights = np.concatenate([path.vertices[:, 1] for path in band.get_paths()])
        assert (heights > 0).all()


@pytest.mark.parametrize(
    ("missing", "kept"),
    [
        ({"optimisation": NOTHING}, ["consensus", "gradients"]),
        ({"consensus": np.zeros(POINTS)}, ["optimisation", "gradients"]),
        ({"optimisation": NOTHING, "gradients": NOTHING}, ["consensus"]),
        ({"optimisation": NOTHING, "gradients": NOTHING, "consensus": np.zeros(POINTS)}, []),
    ],
)
def test_a_panel_with_nothing_to_show_is_not_drawn(missing, kept):
    figure = theory_figure([strategy_check(**missing)])
    assert quantities(figure) == kept
    if kept:
        assert figure.axes[0].get_title(loc="left") == "ZT"
        assert figure.axes[0].get_gridspec().ncols == len(kept)
    figure.draw_without_rendering()


@pytest.mark.parametrize("values", [(1e-4, 3e-4), (1e-9,), (0.0, 0.0), (3e-17, 1e-16, 0.0)])
def test_small_contractions_are_visible(values):
    axes = theory_figure([strategy_check(contractions=contractions_of(*values))]).axes[3]
    low, high = axes.get_ylim()
    drawn = axes.lines[0].get_ydata()
    assert axes.get_yscale() == "log"
    assert ((low < drawn) & (drawn < high)).all()
    assert axes.lines[0].get_marker() == "."  # one window is no line
    assert low < 1 < high


def test_the_figure_of_a_run(checks):
    figure = theory_figure(checks)
    assert quantities(figure) == [*EVERY_PANEL, *EVERY_PANEL[:3]]
    for axes in figure.axes[:3]:
        measured, bound = (line.get_ydata() for line in axes.lines)
        assert (measured <= bound * (1 + 1e-6)).all()
    figure.draw_without_rendering()
