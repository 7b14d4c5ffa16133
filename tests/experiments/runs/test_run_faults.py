"""What becomes of a run when its files, its inputs or its neighbours are not as they should be."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from stopped_runs import interrupt_at

import efhc
from efhc.base.errors import EfhcError
from efhc.base.inputs import sha256
from efhc.base.saving import SaveError, lock, read_tensors, write_tensors
from efhc.experiments.runs import keeping
from efhc.experiments.runs.engines.local import LocalEngine
from efhc.experiments.runs.experiment_folder import ExperimentFolder
from efhc.experiments.runs.provenance import provenance
from efhc.experiments.runs.run import Runs
from efhc.experiments.runs.store import RunStore

SMALL = {"iterations": 12, "seeds": (0,), "evaluate_every": 5, "devices": 6}
ONE = {**SMALL, "strategies": {"ZT": efhc.ZeroThreshold()}}


def stopped(out: Path, **fields: object) -> Path:
    """The folder of a single run that was stopped after its first iterations."""
    with pytest.raises(KeyboardInterrupt):
        efhc.simulate(**{**ONE, **fields}, out=out, progress=interrupt_at(5))
    (folder,) = (out / "runs").glob("[!.]*")
    return folder


# Inputs


def test_an_input_file_that_changes_while_runs_are_made_changes_no_run(tmp_path):
    links = tmp_path / "links.txt"
    first, second = "0 1\n1 2\n2 3\n3 4\n4 5\n", "0 1\n0 2\n0 3\n0 4\n0 5\n"
    experiment = efhc.Experiment(**{**ONE, "seeds": (0, 1, 2)}, network=efhc.EdgeListFile(path=links))
    links.write_text(first)
    undisturbed = efhc.simulate(experiment)
    runs = Runs().of(experiment)

    def edit(run, share):
        links.write_text(second)

    store = RunStore(tmp_path / "runs")
    store.make_missing(runs, LocalEngine(1), edit)
    for run in runs:
        assert_frame_equal(store.table(run, "metrics"), undisturbed.metrics.filter(seed=run.seed), check_exact=True)
    links.write_text(second)
    assert {run.key for run in Runs().of(experiment)}.isdisjoint(run.key for run in runs)


def test_code_that_changes_while_runs_are_made_changes_no_run(tmp_path):
    code = tmp_path / "own.py"
    text = "class Own:\n    def thresholds(self, k, gamma, bandwidths, coins):\n        return {}\n"
    code.write_text(text.format("0.0"))
    config = tmp_path / "c.toml"
    config.write_text(f'iterations = 12\ndevices = 6\nseeds = [0, 1, 2]\n[strategies]\nmine = "{code}:Own"\n')
    runs = Runs().of(efhc.load_experiment(config))
    store = RunStore(tmp_path / "runs")
    store.make_missing(runs, LocalEngine(1), lambda run, share: code.write_text(text.format('float("inf")')))
    assert all((store.table(run, "metrics")["fired"] == 6).all() for run in runs)
    others = Runs().of(efhc.load_experiment(config))
    assert {run.key for run in others}.isdisjoint(run.key for run in runs)


def test_a_complete_run_of_other_inputs_than_its_name_says_is_made_again(tmp_path):
    links = tmp_path / "links.txt"
    links.write_text("0 1\n1 2\n2 3\n3 4\n4 5\n")
    runs = Runs().of(efhc.Experiment(**ONE, network=efhc.EdgeListFile(path=links)))
    store = RunStore(tmp_path / "runs", said.append) if (said := []) is not None else None
    store.make_missing(runs, LocalEngine(1), lambda run, share: None)
    meta = store.directory(runs[0]) / "meta.json"
    facts = json.loads(meta.read_text())
    facts["input_sha256"]["network.path"] = "0" * 64
    meta.write_text(json.dumps(facts))
    store.make_missing(runs, LocalEngine(1), lambda run, share: None)
    assert len(said) == 1
    assert "other input files" in said[0]


# Finished runs


def test_a_finished_run_that_cannot_be_read_is_not_touched(tmp_path, monkeypatch):
    runs = Runs().of(efhc.Experiment(**ONE))
    store = RunStore(tmp_path)
    store.make_missing(runs, LocalEngine(1), lambda run, share: None)
    folder = store.directory(runs[0])
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    original = Path.open

    def denied(self, *arguments, **named):  # root may read everything, so the system's answer is given here
        if self.name == "metrics.parquet":
            raise PermissionError(13, "Permission denied", str(self))
        return original(self, *arguments, **named)

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(EfhcError, match=r"metrics\.parquet cannot be read \(Permission denied\)"):
        store.make_missing(runs, LocalEngine(1), lambda run, share: None)
    monkeypatch.undo()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_finished_run_where_nothing_can_be_written_is_shown(tmp_path):
    first = efhc.simulate(**ONE, out=tmp_path / "run")
    (tmp_path / "run" / ".lock").unlink()
    before = sorted(path.name for path in (tmp_path / "run").iterdir())
    again = efhc.simulate(**ONE, out=tmp_path / "run", resume=True)
    assert_frame_equal(again.metrics, first.metrics)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == before  # no lock, no session


# Checkpoints


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("models", lambda models: models[:-2]),
        ("models", lambda models: np.full_like(models, np.nan)),
        ("last_broadcast", None),
        ("k", lambda k: np.array([99])),
        ("k", lambda k: np.array([7])),  # the pieces end elsewhere
        ("time_total", lambda total: np.array([np.nan])),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_never_computed_with(tmp_path, name, change):
    folder = stopped(tmp_path / "run")
    tensors, facts = read_tensors(folder / "checkpoint.safetensors")
    tensors |= {name: change(tensors[name])} if change else {}
    others = tensors if change else {one: array for one, array in tensors.items() if one != name}
    write_tensors(folder / "checkpoint.safetensors", others, facts)  # with a checksum that is right
    said: list[str] = []
    result = efhc.simulate(**ONE, out=tmp_path / "run", resume=True, warn=said.append)
    assert len(said) == 1
    assert "damaged" in said[0]
    assert_frame_equal(result.metrics, efhc.simulate(**ONE).metrics, check_exact=True)


def test_a_resume_with_another_version_is_said(tmp_path):
    folder = stopped(tmp_path / "run")
    tensors, facts = read_tensors(folder / "checkpoint.safetensors")
    write_tensors(folder / "checkpoint.safetensors", tensors, facts | {"numpy": "1.0"})
    said: list[str] = []
    efhc.simulate(**ONE, out=tmp_path / "run", resume=True, warn=said.append)
    assert len(said) == 1
    assert said[0].startswith("ZT, seed 0: begun with numpy 1.0, goes on with ")


def test_a_checkpoint_of_another_run_is_moved_aside(tmp_path):
    folder, other = stopped(tmp_path / "run"), stopped(tmp_path / "other", seeds=(1,))
    shutil.copy(other / "checkpoint.safetensors", folder)
    shutil.copytree(other / "pieces", folder / "pieces", dirs_exist_ok=True)
    said: list[str] = []
    result = efhc.simulate(**ONE, out=tmp_path / "run", resume=True, warn=said.append)
    assert len(said) == 1
    assert "another run" in said[0]
    assert_frame_equal(result.metrics, efhc.simulate(**ONE).metrics, check_exact=True)


def test_a_run_whose_pieces_lack_a_column_starts_again(tmp_path, monkeypatch):
    stopped(tmp_path / "run")
    monkeypatch.setitem(keeping.SCHEMAS, "metrics", {**keeping.SCHEMAS["metrics"], "new": pl.Float64()})
    said: list[str] = []
    result = efhc.simulate(**ONE, out=tmp_path / "run", resume=True, warn=said.append)
    assert len(said) == 1
    assert "starts again" in said[0]
    assert len(result.metrics) == 12


@pytest.mark.parametrize("driver", ["lockstep", "event-driven"])
def test_models_that_run_apart_are_said_whenever_the_run_is_used(tmp_path, monkeypatch, driver):
    monkeypatch.setattr(keeping, "APART", -1.0)
    runs = Runs().of(efhc.Experiment(**ONE, driver=driver))
    for _ in ("made", "found"):
        said: list[str] = []
        RunStore(tmp_path, said.append).make_missing(runs, LocalEngine(1), lambda run, share: None)
        assert len(said) == 1
        assert "ZT, seed 0: the models ran apart" in said[0]


def test_the_time_of_a_run_counts_from_its_beginning(tmp_path):
    (run,) = Runs().of(efhc.Experiment(**ONE))
    store = RunStore(tmp_path)
    with store.keeper(run) as keeper:
        assert keeper is not None
        keeper._began -= 5000  # it had no folder for that long
        keeper.open().end_session()
    meta = store.meta(run)
    assert meta["wall_seconds"] >= 5000
    assert (datetime.now(UTC) - datetime.fromisoformat(meta["started"])).total_seconds() >= 5000


# Runs that fail


def test_a_failed_run_is_told_in_the_result_and_kept(tmp_path):
    fields = {**SMALL, "seeds": (0, 1), "strategies": {"ZT": efhc.ZeroThreshold()}}
    poisoned = Poisoned()
    said: list[str] = []
    result = efhc.simulate(**fields, initial_models=poisoned, warn=said.append, model=efhc.Softmax())
    assert result.failed.keys() == {("ZT", 1)}
    assert result.metrics["seed"].unique().to_list() == [0]
    assert len(said) == 1
    result.save(tmp_path / "kept")
    loaded = efhc.Result.load(tmp_path / "kept")
    assert loaded.failed == result.failed
    assert_frame_equal(loaded.metrics, result.metrics)


class Poisoned:
    """Initial models that are too large for the squares of seed 1."""

    def models(self, model, data, devices, randomness):
        models = np.zeros((devices, model.parameters(data)))
        models[0] = 3e38 if randomness.seed == 1 else 0.1
        return models


# Memory and disk


def test_a_long_run_is_put_away_in_pieces(tmp_path, monkeypatch):
    from efhc.drivers import record

    whole = efhc.simulate(**ONE)
    monkeypatch.setattr(record, "PIECE_ROWS", 2)
    seen: list[int] = []

    def look(strategy: str, seed: int, done: int) -> None:
        seen.append(len(list((tmp_path / "run" / "runs").glob("*/pieces/*.metrics.parquet"))))

    result = efhc.simulate(**ONE, out=tmp_path / "run", progress=look)
    assert max(seen) >= 2
    for name in ("metrics", "events", "network"):
        assert_frame_equal(getattr(result, name), getattr(whole, name), check_exact=True)
    in_memory = efhc.simulate(**ONE)
    assert_frame_equal(in_memory.events, whole.events, check_exact=True)


MEMORY = """
import resource, sys, tempfile
import efhc
fields = dict(devices=60, network=efhc.Complete(), strategies={"ZT": efhc.ZeroThreshold()}, seeds=[0],
              partition=efhc.IID(), batch_size=1, evaluate_every=100_000)
with tempfile.TemporaryDirectory() as folder:
    efhc.simulate(**fields, iterations=20, out=folder + "/short")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    efhc.simulate(**fields, iterations=int(sys.argv[1]), out=folder + "/long")
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_length_of_a_run():
    short, long = (
        int(subprocess.run([sys.executable, "-c", MEMORY, str(k)], capture_output=True, text=True, check=True).stdout)
        for k in (6000, 24_000)
    )
    assert long - short < 130_000  # kilobytes; the events of 18,000 iterations are 1,770 links, 8 bytes each: 255 MB


def test_an_out_folder_that_becomes_a_file_is_one_line(tmp_path):
    out = tmp_path / "run"

    def replace(strategy: str, seed: int, done: int) -> None:
        if done >= 5 and out.is_dir():
            out.rename(tmp_path / "moved")
            out.write_text("")

    with pytest.raises(EfhcError, match=r"cannot be (written|read|locked)") as caught:
        efhc.simulate(**ONE, out=out, progress=replace)
    assert "\n" not in str(caught.value)


# Locks and strangers


def _hammer(path: str, counter: str, times: int, found: multiprocessing.Queue) -> None:
    company = 0
    for _ in range(times):
        try:
            with lock(Path(path)):
                Path(counter).open("x").close()
                Path(counter).unlink()
        except FileExistsError:
            company += 1
        except EfhcError:
            time.sleep(0.0002)
    found.put(company)


def test_a_lock_is_held_by_one_process_at_a_time(tmp_path):
    found: multiprocessing.Queue = multiprocessing.get_context("spawn").Queue()
    arguments = (str(tmp_path / ".lock"), str(tmp_path / "held"), 100, found)
    processes = [multiprocessing.get_context("spawn").Process(target=_hammer, args=arguments) for _ in range(3)]
    for process in processes:
        process.start()
    assert [found.get(timeout=60) for _ in processes] == [0, 0, 0]
    for process in processes:
        process.join()


def test_a_lock_does_not_follow_links(tmp_path):
    treasure = tmp_path / "treasure"
    treasure.write_text("gold")
    (tmp_path / ".lock").symlink_to(treasure)
    with pytest.raises(EfhcError, match="cannot be locked"), lock(tmp_path / ".lock"):
        pass
    assert treasure.read_text() == "gold"


def test_git_is_asked_without_running_the_repositorys_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def git(*words: str) -> None:
        subprocess.run(["git", *words], check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "a").write_text("a")
    git("add", "a")
    git("-c", "user.email=a@example.org", "-c", "user.name=a", "commit", "-qm", "a")
    git("config", "core.fsmonitor", "touch ran-1; false")
    git("config", "filter.evil.clean", "sh -c 'touch ran-2; cat'")
    git("config", "filter.evil.required", "true")
    (tmp_path / ".gitattributes").write_text("* filter=evil\n")
    (tmp_path / "a").write_text("b")
    state = provenance()["git"]
    assert state is not None
    assert len(state["commit"]) == 40
    assert not list(tmp_path.glob("ran-*"))


@pytest.mark.parametrize("name", ["Own", "É", " Own"])
def test_code_of_a_directory_runs_only_when_it_is_trusted(tmp_path, name):
    code = tmp_path / "own.py"
    code.write_text(
        "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\nfrom efhc import ZeroThreshold\n"
        "class Own(ZeroThreshold):\n    pass\nÉ = Own\n"
    )
    efhc.simulate(**SMALL, strategies={"mine": {"kind": f"{code}:Own"}}, out=tmp_path / "run")
    for config in (tmp_path / "run").rglob("config.toml"):
        config.write_text(config.read_text().replace(":Own", f":{name}"))
    (tmp_path / "ran").unlink()
    code.write_text(code.read_text() + "\n# changed\n")
    assert efhc.Result.load(tmp_path / "run").summary()["strategy"].to_list() == ["mine"]
    with pytest.raises(efhc.InputError, match=r"strategies\.mine\.kind: cannot use code in .*. Use --trust-code"):
        ExperimentFolder(tmp_path / "run").load_experiment(trust_code=False)
    assert not (tmp_path / "ran").exists()
    code.unlink()
    assert len(efhc.Result.load(tmp_path / "run").metrics) == 12


# What is kept


def test_snapshots_are_the_models_on_the_way(tmp_path):
    fields = {**ONE, "keep_models_every": 5}
    kept = efhc.simulate(**fields, out=tmp_path / "run")
    snapshots = kept.snapshots("ZT", 0)
    assert list(snapshots) == [0, 5, 10, 12]
    assert np.array_equal(snapshots[12], kept.models["ZT", 0])
    assert np.array_equal(snapshots[5], efhc.simulate(**{**ONE, "iterations": 5}).models["ZT", 0])
    in_memory = efhc.simulate(**fields).snapshots("ZT", 0)
    assert all(np.array_equal(in_memory[k], snapshots[k]) for k in snapshots)
    assert efhc.simulate(**ONE).snapshots("ZT", 0) == {}
    with pytest.raises(efhc.InputError, match="there is ZT, seed 0"):
        efhc.Result.load(tmp_path / "run").snapshots("never", 0)


def test_runs_in_a_store_are_not_made_again(tmp_path):
    first = efhc.simulate(**SMALL, store=tmp_path / "store", out=tmp_path / "a")
    told: list[int] = []
    more = {**SMALL, "seeds": (0, 1)}
    second = efhc.simulate(
        **more,
        store=tmp_path / "store",
        out=tmp_path / "b",
        progress=lambda strategy, seed, done: told.append(done) if seed == 0 else None,
    )
    assert told == [12] * 4
    assert_frame_equal(second.metrics.filter(seed=0), first.metrics, check_exact=True)
    assert len([path for path in (tmp_path / "store").iterdir() if path.is_dir()]) == 8


def test_a_result_in_memory_can_be_kept(tmp_path):
    links, path = tmp_path / "links.txt", "0 1\n1 2\n2 3\n3 4\n4 5\n"
    links.write_text(path)
    result = efhc.simulate(**SMALL, network=efhc.EdgeListFile(path=links))
    links.write_text(path + "5 0\n")
    result.save(tmp_path / "kept")
    meta = json.loads((tmp_path / "kept" / "meta.json").read_text())
    assert meta["input_sha256"] == {"network.path": sha256(path.encode())}  # of what it was made from
    links.write_text(path)
    loaded = efhc.Result.load(tmp_path / "kept")
    for name, table in result.tables.items():
        assert_frame_equal(loaded.tables[name], table, check_exact=True)
    assert loaded.experiment == result.experiment
    assert all(np.array_equal(loaded.models[pair], models) for pair, models in result.models.items())
    efhc.simulate(loaded.experiment, out=tmp_path / "again")
    assert_frame_equal(efhc.Result.load(tmp_path / "again").metrics, result.metrics, check_exact=True)


def test_a_result_of_something_without_a_name_can_be_kept_but_not_repeated(tmp_path):
    result = efhc.simulate(**SMALL, step_size=lambda k: 0.1)
    result.save(tmp_path / "kept")
    loaded = efhc.Result.load(tmp_path / "kept")
    assert_frame_equal(loaded.metrics, result.metrics)
    with pytest.raises(EfhcError, match="not kept"):
        efhc.simulate(loaded.experiment)
    with pytest.raises(EfhcError, match="step_size"):
        efhc.simulate(**SMALL, step_size=lambda k: 0.1, out=tmp_path / "out")
    assert not (tmp_path / "out" / "config.toml").exists()


def test_a_data_set_made_in_python_is_kept_with_the_run(tmp_path):
    rng = np.random.default_rng(0)
    x_train, x_test, labels = rng.normal(size=(60, 2, 3)), rng.normal(size=(12, 2, 3)), np.arange(60) % 4
    data = efhc.Dataset(x_train, labels, x_test, labels[:12])
    fields = {**ONE, "batch_size": 2, "data": data}
    kept = efhc.simulate(**fields, out=tmp_path / "run")
    assert_frame_equal(kept.metrics, efhc.simulate(**fields).metrics, check_exact=True)
    again = efhc.simulate(efhc.load_experiment(tmp_path / "run" / "config.toml"), out=tmp_path / "again")
    assert_frame_equal(again.metrics, kept.metrics, check_exact=True)
    assert_frame_equal(efhc.simulate(**fields, out=tmp_path / "run", resume=True).metrics, kept.metrics)
    other = efhc.Dataset(x_train + 1, labels, x_test, labels[:12])
    with pytest.raises(efhc.InputError, match=r"data: cannot use a changed data\.npz"):
        efhc.simulate(**{**fields, "data": other}, out=tmp_path / "run", resume=True)
    with pytest.raises(efhc.InputError, match="batch_size"):
        efhc.simulate(**{**fields, "batch_size": 1000}, out=tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    efhc.simulate(**fields).save(tmp_path / "saved")
    assert np.array_equal(efhc.Result.load(tmp_path / "saved").models["ZT", 0], kept.models["ZT", 0])
    (tmp_path / "run").rename(tmp_path / "moved")
    moved = efhc.simulate(efhc.load_experiment(tmp_path / "moved" / "config.toml"))
    assert_frame_equal(moved.metrics, kept.metrics, check_exact=True)
    efhc.simulate(**fields, out=tmp_path / "moved", resume=True)
    assert len(ExperimentFolder(tmp_path / "moved").meta["sessions"]) == 1  # it is not made again


def test_tables_as_csv(tmp_path):
    result = efhc.simulate(**SMALL)
    result.to_csv(tmp_path)
    events = pl.read_csv(tmp_path / "events.csv", schema_overrides={"fired": pl.String})
    zero = events.filter(strategy="ZT")
    assert zero["fired"].to_list() == ["0 1 2 3 4 5"] * 12
    assert pl.read_csv(tmp_path / "metrics.csv").columns == result.metrics.columns


def test_a_module_of_no_device_is_one_line():
    pytest.importorskip("torch")
    fields = {"iterations": 1, "devices": 3, "seeds": 0, "strategies": {"ZT": "zt"}, "data": "digits"}
    result = efhc.simulate(model=efhc.MLP(hidden=()), **fields)
    assert result.module("ZT", 0, 2)
    for device in (3, -1, "median", True, 0.5):
        with pytest.raises(efhc.InputError) as refused:
            result.module("ZT", 0, device)
        assert (refused.value.field, refused.value.allowed) == ("device", '0 to 2, or "mean"')
    with pytest.raises(efhc.InputError, match="there is ZT, seed 0"):
        result.module("ZT", 1, 0)


@pytest.mark.parametrize("table", ["metrics", "events", "network"])
def test_a_piece_that_cannot_be_written_whole_does_not_count(tmp_path, monkeypatch, table):
    from efhc.experiments.runs import keeping

    original, failed = keeping.write_safely, []

    def full(path, *content):
        if path.name.endswith(f".{table}.parquet") and not path.name.startswith("000000000000-") and not failed:
            failed.append(path)
            raise SaveError("no space left")
        original(path, *content)

    monkeypatch.setattr(keeping, "write_safely", full)
    with pytest.raises(SaveError):
        efhc.simulate(**ONE, out=tmp_path / "run", checkpoint_seconds=0.0)
    assert failed
    resumed, whole = efhc.simulate(**ONE, out=tmp_path / "run", resume=True), efhc.simulate(**ONE)
    for name in ("metrics", "events", "network"):
        assert_frame_equal(getattr(resumed, name), getattr(whole, name), check_exact=True)


def test_a_run_without_models_is_made_again_where_models_are_wanted(tmp_path):
    (run,) = Runs().of(efhc.Experiment(**ONE))
    RunStore(tmp_path).make_missing([run], LocalEngine(1), lambda run, share: None)
    said: list[str] = []
    store = RunStore(tmp_path, said.append, with_models=True)
    store.make_missing([run], LocalEngine(1), lambda run, share: None)
    models = store.directory(run) / "models.safetensors"
    content = bytearray(models.read_bytes())
    content[-5] ^= 1
    models.write_bytes(content)
    store.make_missing([run], LocalEngine(1), lambda run, share: None)
    assert len(said) == 1
    assert "models.safetensors is damaged" in said[0]
    assert models.read_bytes() != bytes(content)


def test_a_run_stays_complete_while_its_models_are_made(tmp_path):
    (run,) = Runs().of(efhc.Experiment(**ONE))
    plain, store = RunStore(tmp_path), RunStore(tmp_path, with_models=True)
    plain.make_missing([run], LocalEngine(1), lambda run, share: None)
    tables = {file.name: file.read_bytes() for file in store.directory(run).glob("*.parquet")}

    def kill(run: object, share: float) -> None:
        if share > 0.3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.make_missing([run], LocalEngine(1, 0.0), kill)
    assert (store.directory(run) / "checkpoint.safetensors").exists()
    assert plain.holds(run)
    assert not store.holds(run)
    store.make_missing([run], LocalEngine(1), lambda run, share: None)
    assert store.holds(run)
    assert tables == {file.name: file.read_bytes() for file in store.directory(run).glob("*.parquet")}
    assert not (store.directory(run) / "checkpoint.safetensors").exists()


def test_the_same_data_set_with_other_settings_is_loaded_anew():
    rng = np.random.default_rng(0)
    data = efhc.Dataset(rng.normal(size=(60, 3)), np.arange(60) % 4, rng.normal(size=(12, 3)), np.arange(12) % 4)
    runs = Runs()
    first = runs.inputs(efhc.Experiment(data=data, precision="float64")).data
    second = runs.inputs(efhc.Experiment(data=data, test_samples=5)).data
    assert (first.precision, len(first.y_test)) == ("float64", 12)
    assert (second.precision, len(second.y_test)) == ("float32", 5)


@pytest.mark.parametrize("driver", ["lockstep", "event-driven"])
def test_the_bytes_of_tables_do_not_depend_on_when_checkpoints_were_made(tmp_path, driver):
    fields = {**SMALL, "iterations": 60, "network": efhc.RandomLinks(), "driver": driver}
    for name, seconds in (("seldom", 30.0), ("always", 0.0)):
        efhc.simulate(**fields, out=tmp_path / name, checkpoint_seconds=seconds)
    seldom, always = (
        {file.parent.name + file.name: file.read_bytes() for file in (tmp_path / name).rglob("*.parquet")}
        for name in ("seldom", "always")
    )
    assert seldom == always
    assert len(seldom) == (16 if driver == "lockstep" else 20)


# Code of the user's own that misbehaves


class WritesBandwidths(efhc.Strategy):
    def thresholds(self, k, gamma, bandwidths, coins):
        bandwidths.values.setflags(write=True)
        bandwidths.values[:] = 1.0
        return np.zeros(len(bandwidths.values))


class Exits(efhc.Strategy):
    def thresholds(self, k, gamma, bandwidths, coins):
        sys.exit(0)


class Misunderstands(efhc.Strategy):
    def thresholds(self, k, gamma, bandwidths, coins):
        return coins < 0.5


class Remembers:
    asked = 0

    def thresholds(self, k, gamma, bandwidths, coins):
        self.asked += 1
        return np.full(len(bandwidths.values), float(self.asked))


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (WritesBandwidths(), "your strategy WritesBandwidths raised ValueError"),
        (Exits(), "your strategy Exits raised SystemExit"),
        (Misunderstands(), "your strategy Misunderstands raised TypeError"),
        (Remembers(), "computed twice at k = 0. Use thresholds that depend on the arguments only"),
    ],
)
def test_a_strategy_of_ones_own_that_misbehaves_fails_alone(own, said):
    failed: list[str] = []
    result = efhc.simulate(**SMALL, strategies={"own": own, "ZT": efhc.ZeroThreshold()}, warn=failed.append)
    assert list(result.failed) == [("own", 0)]
    assert said in failed[0]
    assert_frame_equal(result.metrics, efhc.simulate(**ONE).metrics, check_exact=True)


@pytest.mark.parametrize(
    "links", [[(0, 1), (1, 2)], np.array([[0, 1], [0, 1]]), np.array([[1, 0]]), np.array([[0, 9]])]
)
def test_a_graph_that_was_not_made_by_graph_of_is_refused(links):
    class Own:
        def over_time(self, devices, randomness):
            return self

        def graph(self, k):
            return efhc.Graph(6, links)

    with pytest.raises(efhc.InputError, match=r"network: cannot use .*Graph\.of"):
        efhc.simulate(**ONE, network=Own())


def test_a_network_in_two_parts_is_said_once_per_seed(tmp_path):
    (tmp_path / "links.txt").write_text("0 1\n2 3\n3 4\n4 5\n")
    said: list[str] = []
    efhc.simulate(**ONE, network=efhc.EdgeListFile(path=tmp_path / "links.txt"), warn=said.append)
    assert said == ["seed 0: the network is not connected: no information passes between its parts"]


# Folders of the user's own


def test_a_run_under_the_name_of_another_is_moved_aside(tmp_path):
    zero, random = Runs().of(efhc.Experiment(**{**SMALL, "strategies": {"ZT": "zt", "RG": "rg"}}))
    said: list[str] = []
    store = RunStore(tmp_path, said.append)
    store.make_missing([zero], LocalEngine(1), lambda run, share: None)
    shutil.copytree(store.directory(zero), store.directory(random))
    store.make_missing([random], LocalEngine(1), lambda run, share: None)
    assert "not the run that its name says" in said[0]
    assert store.table(random, "metrics")["fired"].sum() < 6 * 12


def test_a_missing_or_damaged_snapshot_is_made_again(tmp_path):
    fields = {**ONE, "keep_models_every": 5}
    whole = efhc.simulate(**fields).snapshots("ZT", 0)
    for number, damage in enumerate([lambda file: file.unlink(), lambda file: file.write_bytes(b"garbage")]):
        store, said = tmp_path / f"store{number}", []
        efhc.simulate(**fields, out=tmp_path / f"a{number}", store=store)
        damage(next(store.rglob("*10.safetensors")))
        again = efhc.simulate(**fields, out=tmp_path / f"b{number}", store=store, warn=said.append)
        assert len(said) == 1
        assert all(np.array_equal(again.snapshots("ZT", 0)[k], whole[k]) for k in (0, 5, 10, 12))


def test_a_checkpoint_without_its_snapshots_does_not_count(tmp_path):
    folder = stopped(tmp_path / "run", keep_models_every=3)
    next(folder.rglob("*3.safetensors")).unlink()
    said: list[str] = []
    resumed = efhc.simulate(**ONE, keep_models_every=3, out=tmp_path / "run", resume=True, warn=said.append)
    assert "the models of iteration 3 are missing" in said[0]
    assert list(resumed.snapshots("ZT", 0)) == [0, 3, 6, 9, 12]


def test_two_simulations_at_once_read_their_own_files(tmp_path):
    links, found = tmp_path / "links.txt", {}
    begun, changed = threading.Event(), threading.Event()
    links.write_text("0 1\n1 2\n2 3\n3 4\n4 5\n5 0\n")
    fields = {**ONE, "network": {"kind": "edge-list", "path": str(links)}}

    def wait(strategy, seed, done):
        begun.set()
        changed.wait(60)

    def first():
        found["ring"] = efhc.simulate(**fields, progress=wait).network["link_from"][0].len()

    thread = threading.Thread(target=first)
    thread.start()
    assert begun.wait(60)
    links.write_text("0 1\n1 2\n2 3\n3 4\n4 5\n")
    found["path"] = efhc.simulate(**fields).network["link_from"][0].len()
    changed.set()
    thread.join()
    assert found == {"ring": 6, "path": 5}
