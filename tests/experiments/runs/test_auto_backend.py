"""`auto` times stacked and loop and says which it took; a run that is resumed keeps its own, whatever is faster."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stopped_runs import assert_same, interrupt_at
from torch import nn

import efhc
from efhc.core.randomness import Randomness
from efhc.learning import backends
from efhc.learning.backends import backend_for, choosing


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 40), nn.Tanh(), nn.Linear(40, 10))


def small(**fields: Any) -> dict[str, Any]:
    own = {"module": f"{__file__}:network"}
    return {"model": own, "iterations": 9, "evaluate_every": 3, "seeds": [0], "strategies": {"ZT": "zt"}} | fields


def taken(folder: Path) -> list[str]:
    return [json.loads(meta.read_text())["backend"] for meta in sorted((folder / "runs").glob("*/meta.json"))]


@pytest.mark.parametrize(("stacked", "name"), [(0.5, "stacked"), (0.95, "loop"), (2.0, "loop")])
def test_the_clearly_faster_one_is_taken_and_timed_once(monkeypatch: pytest.MonkeyPatch, stacked: float, name: str):
    calls = []
    monkeypatch.setattr(choosing, "_KNOWN", {})
    monkeypatch.setattr(choosing, "_times", lambda *given: calls.append(1) or [stacked, 1.0])
    data, model = efhc.Digits().load(), efhc.Module(module=network)
    for seed in (0, 1):
        assert backend_for(model, data, Randomness(seed), batch_size=16).name == name
    assert len(calls) == 1
    assert backend_for(model, data, Randomness(0), batch_size=16, devices=1).name == "loop"
    assert len(calls) == 1


def test_processor_time_is_that_of_both_backends_own_calls(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(choosing, "_KNOWN", {})
    found = []
    original = choosing._times
    monkeypatch.setattr(choosing, "_times", lambda *given: found.append(original(*given)) or found[-1])
    backend_for(efhc.Module(module=network), efhc.Digits().load(), Randomness(0), batch_size=16)
    assert all(0 < seconds < 60 for seconds in found[0])


@pytest.mark.parametrize("begun", ["stacked", "loop"])
def test_a_run_is_resumed_with_the_backend_that_it_was_begun_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: str
):
    whole = efhc.simulate(**small(backend=begun), out=tmp_path / "named")
    assert taken(tmp_path / "named") == [begun]
    monkeypatch.setattr(backends.choosing, "is_stacked_faster", lambda *given: begun == "stacked")
    with pytest.raises(KeyboardInterrupt):
        efhc.simulate(**small(), out=tmp_path / "run", progress=interrupt_at(4))
    assert taken(tmp_path / "run") == [begun]
    monkeypatch.setattr(backends.choosing, "is_stacked_faster", lambda *given: begun != "stacked")
    resumed = efhc.simulate(**small(), out=tmp_path / "run", resume=True)
    assert_same(resumed, whole)
    assert taken(tmp_path / "run") == [begun]
    efhc.simulate(**small(), out=tmp_path / "new")
    assert taken(tmp_path / "new") != [begun]


NUMBERS = {
    "model": {"kind": "mlp", "hidden": [4], "loss": "mean-squared-error"},
    "data": {"kind": "npz", "path": "numbers.npz", "label_kind": "number"},
    "partition": "iid",
    "devices": 4,
}


@pytest.fixture
def numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Regression on the pixels of digits."""
    import numpy as np

    monkeypatch.chdir(tmp_path)
    digits = efhc.Digits().load()
    x, x_test = (digits.inputs(rows) for rows in (digits.x_train, digits.x_test))
    np.savez("numbers.npz", x_train=x[:, 1:], y_train=x[:, 0] + x[:, 20], x_test=x_test[:, 1:], y_test=x_test[:, 20])
    return small(**NUMBERS, backend="loop")


def test_a_run_with_other_metrics_is_resumed_bit_for_bit(numbers: dict[str, Any], tmp_path: Path):
    fields = numbers | {"evaluate_every": 6, "iterations": 12}
    whole = efhc.simulate(**fields)
    for done in (2, 4):  # nothing is evaluated between them
        with pytest.raises(KeyboardInterrupt):
            efhc.simulate(**fields, out=tmp_path / "run", progress=interrupt_at(done), resume=True)
    assert_same(efhc.simulate(**fields, out=tmp_path / "run", resume=True), whole)
    assert whole.metrics["mean_absolute_error"].count() == 3
    assert whole.metrics["accuracy"].count() == 0


def test_numbers_are_learned_on_own_clocks_too(numbers: dict[str, Any]):
    driver = {"kind": "event-driven", "seconds": 60.0}
    result = efhc.simulate(**numbers | {"iterations": 60, "driver": driver})
    losses = result.timeline.drop_nulls("loss")["loss"]
    assert losses[-1] < losses[0]
    assert result.timeline["own_mean_absolute_error"].count() == len(losses)


def test_the_command_line_says_which_one_auto_took(tmp_path: Path, command: Callable[..., Any]):
    code = "def network():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Tanh())\n"
    (tmp_path / "net.py").write_text(f"from torch import nn\n\n\n{code}")
    config = tmp_path / "mine.toml"
    config.write_text('iterations = 2\nseeds = [0]\nmodel = { module = "net.py:network" }\nstrategies.ZT.kind = "zt"\n')
    done = command("run", config, "--no-figure", "--out", tmp_path / "out")
    assert f"elsewhere: {taken(tmp_path / 'out')[0]}" in done.stdout
    named = command("run", config, "backend=loop", "--no-figure", "--out", tmp_path / "named")
    assert "elsewhere" not in named.stdout
