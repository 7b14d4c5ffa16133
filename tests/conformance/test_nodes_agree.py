"""Real node processes in lockstep make what `efhc run` makes, bit for bit, over TLS.

By default a few of the runs are made, which have every link law, network, precision and model; with EFHC_FAULTS=all,
all are.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
import tomllib
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

import efhc
from efhc import Experiment, Result
from efhc.base.saving import read_tensors
from efhc.experiments.config.experiment import PAPER_STRATEGIES
from efhc.experiments.nodes.launch import launch
from efhc.experiments.nodes.processes import NodeProcesses
from efhc.experiments.nodes.status_query import query_status
from efhc.experiments.runs.draw import draw_parts, load_data

pytest.importorskip("cryptography")
pytestmark = pytest.mark.slow

DEVICES, ITERATIONS = 6, 30
NETWORKS: dict[str, Any] = {
    "static": efhc.Geometric(),
    "random-links": efhc.RandomLinks(),
    "waypoint": efhc.RandomWaypoint(),
}
MODELS: dict[str, dict[str, Any]] = {
    "SVM in float32": {},
    "SVM in float64": {"precision": "float64"},
    "MLP": {"model": efhc.MLP(), "backend": "loop"},
    "compiled MLP": {"model": efhc.MLP(hidden=(6,)), "backend": "compiled"},
}
STRATEGIES: dict[str, Any] = {
    **PAPER_STRATEGIES,
    "entrywise": efhc.Entrywise(momentum=0.9, r=50.0),
    "one-way": efhc.OneWay(r=20.0),
    "Adam": efhc.Composed(
        local={"kind": "adam", "correction": 0.1, "steps": 2},
        trigger={"kind": "coin", "probability": 0.5},
        codec={"kind": "levels", "bits": 4},
        mixing={"kind": "half-steps"},
    ),
}
HALF_STEPS = [name for name in STRATEGIES if name not in PAPER_STRATEGIES]
ALL = list(product(STRATEGIES, NETWORKS, MODELS))
SOME = [
    ("EF-HC", "random-links", "SVM in float32"),
    ("GT", "waypoint", "SVM in float64"),
    ("RG", "random-links", "MLP"),
    ("EF-HC", "waypoint", "compiled MLP"),
    ("entrywise", "static", "SVM in float32"),
    ("one-way", "random-links", "SVM in float64"),
    ("Adam", "random-links", "compiled MLP"),
]


def experiment(strategy: str, network: str, model: str, **more: Any) -> Experiment:
    fields: dict[str, Any] = {
        "devices": DEVICES,
        "iterations": ITERATIONS,
        "seeds": [1],
        "evaluate_every": 10,
        "network": NETWORKS[network],
        "strategies": {strategy: STRATEGIES[strategy]},
    }
    return Experiment(**(fields | MODELS[model] | more))


def assert_equal(result: Result, given: Experiment) -> None:
    together = efhc.simulate(given)
    for name, table in together.tables.items():
        assert result.tables[name].equals(table), name
    assert {pair: w.tobytes() for pair, w in result.models.items()} == {
        pair: w.tobytes() for pair, w in together.models.items()
    }


def ended_lines(folder: Path) -> list[dict[str, Any]]:
    """What each node says of itself at its end."""
    logs = sorted(folder.glob("*/device-*/log.jsonl"))
    lines = [json.loads(line) for log in logs for line in log.read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == "ended"]


@pytest.mark.parametrize(("strategy", "network", "model"), ALL if os.environ.get("EFHC_FAULTS") == "all" else SOME)
def test_fired_sets_used_links_and_models_are_those_of_efhc_run(
    tmp_path: Path, strategy: str, network: str, model: str
) -> None:
    if model == "MLP":
        pytest.importorskip("torch")
    given = experiment(strategy, network, model)
    result = launch(given, tmp_path / "out", keep_nodes=True)
    assert_equal(result, given)
    if strategy in HALF_STEPS:
        assert result.events["fired"].list.len().sum() > 0
        return
    used = result.events["link_from"].list.len().sum()
    one_model = result.models[strategy, 1].shape[1] * np.dtype(given.precision).itemsize
    ended = ended_lines(tmp_path / "out" / "nodes")
    assert len(ended) == DEVICES
    assert used > 0
    for counted in ("model_bytes_sent", "model_bytes_received"):
        assert sum(line[counted] for line in ended) == 2 * one_model * used


def test_nodes_learn_numbers_as_efhc_run_does(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    x = np.random.default_rng(0).normal(size=(130, 4))
    y = x @ [1.0, -2.0, 0.5, 3.0]
    np.savez(tmp_path / "numbers.npz", x_train=x[:100], y_train=y[:100], x_test=x[100:], y_test=y[100:])
    data = efhc.NpzFile(path=tmp_path / "numbers.npz", label_kind="number")
    given = experiment("EF-HC", "random-links", "MLP", data=data, partition="iid")
    given = given.model_copy(update={"model": efhc.MLP(hidden=(6,), loss="mean-squared-error")})
    result = launch(given, tmp_path / "out")
    assert_equal(result, given)
    losses = result.metrics["mean_absolute_error"].drop_nulls()
    assert losses[-1] < losses[0]


def test_one_byte_of_one_nodes_data_changes_all_models(tmp_path: Path) -> None:
    # Not standardized: each device would scale samples of its own by their own mean.
    given = experiment("ZT", "random-links", "SVM in float64", data=efhc.Digits(standardize=False))
    result = launch(given, tmp_path / "out", keep_nodes=True)
    nodes = tmp_path / "out" / "nodes" / "ZT.seed1"
    data = load_data(given)
    part = draw_parts(given, data, 1)[2]
    x, y = data.x_train[part].copy(), data.y_train[part]
    assert np.array_equal(again_with_data(nodes, x, y), result.models["ZT", 1])  # its own file, with the same numbers
    x.view(np.uint8)[0, 6 + 8 * 20] ^= 1
    changed = again_with_data(nodes, x, y)
    assert (changed != result.models["ZT", 1]).any(axis=1).all()


def again_with_data(nodes: Path, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Run the same nodes again, device 2 with these samples of its own. Returns the models."""
    folders = sorted(nodes.glob("device-*"))
    np.savez(folders[2] / "own.npz", x=x, y=y, classes=10)
    settings = tomllib.loads((folders[2] / "node.toml").read_text())
    (folders[2] / "node.toml").write_text(tomli_w.dumps(settings | {"data": "own.npz"}))
    for folder in folders:
        shutil.rmtree(folder / "state")
    run_to_the_end(folders)
    return final_models(folders, ITERATIONS)


def run_to_the_end(folders: list[Path]) -> None:
    with NodeProcesses(folders) as processes:
        deadline = time.monotonic() + 120
        while processes.running:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        processes.check()


def final_models(folders: list[Path], iterations: int) -> np.ndarray:
    files = [folder / "state" / f"checkpoint-{iterations}.safetensors" for folder in folders]
    return np.stack([read_tensors(file)[0]["model"] for file in files])


def begin(tmp_path: Path, iterations: int, strategy: str = "EF-HC") -> tuple[Experiment, list[Path]]:
    """Write the files of nodes that have a lot to do."""
    short = experiment(strategy, "random-links", "SVM in float32", iterations=1)
    launch(short, tmp_path / "out", keep_nodes=True)
    given = experiment(strategy, "random-links", "SVM in float32", iterations=iterations)
    nodes = tmp_path / "out" / "nodes" / f"{strategy}.seed1"
    tables = tomllib.loads((nodes / "experiment.toml").read_text())
    (nodes / "experiment.toml").write_text(tomli_w.dumps(tables | {"iterations": iterations}))
    folders = sorted(nodes.glob("device-*"))
    for device, folder in enumerate(folders):
        shutil.rmtree(folder / "state")
        settings = tomllib.loads((folder / "node.toml").read_text())
        everyone = [
            {"device": other, "address": tomllib.loads((there / "node.toml").read_text())["listen"]}
            for other, there in enumerate(folders)
            if other != device
        ]
        changes = {"neighbours": everyone, "pace": 0.02, "checkpoint_every": 20}
        (folder / "node.toml").write_text(tomli_w.dumps(settings | changes))
    return given, folders


def iteration_of(folder: Path) -> int:
    status = query_status(folder / "state" / "status.sock").status
    return -1 if status is None else int(status["iteration"])


def wait_until(condition: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("strategy", ["EF-HC", "entrywise"])
def test_a_node_that_is_stopped_and_started_again_changes_nothing(tmp_path: Path, strategy: str) -> None:
    given, folders = begin(tmp_path, 150, strategy)
    with NodeProcesses(folders) as processes:
        wait_until(lambda: iteration_of(folders[3]) > 30)
        pid = query_status(folders[3] / "state" / "status.sock").status["pid"]  # type: ignore[index]
        loaded = Path(f"/proc/{pid}/maps").read_text()
        assert "numba" in loaded or "llvmlite" in loaded
        assert not [name for name in ("polars", "matplotlib", "torch") if name in loaded]
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: 3 not in processes.running)
        processes.check()  # exit code 0
        with NodeProcesses([folders[3]]) as again:
            wait_until(lambda: not processes.running and not again.running)
            again.check()
        processes.check()
    models = efhc.simulate(given).models[strategy, 1]
    assert np.array_equal(final_models(folders, 150), models)
