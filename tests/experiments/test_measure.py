"""One word, the name of a column, chooses the measure that everything goes by."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import efhc
from efhc.base.errors import InputError
from efhc.experiments.config.files import build_experiment, first_difference, to_tables
from efhc.experiments.runs.engines.local import LocalEngine
from efhc.experiments.runs.run import Runs
from efhc.experiments.runs.store import RunStore
from efhc.experiments.studies.figures import load_figure
from efhc.experiments.studies.reproduce import reproduce, runs_of_figures
from efhc.experiments.studies.sweep import run_sweep, runs_of, summary_rows, sweep_points
from efhc.experiments.studies.tune import tune
from efhc.experiments.studies.tuning_search import TuningBudget
from efhc.learning.measures import CLASSIFICATION, evaluated, measure_of, measures_of
from efhc.report.claims.leads import judge_frontier
from efhc.report.claims.paper_claims import judge
from efhc.report.figure_data import FigureData, FrontierData, SettingData

SMALL = efhc.Experiment(iterations=20, evaluate_every=10, seeds=(0, 1), devices=4)


@pytest.fixture(scope="module")
def small():
    return efhc.simulate(SMALL)


def test_the_measure_does_not_determine_results(tmp_path):
    by_own = SMALL.model_copy(update={"measure": "own_accuracy"})
    assert [run.key for run in Runs().of(by_own)] == [run.key for run in Runs().of(SMALL)]
    assert first_difference(to_tables(SMALL), to_tables(by_own)) is None
    efhc.simulate(by_own, out=tmp_path / "runs")
    assert efhc.Result.load(tmp_path / "runs").experiment.measure == "own_accuracy"


def test_the_default_is_accuracy_or_else_the_first_metric_with_values(small):
    assert measure_of(small.metrics).name == "accuracy"
    regression = small.metrics.with_columns(pl.lit(None, pl.Float64).alias(name) for name in ("accuracy",))
    assert measure_of(regression).name == "loss"
    assert measure_of(small.metrics.select("strategy", "seed", "accuracy")).name == "accuracy"  # of efhc 0.2


def test_a_measure_that_a_table_lacks_is_refused(small):
    with pytest.raises(InputError, match="own_accuracy_min"):
        measure_of(small.metrics, "own_acuracy")
    without = small.metrics.with_columns(own_accuracy=pl.when(pl.col("seed") == 0).then("own_accuracy"))
    with pytest.raises(InputError, match="seed 1"):
        measure_of(without, "own_accuracy")


def test_a_measure_that_runs_cannot_give_is_refused_before_they_begin():
    digits = efhc.Digits().load("float32")
    tested = np.flatnonzero(digits.y_test != 2)
    data = efhc.Dataset(digits.x_train, digits.y_train, digits.x_test[tested], digits.y_test[tested])
    for name, given in (("own_acuracy", efhc.Digits()), ("own_accuracy", data)):
        with pytest.raises(InputError) as error:
            efhc.simulate(SMALL, devices=10, data=given, measure=name)
        assert error.value.field == "measure"
        assert name in str(error.value.given)


def test_the_target_of_efhc_0_2_is_read_and_not_run():
    old = {"driver": {"kind": "event-driven", "seconds": 5.0, "target_accuracy": 0.4}}
    assert build_experiment(old, run_code=False).driver.target == 0.4
    with pytest.raises(InputError) as caught:
        build_experiment(old)
    assert (caught.value.field, caught.value.allowed) == ("driver.target_accuracy", "driver.target")
    percent = {"kind": "event-driven", "seconds": 1.0, "target": 40.0}
    with pytest.raises(InputError) as caught:
        efhc.simulate(SMALL, driver=percent)
    assert caught.value.field == "driver.target"


# One word chooses everywhere

WORDS = ["accuracy", "own_accuracy_min", "mean_model_accuracy", "loss", "own_loss_p90"]
KNOWN = measures_of(CLASSIFICATION)


def ends(metrics: pl.DataFrame, word: str) -> pl.DataFrame:
    return evaluated(metrics).group_by("strategy", "seed", maintain_order=True).agg(pl.col(word).last())


@pytest.mark.parametrize("word", WORDS)
def test_a_summary_is_of_the_measure(small, word: str):
    for result, named in ((small, word), (efhc.simulate(SMALL, measure=word), None)):
        for row in result.summary(named).iter_rows(named=True):
            of_seeds = ends(small.metrics, word).filter(strategy=row["strategy"])[word].to_list()
            assert row[word] == pytest.approx(np.mean(of_seeds))
            worst = min if KNOWN[word].better == "higher" else max
            assert row[f"worst_seed_{word}"] == worst(of_seeds)
    (table, *_) = small.words(word).tables
    assert KNOWN[word].label in f"{table.title} {table.columns[1]}"
    assert table.columns[1] == KNOWN[word].metric


@pytest.mark.parametrize("word", WORDS)
def test_budgets_and_frontiers_are_of_the_measure(small, word: str):
    at_end = small.at_budget(1.0, measure=word)
    expected = ends(small.metrics, word)
    assert at_end.select("strategy", "seed").equals(expected.select("strategy", "seed"))
    assert at_end[word].to_list() == expected[word].to_list()
    assert efhc.simulate(SMALL, measure=word).at_budget(1.0).equals(at_end)
    assert small.frontier(measure=word).axes[0].get_ylabel().replace("\n", " ") == KNOWN[word].label


@pytest.mark.parametrize("word", WORDS)
def test_a_sweep_is_of_the_measure(word: str, tmp_path: Path):
    base = {**to_tables(SMALL), "measure": word}
    runs = runs_of(sweep_points(base, {"network": ["ring", "star"]}))
    table = run_sweep(runs, tmp_path, RunStore(tmp_path / "runs"), LocalEngine(1), lambda run, share: None)
    means = pl.read_csv(tmp_path / "summary.csv")
    assert means.columns.index(word) < means.columns.index("low")  # the others come last
    assert set(KNOWN) <= set(means.columns)
    header, rows = summary_rows(table, KNOWN[word])
    assert header[2] == KNOWN[word].metric
    for row, mean in zip(rows, means.iter_rows(named=True), strict=True):
        of_point = table.filter(network=mean["network"], strategy=mean["strategy"])
        assert mean[word] == pytest.approx(ends(of_point, word)[word].mean())
        assert row[2] == f"{mean[word]:.3f}"


@pytest.mark.parametrize("word", WORDS)
def test_a_tuning_chooses_by_the_measure_on_what_devices_set_aside(word: str, tmp_path: Path):
    budget = TuningBudget.parse("transmission_time=1000")
    found = tune(SMALL, budget, tmp_path, LocalEngine(1), trials=3, measure=word)
    complete = found.table.filter(state="complete")
    best = complete[word].max() if KNOWN[word].better == "higher" else complete[word].min()
    assert found.best_values["r"] in complete.filter(pl.col(word) == best)["r"].to_list()
    (first, *_) = complete.iter_rows(named=True)
    part = efhc.simulate(found.search.part({"r": first["r"]}, 20))
    assert part.experiment.validation == 0.1
    assert first[word] == pytest.approx(ends(part.metrics, word)[word].mean())
    assert pl.read_csv(tmp_path / "test.csv").columns == ["seed", word, "spent"]
    assert "measure" not in to_tables(found.experiment)  # the tuned config is the user's


def frontier_of(word: str, **ends: float) -> FrontierData:
    rows = [
        {"strategy": name, "seed": seed, "transmission_time_total": time, word: start + (end - start) * time}
        for name, end in ends.items()
        for seed in range(5)
        for start in [1.0 + 0.01 * seed]
        for time in (0.0, 1.0)
    ]
    setting = SettingData("all", "all", pl.DataFrame(rows), measure=KNOWN[word])
    return FrontierData("mine", "Mine", (setting,), ("A",))


@pytest.mark.parametrize("word", WORDS)
def test_who_leads_is_better_by_the_measure(word: str):
    larger, smaller = (3.0, 0.5) if KNOWN[word].better == "higher" else (0.5, 3.0)
    (judgement, *_) = judge_frontier(frontier_of(word, ZT=2.0, A=larger))
    assert judgement.verdict == "holds"
    assert all(KNOWN[word].label in finding.quantity for finding in judgement.findings)
    assert word == "accuracy" or KNOWN[word].label in judgement.statement
    (judgement, *_) = judge_frontier(frontier_of(word, ZT=2.0, A=smaller))
    assert judgement.verdict == "fails"


@pytest.mark.parametrize("word", WORDS)
def test_claims_of_the_paper_say_by_which_measure_they_are_judged(word: str):
    measure = KNOWN[word]
    good, bad = (0.9, 0.2) if measure.better == "higher" else (0.2, 0.9)
    rows = [
        {"strategy": name, "seed": seed, "iteration": k, "transmission_time_total": float(k + 1), word: value}
        for name, value in {"EF-HC": good, "ZT": bad, "GT": bad, "RG": bad}.items()
        for seed in range(5)
        for k in (0, 99)
    ]
    found = judge({"fig2a": FigureData("fig2a", "2(a)", "", pl.DataFrame(rows), measure=measure)})
    (best,) = (one for one in found if "highest accuracy per transmission time" in one.statement)
    assert best.verdict == "holds"
    assert ("judged by" in best.statement) == (word != "accuracy")
    assert measure.label in best.findings[0].quantity
    (less, *_) = (one for one in found if "transmission time per iteration" in one.statement)
    assert "judged by" not in less.statement


def test_a_reproduction_is_of_the_measure(tmp_path: Path):
    changes = ["iterations=20", "data.kind=digits", "figure.quick={}", "measure=own_accuracy"]
    runs = runs_of_figures([load_figure("fig2a", "quick", 1, (0.3, 0.5), changes)])
    store = RunStore(tmp_path / "runs")
    judgements = reproduce(runs, "quick", tmp_path, store, LocalEngine(1), lambda run, share: None)
    assert any("judged by accuracy on own data" in one.statement for one in judgements)
    assert "accuracy on own data" in (tmp_path / "claims.csv").read_text()
    assert "--measure own_accuracy" in (tmp_path / "report.html").read_text()
