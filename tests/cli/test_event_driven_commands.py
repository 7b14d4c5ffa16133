"""Commands on an experiment whose devices have clocks of their own: run and sweep work, others say why not."""

from __future__ import annotations

import polars as pl
import pytest

from efhc import Result, simulate

CONFIG = """
devices = 4
iterations = 40
seeds = [0, 1]
partition = "iid"
driver = { kind = "event-driven", sample_seconds = 5.0 }
[strategies]
EF-HC = "ef-hc"
ZT = "zt"
[figure]
number = "A"
title = "digits"
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.toml").write_text(CONFIG)
    return tmp_path


def test_run_prints_the_summary_and_draws_seconds(folder, command):
    done = command("run", "mine.toml", "--out", "out")
    assert done.returncode == 0, done.stderr
    for words in ("seconds", "fired", "exchanges", "MB", "figure: out/figures/seconds.png"):
        assert words in done.stdout
    assert (folder / "out" / "figures" / "seconds.png").exists()
    assert not (folder / "out" / "figures" / "comparison.png").exists()
    again = command("run", "mine.toml", "--out", "out", "--resume")
    assert again.returncode == 0
    assert again.stdout == done.stdout


def test_a_stopped_run_says_how_to_go_on_with_the_same_options(folder, command, monkeypatch):
    def stopped(*given, progress, **options):
        def stop(strategy: str, seed: int, done: int) -> None:
            raise KeyboardInterrupt

        return simulate(*given, progress=stop, **options)

    for options in ("--jobs 1 --no-figure", "--jobs 1"):
        out = f"out{len(options)}"
        with monkeypatch.context() as patched:
            patched.setattr("efhc.experiments.runs.simulate.simulate", stopped)
            done = command("run", "mine.toml", "--out", out, *options.split())
        assert done.returncode == 130
        assert done.stderr.endswith(f" run mine.toml --out {out} {options} --resume\n")
    assert command("run", "mine.toml", "--out", "out20", "--no-figure", "--resume").returncode == 0
    assert not (folder / "out20" / "figures").exists()


def test_run_prints_what_it_takes_to_reach_the_target(command, folder):
    def shown(*words: str) -> str:
        done = command("run", "mine.toml", *words, "--no-figure", "--out", f"out-{len(list(folder.iterdir()))}")
        assert done.returncode == 0, done.stderr
        return done.stdout

    reached = shown("driver.target=0.2")
    for words in ("until accuracy 0.2 is reached", "2 of 2", "min to max", "worst"):
        assert words in reached
    never = shown("driver.target=1.0")
    for words in ("0 of 2", "> 40", "> x: not reached within x"):
        assert words in never
    assert "min to max" not in never
    of_one_seed = shown("driver.target=0.2", "seeds=[0]")
    assert "1 of 1" in of_one_seed
    for words in ("worst", "95 %", "min to max"):
        assert words not in of_one_seed


def test_run_says_where_nobody_is_left(command, folder):
    (folder / "gone.csv").write_text("seconds,device,event\n" + "".join(f"20,{i},leave\n" for i in range(4)))
    churn = ("driver.churn.kind=csv", "driver.churn.path=gone.csv", "driver.seconds=40.0")
    done = command("run", "mine.toml", *churn, "--out", "out")
    assert done.returncode == 0, done.stderr
    assert "devices" in done.stdout
    for strategy in ("EF-HC", "ZT"):
        assert f"{strategy}, seeds 0, 1: no device is there at the end" in done.stdout
    summary = Result.load(folder / "out").summary()
    assert summary["accuracy"].to_list() == [None, None]
    assert summary["devices"].to_list() == [0.0, 0.0]
    (folder / "swept.toml").write_text(CONFIG + "[sweep]\nbatch_size = [8, 16]\n")
    swept = command("sweep", "swept.toml", *churn, "--out", "sweep")
    assert swept.returncode == 0, swept.stderr
    assert "no device" in swept.stdout
    assert "failed" not in swept.stdout


def test_sweep_says_what_the_target_takes_at_each_point(folder, command):
    swept = "[sweep]\ndevices = [4, 5]\ndriver.target = [0.2, 1.0]\n"
    (folder / "swept.toml").write_text(CONFIG + swept)
    done = command("sweep", "swept.toml", "--out", "out", columns=80)
    assert done.returncode == 0, done.stderr
    for words in ("seconds", "MB", "to target", "reached", "2 of 2", "0 of 2", "> 4"):
        assert words in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "…" not in done.stdout
    assert "transmission time" not in done.stdout
    assert (folder / "out" / "sweep.png").exists()
    means = pl.read_csv(folder / "out" / "summary.csv").sort("driver.target")
    assert means["reached"].to_list() == [2] * 4 + [0] * 4
    assert means["seconds_without_target"].null_count() == means["seconds_to_target_low"].count() == 4
    assert means["seconds_to_target"].null_count() == means["bytes_to_target"].null_count() == 4
    table = pl.read_parquet(folder / "out" / "results.parquet")
    assert table["devices"].to_list() == table["devices_present"].to_list()


def test_a_sweep_has_one_driver(folder, refused):
    (folder / "mixed.toml").write_text('[sweep]\n"driver.kind" = ["lockstep", "event-driven"]\n')
    assert "sweep: cannot use points with the drivers lockstep and event-driven" in refused("sweep", "mixed.toml")
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("theory", "plan", "mine.toml"), "the paper's analysis"),
        (("run", "mine.toml", "--monitor", "theory"), "the paper's analysis"),
        (("reproduce", "mine.toml"), "a figure of the paper"),
        (("tune", "mine.toml", "--budget", "broadcasts=10"), "a tuning"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, tuple) else "",
)
def test_what_needs_lockstep_refuses_before_anything_is_written(folder, refused, words, what):
    if words[0] == "tune":
        pytest.importorskip("optuna")
    line = refused(*words)
    assert (
        line == f"efhc: driver: cannot use event-driven. Use lockstep; {what} needs devices that all step together.\n"
    )
    assert {path.name for path in folder.iterdir()} == {"mine.toml"}


def test_a_file_that_is_no_figure_is_refused(folder, refused):
    (folder / "plain.toml").write_text("devices = 4\n")
    assert "has no table [figure]" in refused("reproduce", "plain.toml")


def test_theory_refuses_a_run_that_has_finished(folder, command, refused):
    command("run", "mine.toml", "--out", "out", "--no-figure")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert "driver: cannot use event-driven. Use lockstep;" in refused("theory", "out")
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
