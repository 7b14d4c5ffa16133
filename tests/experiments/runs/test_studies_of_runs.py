"""Studies: every run of a store is in one result, under a name of its own, and runs that failed are not left out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import efhc
from efhc.experiments.runs.engines.local import LocalEngine
from efhc.experiments.runs.store import RunStore
from efhc.experiments.studies.figures import load_figure
from efhc.experiments.studies.reproduce import reproduce, runs_of_figures
from efhc.experiments.studies.sweep import load_sweep, run_sweep, runs_of
from efhc.watch.watcher import Watcher

SHORT: dict[str, Any] = {"devices": 3, "iterations": 3, "seeds": [0], "network": "ring"}
BAD = {"kind": "composed", "local": {"kind": "sgd", "weight_decay": 1e300}, "trigger": "always"}
SWEEP = """
name = "s"
devices = 4
iterations = 5
seeds = [0, 1]
"""


def sweep(folder: Path, text: str) -> pl.DataFrame:
    """Make the sweep of a config in `folder`, and return its table."""
    config = folder / "sweep.toml"
    config.write_text(SWEEP + text)
    runs = runs_of(load_sweep(config))
    out = folder / "out"
    return run_sweep(runs, out, RunStore(out / "runs"), LocalEngine(1), lambda run, share: None)


def load(folder: Path, **options: bool) -> Any:
    return efhc.Result.load(folder, **options)


def states(study: Any) -> list[str]:
    return sorted(state for result in study.values() for state in result.states.values())


def test_every_run_of_a_sweep_is_in_one_result(tmp_path: Path) -> None:
    axes = '[sweep]\nnetwork = ["ring", "geometric"]\nstep_size.initial = [0.05, 0.1]\n'
    sweep(tmp_path, '[strategies]\nEF-HC = { kind = "ef-hc", r = 500.0 }\nZT = "zt"\n' + axes)
    study = load(tmp_path / "out")
    assert states(study) == 16 * ["done"]
    assert set(study) == {
        f"s, network={network}, step_size.initial={initial}"
        for network in ("ring", "geometric")
        for initial in (0.05, 0.1)
    }


def test_results_are_found_by_their_settings_and_tables_say_which_each_row_has(tmp_path: Path) -> None:
    axes = '[sweep]\nnetwork = ["ring", "geometric"]\nstep_size.initial = [0.05, 0.1]\n'
    sweep(tmp_path, '[strategies]\nEF-HC = { kind = "ef-hc", r = 500.0 }\nZT = "zt"\n' + axes)
    study = load(tmp_path / "out")
    assert study.settings.columns == ["result", "network", "step_size.initial"]
    assert study.settings.sort("result")["step_size.initial"].to_list() == [0.05, 0.1, 0.05, 0.1]
    result = study.where({"network": "ring", "initial": 0.1})
    assert result.experiment.step_size.initial == 0.1
    assert result is study["s, network=ring, step_size.initial=0.1"]
    rows = study.metrics.filter(pl.col("network") == "ring", pl.col("step_size.initial") == 0.1)
    assert rows.drop("result", "network", "step_size.initial").equals(result.metrics)
    assert len(study.devices) == 4 * 2 * 4
    assert study.devices["label_samples"].list.sum().equals(study.devices["samples"].alias("label_samples"))
    assert study.devices["label_samples"].list.len().to_list() == study.devices["labels"].list.len().to_list()
    assert {column.setting for column in study.table().columns} == {name.removeprefix("s, ") for name in study}
    for wrong, part in (({"network": "star"}, "ring"), ({"radius": 0.3}, "network"), ({"network": "ring"}, "0.05")):
        with pytest.raises(efhc.InputError) as caught:
            study.where(wrong)
        assert part in str(caught.value)


def test_reproductions_load_with_a_result_per_setting(tmp_path: Path) -> None:
    figure = '[figure]\nkind = "frontier"\ntitle = "F"\nleaders = ["EF-HC"]\n'
    figure += '[figure.settings.a]\ntitle = "A"\n[figure.settings.b]\ntitle = "B"\nchanges.network = "ring"\n'
    (tmp_path / "f.toml").write_text(SWEEP + '[strategies]\nEF-HC = "ef-hc"\nZT = "zt"\n' + figure)
    found = runs_of_figures([load_figure(str(tmp_path / "f.toml"))])
    out = tmp_path / "out"
    reproduce(found, "quick", out, RunStore(out / "runs"), LocalEngine(1), lambda run, share: None)
    study = load(out)
    assert sorted(study.settings["network"]) == ["geometric", "ring"]
    ring = study.where({"network": "ring"})
    expected = pl.read_csv(out / "figures" / "f.csv").filter(setting="b", strategy="EF-HC")["at 100 %"].item()
    assert list(study) == ["s, A", "s, B"]
    assert study.where({"setting": "b"}) is ring
    cell = study.table(budget=1.0).frame.filter(setting="B", strategy="EF-HC")
    assert cell["mean"].item() == pytest.approx(expected)
    assert ring.at_budget(1.0).filter(strategy="EF-HC")["accuracy"].mean() == pytest.approx(expected)


def test_strategies_that_differ_in_many_settings_have_names_of_their_own(tmp_path: Path) -> None:
    store = tmp_path / "store"
    numbers = (0, 1, 2, 4, 8, 16, 31)
    for number in numbers:
        one, two, three, four, five = (number >> place & 1 for place in range(5))
        own = {"kind": "entrywise", "r": 1 + one, "rate": 0.1 + 0.1 * two, "bits": 2 + three}
        own |= {"momentum": 0.1 + 0.1 * four, "correction": 0.1 + 0.1 * five}
        efhc.simulate(**SHORT | {"iterations": 1}, strategies={"X": own}, store=store, out=tmp_path / str(number))
    study = load(store)
    assert states(study) == len(numbers) * ["done"]
    assert len({name for result in study.values() for name in result.experiment.strategies}) == len(numbers)
    for result in study.values():
        assert set(result.metrics["strategy"]) == set(result.experiment.strategies)


def test_a_name_that_coincides_with_that_of_another_strategy_gets_a_number(tmp_path: Path) -> None:
    strategies = {"X": {"kind": "ef-hc", "r": 900.0}, "X, r=900.0": "zt"}
    efhc.simulate(**SHORT, strategies=strategies, store=tmp_path / "store", out=tmp_path / "one")
    other = {"X": {"kind": "ef-hc", "r": 500.0}}
    efhc.simulate(**SHORT, strategies=other, store=tmp_path / "store", out=tmp_path / "two")
    (result,) = load(tmp_path / "store").values()
    assert set(result.states.values()) == {"done"}
    found = sorted(getattr(one, "r", 0.0) for one in result.experiment.strategies.values())
    assert (len(result.states), found) == (3, [0.0, 500.0, 900.0])


def test_two_versions_of_a_run_are_both_there(tmp_path: Path) -> None:
    efhc.simulate(**SHORT, strategies={"ZT": "zt"}, out=tmp_path / "run")
    (made,) = (one for one in (tmp_path / "run" / "runs").iterdir() if one.is_dir())
    for key in ("0" * 24, "1" * 24):  # as another version of efhc, or other data of the same name, would
        shutil.copytree(made, tmp_path / "store" / key)
    (result,) = load(tmp_path / "store").values()
    assert sorted(result.states) == [("ZT", 0), ("ZT (2)", 0)]
    assert result.metrics.group_by("strategy").len()["len"].to_list() == [3, 3]


def test_labels_need_not_be_names_that_a_config_may_have(tmp_path: Path) -> None:
    name = "a strategy whose name is as long as a config allows, or so.."
    other = {"bits": 4, "rate": 0.25}
    for number, own in enumerate(({"kind": "entrywise"}, {"kind": "entrywise", **other})):
        efhc.simulate(**SHORT, strategies={name: own}, store=tmp_path / "store", out=tmp_path / str(number))
    (result,) = load(tmp_path / "store").values()
    assert min(map(len, result.experiment.strategies)) > len(name) == 60
    assert result.summary()["strategy"].sort().to_list() == sorted(result.experiment.strategies)
    result.save(tmp_path / "saved")
    saved = load(tmp_path / "saved")
    assert len(saved.experiment.strategies) == 2
    assert saved.summary().drop("strategy").equals(result.summary().drop("strategy"))
    assert len(saved.models) == 2


def test_runs_that_failed_are_in_the_study(tmp_path: Path) -> None:
    axes = '[sweep]\nnetwork = ["ring", "complete"]\n'
    bad = 'Bad = {kind="composed",local={kind="sgd",weight_decay=1e300},trigger="always"}\n'
    table = sweep(tmp_path, f'[strategies]\nA = "zt"\n{bad}{axes}')
    reasons = set(table["failed"].drop_nulls())
    study = load(tmp_path / "out")
    assert states(study) == 4 * ["done"] + 4 * ["failed"]
    for result in study.values():
        assert set(result.failed) == {("Bad", 0), ("Bad", 1)}
        assert set(result.failed.values()) <= reasons
        assert result.is_finished
    (group, *_) = Watcher.of(tmp_path / "out", may_be_empty=True).tree["groups"]
    shown = {(run["strategy"], run["state"]) for run in group["runs"]}
    assert shown == {("A", "done"), ("Bad", "failed")}


def test_failed_runs_that_the_latest_command_did_not_ask_for_are_left_out(tmp_path: Path) -> None:
    good, bad = ("weight_decay=0.0", "weight_decay=1e300")
    for decay in (bad, good):
        local = f'Own = {{kind="composed",local={{kind="sgd",{decay}}},trigger="always"}}\n'
        sweep(tmp_path, f'[strategies]\nA = "zt"\n{local}[sweep]\nnetwork = ["ring", "complete"]\n')
    study = load(tmp_path / "out")
    assert study.old_failures == 4
    assert states(study) == 8 * ["done"]
    assert study.table().strategies == ["A", "Own"]
    assert study.settings["network"].to_list() == ["ring", "complete"]


def test_where_every_run_of_a_setting_failed_the_table_says_so(tmp_path: Path) -> None:
    made = {"devices": 3, "iterations": 3, "seeds": [0], "network": "ring"}
    with pytest.raises(efhc.EfhcError):
        efhc.simulate(**made, strategies={"Bad": BAD}, store=tmp_path / "store", out=tmp_path / "one")
    good = made | {"network": "complete", "strategies": {"A": "zt"}}
    efhc.simulate(**good, store=tmp_path / "store", out=tmp_path / "two")
    table = load(tmp_path / "store").table("accuracy")
    assert any("without a result" in note for note in table.notes)


def test_settings_that_only_some_results_have_find_one_too(tmp_path: Path) -> None:
    figure = '[figure]\nkind = "frontier"\ntitle = "F"\nleaders = ["EF-HC"]\n[figure.settings.a]\ntitle = "A"\n'
    figure += 'changes.partition = { kind = "labels", labels_per_device = 2 }\n'
    figure += '[figure.settings.b]\ntitle = "B"\nchanges.partition = { kind = "dirichlet", concentration = 0.5 }\n'
    (tmp_path / "f.toml").write_text(SWEEP + '[strategies]\nZT = "zt"\nEF-HC = "ef-hc"\n' + figure)
    found = runs_of_figures([load_figure(str(tmp_path / "f.toml"))])
    reproduce(found, "quick", tmp_path, RunStore(tmp_path / "runs"), LocalEngine(1), lambda run, share: None)
    study = load(tmp_path)
    for of_a in ({"labels_per_device": 2}, {"partition.labels_per_device": 2}, {"partition": "labels"}):
        assert study.where(of_a) is study["s, A"]
    assert study.table().strategies == ["ZT", "EF-HC"]  # as in the file
    with pytest.raises(efhc.InputError, match="no setting lables_per_device"):
        study.where({"lables_per_device": 2})
    with pytest.raises(efhc.InputError, match="mapping"):
        study.where(5)
    one = study["s, A"]
    wrong: list[Any] = [lambda: one.table([]), lambda: one.table(["accuracy"], budget=[]), lambda: one.table(5)]  # type: ignore[arg-type]
    wrong += [lambda: one.at_budget("2%"), lambda: one.at_budget(2), lambda: study.timeline]  # type: ignore[arg-type]
    for call in wrong:
        with pytest.raises(efhc.InputError):
            call()


@pytest.mark.filterwarnings("ignore:.*diverged")
def test_a_short_run_that_failed_leaves_its_folder_and_is_tried_again(tmp_path: Path) -> None:
    made = efhc.simulate(**SHORT, strategies={"A": "zt", "Bad": BAD}, out=tmp_path / "run")
    assert made.states == {("A", 0): "done", ("Bad", 0): "failed"}
    again = efhc.simulate(**SHORT, strategies={"A": "zt", "Bad": BAD}, out=tmp_path / "run", resume=True)
    assert again.failed == made.failed
    (key,) = (one["key"] for one in json.loads((tmp_path / "run" / "meta.json").read_text())["runs"][1:])
    meta = json.loads((tmp_path / "run" / "runs" / key / "meta.json").read_text())
    assert (meta["status"], meta["problem"]) == ("failed", made.failed["Bad", 0])


def test_a_store_of_several_experiments_is_finished_when_their_runs_are(tmp_path: Path) -> None:
    for strategy, seed in (("zt", 0), ("gt", 1)):
        options = SHORT | {"seeds": [seed], "strategies": {strategy: strategy}}
        efhc.simulate(**options, store=tmp_path / "store", out=tmp_path / strategy)
    (result,) = load(tmp_path / "store").values()
    assert result.states == {("zt", 0): "done", ("gt", 1): "done"}
    assert result.is_finished
    with pytest.raises(efhc.InputError, match="no run of zt with seed 1"):
        result.rows("metrics", "zt", 1)


@pytest.mark.parametrize("content", ["{", "{}", '{"status": "complete", "sessions": 3}'])
def test_a_run_whose_facts_are_damaged_is_failed_and_the_others_load(tmp_path: Path, content: str) -> None:
    made = efhc.simulate(**SHORT | {"seeds": [0, 1]}, strategies={"zt": "zt"}, out=tmp_path / "run")
    first = sorted((tmp_path / "run" / "runs").glob("*/meta.json"))[0]
    first.write_text(content)
    (result,) = load(tmp_path / "run" / "runs").values()
    (pair,) = result.failed
    assert f"{first} is damaged" in result.failed[pair]
    assert sorted(result.states.values()) == ["done", "failed"]
    rest = made.metrics.filter(pl.col("seed") != pair[1])
    assert result.metrics.equals(rest)


def test_a_run_of_a_sweep_that_is_missing_or_unfinished_is_waiting(tmp_path: Path) -> None:
    sweep(tmp_path, '[strategies]\nA = "zt"\n[sweep]\nnetwork = ["ring", "complete"]\n')
    one, other, *_ = sorted(path.parent for path in (tmp_path / "out" / "runs").glob("*/meta.json"))
    shutil.rmtree(one)
    meta = json.loads((other / "meta.json").read_text())
    (other / "meta.json").write_text(json.dumps({**meta, "status": "running"}))
    study = load(tmp_path / "out")
    assert set(study) == {"s, network=ring", "s, network=complete"}
    assert states(study) == ["done", "done", "waiting", "waiting"]
    assert not all(result.is_finished for result in study.values())
    unfinished = load(tmp_path / "out", unfinished=True)
    assert states(unfinished).count("done") == 2
    assert len(unfinished.metrics) == 2 * 5
    groups = Watcher.of(tmp_path / "out", may_be_empty=True).tree["groups"]
    assert sorted(run["state"] for group in groups for run in group["runs"]).count("done") == 2
    assert sum(run["state"] == "waiting" for group in groups for run in group["runs"]) >= 1
    (tmp_path / "out" / "runs" / "index.json").write_text("[{}]")
    assert states(load(tmp_path / "out")) == ["done", "done"]
