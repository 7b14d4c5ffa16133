"""`efhc launch`: real node processes, and an ordinary run directory of what they made."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import efhc
from efhc import Experiment, Result
from efhc.base.errors import InputError
from efhc.experiments.nodes.launch import launch
from efhc.experiments.nodes.processes import NodeFailed
from efhc.experiments.nodes.status_query import Answer, query_all, query_status
from efhc.experiments.runs.experiment_folder import ExperimentFolder
from efhc.experiments.runs.run import Run
from efhc.runtime.pages import SOCKET_NAME
from efhc.runtime.recording import last_second
from efhc.watch.describing import repeat_command
from efhc.watch.discovery import Discovery

pytest.importorskip("cryptography")
LAUNCH = [sys.executable, "-m", "efhc", "launch", "experiment.toml", "--out", "out"]


def small(**more: Any) -> Experiment:
    fields: dict[str, Any] = {
        "devices": 3,
        "iterations": 12,
        "seeds": [0],
        "evaluate_every": 5,
        "network": efhc.Ring(),
        "strategies": {"EF-HC": efhc.EventTriggered(r=200.0)},
    }
    return Experiment(**(fields | more))


TIMED = {
    "driver": efhc.EventDriven(compute=efhc.ConstantCompute(seconds=0.05), seconds=4.0, sample_seconds=0.5, target=0.3),
    "strategies": {"ZT": efhc.ZeroThreshold()},
}


@pytest.mark.slow
def test_a_run_in_lockstep_has_all_tables_of_efhc_run(tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []

    def view(run: Run, answers: list[Answer]) -> None:
        seen.append((run.strategy, sum(answer.status is not None for answer in answers)))

    given = small(keep_models_every=4, strategies={"ZT": efhc.ZeroThreshold(), "my RG": efhc.RandomizedGossip()})
    result, together = launch(given, tmp_path / "out", view=view), efhc.simulate(given)
    assert {name for name, _ in seen} == {"ZT", "my RG"}
    for name, table in together.tables.items():
        assert result.tables[name].equals(table), name
    for strategy in given.strategies:
        kept, expected = result.snapshots(strategy, 0), together.snapshots(strategy, 0)
        assert {k: models.tobytes() for k, models in kept.items()} == {k: w.tobytes() for k, w in expected.items()}
        assert result.models[strategy, 0].tobytes() == together.models[strategy, 0].tobytes()
    assert not (tmp_path / "out" / "nodes").exists()
    assert ExperimentFolder(tmp_path / "out").meta["made_by"] == "nodes, lockstep"
    assert Result.load(tmp_path / "out").summary().equals(together.summary())


@pytest.mark.slow
def test_free_running_nodes_leave_the_tables_of_an_event_driven_run(tmp_path: Path) -> None:
    result = launch(small(**TIMED), tmp_path / "out", keep_nodes=True)
    assert ExperimentFolder(tmp_path / "out").meta["made_by"] == "nodes, free-running"
    timeline = result.timeline
    assert timeline["imbalance"].is_null().all()
    assert timeline["seconds"].to_list() == [0.5 * place for place in range(9)]
    assert timeline["devices"].to_list() == [3] * 9
    assert timeline["accuracy"][-1] > timeline["accuracy"][0]
    for name in ("steps", "broadcasts", "exchanges", "bytes"):
        assert timeline[name].is_sorted()
    assert 0 < timeline["steps"][-1] <= 3 * 81  # 3 devices make at most 20 steps per second each
    assert len(result.steps) == timeline["steps"][-1]
    committed = result.exchanges.filter(outcome="committed")
    assert len(committed) == timeline["exchanges"][-1] > 0
    assert (committed["bytes"] == 2 * 4 * result.models["ZT", 0].shape[1]).all()
    assert (result.exchanges["start"] <= result.exchanges["end"]).all()
    assert result.network.filter(pl.col("iteration") == 0)["link_from"].list.len().to_list() == [3]
    assert result.summary()["seconds"].to_list() == [4.0]
    assert (tmp_path / "out" / "nodes" / "ZT.seed0" / "device-2" / "log.jsonl").exists()


@pytest.mark.slow
def test_a_node_that_dies_ends_the_launch_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(NodeFailed, match=r"device \d: .*training diverged at iteration \d+: the (loss|model) of"):
        launch(small(step_size=efhc.Constant(value=3e38), iterations=30), tmp_path / "out")


def interrupted(folder: Path, text: str, is_far_enough: Callable[[list[Path]], bool]) -> tuple[list[int], str]:
    """Launch an experiment and press Ctrl-C once it has got far enough. Returns the pids of its nodes, and stderr."""
    (folder / "experiment.toml").write_text(text)
    (strategy,) = re.findall(r"strategies\.(\S+)\.kind", text)
    states = [folder / "out" / "nodes" / f"{strategy}.seed0" / f"device-{device}" / "state" for device in range(3)]
    with subprocess.Popen(LAUNCH, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        while not is_far_enough(states):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.02)
        pids = [answer.status["pid"] for answer in query_all(map(str, states)) if answer.status is not None]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert len(pids) == 3
    return pids, errors


@pytest.mark.slow
def test_ctrl_c_stops_all_nodes_and_resume_goes_on_where_they_stopped(tmp_path: Path) -> None:
    text = (
        'devices = 3\niterations = 1500\nseeds = [0]\nlog = "tensorboard"\nstrategies.EF-HC.kind = "ef-hc"\n'
        'network.kind = "ring"\n'
    )
    pids, errors = interrupted(
        tmp_path, text, lambda states: all((state / "checkpoint-100.safetensors").exists() for state in states)
    )
    assert "the setting log has no effect here" in errors
    assert "stopped; continue with:" in errors
    assert errors.rstrip().endswith("--resume")
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    (group,) = (group for group in Discovery(tmp_path).find() if group.kind == "run")
    name, *words = shlex.split(repeat_command(group.runs[0], group))  # as a page shows it
    assert (name, words[0]) == ("efhc", "launch")
    subprocess.run([sys.executable, "-m", "efhc", *words], check=True, timeout=200, capture_output=True)
    result = Result.load(tmp_path / "out")
    assert result.experiment.log == ()
    together = efhc.simulate(result.experiment)
    for name, table in together.tables.items():
        assert result.tables[name].equals(table), name
    assert result.models["EF-HC", 0].tobytes() == together.models["EF-HC", 0].tobytes()


@pytest.mark.slow
def test_the_break_before_a_resume_does_not_count_as_training(tmp_path: Path) -> None:
    text = (
        'devices = 3\nseeds = [0]\nstrategies.ZT.kind = "zt"\nnetwork.kind = "ring"\n'
        '[driver]\nkind = "event-driven"\nseconds = 5.0\nsample_seconds = 0.5\n'
        'compute = { kind = "constant", seconds = 0.05 }\n'
    )
    states: list[Path] = []

    def has_made_steps(found: list[Path]) -> bool:
        states[:] = found
        status = query_status(found[0] / SOCKET_NAME).status
        return status is not None and status["steps"] >= 20

    interrupted(tmp_path, text, has_made_steps)
    stopped = max(map(last_second, states))
    assert stopped < 5.0
    time.sleep(6.0)  # longer than the whole run
    subprocess.run([*LAUNCH, "--resume"], cwd=tmp_path, check=True, timeout=200, capture_output=True)
    result = Result.load(tmp_path / "out")
    assert (result.steps["seconds"] > stopped).any()  # else the run would have been over
    assert result.timeline["seconds"].to_list() == [0.5 * place for place in range(11)]


@pytest.mark.parametrize(
    ("more", "options", "field"),
    [
        ({"strategies": {"GT": efhc.GlobalThreshold(rho="mean")}}, {}, "strategies.GT.rho"),
        ({"strategies": {"choco": efhc.ChocoSGD()}}, {}, "strategies.choco"),
        ({"strategies": {"P": efhc.Paced()}}, {}, "strategies.P"),
        ({**TIMED, "strategies": {"P": efhc.Paced(pacing={"bandwidth": "mean"})}}, {}, "strategies.P.pacing.bandwidth"),
        ({}, {"seconds": 3.0}, "--seconds"),
        ({"driver": efhc.LockstepDriver(loss=0.1)}, {}, "driver.loss"),
        (
            {"driver": efhc.EventDriven(seconds=5.0, churn=efhc.ChurnRates(crash_every=9.0, restart_after=1.0))},
            {},
            "driver.churn",
        ),
    ],
)
def test_what_nodes_cannot_do_is_refused_before_anything_is_written(
    tmp_path: Path, more: dict[str, Any], options: dict[str, Any], field: str
) -> None:
    with pytest.raises(InputError) as refused:
        launch(small(**more), tmp_path / "out", **options)
    assert refused.value.field == field
    assert not (tmp_path / "out").exists()
