"""The command as a user types it: real files, and real processes and signals where they matter."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import typer

import efhc
from efhc import cli
from efhc.base.extras import Extra
from efhc.cli.terminal import RUNS_CODE, warn
from efhc.experiments import doctor
from efhc.experiments.doctor import DoctorCheck

EFHC = str(Path(sys.executable).with_name("efhc"))
SMALL = "iterations = 40\nseeds = [0]\nevaluate_every = 20\n"


def process(*words: object, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "120", **variables}
    command = [EFHC, *map(str, words)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def test_help_and_version_answer_without_the_heavy_parts():
    command = [sys.executable, "-X", "importtime", "-m", "efhc", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "demo" in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "efhc.cli.running" in imported
    assert not imported & {"numpy", "scipy", "polars", "matplotlib", "pydantic", "networkx"}
    assert process("--version").stdout == f"efhc {efhc.__version__}\n"


def test_run_writes_a_run_directory_and_says_where(config, tmp_path, command):
    done = command("run", config, "strategies.EF-HC.r=100", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    for word in ("EF-HC", "GT", "ZT", "RG", str(tmp_path / "out"), "comparison.png"):
        assert word in done.stdout
    assert tomllib.loads((tmp_path / "out" / "config.toml").read_text())["strategies"]["EF-HC"]["r"] == 100
    assert len(efhc.Result.load(tmp_path / "out").metrics) == 4 * 40


def test_resume_without_a_run_begins_one_and_says_so(config, tmp_path, command):
    done = command("run", config, "iterations=2", "--resume", "--no-figure", cwd=tmp_path)
    assert done.returncode == 0
    assert efhc.Result.load(tmp_path / "runs" / "small").is_finished  # named after the file by default
    assert "holds no run to resume" in done.stderr
    assert "units of parameters / bandwidth" in done.stdout


@pytest.mark.slow
def test_a_killed_run_leaves_no_half_file_and_resumes_bit_for_bit(config, tmp_path):
    strategies = 'strategies={EF-HC="ef-hc",ZT="zt"}'
    words = ["run", config, "iterations=100000", "evaluate_every=10000", strategies, "--no-figure"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert process(*words, "--out", whole).returncode == 0
    words_of_killed = [EFHC, *map(str, words), "--out", str(killed), "--resume"]
    for sign, pause in ((signal.SIGKILL, 0.1), (signal.SIGTERM, 0.3), (signal.SIGINT, 0.5)):
        (killed / ".lock").unlink(missing_ok=True)
        running = subprocess.Popen(words_of_killed, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 60
        while not (killed / ".lock").exists() and time.monotonic() < deadline:  # it is there while a session works
            time.sleep(0.01)
        time.sleep(pause)
        running.send_signal(sign)
        _, error = running.communicate(timeout=60)
        if sign == signal.SIGKILL:
            assert running.returncode == -signal.SIGKILL
        else:
            assert running.returncode == 130, error
            assert re.search(r"^efhc: stopped; continue with: \S*efhc run .* --resume$", error, re.MULTILINE)
        for path in killed.rglob("*"):
            if path.suffix == ".json":
                json.loads(path.read_text())
            elif path.suffix == ".toml":
                tomllib.loads(path.read_text())
    assert process(*words, "--out", killed, "--resume").returncode == 0
    for kind in ("parquet", "safetensors"):
        files = {file.relative_to(whole): file.read_bytes() for file in whole.rglob(f"*.{kind}")}
        assert files == {file.relative_to(killed): file.read_bytes() for file in killed.rglob(f"*.{kind}")}
    assert json.loads((killed / "meta.json").read_text())["status"] == "complete"


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        ("network.raduis=1", ["network.raduis", "did you mean 'radius'?"]),
        ("iterations=lots", ["iterations", "'lots'", "a whole number"]),
        ("bandwidths.kind=constant bandwidths.value=-5", ["bandwidths.value", "-5", "greater than 0"]),
        ("bandwidths.kind=csv bandwidths.path=nan.csv", ["bandwidths.path", "'nan'"]),
        ("data.kind=npz data.path=nan.npz", ["data.x_train", "1 values that are NaN", "sample 7"]),
        ("network.kind=edge-list network.path=loop.txt", ["network.path", "self-loop at device 3", "line 2"]),
        (
            "network.radius=0.05 network.attempts=3",
            ["network.radius", "no connected graph of 10 devices in 3 draws"],
        ),
        ("partition.labels_per_device=11", ["partition.labels_per_device", "11", "at most 10"]),
        ("partition.kind=file partition.path=parts.json", ["partition.path", "device 9"]),
        ("batch_size=1000", ["batch_size", "1000", "at most"]),
    ],
)
def test_bad_inputs_get_one_line_and_leave_nothing(config, tmp_path, refused, overrides, parts):
    (tmp_path / "loop.txt").write_text("0 1\n3 3\n")
    (tmp_path / "nan.csv").write_text("\n".join(["5000"] * 9 + ["nan"]))
    (tmp_path / "parts.json").write_text(json.dumps([[0]] * 9 + [[]]))
    x = np.ones((40, 3))
    x[7, 1] = np.nan
    np.savez(tmp_path / "nan.npz", x_train=x, y_train=np.arange(40) % 10, x_test=np.ones((10, 3)), y_test=np.arange(10))
    line = refused("run", config, *overrides.split(), "--out", "out", cwd=tmp_path)
    for part in parts:
        assert part in line
    assert not (tmp_path / "out").exists()


def test_an_output_directory_that_holds_another_run_is_refused(config, tmp_path, command, refused):
    out = tmp_path / "out"
    assert command("run", config, "iterations=2", "--out", out).returncode == 0
    assert "holds another experiment" in refused("run", config, "--out", out)
    assert "already holds this experiment. Add --resume" in refused("run", config, "iterations=2", "--out", out)
    assert "was begun with 2, not 40" in refused("run", config, "--out", out, "--resume")


@pytest.mark.parametrize(
    "words",
    [
        ["run"],
        ["run", "absent.toml"],
        ["run", "."],
        ["runn"],
        ["run", "small.toml", "--outt", "x"],
        ["config", "shoo"],
        ["run", "small.toml", "partition=idd"],
        ["run", "small.toml", "--out", "x" * 300],
        ["run", "small.toml", "--out", "small.toml"],
        ["data", "fetch", "digits"],
    ],
)
@pytest.mark.usefixtures("config")
def test_words_that_mean_nothing_are_one_line(tmp_path, words, refused):
    refused(*words, cwd=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"small.toml"}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--jobs two", "--jobs: use a whole number"),
        ("--jobs 0", "--jobs: use a number greater than or equal to 1"),
        ("--engine spark", "--engine: cannot use 'spark'. Use local or ray."),
        ("--jbos 2", "No such option: --jbos (Possible options: --jobs). `efhc run --help` shows what it accepts."),
        ("--strict", "--strict and --window need --monitor theory"),
        ("--resume iterations", "override: cannot use 'iterations'. Use KEY=VALUE, such as network.radius=0.5."),
    ],
)
@pytest.mark.usefixtures("config")
def test_bad_options_say_what_to_use(words, line, refused):
    assert refused("run", "small.toml", *words.split()) == f"efhc: {line}\n"


def test_no_words_at_all_are_helped(command):
    done = command()
    assert "Usage" in done.stdout + done.stderr
    assert "demo" in done.stdout + done.stderr


def test_demo_leaves_other_peoples_files_alone(tmp_path, refused):
    (tmp_path / "config.toml").write_text('name = "demo"\niterations = 3\n')
    (tmp_path / "thesis.tex").write_text("years of work")
    refused("demo", "--out", ".", cwd=tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_debug_shows_where_an_error_came_from(config, command):
    with pytest.raises(efhc.InputError, match=r"network\.raduis"):
        command("--debug", "run", config, "network.raduis=1")


def test_config_show_prints_a_config_that_runs(config, tmp_path, command):
    shown = command("config", "show", config, "devices=7")
    assert tomllib.loads(shown.stdout)["devices"] == 7
    (tmp_path / "complete.toml").write_text(shown.stdout)
    assert command("config", "show", tmp_path / "complete.toml").stdout == shown.stdout
    assert tomllib.loads(command("config", "show", "devices=3").stdout)["devices"] == 3
    assert tomllib.loads(command("config", "show").stdout)["devices"] == 10


def test_config_schema_is_json_schema(command):
    shown = command("config", "schema").stdout
    assert json.loads(shown)["properties"]["devices"]["minimum"] == 1
    for kind in ("geometric", "waypoint", "edge-sequence", "beta", "dirichlet", "softmax", "npy", "never"):
        assert f'"{kind}"' in shown


@pytest.mark.slow
def test_doctor_finds_this_installation_sound(command):
    done = command("doctor")
    assert done.returncode == 0, done.stdout
    for words in ("Alg. 1", "efhc[deep]", "efhc[cluster]", "efhc[tune]", "PyTorch"):
        assert words in done.stdout


def test_doctor_says_what_is_bad_and_ends_with_1(command, monkeypatch):
    found = [
        DoctorCheck("fine", "ok", "[bold]1[/]"),
        DoctorCheck("extra", "missing", "pip"),
        DoctorCheck("engine", "bad", "\x1b[2J"),
    ]
    monkeypatch.setattr(doctor, "checks", lambda: iter(found))
    done = command("doctor")
    assert done.returncode == 1
    assert re.search(r"fine +│ ok +│ \[bold\]1\[/\] ", done.stdout)  # shown as it is
    assert re.search(r"engine +│ bad +│ \\x1b\[2J ", done.stdout)
    monkeypatch.setattr(doctor, "checks", lambda: iter(found[:2]))
    assert command("doctor").returncode == 0


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("efhc: ")
    return done.stderr


def test_a_closed_output_is_no_error():
    closing = f'exec "{EFHC}" --version >&-'
    done = subprocess.run(["sh", "-c", closing], stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("words", [["config", "show"], ["--version"]], ids=" ".join)
def test_output_on_a_full_disk_is_one_line(words):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([EFHC, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "No space left on device" in one_line(done)


def test_a_reader_that_stops_reading_gets_no_traceback():
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([EFHC, "--help"], stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ImportError("libcudart.so.12: cannot open", name="torch._C"), "torch cannot be imported (libcudart"),
        (OSError(28, "No space left on device", "runs/x"), "runs/x: No space left on device; `efhc --debug` shows"),
        (MemoryError("Unable to allocate 7 TiB"), "there is not enough memory (Unable to allocate 7 TiB)"),
        (efhc.EfhcError("\x1b[31mred\x07"), "\\x1b[31mred\\x07"),
    ],
)
def test_errors_of_the_machine_are_one_line(refused, monkeypatch, error, words):
    def failing():
        raise error
        yield

    monkeypatch.setattr(doctor, "checks", failing)
    monkeypatch.setattr("efhc.cli.checking.warn", lambda text: None)  # that it checks
    assert words in refused("doctor")


def test_a_bug_of_ours_is_no_line(command, monkeypatch):
    monkeypatch.setattr(doctor, "checks", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        command("doctor")


def test_messages_break_between_words_at_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    warn("network.radius: cannot use a-word-longer-than-what-a-line-of-the-terminal-holds. Use numbers")
    assert capsys.readouterr().err.split() == [
        *("efhc:", "network.radius:", "cannot", "use"),
        *("a-word-longer-than-what-a-line-of-the-terminal-holds.", "Use", "numbers"),
    ]


def test_missing_extras_are_said_before_anything_is_read(refused, monkeypatch):
    monkeypatch.setattr(Extra, "is_installed", lambda self: False)
    assert refused("tune", "absent.toml") == "efhc: tuning needs Optuna: install the extra [tune] (docs/install.md)\n"
    monkeypatch.setenv("EFHC_DATA", "/absent")
    example = Path(__file__).parents[2] / "examples" / "cifar10.toml"
    assert (
        refused("run", example) == "efhc: a neural network needs PyTorch: install the extra [deep] (docs/install.md)\n"
    )
    refusal = refused("run", example.with_name("theory.toml"), "--log=tensorboard")
    assert refusal.endswith("needs tensorboardX: install the extra [tensorboard] (docs/install.md)\n")
    assert not Path("runs").exists()
    for name in ("sweep", "reproduce", "tune"):
        monkeypatch.setattr(Extra, "is_installed", lambda self: self.module != "ray")
        assert "install the extra [cluster] (docs/install.md)" in refused(name, "absent.toml", "--engine", "ray")


def commands(group: Any, *words: str) -> Iterator[list[str]]:
    """The words of a group and of all commands below it."""
    yield list(words)
    for name, inner in getattr(group, "commands", {}).items():
        yield from commands(inner, *words, name)


def test_every_help_page_fits_80_columns_and_says_what_runs_code(command):
    runs_code = {"run", "launch", "sweep", "tune", "config show", "node run", "node init", ""}
    every = [" ".join(words) for words in commands(typer.main.get_command(cli.app))]
    assert len(every) > 30
    for words in every:
        shown = command(*words.split(), "--help", columns=80).stdout
        assert max(map(len, shown.splitlines())) <= 80, words
        assert "..." not in shown.partition("Commands:")[2], words  # no description of a command is cut off
        options = [line for line in shown.partition("Options:")[2].splitlines() if line.lstrip().startswith("-")]
        assert not any("<" in line for line in options), words  # a metavar, and no Python type
        assert (RUNS_CODE in " ".join(shown.split())) == (words in runs_code), words


def test_demo_draws_the_four_panels_and_says_what_to_try_next(tmp_path, command):
    done = command("demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "runs" / "demo"
    assert (out / "figures" / "demo.png").read_bytes().startswith(b"\x89PNG")
    for word in ("global threshold", "zero threshold", "randomized gossip", "Try next", "demo.png"):
        assert word in done.stdout
    summary = efhc.Result.load(out).summary()
    accuracy = dict(zip(summary["strategy"], summary["accuracy"], strict=True))
    assert accuracy["ZT"] > 0.85  # all learn; of the paper's, the one that talks all the time learns most
    assert min(accuracy.values()) > 0.4
    connectivity = pl.read_parquet(out / "connectivity.parquet")
    assert len(connectivity) == 5 * 5 * 3
    suggested = re.findall(r"efhc (run .*)", done.stdout)
    assert command(*suggested[0].split(), "iterations=3", cwd=tmp_path).returncode == 0
