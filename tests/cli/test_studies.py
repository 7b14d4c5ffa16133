from __future__ import annotations

import signal
import subprocess
import sys
import time

import polars as pl
import pytest

import efhc
from efhc.experiments.studies import sweep

FIGURE = """
iterations = 20
evaluate_every = 10
seeds = [0, 1]
[strategies]
EF-HC = { kind = "ef-hc", r = 1500.0 }
ZT = "zt"
[figure]
number = "A"
title = "digits"
"""
SWEEP = """
iterations = 20
seeds = [0]
[strategies]
EF-HC = { kind = "ef-hc", r = 1500.0 }
ZT = "zt"
[sweep]
network.radius = [0.4, 0.6]
"""


def test_list_shows_every_figure_with_its_sizes(tmp_path, command):
    shown = command("reproduce", "list", cwd=tmp_path).stdout
    for words in ("fig2a", "fig8", "100 x 10,000", "core hours", "presets", "frontier", "slow-links", " x 60 s"):
        assert words in shown


def test_reproduce_draws_and_judges_a_figure_of_ones_own_and_says_where(tmp_path, command):
    figure = FIGURE.replace("ZT = ", 'GT = "gt"\nRG = "rg"\nZT = ')
    (tmp_path / "fig2a.toml").write_text(f"{figure}\n[sweep]\nnetwork.radius = [0.4, 0.6]\n")
    words = ["reproduce", "./fig2a.toml", "--out", "out"]
    done = command(*words, "--seeds", 1, "--radius", 0.4, "--jobs", 1, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = (tmp_path / "out" / "report.html").read_text()
    assert "efhc reproduce ./fig2a.toml --radius 0.4 --quick --seeds 1 --out out" in report
    assert "add --seeds 5" in done.stdout
    assert "not measured: needs at least two radii" in done.stdout
    for said in ("out/report.html", "EF-HC takes less transmission time", "undecided: 1 seed, a verdict needs 5"):
        assert said in done.stdout
    tables = {f"fig2a-{panel}.csv" for panel in ("i", "ii", "iii", "iv")}
    assert {path.name for path in (tmp_path / "out" / "figures").iterdir()} == {"fig2a.png", "fig2a.pdf", *tables}
    assert pl.read_csv(tmp_path / "out" / "figures" / "fig2a-ii.csv").columns[-1] == "seed 0"
    estimated = command(*words, "--seeds", 2, "--estimate", cwd=tmp_path)
    assert "fig2a: " in estimated.stdout
    assert " core hours, 0:0" in estimated.stdout
    metrics = next((tmp_path / "out" / "runs").glob("*/metrics.parquet"))
    metrics.write_bytes(b"damaged")
    again = command(*words, "--seeds", 1, cwd=tmp_path)
    assert again.returncode == 0
    assert metrics.parent.name in again.stderr
    assert "made again" in again.stderr


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["reproduce", "fig2c"], ["figure", "fig2c", "did you mean", "fig3b", "all"]),
        (["reproduce", "fig2a", "--engine", "rayy"], ["--engine", "rayy", "local or ray"]),
        (["reproduce", "fig2a", "--address", "auto"], ["--address", "--engine ray"]),
        (["reproduce", "nowhere.toml"], ["nowhere.toml"]),
        (["reproduce", "fig2a", "iterations=9"], ["reproduce takes no settings", "efhc run fig2a iterations=9"]),
        (["sweep", "sweep.toml", "network.radus=3"], ["network.radus", "did you mean 'radius'"]),
        (["sweep", "typo.toml"], ["network.radus", "did you mean 'radius'"]),
        (["sweep", "mine.toml"], ["sweep", "mine.toml, which has no [sweep]"]),
        (["sweep", "sweep.toml", "--engine", "ray", "--address", "127.0.0.1:1"], ["--address", "127.0.0.1:1"]),
        (["tune", "sweep.toml"], ["--budget", "transmission_time=T"]),
        (["tune", "sweep.toml", "--budget", "money=3"], ["--budget", "money=3", "broadcasts=N"]),
        (["tune", "sweep.toml", "--budget", "broadcasts=3", "--strategy", "ZT"], ["strategy", "ZT"]),
        (["tune", "sweep.toml", "--budget", "zt=2"], ["--budget", "zt=2", "zt=P%"]),
        (
            ["tune", "sweep.toml", "--budget", "zt=2%", "--parameter", "strategies.Z.r=1:2"],
            ["--parameter", "strategies.Z.r", "ZT"],
        ),
        (["tune", "sweep.toml", "--budget", "zt=2%", "--parameter", "r=1"], ["--parameter", "'r=1'", "LOW:HIGH"]),
    ],
    ids=lambda value: "-".join(value).replace("/", "") if isinstance(value, list) and len(value) < 6 else None,
)
def test_bad_input_is_one_line(tmp_path, fashion_files, refused, words, parts):
    (tmp_path / "mine.toml").write_text(FIGURE)
    (tmp_path / "sweep.toml").write_text(SWEEP)
    (tmp_path / "typo.toml").write_text(SWEEP.replace("radius", "radus"))
    text = refused(*words)
    for part in parts:
        assert part in text


def test_figures_whose_data_are_missing_say_how_to_get_them(no_data, refused):
    text = refused("reproduce", "fig2b")
    assert "femnist" in text
    assert "LEAF" in text


def test_sweep_prints_means_and_keeps_all_in_one_table(tmp_path, command):
    (tmp_path / "sweep.toml").write_text(SWEEP)
    done = command("sweep", "sweep.toml", "iterations=10", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    table = pl.read_parquet(tmp_path / "runs" / "sweep-sweep" / "results.parquet")
    assert set(table["network.radius"]) == {0.4, 0.6}
    assert table["iteration"].max() == 9
    assert "0.6" in done.stdout
    assert "results.parquet" in done.stdout


def test_a_sweep_of_many_settings_is_readable_and_has_no_figure(tmp_path, command):
    settings = ("devices = {}", "batch_size = {}", "network.radius = {}", "evaluate_every = {}")
    tables = ["\n".join(["[[sweep]]", *settings]).format(*values) for values in ((4, 1, 0.8, 1), (5, 2, 0.9, 2))]
    (tmp_path / "wide.toml").write_text("\n".join(['seeds = [0, 1]\nstrategies.ZT = "zt"\niterations = 2', *tables]))
    out = tmp_path / "runs" / "wide-sweep"
    out.mkdir(parents=True)
    (out / "sweep.png").touch()  # of an earlier sweep
    done = command("sweep", "wide.toml", cwd=tmp_path, columns=80)
    assert done.returncode == 0, done.stderr
    assert "no figure: 4 settings vary" in done.stdout
    assert "min to max" in " ".join(done.stdout.split())
    assert "devices=4" in done.stdout
    assert not (out / "sweep.png").exists()


def test_run_says_that_it_leaves_the_sweep_alone(tmp_path, command):
    (tmp_path / "sweep.toml").write_text(SWEEP)
    done = command("run", "sweep.toml", "--no-figure", cwd=tmp_path)
    assert done.returncode == 0
    assert "efhc sweep" in done.stderr
    assert efhc.Result.load(tmp_path / "runs" / "sweep").experiment.network == efhc.Geometric(radius=0.4)


def test_a_figure_of_the_paper_is_a_config_like_any_other(tmp_path, command):
    shown = command("config", "show", "fig2a", "iterations=7", cwd=tmp_path).stdout
    assert "iterations = 7" in shown
    assert 'kind = "fashion-mnist"' in shown


def test_tune_finds_r_and_writes_the_config(tmp_path, command):
    (tmp_path / "t.toml").write_text(SWEEP)
    words = ["tune", "t.toml", "--budget", "broadcasts=60", "--trials", 4]
    done = command(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "runs" / "t-tune"
    best = pl.read_csv(out / "trials.csv").filter(state="complete").sort("accuracy")["r"][-1]
    tuned = efhc.load_experiment(out / "tuned.toml")
    assert tuned.strategies["EF-HC"].r == pytest.approx(best)
    assert "tuned.toml" in done.stdout
    assert "Chosen by the accuracy on" in done.stdout
    assert (out / "tuning.png").exists()


def test_tune_takes_several_parameters_a_share_of_zt_and_other_seeds(tmp_path, command):
    (tmp_path / "t.toml").write_text(
        'iterations = 12\nevaluate_every = 2\nseeds = [7]\n[strategies]\nP = { kind = "periodic", every = 3 }\n'
    )
    words = ["tune", "t.toml", "seeds=[1]", "--budget", "zt=50%", "--parameter", "strategies.P.every=1:4"]
    done = command(*words, "--trials", 2, "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert pl.read_csv(tmp_path / "out" / "trials.csv")["every"].to_list() == [3, 2]
    assert efhc.load_experiment(tmp_path / "out" / "tuned.toml").seeds == (1,)
    assert "within 50 % of ZT's transmission time" in done.stdout


def test_reproduce_makes_a_frontier_and_says_who_leads(tmp_path, command):
    (tmp_path / "mine.toml").write_text(
        'iterations = 12\nevaluate_every = 2\nseeds = [7]\n[strategies]\nZT = "zt"\nRG = "rg"\n'
        '[figure]\nkind = "frontier"\ntitle = "Mine"\nleaders = ["RG"]\n'
        '[figure.settings.base]\ntitle = "as it is"\n'
    )
    done = command("reproduce", "mine.toml", "--out", "out", "--jobs", 1, cwd=tmp_path, columns=200)
    assert done.returncode == 0, done.stderr
    assert "claim: RG leads at every budget from 20 to 100 % of ZT's time" in " ".join(done.stdout.split())
    assert "mine-base  undecided: " in done.stdout  # of one seed
    assert "mine-base: accuracy at shares of ZT's time" in done.stdout
    means = pl.read_csv(tmp_path / "out" / "figures" / "mine.csv")
    (rg,) = means.filter(strategy="RG").iter_rows(named=True)
    assert f"{rg['at 100 %']:.3f}" in done.stdout
    of_seed = pl.read_csv(tmp_path / "out" / "figures" / "mine-base.csv").filter(strategy="RG")
    assert (rg["spends"], rg["seeds"]) == (of_seed["spends"][0], 1)
    assert "as it is" in (tmp_path / "out" / "report.html").read_text()


def test_of_budgets_it_judges_from_the_smallest_and_says_what_is_measured_where(tmp_path, command):
    (tmp_path / "mine.toml").write_text(
        'iterations = 40\nevaluate_every = 20\nevaluate_at = "budgets"\nbudgets = [0.1, 0.5]\nseeds = [7]\n'
        'devices = 4\nnetwork = "ring"\nmeasure = "own_accuracy"\n[strategies]\nZT = "zt"\nRG = "rg"\n'
        '[figure]\nkind = "frontier"\ntitle = "Mine"\nleaders = ["RG"]\n[figure.settings.base]\ntitle = "as it is"\n'
    )
    done = command("reproduce", "mine.toml", "--jobs", 1, cwd=tmp_path, columns=200)
    assert done.returncode == 0, done.stderr
    assert "every budget from 10 to 100 %" in " ".join(done.stdout.split())
    report = (tmp_path / "runs" / "paper-quick" / "report.html").read_text()
    for part in ("Accuracy on own data at budgets", "on its own data", "10, 50 %"):
        assert part in report


def test_runs_that_fail_for_one_reason_are_one_line(tmp_path, command):
    bad = 'Bad = {kind="composed",local={kind="sgd",weight_decay=1e300},trigger="always"}'
    text = (
        f'iterations = 3\ndevices = 3\nseeds = [0, 1, 2]\n[strategies]\nA = "zt"\n{bad}\n[sweep]\nnetwork = ["ring"]\n'
    )
    (tmp_path / "sweep.toml").write_text(text)
    done = command("sweep", "sweep.toml", "--jobs", 1, cwd=tmp_path)
    assert sum("and 2 more runs" in line for line in done.stderr.splitlines()) == 1


def test_stopped_by_the_user_it_ends_with_130_and_one_line(tmp_path, command, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    (tmp_path / "sweep.toml").write_text(SWEEP)
    monkeypatch.setattr(sweep, "run_sweep", interrupted)
    done = command("sweep", "sweep.toml")
    assert done == (130, "", "efhc: stopped; the same command continues from here\n")


@pytest.mark.slow
def test_interrupted_it_says_that_the_same_command_goes_on(tmp_path):
    (tmp_path / "long.toml").write_text(FIGURE.replace("iterations = 20", "iterations = 1000000"))
    command = [sys.executable, "-m", "efhc", "reproduce", "long.toml", "--out", "out"]
    options = {"cwd": tmp_path, "stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, **options) as process:
        try:
            deadline = time.monotonic() + 120
            while not list((tmp_path / "out" / "runs").glob("*/live.jsonl")) and time.monotonic() < deadline:
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 130
    assert said == "efhc: stopped; the same command continues from here\n"


def test_reproduce_compares_a_strategy_with_its_controls(tmp_path, command):
    (tmp_path / "mine.toml").write_text(
        'devices = 3\nseeds = [7]\npartition = "iid"\ndriver = { kind = "event-driven", seconds = 6.0 }\n'
        '[strategies]\npaced = "paced"\nall = { kind = "paced", links = "all" }\n'
        '[figure]\nkind = "controls"\ntitle = "Mine"\nleader = "paced"\ncommon = "all"\ncontrols.all = "All links."\n'
        '[figure.settings.base]\ntitle = "as it is"\n'
    )
    done = command("reproduce", "mine.toml", "--full", "--out", "out", "--jobs", 1, cwd=tmp_path, columns=200)
    assert done.returncode == 0, done.stderr
    assert "mine: 2 runs, about" in done.stdout
    assert "mine-base: accuracy at the end, and the lead of paced" in done.stdout
    assert "too few seeds (1)" in done.stdout
    assert (tmp_path / "out" / "report.html").exists()
