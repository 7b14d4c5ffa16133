"""Networks as choices: in a config, from Python, and one clear line for what cannot work."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from efhc.base.errors import InputError
from efhc.base.inputs import CONFIG_FOLDER
from efhc.learning.data.dataset import Dataset
from efhc.learning.models import MLP, SVM, AnyModel, LeNet5, Module, ModuleModel, ResNet18

MODEL = TypeAdapter(AnyModel)


def images(*shape: int, classes: int = 10, precision: str = "float32", samples: int = 20) -> Dataset:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (2, samples, *shape), dtype=np.uint8)
    y = np.arange(2 * samples).reshape(2, samples) % classes
    return Dataset(x[0], y[0], x[1], y[1]).prepared(True, precision)


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


class OwnLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.layer(x.flatten(1))
        return scores


@pytest.mark.parametrize("width", [10**9, 10**12, 10**30])
def test_a_network_beyond_memory_is_counted_and_refused_in_one_line(width: int):
    model, data = MLP(hidden=(width,)), images(8, 8)
    assert model.parameters(data) == 65 * width + 10 * (width + 1)
    with pytest.raises(InputError, match=r"^hidden: cannot use \[10+\], ") as caught:
        model.initial(data, np.random.default_rng(0))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("model", "shape", "n"),
    [
        (LeNet5(), (28, 28), 61_706),
        (LeNet5(), (3, 32, 32), 62_006),
        (MLP(), (28, 28), 101_770),
        (MLP(hidden=()), (8, 8), 650),
        (MLP(hidden=(5, 4)), (7,), 7 * 5 + 5 + 5 * 4 + 4 + 4 * 10 + 10),
        (ResNet18(), (3, 32, 32), 11_173_962),
        (ResNet18(norm="batch"), (3, 32, 32), 11_173_962),
        (Module(module=linear), (8, 8), 650),
    ],
    ids=itertools.count(),
)
def test_parameters_are_counted_and_drawn_in_the_modules_order(model: ModuleModel, shape: tuple[int, ...], n: int):
    data = images(*shape)
    drawn = model.initial(data, np.random.default_rng(3))
    assert model.parameters(data) == len(drawn) == n
    module = model.build(data)
    nn.utils.vector_to_parameters(torch.from_numpy(drawn), module.parameters())
    assert np.array_equal(nn.utils.parameters_to_vector(module.parameters()).detach().numpy(), drawn)


def test_initial_models_come_from_the_stream_alone_and_leave_torchs_generator_as_it_was():
    data, model = images(8, 8), MLP(hidden=(16,))
    state = torch.get_rng_state()
    first = model.initial(data, np.random.default_rng(1))
    torch.rand(5)
    assert not torch.equal(torch.get_rng_state(), state)
    torch.set_rng_state(state)
    again, other = (model.initial(data, np.random.default_rng(seed)) for seed in (1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


def test_initial_models_are_the_same_when_threads_draw_at_once():
    data, model = images(8, 8), MLP(hidden=(64, 64))
    alone = [model.initial(data, np.random.default_rng(i)) for i in range(8)]
    drawn: dict[int, np.ndarray] = {}
    threads = [
        threading.Thread(target=lambda i=i: drawn.update({i: model.initial(data, np.random.default_rng(i))}))
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(alone[i], drawn[i]) for i in range(8))


def test_a_table_needs_no_kind_and_a_callable_is_a_module(tmp_path):
    assert MODEL.validate_python({}) == SVM()
    assert MODEL.validate_python("lenet5") == LeNet5()
    assert MODEL.validate_python({"kind": "mlp", "hidden": [3, 4]}) == MLP(hidden=(3, 4))
    assert MODEL.validate_python(linear) == Module(module=linear)
    assert MODEL.validate_python(OwnLinear) == Module(module=OwnLinear)
    assert MODEL.validate_python(Module(module=linear, loss="multi-margin")).loss == "multi-margin"
    named = MODEL.validate_python({"module": "nets.py:make", "loss": "l.py:f"}, context={CONFIG_FOLDER: tmp_path})
    assert named == Module(module=f"{tmp_path / 'nets.py'}:make", loss=f"{tmp_path / 'l.py'}:f")
    assert MODEL.validate_python({"module": "pkg.nets:make"}).module == "pkg.nets:make"


@pytest.mark.parametrize("table", [{"module": "nets.py"}, {"module": 3}, {"kind": "mlp", "loss": "entropy"},
                                   {"kind": "mlp", "hidden": [0]}, {"kind": "resnet18", "groups": 3}])  # fmt: skip
def test_what_cannot_be_meant_is_refused_when_the_config_is_read(table):
    with pytest.raises(ValidationError):
        MODEL.validate_python(table)


def test_models_can_be_chosen_without_importing_torch():
    code = "import sys, efhc; efhc.LeNet5(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


SOURCE = """
from torch import nn
def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
def broken():
    raise OSError("no weights here\\nmore lines")
def number():
    return 3
constant = 3
"""


def test_a_module_from_a_file_and_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my_networks.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    data = images(8, 8)
    assert Module(module="my_networks.py:make").parameters(data) == 650
    assert Module(module="my_networks:make").parameters(data) == 650
    assert sys.path == before
    Path("my_networks.py").write_text(SOURCE.replace("64, 10", "64, 12"))
    assert Module(module="my_networks.py:make").parameters(data) == 65 * 12


@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("missing.py:make", "does not exist"),
        ("my_nets.py:mak", "which does not exist (did you mean 'make'?)"),
        ("my_nets.py:constant", "not callable"),
        ("my_nets.py:broken", "OSError: no weights here)"),
        ("my_nets.py:number", "which returns a int"),
        ("syntax.py:make", "SyntaxError"),
        ("quits.py:make", "SystemExit"),
        ("no_such_package_.nets:make", "ModuleNotFoundError"),
        (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
        (linear(), "a Sequential, which is a module already"),
        (nn.ReLU, "a ReLU without trainable parameters"),
    ],
    ids=itertools.count(),
)
def test_what_makes_no_module_is_one_line(module: object, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, source in {"my_nets": SOURCE, "syntax": "def", "quits": "raise SystemExit(2)"}.items():
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        MODEL.validate_python({"module": module}).parameters(images(8, 8))
    assert says in str(caught.value)
    assert caught.value.field == "module"
    assert "\n" not in str(caught.value)
