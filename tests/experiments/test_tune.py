"""Tuning r: what a budget allows, what is stopped early, and that a killed tuning ends as if nothing had happened."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import numpy as np
import optuna
import polars as pl
import pytest
from optuna.trial import FrozenTrial, create_trial
from pydantic import Field

from efhc.base.errors import EfhcError, InputError
from efhc.core.parts import Strategy
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import load_experiment
from efhc.experiments.runs.engines.local import LocalEngine
from efhc.experiments.runs.experiment_folder import ExperimentFolder
from efhc.experiments.runs.run import Runs
from efhc.experiments.runs.simulate import simulate
from efhc.experiments.runs.store import RunStore
from efhc.experiments.studies.tune import Tuning, tune
from efhc.experiments.studies.tuning_search import Parameter, Range, Search, TuningBudget
from efhc.report.figure_data import ACCURACY
from efhc.report.figures.studies import tuning_figure
from efhc.strategies.paper import EventTriggered, GlobalThreshold, PeriodicBroadcast, RandomizedGossip, ZeroThreshold

# The file's r is far too large: hardly anything is broadcast.
EXPERIMENT = Experiment(
    name="short",
    iterations=180,
    evaluate_every=10,
    seeds=(0, 1),
    strategies={"slow": EventTriggered(r=20000.0), "GT": GlobalThreshold(r=1000.0), "ZT": ZeroThreshold()},
)
BUDGET = TuningBudget("broadcasts", 360.0)
RANGE = Range("r", 20.0, 200000.0)
TRIALS = 12
REPORTED = ("trials.csv", "tuned.toml", "tuning.png", "tuning.pdf")


def tuned(out: Path, trials: int = TRIALS, **changed) -> Tuning:
    """Judged by the test accuracy, so that whole runs of the experiment itself say what is right."""
    arguments = {
        "experiment": EXPERIMENT,
        "budget": BUDGET,
        "engine": LocalEngine(2),
        "on": "test",
        "parameters": [RANGE],
        **changed,
    }
    return tune(out=out, trials=trials, **arguments)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tuning, Path]:
    """A whole tuning, and its folder, which tests leave as it is."""
    out = tmp_path_factory.mktemp("tune") / "out"
    return tuned(out), out


@pytest.fixture
def copied(done: tuple[Tuning, Path], tmp_path: Path) -> Path:
    """The folder of the whole tuning, to change."""
    return shutil.copytree(done[1], tmp_path / "out")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """Runs to the last iteration."""
    return RunStore(tmp_path_factory.mktemp("whole"))


def best_accuracy(tuning: Tuning) -> float:
    return tuning.table.filter(state="complete")["accuracy"].max()


def full_curves(r: float, store: RunStore) -> pl.DataFrame:
    """The curves of all seeds, to the last iteration."""
    runs = Runs().of(EXPERIMENT.model_copy(update={"strategies": {"slow": EventTriggered(r=r)}}))
    store.make_missing(runs, LocalEngine(2), lambda run, share: None)
    return pl.concat(store.curve(run) for run in runs)


# Budgets


@pytest.mark.parametrize(
    ("text", "kind", "amount", "words"),
    [
        ("transmission_time=500", "transmission_time", 500.0, "transmission time 500"),
        (" broadcasts = 2e3 ", "broadcasts", 2000.0, "2000 broadcasts"),
        ("transmission_time=0.25", "transmission_time", 0.25, "transmission time 0.25"),
        (" zt = 2 %", "zt", 0.02, "2 % of ZT's transmission time"),
    ],
)
def test_a_budget_is_read(text: str, kind: str, amount: float, words: str):
    budget = TuningBudget.parse(text)
    assert (budget.kind, budget.amount, budget.words) == (kind, amount, words)
    assert TuningBudget.parse(str(budget)) == budget


NO_BUDGETS = ["", "500", "broadcasts", "zt=2", "zt=0%", "zt=%", "zt=-1%", "transmission_time=inf", "time=5"]
NO_BUDGETS += [f"broadcasts={amount}" for amount in ("", "0", "-3", "nan", "2%", "many", "1=2")]


@pytest.mark.parametrize("text", NO_BUDGETS)
def test_what_is_no_budget_is_refused(text: str):
    with pytest.raises(InputError) as refused:
        TuningBudget.parse(text)
    assert (refused.value.field, refused.value.given) == ("--budget", repr(text) if text else "nothing")
    assert "transmission_time=T, broadcasts=N" in str(refused.value)


def test_accuracy_within_a_budget_is_read_off_what_the_budget_is_of():
    one = {"strategy": "s", "seed": 0, "accuracy": [0.1, 0.2, 0.4, 0.6], "broadcasts_total": [10, 20, 20, 40]}
    two = {"strategy": "s", "seed": 1, "accuracy": [0.5, 0.5, 0.5, 0.9], "broadcasts_total": [0, 0, 0, 10]}
    curves = pl.concat(pl.DataFrame(one | {"transmission_time_total": [1.0, 2.0, 3.0, 4.0]}) for one in (one, two))
    expected = {
        5: [np.nan, 0.7],  # less than the first iteration takes
        15: [0.15, 0.9],
        20: [0.4, 0.9],  # what is learned without another broadcast is still within
        30: [0.5, 0.9],
        40: [0.6, 0.9],
        1000: [0.6, 0.9],  # never spent: at the end
    }
    for amount, accuracies in expected.items():
        wanted = pytest.approx(accuracies, nan_ok=True)
        assert TuningBudget("broadcasts", float(amount)).values(curves, ACCURACY) == wanted
        assert TuningBudget("broadcasts", 2.0 * amount).values(curves, ACCURACY, share=0.5) == wanted
    assert TuningBudget("transmission_time", 3.5).values(curves, ACCURACY) == pytest.approx([0.5, 0.7])
    assert TuningBudget("broadcasts", 25.0).spent(curves) == [25.0, 10.0]
    assert TuningBudget("broadcasts", 9.0).is_exceeded(curves)
    assert not TuningBudget("broadcasts", 10.0).is_exceeded(
        curves
    )  # the second may learn on, without another broadcast
    assert not TuningBudget("broadcasts", 25.0).is_exceeded(curves)


# What is tuned, and where


def test_rungs_are_a_ninth_a_third_and_all_as_far_as_there_is_something_to_evaluate():
    def rungs(iterations: int, every: int) -> list[int]:
        experiment = EXPERIMENT.model_copy(update={"iterations": iterations, "evaluate_every": every})
        return Search.of(experiment, BUDGET).rungs

    assert rungs(180, 10) == [20, 60, 180]
    assert rungs(900, 1) == [100, 300, 900]
    assert rungs(500, 50) == [50, 150, 500]
    assert rungs(400, 100) == [100, 400]
    assert rungs(400, 300) == [400]
    assert rungs(1, 50) == [1]


def test_the_first_trials_are_the_files_own_r_and_points_over_the_range():
    search = Search.of(EXPERIMENT, BUDGET)
    (parameter,) = search.parameters
    assert (parameter.low, parameter.high) == (200.0, 2e6)
    assert values_of(search.first) == [20000.0, 2000.0, 200000.0, 200.0, 2e6]
    assert values_of(Search.of(EXPERIMENT, BUDGET, [Range("r", 1.0, 16.0)]).first) == [4.0, 2.0, 8.0, 1.0, 16.0]
    assert Search.of(EXPERIMENT, BUDGET, strategy="GT").first[0] == {"r": 1000.0}


GOSSIP, TWO_GT = {"RG": RandomizedGossip()}, {"A": GlobalThreshold(), "B": GlobalThreshold(r=1.0)}


@pytest.mark.parametrize(
    ("strategies", "changed", "field", "words"),
    [
        ({"ZT": ZeroThreshold()}, {}, "strategies", "ZT, of which 0 have a number r"),
        (TWO_GT, {}, "strategies", "of which 2 have a number r"),
        (None, {"parameters": [Range("rr")]}, "--parameter", "not a numeric setting of slow, GT (did you mean 'r'?)"),
        (None, {"parameters": [Range("rho")], "strategy": "GT"}, "--parameter", "setting of GT. Use r of GT"),
        (GOSSIP, {}, "--parameter", "not a numeric setting of RG. Use probability of RG"),
        (None, {"parameters": [Range("state")]}, "--parameter", "state"),
        (None, {"on": "train"}, "--on", "'train'. Use validation or test"),
        (GOSSIP, {"parameters": [Range("probability")]}, "--low and --high", "probability = 0 of RG"),
        (GOSSIP, {"parameters": [Range("probability", 0.1, 2.0)]}, "--high", "2 (strategies.RG.probability: "),
        ({"EF": EventTriggered(r=0.0)}, {}, "--low and --high", "r = 0 of EF to find a range"),
        (None, {"strategy": "ZT"}, "--strategy", "ZT, which has no number r. Use slow, GT"),
        (None, {"strategy": "EF-HC"}, "--strategy", "EF-HC. Use slow, GT"),
        (None, {"parameters": [Range("r", -1.0)]}, "--low", "-1.0. Use a positive number"),
        (None, {"parameters": [Range("r", 5.0, 5.0)]}, "--high", "5.0. Use a number above --low, which is 5"),
        (None, {"parameters": [Range("r", None, float("inf"))]}, "--high", "inf"),
        (None, {"trials": 0}, "--trials", "0. Use at least 1"),
    ],
)
def test_what_cannot_be_tuned_is_said_in_one_line(strategies, changed, field, words, tmp_path: Path, no_engine):
    experiment = EXPERIMENT.model_copy(update={"strategies": strategies or EXPERIMENT.strategies})
    with pytest.raises(InputError) as refused:
        tune(experiment, BUDGET, tmp_path / "out", no_engine, **changed)
    assert refused.value.field == field
    assert words in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_any_number_of_any_strategy_can_be_tuned():
    """Also one that the file leaves at none, as long as the range is given; whole numbers stay whole."""
    experiment = EXPERIMENT.model_copy(update={"strategies": {"RG": RandomizedGossip(), "GT": GlobalThreshold(r=3.0)}})
    search = Search.of(experiment, BUDGET, [Range("probability", 0.01, 1.0)], on="test")
    assert (search.strategy, search.parameters[0].own) == ("RG", None)
    assert values_of(search.first) == [0.1, 0.03162, 0.3162, 0.01, 1.0]
    assert search.with_values({"probability": 0.25}).strategies == {
        **experiment.strategies,
        "RG": RandomizedGossip(probability=0.25),
    }
    assert search.part({"probability": 0.25}, 7).strategies == {"RG": RandomizedGossip(probability=0.25)}
    assert search.part({"probability": 0.25}, 7).iterations == 7
    assert Search.of(experiment, BUDGET).strategy == "GT"  # the only one with an r
    whole = Parameter("r", 3, 0.0, 9.0, is_whole=True).narrowed_to(Range("r", 0.5, 4.4), "GT")
    assert values_of(Search(experiment, "GT", (whole,), BUDGET).first) == [3.0, 2.0, 1.0, 4.0]


def values_of(points: list[dict[str, float]]) -> list[float]:
    """The values of a single parameter."""
    return [value for point in points for value in point.values()]


def tried(search: Search, *points: dict[str, float]) -> list[FrozenTrial]:
    return [
        create_trial(params=point, distributions=search.distributions, value=0.1 * number)
        for number, point in enumerate(points)
    ]


def test_other_numbers_are_tried_once_as_well(monkeypatch: pytest.MonkeyPatch):
    search = Search.of(EXPERIMENT, BUDGET, [Range("r", 1.0, 16.0)])
    asked = iter([2.0, 2.00001, 4.0, 5.0])
    monkeypatch.setattr("optuna.trial.Trial.suggest_float", lambda *_, **__: next(asked))
    assert search.next_values(tried(search, *search.first)) == {"r": 5.0}


def test_a_tuning_says_that_every_value_was_tried(tmp_path: Path):
    experiment = Experiment(iterations=4, seeds=0, strategies={"P": PeriodicBroadcast(every=2)})
    said: list[str] = []
    options = {"parameters": [Range("every", 1, 2)], "trials": 5}
    for _ in range(2):
        tuning = tune(experiment, BUDGET, tmp_path / "out", LocalEngine(1), **options, warn=said.append)
        assert sorted(tuning.table["every"]) == [1, 2]
    assert said == ["all values of every from 1 to 2 were tried: stopped after 2 of 5 trials"] * 2


class Bounded(Strategy):
    share: float = Field(default=0.9, gt=0.1, lt=1)
    few: Annotated[int, Field(ge=2, le=6)] | None = 5

    def thresholds(self, k, gamma, bandwidths, coins):
        raise NotImplementedError


@pytest.mark.parametrize(("parameter", "low", "high"), [("share", 0.1001, 0.999), ("few", 2.0, 6.0)])
def test_the_default_range_stays_within_what_the_strategy_allows(parameter: str, low: float, high: float, monkeypatch):
    monkeypatch.setattr(Search, "part", lambda *_: None)
    experiment = EXPERIMENT.model_copy(update={"strategies": {"B": Bounded()}})
    (found,) = Search.of(experiment, BUDGET, [Range(parameter)]).parameters
    assert (found.low, found.high) == pytest.approx((low, high))


def test_a_tuning_chooses_by_validation_samples_and_reports_the_test_accuracy_once(tmp_path: Path):
    experiment = EXPERIMENT.model_copy(update={"iterations": 20, "seeds": (3,)})
    out = tmp_path / "out"
    tuning = tune(experiment, BUDGET, out, LocalEngine(1), trials=3)
    made = [ExperimentFolder(path).load_experiment() for path in (out / "runs").glob("[!.]*/")]
    on_test = [run for run in made if run.validation is None]
    assert {run.validation for run in made} == {0.1, None}
    assert [run.strategies["ef-hc"] for run in on_test] == [EventTriggered(r=tuning.best_values["r"])]
    assert load_experiment(out / "tuned.toml") == experiment.model_copy(
        update={"strategies": {**experiment.strategies, "slow": EventTriggered(r=tuning.best_values["r"])}}
    )
    metrics = simulate(tuning.search.final(tuning.best_values), jobs=1).metrics
    assert tuning.test_value == metrics["accuracy"].drop_nulls()[-1]
    assert pl.read_csv(out / "test.csv").columns == ["seed", "accuracy", "spent"]


def test_the_files_own_validation_share_is_used_for_tuning_only():
    experiment = Experiment.model_validate({**dict(EXPERIMENT), "validation": 0.25})
    search = Search.of(experiment, BUDGET)
    assert search.part({"r": 1.0}, 5).validation == 0.25
    assert search.with_values({"r": 1.0}).validation is None
    assert search.final({"r": 1.0}).validation is None
    assert Search.of(experiment, BUDGET, on="test").part({"r": 1.0}, 5).validation is None
    assert Search.of(EXPERIMENT, BUDGET).part({"r": 1.0}, 5).validation == 0.1


class Diverging:
    """Makes runs, but for those above a threshold scale."""

    def __init__(self, limit: float) -> None:
        self.limit, self.engine = limit, LocalEngine(1)

    def make(self, runs, store, progress, observers=None, followers=()):
        failing = [run for run in runs if run.experiment.strategies["ef-hc"].r > self.limit]
        failures = self.engine.make([run for run in runs if run not in failing], store, progress, observers)
        return {**failures, **{run.key: EfhcError(f"{run.name} diverged") for run in failing}}


def test_a_trial_that_diverges_fails_and_the_tuning_goes_on(tmp_path: Path, no_engine):
    experiment = EXPERIMENT.model_copy(update={"iterations": 20, "seeds": (3,)})
    arguments = {"experiment": experiment, "budget": BUDGET, "out": tmp_path / "out", "on": "test"}
    tuning = tune(**arguments, engine=Diverging(10000.0), trials=4)
    failed = tuning.table.filter(state="failed")
    assert failed["trial"].to_list() == [1, 3]
    assert failed.select("accuracy", "low", "high", "spent", "seed 3").null_count().row(0) == (2,) * 5
    assert tuning.best_values["r"] in {2000.0, 200.0}
    again = tune(**arguments, engine=no_engine, trials=4)
    assert again.table.equals(tuning.table)


def test_a_tuning_without_a_complete_trial_is_one_line(tmp_path: Path):
    experiment = EXPERIMENT.model_copy(update={"iterations": 20, "seeds": (3,)})
    with pytest.raises(EfhcError, match=r"^none of 2 trials was completed, and 2 failed; give more --trials"):
        tune(experiment, BUDGET, tmp_path / "out", Diverging(0.0), trials=2)


# What comes of it


def test_the_tuned_r_is_as_good_as_the_best_of_a_grid(done: tuple[Tuning, Path], whole: RunStore):
    grid = {
        r: float(np.mean(BUDGET.values(full_curves(float(r), whole), ACCURACY))) for r in np.geomspace(20, 200000, 9)
    }
    best = max(grid, key=grid.__getitem__)
    assert RANGE.low < best < RANGE.high  # a budget that makes it neither always nor never best to broadcast
    assert best_accuracy(done[0]) > grid[best] - 0.03
    assert sorted(grid.values())[-2] < grid[best] - 0.03  # which its neighbours in the grid would not do
    assert best_accuracy(done[0]) > done[0].table.row(0, named=True)["accuracy"] + 0.2  # the file's own r


def test_trials_are_stopped_early_and_iterations_saved(done: tuple[Tuning, Path]):
    tuning, out = done
    table = tuning.table
    pruned, complete = table.filter(state="pruned"), table.filter(state="complete")
    assert len(pruned) >= TRIALS // 3
    assert len(pruned) + len(complete) == TRIALS
    assert set(pruned["iterations"]) <= {20, 60}
    runs = [ExperimentFolder(path).load_experiment() for path in (out / "runs").glob("[!.]*/")]
    furthest: dict[float, int] = {}
    for run in runs:
        (strategy,) = run.strategies.values()
        furthest[strategy.r] = max(furthest.get(strategy.r, 0), run.iterations)
    assert furthest == dict(table.select("r", "iterations").iter_rows())
    assert sum(run.iterations for run in runs) < 0.7 * TRIALS * len(EXPERIMENT.seeds) * EXPERIMENT.iterations


def test_the_table_holds_what_full_runs_give(done: tuple[Tuning, Path], whole: RunStore):
    """Also of those that were complete before the last iteration, because they had spent the budget."""
    complete = done[0].table.filter(state="complete")
    assert complete["iterations"].n_unique() > 1
    for row in complete.iter_rows(named=True):
        accuracies = BUDGET.values(curves := full_curves(row["r"], whole), ACCURACY)
        found = [row["seed 0"], row["seed 1"]]
        is_whole = row["iterations"] == EXPERIMENT.iterations  # the others were evaluated at their end, too
        assert found == accuracies if is_whole else found == pytest.approx(accuracies, abs=0.05)
        assert row["accuracy"] == np.mean(found)
        assert min(found) <= row["low"] <= row["high"] <= max(found)
        assert row["spent"] == np.mean(BUDGET.spent(curves))
        assert row["iterations"] == EXPERIMENT.iterations or row["spent"] == BUDGET.amount


def test_trials_are_judged_within_their_share_of_the_budget(done: tuple[Tuning, Path], tmp_path: Path):
    """As any reader of Optuna's journal finds them."""
    shutil.copy(done[1] / "optuna.journal", tmp_path)
    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "optuna.journal"))
    study = optuna.load_study(study_name="r", storage=optuna.storages.JournalStorage(backend))
    assert [trial.number for trial in study.trials] == list(range(TRIALS))
    assert study.best_params["r"] == done[0].best_values["r"]
    runs, store = Runs(), RunStore(done[1] / "runs")
    passed: dict[int, list[float]] = {}
    for trial in study.trials:
        for step, value in trial.intermediate_values.items():
            iterations = 20 * step
            part = Search.of(EXPERIMENT, BUDGET, on="test").part(trial.params, iterations)
            curves = pl.concat(store.curve(run) for run in runs.of(part))
            share = TuningBudget(BUDGET.kind, BUDGET.amount * iterations / EXPERIMENT.iterations)
            assert value == np.mean(share.values(curves, ACCURACY))
            others = passed.setdefault(step, [])
            others.append(value)
            better = sum(other > value for other in others)
            if step == trial.last_step and trial.state is optuna.trial.TrialState.PRUNED:
                assert better >= max(len(others) // 3, 1)
            elif step < trial.last_step:
                assert better < max(len(others) // 3, 1)


def test_the_tuned_config_runs_and_keeps_what_was_promised(done: tuple[Tuning, Path]):
    tuning, out = done
    experiment = load_experiment(out / "tuned.toml")
    assert experiment == tuning.experiment
    assert experiment.strategies["slow"] == EventTriggered(r=tuning.best_values["r"])
    assert experiment.model_copy(update={"strategies": EXPERIMENT.strategies}) == EXPERIMENT
    assert {**experiment.strategies, "slow": None} == {**EXPERIMENT.strategies, "slow": None}
    metrics = simulate(experiment, jobs=2).metrics.filter(strategy="slow")
    curves = metrics.with_columns(broadcasts_total=pl.col("fired").cum_sum().over("seed")).drop_nulls("accuracy")
    assert np.mean(BUDGET.values(curves, ACCURACY)) == best_accuracy(tuning)


def test_the_files_are_there_and_the_figure_tells_trials_apart(done: tuple[Tuning, Path]):
    tuning, out = done
    assert sorted(path.name for path in out.iterdir() if path.name != ".lock") == [
        *("optuna.journal", "runs", "trials.csv", "tuned.toml", "tuning.pdf", "tuning.png")
    ]
    assert pl.read_csv(out / "trials.csv").equals(tuning.table)
    assert (out / "tuning.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "tuning.pdf").read_bytes().startswith(b"%PDF")
    figure = tuning_figure(tuning.table, tuning.best_values, "100 % of $what")
    (axes,) = figure.axes
    drawn = {line.get_label(): sorted(zip(*line.get_data(), strict=True)) for line in axes.lines}
    for label, state in (("complete", "complete"), ("stopped early, so after fewer iterations", "pruned")):
        rows = tuning.table.filter(state=state).select("r", "accuracy").iter_rows()
        assert drawn.pop(label) == sorted(rows)
    ((label, (point,)),) = drawn.items()
    assert point == (tuning.best_values["r"], best_accuracy(tuning))
    assert f"r = {tuning.best_values['r']:.4g}" in label
    assert axes.get_xscale() == "log"
    assert tuning.bounds == "min to max"  # of two seeds
    (legend,) = tuning_figure(tuning.table, tuning.best_values, bounds=tuning.bounds).legends
    assert "min to max over seeds" in [text.get_text() for text in legend.get_texts()]


def test_another_strategy_with_r_may_be_tuned_and_one_seed_has_no_interval(tmp_path: Path):
    experiment = EXPERIMENT.model_copy(update={"iterations": 20, "seeds": (3,)})
    told = []
    tuning = tune(
        experiment,
        TuningBudget("transmission_time", 0.5),
        tmp_path / "out",
        LocalEngine(1),
        strategy="GT",
        trials=3,
        on="test",
        progress=lambda *news: told.append(news),
    )
    assert tuning.table["r"].to_list() == [1000.0, 100.0, 10000.0]
    assert tuning.experiment.strategies["GT"] == GlobalThreshold(r=tuning.best_values["r"])
    assert tuning.experiment.strategies["slow"] == EXPERIMENT.strategies["slow"]
    assert tuning.table["low"].to_list() == [None] * 3
    assert tuning.search.rungs == [10, 20]
    assert {(trial, values["r"]) for trial, values, _, _ in told} == {(1, 1000.0), (2, 100.0), (3, 10000.0)}
    assert told[-1][3] == 1.0
    assert all(0 <= share <= 1 for *_, share in told)


def test_an_r_at_the_edge_is_pointed_out(done: tuple[Tuning, Path]):
    tuning = done[0]
    assert tuning.advice == []
    best = pl.col("r") == tuning.best_values["r"]
    lowest = Tuning(tuning.search, tuning.table.filter(best | (pl.col("r") > tuning.best_values["r"])), ACCURACY)
    assert "smallest that was tried; a better one may lie below: try more trials" in lowest.advice[0]
    highest = Tuning(tuning.search, tuning.table.filter(best | (pl.col("r") < tuning.best_values["r"])), ACCURACY)
    assert "largest that was tried; a better one may lie above: try more trials" in highest.advice[0]
    assert Tuning(tuning.search, tuning.table.filter(best), ACCURACY).advice == []


def test_of_equals_the_one_that_spends_least_is_best(done: tuple[Tuning, Path]):
    rows = {"trial": [1, 2, 3, 4], "r": [1.0, 2.0, 3.0, 4.0], "accuracy": [0.5, 0.7, 0.7, 0.9]}
    rows |= {"spent": [10.0, 30.0, 20.0, 5.0], "state": ["complete"] * 3 + ["pruned"]}
    assert Tuning(done[0].search, pl.DataFrame(rows), ACCURACY).best_values["r"] == 3.0


# Going on


def test_with_all_finished_it_only_reports(done: tuple[Tuning, Path], copied: Path, no_engine, capfd):
    for name in REPORTED:
        (copied / name).unlink()
    before = optuna.logging.get_verbosity()
    again = tuned(copied, trials=2, engine=no_engine)  # fewer than there are
    assert again.table.equals(done[0].table)
    for name in REPORTED:
        assert (copied / name).read_bytes() == (done[1] / name).read_bytes()
    assert optuna.logging.get_verbosity() == before == optuna.logging.INFO  # Optuna logs as before
    assert capfd.readouterr() == ("", "")


def left_off(out: Path, finished: int) -> None:
    assert (out / "optuna.journal").read_text().count('"op_code":4') == finished
    assert not (out / "trials.csv").exists()


def ends_as(done: tuple[Tuning, Path], out: Path) -> None:
    tuned(out)
    for name in ("trials.csv", "tuned.toml", "tuning.png"):
        assert (out / name).read_bytes() == (done[1] / name).read_bytes()


def test_interrupted_it_ends_with_the_same_bytes(done: tuple[Tuning, Path], tmp_path: Path):
    def interrupt(trial: int, values: dict[str, float], iterations: int, share: float) -> None:
        if trial == 7 and 0 < share < 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuned(tmp_path / "out", progress=interrupt)
    left_off(tmp_path / "out", 6)
    ends_as(done, tmp_path / "out")


def test_half_a_line_and_a_lock_that_a_killed_process_left_do_no_harm(
    done: tuple[Tuning, Path], copied: Path, no_engine
):
    lines = (copied / "optuna.journal").read_bytes().splitlines(keepends=True)
    (copied / "optuna.journal").write_bytes(b"".join(lines[:-1]) + lines[-1][:50])
    for name in ("optuna.journal.lock", "optuna.journal.lock123.rename", ".lock", ".trials.csv.0badcafe.partial"):
        (copied / name).touch()
    (copied / "trials.csv").unlink()
    tuned(copied, engine=no_engine)  # the runs of the last trial are there
    assert (copied / "trials.csv").read_bytes() == (done[1] / "trials.csv").read_bytes()


def test_a_journal_that_is_lost_is_written_again_from_the_runs(done: tuple[Tuning, Path], copied: Path, no_engine):
    (copied / "optuna.journal").unlink()
    assert tuned(copied, engine=no_engine).table.equals(done[0].table)


def test_a_corrupt_journal_is_one_line(copied: Path, no_engine):
    lines = (copied / "optuna.journal").read_bytes().splitlines(keepends=True)
    (copied / "optuna.journal").write_bytes(b"".join([*lines[:3], b"{half\n", *lines[3:]]))
    with pytest.raises(EfhcError, match=r"optuna\.journal is corrupt \(.*\); remove it to tune again with the runs"):
        tuned(copied, engine=no_engine)


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (
            {"budget": TuningBudget("transmission_time", 300.0)},
            "(--budget 'broadcasts=360', not 'transmission_time=300')",
        ),
        ({"experiment": EXPERIMENT.model_copy(update={"devices": 9})}, ", not 9)"),
        ({"parameters": [Range("r", 20.0, 1000.0)]}, ", not '20.0:1000.0')"),
        ({"strategy": "GT"}, ", not 'GT')"),
    ],
)
def test_another_tuning_in_the_same_folder_is_refused(changed: dict, line: str, copied: Path, done, no_engine):
    with pytest.raises(InputError) as refused:
        tuned(copied, engine=no_engine, **changed)
    assert line in str(refused.value)
    assert refused.value.field == "--out"
    assert "\n" not in str(refused.value)
    assert (copied / "trials.csv").read_bytes() == (done[1] / "trials.csv").read_bytes()


def test_a_folder_that_holds_an_experiment_or_cannot_be_written_is_refused(tmp_path: Path, no_engine):
    (tmp_path / "config.toml").write_text("iterations = 3\n")
    with pytest.raises(InputError, match=r"--out: cannot use .*, which holds an experiment"):
        tuned(tmp_path, engine=no_engine)
    with pytest.raises(EfhcError, match="a file is where a folder is needed"):
        tuned(tmp_path / "config.toml", engine=no_engine)
    assert [path.name for path in tmp_path.iterdir()] == ["config.toml"]
