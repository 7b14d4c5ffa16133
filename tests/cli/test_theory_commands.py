"""efhc theory, efhc theory plan, efhc run --monitor theory: as a user types them."""

from __future__ import annotations

import json
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from polars.testing import assert_frame_equal

import efhc
from efhc.base.saving import read_tensors
from efhc.experiments.runs.folder import RunFolder
from efhc.report import theory
from efhc.theory.findings import PRINTED

CONFIG = """
devices = 4
iterations = 40
seeds = [0, 1]
evaluate_every = 20
batch_size = 8
[network]
kind = "ring"
[model]
kind = "softmax"
l2 = 0.5
[step_size]
kind = "constant"
value = 1e-5
[strategies]
EF-HC = { kind = "ef-hc", r = 2000.0 }
ZT = "zt"
"""
PNG = b"\x89PNG"


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Any) -> Any:
    """The command on a wide terminal; its pictures are blank, as drawing takes long."""
    monkeypatch.setattr(efhc.Result, "plot", lambda self, path=None: None)
    monkeypatch.setattr(theory, "theory_figure", lambda checks: Figure())
    return partial(command, columns=300)


@pytest.fixture(autouse=True)
def _config(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(CONFIG)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    (folder / "small.toml").write_text(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(efhc.Result, "plot", lambda self, path=None: None)
        efhc.simulate(efhc.load_experiment(folder / "small.toml"), out=folder / "run")
    return folder / "run"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def no_such_number(token: str) -> None:
    raise AssertionError(f"{token} is not JSON")


def as_json(text: str) -> Any:
    return json.loads(text, parse_constant=no_such_number)


def tables(files: dict[str, bytes]) -> dict[str, bytes]:
    """Those with tables and models, at least five."""
    found = {name: content for name, content in files.items() if name.endswith((".parquet", ".safetensors"))}
    assert len(found) >= 5
    return found


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# What is no run


def test_what_is_no_run_is_said_with_the_runs_that_there_are(refused, run, tmp_path):
    assert "small.toml is a file; give the folder of its run" in refused("theory", "small.toml")
    shutil.copytree(run, tmp_path / "runs" / "first")
    shutil.copytree(run, tmp_path / "runs" / "second")
    assert "give one: runs/first, runs/second" in refused("theory", "runs")
    (run / "figures").mkdir(exist_ok=True)
    assert refused("theory", "run/figures").endswith("run/figures holds no runs\n")
    with pytest.raises(efhc.EfhcError, match=r"figures holds no runs$"):
        efhc.Result.load(run / "figures")


# After a run


def test_theory_of_a_run(call, run):
    before = contents(run)
    done = call("theory", "run", "--points", 5)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for words in (
        "EF-HC, 2 seeds",
        "ZT, 2 seeds",
        "physical graph (Assumption III.5(a))",
        "held",
        "the replay fires as recorded",
        "Largest alpha(0) for B = 3 (promised): Proposition III.14: ",
        "In the long run, by Theorem III.15: ",
        "run/figures/theory.png",
    ):
        assert words in done.stdout
    assert not any(label in done.stdout for label in PRINTED)  # labels of the LaTeX are for --json
    assert "broken" not in done.stdout
    assert "[green]" not in done.stdout
    after = contents(run)
    assert after.pop("figures/theory.png").startswith(PNG)
    assert after == before
    # and the run goes on as any other that is finished
    assert call("run", run / "config.toml", "--out", "run", "--resume").returncode == 0
    assert tables(contents(run)) == tables(before)
    assert (run / "figures" / "theory.png").exists()


def test_json_is_json_and_the_same_each_time(call, run):
    first = call("theory", "run", "--json", "--points", 6)
    assert first.returncode == 0
    assert first.stderr == ""
    checks = as_json(first.stdout)
    assert [check["strategy"] for check in checks] == ["EF-HC", "ZT"]
    for check in checks:
        found = {finding["subject"]: finding for finding in check["findings"]}
        assert found["broadcasts"]["label"] == "assump:conn-(b)"
        assert found["broadcasts"]["paper"] == "Assumption III.5(b)"
        assert found["broadcasts"]["verdict"] == "held"
        assert {"what", "detail", "reason", "values", "iteration", "device", "seed"} <= set(found["broadcasts"])
        assert "broken" not in {finding["verdict"] for finding in found.values()}
        assert check["window_is"] == "promised"
        assert len(check["iterations"]) <= 6
    assert checks[1]["seeds"]["0"]["B1"] == checks[1]["seeds"]["0"]["B2"] == 1
    assert checks[1]["seeds"]["0"]["B_promised"] == 3
    assert (run / "figures" / "theory.png").read_bytes().startswith(PNG)
    assert call("theory", "check", "run", "--points=6", "--json").stdout == first.stdout
    assert call("theory", "--json", "--points", 6, "run").stdout == first.stdout


def test_windows_and_what_is_made_again_may_be_chosen(call, refused, run):
    (first, _) = as_json(call("theory", run, "--json", "--no-replay", "--window", "observed").stdout)
    assert first["iterations"] == [0, 40]
    assert first["window"] == max(seed["B_observed"] for seed in first["seeds"].values())
    (second, _) = as_json(call("theory", run, "--json", "--replay", "--points", 3, "--window", 9).stdout)
    assert second["iterations"] == [0, 1, 40]
    assert (second["window"], second["window_is"]) == (9, "given")
    for bad in ("0", "-3", "some", "2.5", "\u00b2"):
        assert "--window" in refused("theory", run, f"--window={bad}")
    assert "Use at most 40, the iterations of the run" in refused("theory", run, "--window=41")


def test_a_run_called_plan(call, run):
    run = run.rename(run.with_name("plan"))
    for words in (["check", "plan"], ["./plan"]):
        done = call("theory", *words, "--points", 3, "--out", "elsewhere/figure.pdf")
        assert done.returncode == 0
        assert "ZT, 2 seeds" in done.stdout
        assert "elsewhere/figure.pdf" in done.stdout
    assert (run.parent / "elsewhere" / "figure.pdf").read_bytes().startswith(b"%PDF")
    assert not (run / "figures" / "theory.png").exists()


# Known to be bad


def findings(text: str, strategy: str = "EF-HC") -> dict[str, dict[str, Any]]:
    """From JSON, by subject."""
    (check,) = (each for each in as_json(text) if each["strategy"] == strategy)
    return {finding["subject"]: finding for finding in check["findings"]}


def test_a_device_that_does_not_fire_in_the_run(call):
    words = ["strategies.EF-HC.r=1e12", "seeds=[0]"]
    assert call("run", "small.toml", *words, "--out", "silent").returncode == 0
    done = call("theory", "silent", "--points", 4)
    assert done.returncode == 0
    silent, sound = done.stdout.split("ZT, 1 seed")
    assert "B2 >= 41: device 0 is silent from iteration 0 to the end of the run" in silent
    assert "Largest alpha(0)" not in silent
    assert "broken" not in silent
    assert "broken" not in sound
    told = call("theory", "silent", "--points", 4, "--json", "--strict")
    assert told.returncode == 0
    assert findings(told.stdout)["broadcasts"]["verdict"] == "not checkable"
    assert as_json(told.stdout)[0]["seeds"]["0"]["B2"] == 41
    assert as_json(told.stdout)[0]["seeds"]["0"]["lower_limits"] == ["B2", "B_observed", "B_promised"]
    assert as_json(told.stdout)[0]["step_size_limits"] is None


def test_a_network_in_two_parts(call, tmp_path):
    (tmp_path / "apart.txt").write_text("0 1\n2 3\n")
    words = ["network.kind=edge-list", "network.path=apart.txt", "seeds=[0]"]
    assert call("run", "small.toml", *words, "--out", "apart").returncode == 0
    told = call("theory", "apart", "--points", 4, "--json", "--strict")
    assert told.returncode == 3  # a graph that stays as it is: that is certain
    found = findings(told.stdout)
    assert (found["physical-graph"]["verdict"], found["physical-graph"]["device"]) == ("broken", 0)
    assert found["step-size-limit"]["reason"] == found["contraction"]["reason"] == "no-window"
    assert (tmp_path / "apart" / "figures" / "theory.png").read_bytes().startswith(PNG)


def test_a_step_size_over_the_limit(call):
    assert call("run", "small.toml", "step_size.value=0.1", "seeds=[0]", "--out", "large").returncode == 0
    assert call("theory", "large", "--points", 3).returncode == 0
    told = call("theory", "large", "--points", 3, "--json", "--strict")
    assert told.returncode == 3
    limit = findings(told.stdout, "ZT")["step-size-limit"]
    assert (limit["verdict"], limit["iteration"], limit["label"]) == ("broken", 0, "theorem:constant")


def test_where_no_theorem_applies_that_is_said_first(call):
    assert call("run", "small.toml", "model={kind='svm'}", "seeds=[0]", "--out", "svm").returncode == 0
    done = call("theory", "svm")
    assert done.returncode == 0
    assert done.stdout.startswith("No theorem of the paper applies: the loss is not smooth")
    assert "mu = 0 for every device" in done.stdout
    assert "properties of the model svm, not faults of the run" in done.stdout
    assert "Largest alpha(0)" not in done.stdout


def test_code_that_a_run_names_is_executed_only_when_that_is_said(call, run, monkeypatch):
    """The run directory decides what counts as code; the command hands on what the user allows."""
    trusted: list[bool] = []
    load = RunFolder.load_experiment

    def spy(self: RunFolder, *, trust_code: bool) -> Any:
        trusted.append(trust_code)
        return load(self, trust_code=trust_code)

    monkeypatch.setattr(RunFolder, "load_experiment", spy)
    for words in ([], ["--trust-code"]):
        assert call("theory", run, "--points", 3, *words).returncode == 0
    assert trusted == [False, True]


# Before a run


def test_plan_is_a_table_and_leaves_nothing(call, tmp_path):
    done = call("theory", "plan", "small.toml", "strategies.RG.kind=rg", "--rehearse", 20)
    assert done.returncode == 0
    assert re.search(r"^L = [\d.]+, mu = 0.5 \(bound\)$", done.stdout, re.MULTILINE)
    for words in ("how B is", "expected", "rho", "dimin-", "EF-HC", "ZT", "RG"):
        assert words in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"small.toml"}


def test_plan_as_json_is_what_the_run_shows(call, run):
    done = call("theory", "plan", "small.toml", "--json")
    assert done.returncode == 0
    planned = {plan["strategy"]: plan for plan in as_json(done.stdout)}
    checked = {check["strategy"]: check for check in as_json(call("theory", run, "--json", "--points", 3).stdout)}
    assert planned["ZT"]["step_size_limits"] == checked["ZT"]["step_size_limits"]
    for name, plan in planned.items():  # 40 iterations are all rehearsed
        for seed, windows in plan["seeds"].items():
            assert windows.pop("never_fire") == windows.pop("may_never_fire") == []
            assert windows == {key: checked[name]["seeds"][seed][key] for key in windows}
    assert planned["ZT"]["seeds"]["0"] == {
        "B1": 1,
        "B2": 1,
        "B_promised": 3,
        "B_observed": 1,
        "lower_limits": [],
    }


def test_plan_warns_of_devices_that_never_fire(call):
    quiet = call("theory", "plan", "small.toml", "strategies.EF-HC.r=10", "step_size.value=1e-9")
    assert quiet.returncode == 0
    assert quiet.stderr == ""
    loud = call("theory", "plan", "small.toml", "strategies.EF-HC.r=1e12", "step_size.value=1e-9", "devices=6")
    assert loud.returncode == 0
    assert loud.stderr.splitlines() == [
        "efhc: EF-HC: no limits: the links used do not connect all devices when the 40 iterations end",
        *(f"efhc: EF-HC, seed {seed}: devices 0, 1, 2, 3, 4, ... will not fire in 40 iterations" for seed in (0, 1)),
    ]


def test_plan_warns_of_a_step_size_over_the_limit(call):
    done = call("theory", "plan", "small.toml", "step_size.value=1", "seeds=[0]")
    assert done.returncode == 0
    assert re.search(r"^efhc: ZT: Theorem III.15: alpha\(0\) = 1, limit .* times too large$", done.stderr, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["absent.toml"], "absent.toml"),
        (["small.toml", "devises=3"], "devises"),
        (["small.toml", "--rehearse", "0"], "--rehearse"),
        (["fig9z"], "fig9z"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_plans_that_cannot_be_made_are_one_line(refused, words, part):
    assert part in refused("theory", "plan", *words)


# While it goes


def watching(window: int) -> str:
    return (
        "efhc: watching: transition weights, step sizes (at most 1/(8 L) where L is known), and that in every "
        f"{window} iterations all devices fire, and physical and used links connect them"
    )


def all_held(runs: int) -> str:
    return f"efhc: theory: no watched assumption was broken in the iterations of all {runs} runs"


def test_a_sound_run_that_is_watched_is_the_same_and_says_that_all_held(call, finished, tmp_path):
    done = call("run", "small.toml", "--out", "watched", "--monitor", "theory", "--window", 25)
    assert done.returncode == 0
    assert done.stderr.splitlines() == [watching(25), all_held(4)]
    assert tables(contents(tmp_path / "watched")) == tables(contents(finished))


def test_what_is_broken_is_told_once(call):
    words = ["strategies.EF-HC.r=1e12", "seeds=[0]"]
    done = call("run", "small.toml", *words, "--out", "out", "--monitor", "theory", "--window", 8)
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        watching(8),
        "efhc: EF-HC, seed 0: Assumption III.5(b) (broadcasts) at iteration 7: "
        "device 0 did not fire in the 8 iterations up to 7, the window demanded",
        "efhc: EF-HC, seed 0: Proposition III.6 (information flow) at iteration 7: "
        "the links used do not connect all devices in the 8 iterations up to 7, the window demanded",
        "efhc: theory: no watched assumption was broken in the iterations of 1 of 2 runs",
    ]


def test_strictly_it_stops_and_can_go_on(call, tmp_path):
    words = ["run", "small.toml", "strategies.EF-HC.r=1e12", "iterations=60", "--out", "out"]
    watch = ["--monitor", "theory", "--strict", "--window", 30]
    done = call(*words, *watch, "--jobs", 1)
    assert done.returncode == 3
    assert done.stdout == ""
    first, line = done.stderr.splitlines()
    assert first == watching(30)
    told, _, command = line.partition("; continue with: ")
    assert told == (
        "efhc: stopped, EF-HC, seed 0: Assumption III.5(b) (broadcasts) at iteration 29: "
        "device 0 did not fire in the 30 iterations up to 29, the window demanded"
    )
    assert command.endswith(
        "run small.toml strategies.EF-HC.r=1e12 iterations=60 --out out --monitor theory --window 30 --jobs 1 --resume"
    )
    (checkpoint,) = (tmp_path / "out" / "runs").glob("*/checkpoint.safetensors")
    assert read_tensors(checkpoint)[0]["k"].item() == 30
    assert call(*words, "--resume").returncode == 0
    resumed = efhc.Result.load(tmp_path / "out")
    undisturbed = efhc.simulate(resumed.experiment)
    for name, table in undisturbed.tables.items():
        assert_frame_equal(resumed.tables[name], table, check_exact=True)
    for pair, models in undisturbed.models.items():
        assert np.array_equal(resumed.models[pair], models)


def test_resumed_it_watches_from_there(call):
    words = ["run", "small.toml", "strategies.EF-HC.r=1e12", "seeds=[0]", "--out", "out", "--jobs", 1]
    watch = ["--monitor", "theory", "--strict", "--window", 12]
    for last in (11, 23, 35):
        done = call(*words, *watch, "--resume")
        assert done.returncode == 3
        stopped = (
            f"efhc: stopped, EF-HC, seed 0: Assumption III.5(b) (broadcasts) at iteration {last}: device 0 did not"
        )
        assert done.stderr.splitlines()[-1].startswith(stopped)
    done = call(*words, *watch, "--resume")
    assert done.returncode == 0  # four iterations are no window
    assert done.stderr.splitlines() == [watching(12), all_held(2)]


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--strict"], ["--strict", "--monitor theory"]),
        (["--window", "5"], ["--window", "--monitor theory"]),
        (["--monitor", "other"], ["--monitor", "other", "theory"]),
        (["--monitor", ""], ["--monitor"]),
        (["--monitor", "theory", "--window", "0"], ["--window"]),
    ],
    ids=" ".join,
)
def test_words_that_do_not_go_together_are_one_line(refused, tmp_path, words, parts):
    line = refused("run", "small.toml", *words)
    for part in parts:
        assert part in line
    assert not (tmp_path / "runs").exists()


def test_interrupted_it_says_that_it_was_stopped(call, monkeypatch):
    from efhc.experiments.runs import simulate

    def interrupted(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(simulate, "simulate", interrupted)
    done = call("run", "small.toml", "--out", "out")
    assert done.returncode == 130
    assert done.stderr == "efhc: stopped; nothing was written\n"
