from __future__ import annotations

import json
import shutil
from pathlib import Path

import polars as pl
import pytest

import efhc
from efhc.base.errors import EfhcError
from efhc.core.state import Diverged
from efhc.experiments.runs.directory import LARGEST_LIVE, RunDirectory
from efhc.experiments.runs.engines.local import LocalEngine
from efhc.experiments.runs.run import Run, Runs
from efhc.experiments.runs.store import RunStore
from efhc.experiments.runs.tables import LOCKSTEP

SMALL = efhc.Experiment(iterations=60, seeds=(0, 1), evaluate_every=20)


def silent(run, share):
    pass


def complete(runs, path, warn=lambda text: None, jobs=None):
    store = RunStore(path, warn)
    store.complete(runs, LocalEngine(jobs), silent)
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


def test_the_curve_has_evaluated_iterations_and_broadcasts_so_far(tmp_path):
    run = Runs().of(SMALL)[0]
    curve = complete([run], tmp_path).curve(run)
    fired = efhc.simulate(SMALL).metrics.filter(strategy=run.strategy, seed=0)["fired"].to_list()
    assert curve["iteration"].to_list() == [0, 19, 39, 59]
    assert curve["broadcasts_total"].to_list() == [sum(fired[: k + 1]) for k in (0, 19, 39, 59)]


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


def test_a_changed_input_file_makes_another_run(tmp_path):
    links = tmp_path / "links.txt"
    keys = set()
    for content in ("0 1\n1 2\n", "0 1\n0 2\n"):
        links.write_text(content)
        keys.add(key_of(devices=3, network=efhc.EdgeListFile(path=links)))
    assert len(keys) == 2


def test_code_of_one_strategy_has_no_part_in_the_runs_of_another(tmp_path):
    code = tmp_path / "own.py"
    keys = []
    for text in ("0.0", "1.0"):
        code.write_text(f"class Own:\n    def thresholds(self, k, gamma, bandwidths, coins):\n        return {text}\n")
        strategies = {"mine": {"kind": f"{code}:Own"}, "ZT": efhc.ZeroThreshold()}
        keys.append([run.key for run in Runs().of(efhc.Experiment(strategies=strategies, seeds=(0,)))])
    assert keys[0][0] != keys[1][0]
    assert keys[0][1] == keys[1][1] == key_of(iterations=500, evaluate_every=50)


def test_runs_that_are_there_are_not_made_again(tmp_path):
    runs = Runs().of(SMALL)
    complete(runs, tmp_path)
    metas = {run.key: (tmp_path / run.key / "meta.json").read_bytes() for run in runs}

    class NoEngine:
        def make(self, runs, store, progress, observers=None, followers=()):
            raise AssertionError(f"{len(runs)} runs made again")

    told = []
    RunStore(tmp_path).complete(runs, NoEngine(), lambda run, share: told.append((run.key, share)))
    assert told == [(run.key, 1.0) for run in runs]
    assert metas == {run.key: (tmp_path / run.key / "meta.json").read_bytes() for run in runs}


def test_two_that_ask_for_the_same_run_share_it(tmp_path):
    runs = Runs()
    both = [*runs.of(SMALL), *runs.of(SMALL.model_copy(update={"name": "other"}))]
    store = complete(both, tmp_path)
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 8
    assert store.table(both[0], "metrics").equals(store.table(both[8], "metrics"))


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone", "meta", "meta without tables"])
def test_a_damaged_run_is_said_to_be_and_made_again(tmp_path, damage):
    runs = Runs().of(SMALL)[:2]
    complete(runs, tmp_path)
    before = table_bytes(tmp_path)
    victim = tmp_path / runs[1].key
    table = victim / "metrics.parquet"
    if damage == "cut":
        table.write_bytes(table.read_bytes()[:-10])
    elif damage == "flipped":
        content = bytearray(table.read_bytes())
        content[len(content) // 2] ^= 1
        table.write_bytes(content)
    elif damage == "gone":
        table.unlink()
    elif damage == "meta":
        (victim / "meta.json").write_text("{")
    else:
        (victim / "meta.json").write_text(json.dumps({"status": "complete", "table_sha256": 3}))
    said: list[str] = []
    complete(runs, tmp_path, said.append)
    assert len(said) == 1
    assert runs[1].key in said[0]
    assert "made again" in said[0]
    assert table_bytes(tmp_path) == before
    (aside,) = tmp_path.glob("*.damaged-*")
    assert aside.name.startswith(runs[1].key)
    assert aside.name in said[0]


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_number_of_jobs_changes_no_bit(tmp_path, jobs):
    runs = Runs().of(SMALL)
    complete(runs, tmp_path / "all")
    complete(runs, tmp_path / "some", jobs=jobs)
    assert table_bytes(tmp_path / "all") == table_bytes(tmp_path / "some")


def test_a_run_that_was_stopped_goes_on_to_the_same_bytes(tmp_path):
    runs = Runs().of(SMALL)[:1]
    complete(runs, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        RunStore(tmp_path / "stopped").complete(runs, LocalEngine(), stop_at(0.3))
    folder = tmp_path / "stopped" / runs[0].key
    assert (folder / "checkpoint.safetensors").exists()
    assert not RunDirectory(folder).is_complete
    complete(runs, tmp_path / "stopped")
    assert table_bytes(tmp_path / "stopped") == table_bytes(tmp_path / "whole")
    assert not (folder / "checkpoint.safetensors").exists()
    assert not (folder / "pieces").exists()


@pytest.mark.parametrize("file", ["checkpoint.safetensors", "config.toml", "meta.json"])
def test_a_stopped_run_that_is_damaged_is_made_again(tmp_path, file):
    runs = Runs().of(SMALL)[:1]
    complete(runs, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        RunStore(tmp_path / "stopped").complete(runs, LocalEngine(), stop_at(0.3))
    (tmp_path / "stopped" / runs[0].key / file).write_bytes(b"{")
    said: list[str] = []
    complete(runs, tmp_path / "stopped", said.append)
    assert len(said) == 1
    assert "made again" in said[0]
    assert table_bytes(tmp_path / "stopped") == table_bytes(tmp_path / "whole")


def test_a_run_that_diverges_leaves_the_others_alone(tmp_path):
    changes = {"seeds": (0,), "strategies": {"ZT": efhc.ZeroThreshold()}, "model": efhc.Softmax(l2=1.0)}
    calm = SMALL.model_copy(update=changes)
    exploding = SMALL.model_copy(update={**changes, "step_size": efhc.Constant(value=1e3)})
    runs = Runs()
    good, bad = runs.of(calm), runs.of(exploding)
    store = RunStore(tmp_path)
    failures = store.complete([*bad, *good], LocalEngine(2), silent)
    assert failures.keys() == {bad[0].key}
    assert isinstance(failures[bad[0].key], Diverged)
    assert str(failures[bad[0].key]).startswith("ZT, seed 0: training diverged at iteration")
    assert len(store.curve(good[0])) == 4


def test_a_store_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EfhcError, match="--out"):
        complete(Runs().of(SMALL)[:1], tmp_path / "file" / "runs")


def test_files_made_elsewhere_are_kept_and_found(tmp_path):
    run = Runs().of(SMALL)[0]
    complete([run], tmp_path / "there")
    made = tmp_path / "there" / run.key
    store = RunStore(tmp_path / "here")
    store.keep(run, {path.name: path.read_bytes() for path in made.iterdir()})
    shutil.rmtree(tmp_path / "there")
    store.complete([run], LocalEngine(), silent)
    assert set(LOCKSTEP.names) <= {path.stem for path in (tmp_path / "here" / run.key).iterdir()}
    assert isinstance(store.curve(run), pl.DataFrame)


def test_accuracy_on_part_of_the_test_set_is_that_of_those_samples():
    data = efhc.Digits().load("float32")
    some = data.tested_on(100)
    rows = [number * len(data.y_test) // 100 for number in range(100)]
    assert (some.x_test == data.x_test[rows]).all()
    assert (some.y_test == data.y_test[rows]).all()
    assert some.classes == data.classes
    assert data.tested_on(10**6).y_test.tolist() == data.y_test.tolist()
    accuracy = efhc.simulate(SMALL, test_samples=10).metrics["accuracy_max"].drop_nulls()
    assert all(abs(value * 10 - round(value * 10)) < 1e-9 for value in accuracy)


def test_only_a_live_file_of_reasonable_size_is_kept(tmp_path: Path):
    """What stands in its place may have no end: a link to a device, or a file that somebody else fills."""
    directory, live = RunDirectory(tmp_path / "whole"), tmp_path / "live.jsonl"
    live.write_bytes(b"{}\n")
    directory.save_live("A", 0, live)
    (tmp_path / "link.jsonl").symlink_to(live)
    directory.save_live("A", 1, tmp_path / "link.jsonl")
    with live.open("r+b") as file:
        file.truncate(LARGEST_LIVE + 1)
    directory.save_live("A", 2, live)
    assert [directory.live_file("A", seed).exists() for seed in range(3)] == [True, False, False]
