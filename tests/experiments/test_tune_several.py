"""Tuning several numbers of one strategy, numbers within its parts, and budgets that are shares of ZT's time."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.trial import FrozenTrial, create_trial
from pydantic import Field

from efhc.base.errors import InputError
from efhc.base.policy import Policy
from efhc.core.parts import Strategy
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import build_experiment, load_experiment
from efhc.experiments.runs.engines.local import LocalEngine
from efhc.experiments.runs.simulate import simulate
from efhc.experiments.studies.tune import tune
from efhc.experiments.studies.tuning_search import (
    FIRST_PER_PARAMETER,
    Parameter,
    Range,
    Search,
    TuningBudget,
    numbers_of,
    read_ranges,
)
from efhc.report.figure_data import ACCURACY
from efhc.report.figures.studies import tuning_figure
from efhc.strategies.paper import EventTriggered, GlobalThreshold, RandomizedGossip, ZeroThreshold

OWN = """
import numpy as np
from efhc import Strategy

class Patient(Strategy):
    every: int = 4
    share: float = 0.5

    def thresholds(self, k, gamma, bandwidths, coins):
        m = len(bandwidths.values)
        return np.where(np.arange(m) < self.share * m, 0.0 if k % self.every == 0 else np.inf, np.inf)
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(OWN)
    config = 'iterations = 18\nevaluate_every = 2\nseeds = [3]\n[strategies]\n"mine.v2" = "own.py:Patient"\n'
    (tmp_path / "own.toml").write_text(config)
    return tmp_path / "own.toml"


# What the command line gives


@pytest.mark.parametrize(
    ("texts", "options", "strategy", "ranges"),
    [
        (["r"], {}, None, [Range("r")]),
        (["r"], {"strategy": "A", "low": 1.0}, "A", [Range("r", 1.0)]),
        (["r=100:4000"], {}, None, [Range("r", 100.0, 4000.0)]),
        (["strategies.A.r=1:2"], {"strategy": "A"}, "A", [Range("r", 1.0, 2.0)]),
        (["strategies.A.r = 1 : 2 ", "b.c=1e-3:1"], {}, "A", [Range("r", 1.0, 2.0), Range("b.c", 0.001, 1.0)]),
        (["strategies.A.1.r=1:2"], {}, "A.1", [Range("r", 1.0, 2.0)]),  # the longest name that fits
        (["strategies.r = 5.mixing.rate=0.1:1"], {}, "r = 5", [Range("mixing.rate", 0.1, 1.0)]),
    ],
)
def test_parameters_are_read(texts, options, strategy, ranges):
    assert read_ranges(texts, ["A", "A.1", "r = 5"], **options) == (strategy, ranges)


@pytest.mark.parametrize(
    ("texts", "options", "line"),
    [
        (["r=100"], {}, "--parameter: cannot use 'r=100'. Use NAME=LOW:HIGH with two numbers, such as r=100:4000"),
        (["r=a:b"], {}, "--parameter: cannot use 'r=a:b'. Use NAME=LOW:HIGH"),
        (["strategies.EFHC.r=1:2"], {}, "whose strategy does not exist (did you mean 'EF-HC'?). Use EF-HC, GT"),
        (
            ["strategies.EF-HC.r=1:2", "strategies.GT.r=1:2"],
            {},
            "cannot use strategies.GT.r=1:2, a parameter of GT, beside EF-HC",
        ),
        (["strategies.GT.r=1:2"], {"strategy": "EF-HC"}, "a parameter of GT, beside EF-HC. Use parameters of one"),
        (["r=1:2", "r=3:4"], {}, "--parameter: cannot use r, r. Use each parameter once"),
        (["r=1:2"], {"low": 1.0}, "--low and --high: cannot use 1.0 and None. Use no --low and --high beside"),
        (["r", "p"], {"high": 1.0}, "--low and --high: cannot use None and 1.0"),
    ],
)
def test_parameters_that_are_wrong_are_one_line(texts, options, line):
    with pytest.raises(InputError) as refused:
        read_ranges(texts, ["EF-HC", "GT"], **options)
    assert line in str(refused.value)


# Numbers within parts


class Part(Policy):
    kind: str = "part"
    rate: float = Field(default=0.5, gt=0, le=1)
    bits: int | None = Field(default=None, ge=1, le=8)
    both: bool = True


class Parted(Strategy):
    r: float = Field(default=10.0, ge=0)
    mixing: Part = Part()

    def thresholds(self, k, gamma, bandwidths, coins):
        raise NotImplementedError


def test_numbers_of_parts_are_found_and_bounded():
    found = numbers_of(Parted())  # none of mixing.both, mixing.kind and kind
    assert {name: number.own for name, number in found.items()} == {"r": 10.0, "mixing.rate": 0.5, "mixing.bits": None}
    rate = found["mixing.rate"].narrowed_to(Range("mixing.rate"), "X")
    assert rate == Parameter("mixing.rate", 0.5, 0.005, 1.0)
    bits = found["mixing.bits"].narrowed_to(Range("mixing.bits", 1.0, 8.0), "X")
    assert bits == Parameter("mixing.bits", None, 1.0, 8.0, is_whole=True)


def test_numbers_of_parts_are_set_and_all_else_stays():
    strategies = {name: {"kind": "composed", "mixing": "half-steps"} for name in ("X.1", "kept")}
    before = build_experiment({"strategies": strategies}).strategies
    search = Search.of(
        Experiment(strategies=before), TuningBudget("broadcasts", 9.0), [Range("mixing.rate", 0.1, 0.4)], strategy="X.1"
    )
    after = search.with_values({"mixing.rate": 0.25}).strategies
    assert after["X.1"].mixing == before["X.1"].mixing.model_copy(update={"rate": 0.25})
    assert after["X.1"].model_copy(update={"mixing": before["X.1"].mixing}) == before["X.1"]
    assert after["kept"] == before["kept"]


def test_several_numbers_of_a_strategy_of_ones_own_are_tuned_and_resumed(own: Path, no_engine):
    experiment, out = load_experiment(own), own.parent / "out"
    ranges = [Range("share", 0.1, 1.0), Range("every", 1, 6)]
    arguments = {"parameters": ranges, "trials": 9, "on": "test"}
    tuning = tune(experiment, TuningBudget("broadcasts", 60.0), out, LocalEngine(1), **arguments)
    table = tuning.table
    assert table.columns[:4] == ["trial", "share", "every", "iterations"]
    assert table.row(0)[1:3] == (0.5, 4.0)  # the file's own come first
    assert table.select("share", "every").is_unique().all()
    assert all(value == int(value) for value in table["every"])
    best = load_experiment(out / "tuned.toml").strategies["mine.v2"]
    assert (best.share, best.every) == tuple(tuning.best_values.values())
    assert isinstance(best.every, int)
    before = (out / "trials.csv").read_bytes()

    (out / "optuna.journal").unlink()  # all is found again in the runs

    tune(experiment, TuningBudget("broadcasts", 60.0), out, no_engine, **arguments)
    assert (out / "trials.csv").read_bytes() == before
    changed = {**arguments, "parameters": [Range("share", 0.2, 1.0), ranges[1]]}
    with pytest.raises(InputError, match=r"\(--parameter\.share .*, not '0\.2:1\.0'\)"):
        tune(experiment, TuningBudget("broadcasts", 60.0), out, no_engine, **changed)


# Which values are tried


def search_of(*parameters: Parameter) -> Search:
    return Search(Experiment(), "EF-HC", parameters, TuningBudget("broadcasts", 10.0))


def finished(search: Search, points: list[dict[str, float]]) -> list[FrozenTrial]:
    def value(point: dict[str, float]) -> float:
        return -sum(abs(math.log(number / 3)) for number in point.values())

    return [create_trial(params=one, distributions=search.distributions, value=value(one)) for one in points]


def test_the_first_trials_of_several_cover_every_range():
    search = search_of(Parameter("a", 2.0, 1.0, 100.0), Parameter("b", None, 0.01, 1.0))
    assert len(search.first) == 2 * FIRST_PER_PARAMETER  # b has no value of its own to begin with
    for name, low, high in (("a", 1.0, 100.0), ("b", 0.01, 1.0)):
        shares = sorted(math.log(point[name] / low) / math.log(high / low) for point in search.first)
        assert all(0 <= share <= 1 for share in shares)
        gaps = [after - before for before, after in zip([0.0, *shares], [*shares, 1.0], strict=True)]
        assert max(gaps) < 0.3
    with_own = search_of(Parameter("a", 2.0, 1.0, 100.0), Parameter("b", 0.5, 0.01, 1.0))
    assert with_own.first[0] == {"a": 2.0, "b": 0.5}


@pytest.mark.parametrize("ends", [{"a": 7}, {"a": 3, "b": 4}], ids=str)
def test_whole_numbers_are_tried_together_once_until_none_are_left(ends: dict[str, int]):
    search = search_of(*(Parameter(name, 1, 1.0, end, is_whole=True) for name, end in ends.items()))
    points: list[dict[str, float]] = []
    while (values := search.next_values(finished(search, points))) is not None:
        points.append(values)
    every = itertools.product(*(range(1, end + 1) for end in ends.values()))
    assert sorted(tuple(point.values()) for point in points) == sorted(every)


@given(st.integers(9, 16))
def test_the_next_values_follow_from_the_finished_trials_and_stay_in_their_ranges(number: int):
    search = search_of(Parameter("a", 2.0, 1.0, 100.0), Parameter("b", 3, 1.0, 9.0, is_whole=True))
    points = list(search.first)
    while len(points) < number:
        points.append(search.next_values(finished(search, points)) or pytest.fail("there are more values"))
    values = search.next_values(finished(search, points))
    assert values == search.next_values(finished(search, points))
    assert values not in points
    assert 1 <= values["a"] <= 100
    assert values["b"] in range(1, 10)


def test_the_sampler_goes_where_both_numbers_are_good():
    search = search_of(Parameter("a", None, 0.1, 100.0), Parameter("b", None, 0.1, 100.0))
    points = list(search.first)
    for _ in range(30):
        points.append(search.next_values(finished(search, points)) or pytest.fail("there are more values"))
    best = max(finished(search, points), key=lambda trial: trial.value or -math.inf).params
    assert all(1 <= best[name] <= 9 for name in ("a", "b"))  # the best of all is 3, of a range of three powers of ten


def test_one_strategy_must_have_all_of_the_numbers():
    strategies = {"EF": EventTriggered(r=5.0), "RG": RandomizedGossip(), "GT": GlobalThreshold(r=1.0)}
    experiment = Experiment(strategies=strategies)
    with pytest.raises(InputError, match="of which 0 have a number r and probability"):
        Search.of(experiment, TuningBudget("broadcasts", 9.0), [Range("r", 1.0, 2.0), Range("probability", 0.1, 1.0)])
    with pytest.raises(
        InputError, match=r"--parameter: cannot use rate, which is not a numeric setting of EF. Use r of EF"
    ):
        Search.of(experiment, TuningBudget("broadcasts", 9.0), [Range("r"), Range("rate")], strategy="EF")


def test_a_panel_per_parameter_is_drawn():
    columns = {"accuracy": [0.5, 0.7, 0.6], "low": [0.4, 0.6, 0.5], "high": [0.6, 0.8, 0.7]}
    values = {"r": [1.0, 10.0, 5.0], "mixing.rate": [0.1, 0.2, 0.3]}
    trials = pl.DataFrame({**values, **columns, "state": ["complete", "complete", "pruned"]})
    figure = tuning_figure(trials, {"r": 10.0, "mixing.rate": 0.2}, "title")
    assert [axes.get_xlabel() for axes in figure.axes] == ["threshold scale r", "mixing.rate"]
    stars = [line for axes in figure.axes for line in axes.lines if line.get_marker() == "*"]
    assert [(star.get_xdata()[0], star.get_ydata()[0]) for star in stars] == [(10.0, 0.7), (0.2, 0.7)]
    assert any("mixing.rate = 0.2" in text.get_text() for text in figure.legends[0].get_texts())


# Shares of ZT's time


def test_a_share_of_zt_is_taken_seed_by_seed():
    budget = TuningBudget.parse("zt=2%")
    one = {"strategy": "s", "transmission_time_total": [1.0, 2.0], "accuracy": [0.1, 0.5]}
    curves = pl.concat(pl.DataFrame(one | {"seed": seed}) for seed in (0, 1))
    of_zt = pl.DataFrame({"seed": [0, 0, 1], "transmission_time_total": [10.0, 50.0, 100.0]})
    measured = budget.measured_by(of_zt)
    assert measured.values(curves, ACCURACY) == pytest.approx([0.1, 0.5])
    # Seed 0 had spent more than 0.75 when it was first evaluated.
    assert measured.values(curves, ACCURACY, 0.75) == pytest.approx([float("nan"), 0.3], nan_ok=True)
    assert measured.spent(curves) == [1.0, 2.0]
    assert not measured.is_exceeded(curves)


def test_a_tuning_within_a_share_of_zt_spends_no_more_than_that(tmp_path: Path):
    experiment = Experiment(
        iterations=18, evaluate_every=2, seeds=(0, 1), strategies={"EF-HC": EventTriggered(r=500.0)}
    )
    tuning = tune(experiment, TuningBudget.parse("zt=25%"), tmp_path / "out", LocalEngine(1), trials=3, on="test")
    zt = simulate(experiment.model_copy(update={"strategies": {"ZT": ZeroThreshold()}}), jobs=1).metrics
    totals = zt.group_by("seed").agg(pl.col("transmission_time_total").max())
    assert dict(tuning.search.budget.totals) == pytest.approx(dict(totals.iter_rows()))
    most = 0.25 * totals["transmission_time_total"].mean()
    assert all(spent <= most * (1 + 1e-9) for spent in tuning.table["spent"])
    assert len(list((tmp_path / "out" / "runs").glob("[!.]*"))) > 2
