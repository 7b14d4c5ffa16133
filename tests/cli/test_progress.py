"""What commands show of runs while they are made: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from threading import Thread

import efhc
from efhc.cli.launch import how_far
from efhc.cli.progress import LINE_SECONDS, NowAndThen, showing
from efhc.experiments.nodes.nodes_of_run import FOR_EVER
from efhc.experiments.nodes.status_query import Answer
from efhc.experiments.runs.events import Evaluated
from efhc.experiments.runs.progress import Overview
from efhc.experiments.runs.run import Runs
from efhc.learning.measures import CLASSIFICATION, measures_of


class Clock:
    """A clock that a test moves on."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_line_tells_of_every_run_that_is_being_made() -> None:
    clock = Clock()
    overview = Overview(3, 3000, clock)
    tell = overview.progress_of(1000)
    tell("ZT", 0, 1000)  # there before
    for seconds in range(11):
        clock.now = float(seconds)
        tell("EF-HC", 0, 40 * seconds)
        tell("GT", 1, 10 * seconds)
    (run,) = Runs().of(efhc.Experiment(iterations=1000, seeds=(0,), strategies={"EF-HC": efhc.EventTriggered()}))
    overview.follower(run)(Evaluated(0.0, 1, {"iteration": 399, "accuracy": 0.8125}))
    assert overview.line() == (
        "1 of 3 runs done, 51 it/s, 0:00:29 left; EF-HC, seed 0: 400 of 1,000, accuracy 0.812, 40 it/s, 0:00:15 left; "
        "GT, seed 1: 100 of 1,000, 10 it/s, 0:01:30 left"
    )
    for number in range(2, 8):
        tell("GT", number, 10)
    assert overview.line().endswith("4 more")


def test_the_measure_of_the_experiment_is_shown_and_another_objective_has_its_own() -> None:
    experiment = efhc.Experiment(iterations=100, seeds=(0,), measure="own_accuracy", strategies={"A": "never"})
    (run,) = Runs().of(experiment)
    nothing = dict.fromkeys(measures_of(CLASSIFICATION))
    regression = dict.fromkeys(measures_of({"mean_squared_error": "lower"}), 12345.6)
    for row, words in (
        ({"accuracy": 0.5, "accuracy_p10": 0.4, "own_accuracy": 0.75}, "accuracy on own data 0.750"),
        ({"accuracy": 0.5}, "accuracy 0.500"),  # as efhc 0.2 recorded it
        (nothing | regression, "mean_squared_error 1.235e+04"),
    ):
        overview = Overview(1, 100)
        overview.progress(run, 0.5)
        overview.follower(run)(Evaluated(0.0, 50, {"iteration": 49, "evaluation": 49, **row}))
        assert overview.line() == f"A, seed 0: 50 of 100, {words}"
    follower = overview.follower(run)
    for iteration, value in ((50, 0.25), (51, 0.5)):  # one evaluation, of two iterations
        row = nothing | {"own_accuracy": value, "accuracy": value, "accuracy_p10": value}
        follower(Evaluated(0.0, iteration + 1, {"iteration": iteration, "evaluation": 50, **row}))
    assert overview.line().endswith("accuracy on own data 0.375")


def test_a_run_that_is_evaluated_before_it_is_first_reported_has_an_accuracy() -> None:
    (run,) = Runs().of(efhc.Experiment(iterations=100, seeds=(0,), strategies={"A": efhc.EventTriggered()}))
    by_key, by_name = Overview(1, 100), Overview(1, 100)
    for overview in by_key, by_name:
        overview.follower(run)(Evaluated(0.0, 1, {"iteration": 49, "accuracy": 0.5}))
    by_key.progress(run, 0.5)
    by_name.progress_of(100)("A", 0, 50)
    assert by_key.line() == by_name.line() == "A, seed 0: 50 of 100, accuracy 0.500"


def test_whoever_reads_waits_for_whoever_tells() -> None:
    overview, read, while_telling = Overview(2, 200), [], []

    def look() -> None:
        read.extend([overview.line(), overview.reached, overview.finished])

    readers = [Thread(target=read_one) for read_one in (look, lambda: overview.reached, lambda: overview.finished)]

    def show() -> None:  # called in the middle of telling
        for reader in readers:
            reader.start()
        readers[0].join(0.2)
        while_telling.extend(reader.is_alive() for reader in readers)

    overview.show = show
    overview.progress_of(100)("ZT", 0, 100)
    for reader in readers:
        reader.join()
    assert while_telling == [True, True, True]
    assert read == ["1 of 2 runs done", 100, 1]


def test_lines_come_seldom_and_a_quick_command_prints_none() -> None:
    clock, said = Clock(), []
    lines = NowAndThen(5.0, LINE_SECONDS, clock)
    for tenth in range(1200):
        clock.now = tenth / 10
        lines.call(lambda: said.append(clock.now))
    assert said == [5.0, 35.0, 65.0, 95.0]
    assert not NowAndThen(5.0, LINE_SECONDS, Clock()).has_called


def test_the_line_of_a_launch_names_the_slowest_node() -> None:
    def answers(*reached: int, last: int) -> list[Answer]:
        return [Answer("there", {"iteration": k, "iterations": last}) for k in reached]

    assert how_far([]) == "0 nodes"
    assert how_far(answers(6000, 5120, 7000, last=40_000)) == "3 nodes, slowest at 5,120 of 40,000"
    assert how_far(answers(12, last=FOR_EVER)) == "1 node, slowest at 12"  # the clock stops it


def test_without_a_terminal_lines_go_to_stderr(capsys) -> None:
    with showing(2, 200, NowAndThen(0.0, 0.0)) as overview:
        fields = {"iterations": 100, "seeds": (0,), "evaluate_every": 10}
        strategies = {"EF-HC": efhc.EventTriggered(), "ZT": efhc.ZeroThreshold()}
        tell = overview.progress_of(100)
        efhc.simulate(**fields, strategies=strategies, progress=tell, followers=overview.follower, jobs=1)
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert any("EF-HC, seed 0: " in line and ", accuracy 0." in line and " it/s, " in line for line in lines)
    assert lines[-1].startswith("efhc: 2 of 2 runs done in 0:00:0")


def test_the_bar_shows_accuracy_and_speed(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text('iterations = 1500\nevaluate_every = 50\nseeds = [0]\nstrategies.A.kind = "ef-hc"\n')
    command = [sys.executable, "-m", "efhc", "run", str(config), "--out", str(tmp_path / "out"), "--no-figure"]
    leader, follower = pty.openpty()
    environment = os.environ | {"COLUMNS": "200", "TERM": "xterm-256color"}
    shown = b""
    with subprocess.Popen(command, stdout=follower, stderr=follower, env=environment) as process:
        os.close(follower)
        try:
            while chunk := os.read(leader, 1 << 16):
                shown += chunk
        except OSError:  # the other end is closed
            pass
        finally:
            os.close(leader)
    assert process.returncode == 0, shown.decode()
    assert b"A, seed 0: accuracy 0." in shown
    assert b"it/s" in shown
