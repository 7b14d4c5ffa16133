from __future__ import annotations

import shutil
from pathlib import Path

import polars as pl
import pytest

import efhc
from efhc.base.errors import EfhcError
from efhc.experiments.runs.engines.local import LocalEngine
from efhc.experiments.runs.run import Run, Runs
from efhc.experiments.runs.store import RunStore
from efhc.experiments.runs.tables import LOCKSTEP

SMALL = efhc.Experiment(iterations=60, seeds=(0, 1), evaluate_every=20)


def silent(run, share):
    pass


def complete(runs, path, warn=lambda text: None, jobs=None):
    store = RunStore(path, warn)
    store.make_missing(runs, LocalEngine(jobs), silent)
    return store


def stop_at(done: float):
    """Interrupts like Ctrl-C when this share of a run is done."""

    def progress(run: Run, share: float) -> None:
        if share >= done:
            raise KeyboardInterrupt

    return progress


def key_of(**changes):
    return (
        Runs()
        .of(SMALL.model_copy(update={"seeds": (0,), "strategies": {"ZT": efhc.ZeroThreshold()}, **changes}))[0]
        .key
    )


def table_bytes(path: Path) -> dict[str, bytes]:
    """The tables in a folder, but for those that were moved aside."""
    files = (file for file in sorted(path.rglob("*.parquet")) if "damaged" not in str(file))
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def test_a_run_of_the_store_is_what_the_whole_experiment_makes_of_it(tmp_path):
    store, result = complete(runs := Runs().of(SMALL), tmp_path), efhc.simulate(SMALL)
    assert len(runs) == 8
    for run in runs:
        for name in ("metrics", "events"):
            expected = getattr(result, name).filter(strategy=run.strategy, seed=run.seed)
            assert store.table(run, name).equals(expected)
        assert store.table(run, "network").equals(result.network.filter(seed=run.seed))
        assert store.table(run, "devices").equals(result.devices.filter(seed=run.seed))


def test_names_do_not_make_another_run_but_everything_else_does():
    assert key_of() == key_of(name="another") == key_of(strategies={"all fire": efhc.ZeroThreshold()})
    others = [
        key_of(strategies={"ZT": efhc.EventTriggered(r=1.0)}),
        key_of(strategies={"ZT": efhc.EventTriggered(r=2.0)}),
        key_of(seeds=(1,)),
        key_of(iterations=61),
        key_of(network=efhc.Geometric(radius=0.5)),
        key_of(test_samples=10),
        key_of(precision="float64"),
    ]
    assert len({key_of(), *others}) == len(others) + 1


def test_code_of_one_strategy_has_no_part_in_the_runs_of_another(tmp_path):
    code = tmp_path / "own.py"
    keys = []
    for text in ("0.0", "1.0"):
        code.write_text(f"class Own:\n    def thresholds(self, k, gamma, bandwidths, coins):\n        return {text}\n")
        strategies = {"mine": {"kind": f"{code}:Own"}, "ZT": efhc.ZeroThreshold()}
        keys.append([run.key for run in Runs().of(efhc.Experiment(strategies=strategies, seeds=(0,)))])
    assert keys[0][0] != keys[1][0]
    assert keys[0][1] == keys[1][1] == key_of(iterations=500, evaluate_every=50)


@pytest.mark.parametrize("file", ["checkpoint.safetensors", "config.toml", "meta.json"])
def test_a_stopped_run_that_is_damaged_is_made_again(tmp_path, file):
    runs = Runs().of(SMALL)[:1]
    complete(runs, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        RunStore(tmp_path / "stopped").make_missing(runs, LocalEngine(), stop_at(0.3))
    (tmp_path / "stopped" / runs[0].key / file).write_bytes(b"{")
    said: list[str] = []
    complete(runs, tmp_path / "stopped", said.append)
    assert len(said) == 1
    assert "is damaged" in said[0]
    assert table_bytes(tmp_path / "stopped") == table_bytes(tmp_path / "whole")


def test_a_store_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EfhcError, match=r"^store: cannot use"):
        complete(Runs().of(SMALL)[:1], tmp_path / "file" / "runs")


def test_files_made_elsewhere_are_kept_and_found(tmp_path):
    run = Runs().of(SMALL)[0]
    complete([run], tmp_path / "there")
    made = tmp_path / "there" / run.key
    store = RunStore(tmp_path / "here")
    store.keep(run, {path.name: path.read_bytes() for path in made.iterdir()})
    shutil.rmtree(tmp_path / "there")
    store.make_missing([run], LocalEngine(), silent)
    assert set(LOCKSTEP.names) <= {path.stem for path in (tmp_path / "here" / run.key).iterdir()}
    assert isinstance(store.curve(run), pl.DataFrame)


@pytest.mark.filterwarnings("ignore:.*have no test samples")
def test_accuracy_on_part_of_the_test_set_is_that_of_those_samples():
    data = efhc.Digits().load("float32")
    some = data.tested_on(100)
    rows = [number * len(data.y_test) // 100 for number in range(100)]
    assert (some.x_test == data.x_test[rows]).all()
    assert (some.y_test == data.y_test[rows]).all()
    assert some.classes == data.classes
    assert data.tested_on(10**6).y_test.tolist() == data.y_test.tolist()
    accuracy = efhc.simulate(SMALL, test_samples=10, partition="iid").metrics["accuracy_max"].drop_nulls()
    assert all(abs(value * 10 - round(value * 10)) < 1e-9 for value in accuracy)
