"""Watching a run: it changes nothing, says each thing once, and can stop the run where it is."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from polars.testing import assert_frame_equal

import efhc
from efhc.base.errors import AssumptionBroken
from efhc.base.saving import read_tensors
from efhc.experiments.config.files import build_experiment
from efhc.experiments.studies.theory_monitor import TheoryMonitor

pytestmark = pytest.mark.usefixtures("no_comparison")

FIELDS: dict[str, Any] = {
    "devices": 4,
    "iterations": 40,
    "seeds": (0,),
    "evaluate_every": 7,
    "model": {"kind": "softmax", "l2": 0.5},
    "network": {"kind": "ring"},
    "step_size": {"kind": "constant", "value": 1e-4},
    "strategies": {"EF-HC": {"kind": "ef-hc", "r": 100.0}, "ZT": {"kind": "zt"}},
}
SILENT = {"EF-HC": {"kind": "ef-hc", "r": 1e9}, "ZT": {"kind": "zt"}}


def watched(out: Path | None = None, *, strict: bool = False, window: int | None = None, **fields: Any):
    """The run, and what was said on the way."""
    options = {name: fields.pop(name) for name in ("resume", "jobs") if name in fields}
    experiment = build_experiment({**FIELDS, **fields})
    said: list[str] = []
    monitor = TheoryMonitor(experiment, said.append, strict, window)
    return efhc.simulate(experiment, out=out, observers=monitor, warn=lambda text: None, **options), said


def assert_same(a: efhc.Result, b: efhc.Result) -> None:
    for table in ("metrics", "events", "network", "devices"):
        assert_frame_equal(getattr(a, table), getattr(b, table), check_exact=True)
    for run, models in a.models.items():
        assert np.array_equal(models, b.models[run])


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"network": {"kind": "random-links", "topology": {"kind": "complete"}}, "seeds": (0, 1)},
        {"network": {"kind": "rotating"}},
        {"model": {"kind": "svm"}, "batch_size": "full"},
        {"exchange_at_start": True, "backend": "arrays"},
    ],
    ids=itertools.count(),
)
def test_watching_changes_nothing(fields):
    result, said = watched(**fields)
    assert_same(result, efhc.simulate(**{**FIELDS, **fields}))
    assert said == []


def test_each_assumption_is_told_once_with_iteration_and_device():
    _, said = watched(window=10, strategies=SILENT)
    assert said == [
        "EF-HC, seed 0: Assumption III.5(b) (broadcasts) at iteration 9: "
        "device 0 did not fire in the 10 iterations up to 9, the window demanded",
        "EF-HC, seed 0: Proposition III.6 (information flow) at iteration 9: "
        "the links used do not connect all devices in the 10 iterations up to 9, the window demanded",
    ]


def test_every_seed_is_told_of():
    _, said = watched(window=10, strategies=SILENT, seeds=(0, 1, 5), jobs=1)
    assert [line.split(":")[0] for line in said] == [f"EF-HC, seed {seed}" for seed in (0, 0, 1, 1, 5, 5)]


def test_a_quarter_of_the_run_is_demanded_by_default():
    _, said = watched(strategies=SILENT)
    assert "in the 10 iterations up to 9" in said[0]
    assert watched(strategies=SILENT, iterations=3)[1][0].endswith(
        " did not fire in the 1 iterations up to 0, the window demanded"
    )


def test_a_window_longer_than_the_run_is_never_over():
    assert watched(strategies=SILENT, window=41)[1] == []
    assert watched(strategies=SILENT, window=40)[1] != []


def test_a_step_size_over_every_limit():
    _, said = watched(step_size={"kind": "constant", "value": 5.0}, strategies={"ZT": {"kind": "zt"}})
    (line,) = said
    assert line.startswith(
        "ZT, seed 0: Proposition III.14 (step-size limit) at iteration 0: alpha(0) = 5 is above 1/(8 L) = "
    )
    assert line.endswith(", the limit for every network")


@pytest.mark.parametrize("model", [{"kind": "svm"}, {"kind": "mlp", "hidden": (4,)}], ids=["svm", "mlp"])
def test_where_no_smoothness_is_known_for_certain_there_is_no_limit(model):
    if model["kind"] == "mlp":
        pytest.importorskip("torch")
    fields = {"model": model, "step_size": {"kind": "constant", "value": 0.5}, "strategies": {"ZT": {"kind": "zt"}}}
    assert watched(**fields, backend="stacked" if model["kind"] == "mlp" else "auto", iterations=5)[1] == []


def test_a_network_in_two_parts(tmp_path):
    (tmp_path / "links.txt").write_text("0 1\n2 3\n")
    network = {"kind": "edge-list", "path": str(tmp_path / "links.txt")}
    _, said = watched(network=network, strategies={"ZT": {"kind": "zt"}}, window=1)
    assert [line.split("(")[-1].split(")")[0] for line in said] == ["physical graph", "information flow"]
    assert all(" at iteration 0: " in line for line in said)
    assert said[0].endswith(": its links do not connect all devices in the 1 iterations up to 0, the window demanded")


# Strictly


@pytest.mark.parametrize("window", [1, 14])
def test_strictly_it_stops_there_and_goes_on_bit_for_bit(tmp_path, window):
    fields = {**FIELDS, "strategies": SILENT}
    with pytest.raises(AssumptionBroken) as caught:
        watched(tmp_path / "run", strict=True, window=window, strategies=SILENT, jobs=1)
    assert str(caught.value) == (
        f"EF-HC, seed 0: Assumption III.5(b) (broadcasts) at iteration {window - 1}: "
        f"device 0 did not fire in the {window} iterations up to {window - 1}, the window demanded"
    )
    assert "\n" not in str(caught.value)
    (checkpoint,) = (tmp_path / "run" / "runs").glob("*/checkpoint.safetensors")
    assert read_tensors(checkpoint)[0]["k"].item() == window
    assert_same(efhc.simulate(**fields, out=tmp_path / "run", resume=True), efhc.simulate(**fields))


def test_strictly_a_sound_run_ends():
    result, said = watched(strict=True)
    assert said == []
    assert_same(result, efhc.simulate(**FIELDS))


def test_resumed_the_window_starts_anew(tmp_path):
    with pytest.raises(AssumptionBroken, match="at iteration 9: "):
        watched(tmp_path / "run", strict=True, window=10, strategies=SILENT, jobs=1)
    with pytest.raises(AssumptionBroken, match=r"at iteration 19: .* up to 19, the window demanded$"):
        watched(tmp_path / "run", strict=True, window=10, strategies=SILENT, jobs=1, resume=True)
    _, said = watched(tmp_path / "run", window=15, strategies=SILENT, jobs=1, resume=True)
    assert [line.split(": ")[1] for line in said] == [
        "Assumption III.5(b) (broadcasts) at iteration 34",
        "Proposition III.6 (information flow) at iteration 34",
    ]
    assert_same(efhc.Result.load(tmp_path / "run"), efhc.simulate(**{**FIELDS, "strategies": SILENT}))


def test_without_a_directory_it_stops_too():
    with pytest.raises(AssumptionBroken):
        watched(strict=True, window=10, strategies=SILENT)


def test_at_the_end_it_says_how_many_runs_kept_to_everything():
    for strategies, seeds, words in (
        ({"ZT": {"kind": "zt"}}, (0,), "the run"),
        (FIELDS["strategies"], (0, 1), "all 4 runs"),
        (SILENT, (0,), "1 of 2 runs"),
    ):
        experiment = build_experiment({**FIELDS, "strategies": strategies, "seeds": seeds})
        monitor = TheoryMonitor(experiment, lambda text: None)
        efhc.simulate(experiment, observers=monitor)
        assert monitor.summary() == f"theory: no watched assumption was broken in the iterations of {words}"
