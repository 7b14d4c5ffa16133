"""Weights of a file become every device's, frozen ones too; a file of another network is refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from test_modules import images
from torch import nn

import efhc
from efhc.base.errors import InputError
from efhc.core.randomness import Randomness
from efhc.experiments.runs.run import Runs
from efhc.learning.backends import backend_for
from efhc.learning.models import Module

DATA = images(6, classes=5)


def network() -> nn.Module:
    """A frozen first layer, and two that are trained."""
    base = nn.Linear(6, 4).requires_grad_(False)
    return nn.Sequential(base, nn.BatchNorm1d(4, affine=False), nn.Linear(4, 4), nn.Linear(4, 5))


def state() -> dict[str, np.ndarray]:
    """Numbers for all but the last layer, whose own draws stay."""
    drawn = {name: np.random.default_rng(1).normal(size=one.shape) for name, one in network().state_dict().items()}
    return {name: one.astype(np.float32) for name, one in drawn.items() if name[0] != "3" and "tracked" not in name}


def write(path: Path, tensors: dict[str, Any]) -> Path:
    if path.suffix == ".npz":
        np.savez(path, **tensors)
    elif path.suffix == ".safetensors":
        safetensors.numpy.save_file(tensors, path)
    else:
        torch.save({name: torch.from_numpy(one) for name, one in tensors.items()}, path)
    return path


@pytest.mark.parametrize("name", ["w.npz", "w.safetensors", "w.pt", "w.pth"])
def test_every_device_starts_with_the_tensors_of_the_file_and_draws_the_others(tmp_path: Path, name: str):
    model, tensors = Module(module=network, weights=write(tmp_path / name, state())), state()
    first, second = (model.initial(DATA, np.random.default_rng(seed)) for seed in (1, 2))
    given = np.concatenate([tensors["2.weight"].ravel(), tensors["2.bias"]])
    assert np.array_equal(first[: given.size], given)
    assert np.array_equal(second[: given.size], given)
    assert not np.isclose(first[given.size :], second[given.size :]).any()
    backend = backend_for(model, DATA, Randomness(0), "loop")
    back = backend.module_for(first, backend.initial_local(1) and {})
    assert np.array_equal(back[0].weight.numpy(), tensors["0.weight"])
    assert np.array_equal(backend.initial_local(2)["1.running_mean"], [tensors["1.running_mean"]] * 2)


def test_other_weights_are_another_run(tmp_path: Path):
    def key() -> str:
        model = {"kind": "mlp", "hidden": [3], "weights": path}
        (run,) = Runs().of(efhc.Experiment(model=model, seeds=[0], strategies={"ZT": "zt"}))
        return run.key

    path = write(tmp_path / "w.npz", {"3.bias": np.zeros(10)})
    before = key()
    assert key() == before
    write(path, {"3.bias": np.ones(10)})
    assert key() != before


class Ran:
    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('code of the file ran')",)


@pytest.mark.parametrize("name", ["w.npz", "w.safetensors", "w.pt"])
@pytest.mark.parametrize(
    ("tensors", "given"),
    [
        ({"2.weigth": np.zeros((4, 4))}, "did you mean '2.weight'?"),
        ({"2.weight": np.zeros((4, 3))}, "(4, 3)"),
        ({"2.bias": np.full(4, np.nan)}, "not finite"),
    ],
)
def test_a_file_of_another_network_is_one_line(tmp_path: Path, name: str, tensors: dict[str, Any], given: str):
    model = Module(module=network, weights=write(tmp_path / name, tensors))
    with pytest.raises(InputError) as caught:
        backend_for(model, DATA, Randomness(0))
    assert caught.value.field == "model.weights"
    assert given in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["w.npz", "w.safetensors", "w.pt", "gone.pt"])
def test_what_is_no_file_of_weights_is_one_line_and_never_executed(tmp_path: Path, name: str):
    torch.save({"2.bias": Ran()}, tmp_path / "w.pt")
    for other in ("w.npz", "w.safetensors"):
        (tmp_path / other).write_bytes((tmp_path / "w.pt").read_bytes())
    with pytest.raises(InputError, match=r"^weights: ") as caught:
        Module(module=network, weights=tmp_path / name).network(DATA)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("tensors", "given"),
    [
        ({}, "no tensor"),
        ({1: torch.zeros(4)}, "tensors by name"),
        ({"2.bias": torch.zeros(4, dtype=torch.complex64)}, "real numbers"),
        ({"2.bias": torch.zeros(4).to_sparse()}, "real numbers"),
    ],
)
def test_tensors_that_no_module_can_have_are_one_line(tmp_path: Path, tensors: dict[Any, Any], given: str):
    torch.save(tensors, tmp_path / "w.pt")
    with pytest.raises(InputError, match=given):
        Module(module=network, weights=tmp_path / "w.pt").network(DATA)


def test_what_torch_advises_about_a_damaged_file_is_not_repeated(tmp_path: Path):
    torch.save({"2.bias": Ran()}, tmp_path / "w.pt")
    with pytest.raises(InputError) as caught:
        Module(module=network, weights=tmp_path / "w.pt").network(DATA)
    assert "weights_only" not in str(caught.value)
