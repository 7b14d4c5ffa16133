"""Compiled networks say what torch says, and a device's bits are its own."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_modules import images
from test_torch_backends import Problem, assert_close
from torch import nn

from efhc.base.errors import InputError
from efhc.core.randomness import Randomness
from efhc.learning.backends import backend_for
from efhc.learning.backends.backend import Batch, ScoresNotFinite
from efhc.learning.backends.compiled_backend import CompiledBackend
from efhc.learning.backends.module_backend import LoopBackend
from efhc.learning.backends.stacked import StackedBackend
from efhc.learning.data.dataset import Dataset
from efhc.learning.models import MLP, LeNet5, Module, ModuleModel

SEED = Randomness(0)
LENGTHS = (1, 5, 16, 17, 33)


def one_by_one() -> nn.Module:
    """Kernels of 1x1 and of unequal sides, windows that leave pixels over, no bias, a chain in a chain."""
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(2, 3, 1, bias=False), nn.ReLU(inplace=True)),
        nn.Conv2d(3, 7, (3, 2), padding=(2, 1)),
        nn.AvgPool2d((2, 3)),
        nn.Identity(),
        nn.Conv2d(7, 4, 2, padding=1, bias=False),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * 2 * 2, 5, bias=False),
    )


def ends_in_a_convolution() -> nn.Module:
    """One that covers its whole input; and pooling, of values that are often equal, comes first."""
    return nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(1, 13, 3, padding=1), nn.ReLU(), nn.Conv2d(13, 5, 3), nn.Flatten())


def pads_one_pixel() -> nn.Module:
    """A convolution that covers its whole input, and one that pads what is left of it."""
    return nn.Sequential(nn.Conv2d(1, 3, (5, 6)), nn.ReLU(), nn.Conv2d(3, 5, 3, padding=1), nn.Flatten())


CASES: dict[str, tuple[ModuleModel, tuple[int, ...]]] = {
    "lenet5": (LeNet5(), (28, 28)),
    "mlp of numbers": (MLP(hidden=(9,), loss="multi-margin"), (7,)),
    "mlp of images": (MLP(hidden=(17, 3)), (2, 3, 3)),
    "own convolutions": (Module(module=one_by_one), (2, 7, 8)),
    "a padded convolution of one pixel": (Module(module=pads_one_pixel), (5, 6)),
    "a convolution at the end": (Module(module=ends_in_a_convolution, loss="multi-margin"), (6, 7)),
}


def problem(case: str, precision: str = "float32") -> Problem:
    """Models of a few devices, and batches whose lengths differ."""
    model, shape = CASES[case]
    samples = [np.random.default_rng(length).integers(0, 40, length) for length in LENGTHS]
    return Problem(model, shape, precision, samples=samples)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("precision", "batch_size"),
    [("float32", None), *(pytest.param(*each, marks=pytest.mark.slow) for each in (("float32", 1), ("float64", None)))],
)
def test_losses_and_gradients_are_torchs(case: str, precision: str, batch_size: int | None):
    """For batches of several lengths, whichever the loops were compiled for."""
    given = problem(case, precision)
    backend = CompiledBackend(given.model, given.data, SEED, batch_size=batch_size)
    results, stacked = given.run(backend, iterations=1), given.backend(StackedBackend)
    assert_close(results[:2], given.oracle(iterations=1)[:2], 1e-5 if precision == "float32" else 1e-12)
    accuracies = backend.accuracies(given.models, {})
    assert np.array_equal(accuracies, stacked.accuracies(given.models, {}))
    assert len(set(accuracies)) > 1


def test_many_test_samples_are_counted_in_pieces():
    data = images(3, classes=5, samples=600)
    model = MLP(hidden=(4,))
    models = np.stack([model.initial(data, np.random.default_rng(i)) for i in range(3)]).astype(np.float32)
    want = StackedBackend(model, data, SEED).accuracies(models, {})
    for threads in (1, 2, 3):
        assert np.array_equal(CompiledBackend(model, data, SEED, threads=threads).accuracies(models, {}), want)


def test_the_first_of_equally_large_numbers_takes_the_gradient():
    """All pixels alike, so every window has four of them."""
    x = np.full((4, 6, 7), 3.0)
    data = Dataset(x, np.arange(4), x, np.arange(4)).prepared(False, "float64")

    def pooled() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 2, 1), nn.MaxPool2d(2), nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(12, 4))

    results = []
    for kind in (CompiledBackend, StackedBackend):
        model = Module(module=pooled)
        models = model.initial(data, np.random.default_rng(0))[None].astype(np.float64)
        kind(model, data, SEED).grads(models, Batch(0, np.arange(4)[None]), {}, out := np.zeros_like(models))
        results.append(out)
    np.testing.assert_allclose(*results, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, -1])
def test_what_is_not_finite_shows(bad: float, place: int):
    given = problem("lenet5")
    backend = CompiledBackend(given.model, given.data, SEED)
    given.models[2, place] = bad
    losses, _ = backend.grads(given.models, Batch(0, given.samples), {}, np.empty_like(given.models))
    assert np.isfinite(losses).tolist() == [True, True, False, True, True]
    with pytest.raises(ScoresNotFinite, match="device 2"):
        backend.accuracies(given.models, {})


# Which modules it takes


def dropped_out() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(36, 5))


def shared() -> nn.Module:
    layer = nn.Linear(36, 36)
    return nn.Sequential(nn.Flatten(), layer, nn.ReLU(), layer, nn.Linear(36, 5))


def frozen() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 8).requires_grad_(False), nn.Linear(8, 5))


def hooked(register: str, hook: Callable[..., Any]) -> Module:
    def build() -> nn.Module:
        layer = nn.Linear(8, 5)
        getattr(layer, register)(hook)
        return nn.Sequential(nn.Flatten(), nn.Linear(36, 8), layer)

    return Module(module=build)


def with_a_method_set() -> nn.Module:
    layer = nn.ReLU()
    layer.forward = torch.tanh  # type: ignore[method-assign]
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 8), layer, nn.Linear(8, 5))


def parametrized() -> nn.Module:
    layer = nn.utils.parametrize.register_parametrization(nn.Linear(36, 5), "weight", nn.Tanh())
    return nn.Sequential(nn.Flatten(), layer)


def with_parameters_in_another_order() -> nn.Module:
    layer = nn.Linear(36, 5)
    weight = layer.weight
    del layer.weight
    layer.weight = weight
    return nn.Sequential(nn.Flatten(), layer)


def with_an_unused_parameter() -> nn.Module:
    module = nn.Sequential(nn.Flatten(), nn.Linear(36, 5))
    module.unused = nn.Parameter(torch.zeros(3))
    return module


class Doubling(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(2 * x)


class Own(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = super().forward(2 * x)
        return scores


def of_layer(*layers: nn.Module, side: int = 6) -> Module:
    flat = nn.Sequential(*layers, nn.Flatten())
    features = flat(torch.zeros(2, 1, side, side)).shape[1]
    return Module(module=lambda: nn.Sequential(copy.deepcopy(flat), nn.Linear(features, 5)))


def squared(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return scores.square().mean()


REFUSED = {
    "dropout": (Module(module=dropped_out), r"a Sequential with the layer Dropout\(p=0.5"),
    "batch norm": (of_layer(nn.BatchNorm2d(1)), r"the layer BatchNorm2d\("),
    "shared": (Module(module=shared), "parameters that layers share"),
    "frozen": (Module(module=frozen), "parameters that do not require a gradient"),
    "forward hook": (hooked("register_forward_hook", lambda layer, x, y: 2 * y), "hooks on the layer Linear"),
    "forward pre-hook": (hooked("register_forward_pre_hook", lambda layer, x: 2 * x[0]), "hooks on the layer Linear"),
    "own forward": (
        Module(module=lambda: Own(nn.Flatten(), nn.Linear(36, 5))),
        "a Own with layers in an order of its own: it is not a Sequential",
    ),
    "subclass": (Module(module=lambda: nn.Sequential(nn.Flatten(), Doubling(36, 5))), r"the layer Doubling\(\.\.\.\)"),
    "method": (Module(module=with_a_method_set), "methods set on the layer ReLU"),
    "parametrized": (Module(module=parametrized), r"the layer ParametrizedLinear\("),
    "another order": (Module(module=with_parameters_in_another_order), r"the layer Linear\("),
    "unused": (Module(module=with_an_unused_parameter), "parameters that no layer uses"),
    "own loss": (MLP(hidden=(3,), loss=squared), "a loss of its own"),
    "stride": (of_layer(nn.Conv2d(1, 2, 3, stride=2)), "stride=.2, 2."),
    "dilation": (of_layer(nn.Conv2d(1, 2, 2, dilation=2)), "dilation=.2, 2."),
    "same padding": (of_layer(nn.Conv2d(1, 2, 3, padding="same")), "padding=same"),
    "other padding": (of_layer(nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect")), "padding_mode=reflect"),
    "overlapping windows": (of_layer(nn.MaxPool2d(3, stride=2)), r"the layer MaxPool2d\("),
    "padded windows": (of_layer(nn.AvgPool2d(2, padding=1)), r"the layer AvgPool2d\("),
    "windows that stick out": (of_layer(nn.MaxPool2d(4, ceil_mode=True)), "ceil_mode=True"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_modules_are_refused_by_name_in_one_line_and_left_to_torch_by_auto(case: str):
    model, reason = REFUSED[case]
    data = images(6, 6, classes=5)
    with pytest.raises(
        InputError, match=rf"^model.module: cannot use .*{reason}.*. Use .*Sequential of Conv2d"
    ) as caught:
        backend_for(model, data, SEED, "compiled")
    assert "\n" not in str(caught.value)
    assert type(backend_for(model, data, SEED)) in (StackedBackend, LoopBackend)


@pytest.mark.parametrize("register", ["register_full_backward_pre_hook", "register_full_backward_hook"])
def test_backward_hooks_are_obeyed_by_the_loop_and_refused_by_others(register: str):
    """Both `torch.func.vmap` and compiled loops would leave them out."""
    calls = []
    model, data = hooked(register, lambda module, *gradients: calls.append(module)), images(6, 6, classes=5)
    for name, reason in {"compiled": "hooks on the layer Linear", "stacked": "with backward hooks"}.items():
        with pytest.raises(InputError, match=reason):
            backend_for(model, data, SEED, name)
    backend = backend_for(model, data, SEED)
    assert type(backend) is LoopBackend
    models = model.initial(data, np.random.default_rng(0))[None].astype(data.precision)
    calls.clear()
    backend.grads(models, Batch(0, np.arange(4)[None]), {}, np.empty_like(models))
    assert len(calls) == 1


def test_hooks_of_all_modules_count():
    hook = nn.modules.module.register_module_forward_hook(lambda module, x, y: None)
    try:
        with pytest.raises(InputError, match="hooks on the layer Sequential"):
            backend_for(MLP(), images(6, 6), SEED, "compiled")
    finally:
        hook.remove()


def test_auto_takes_it_where_it_was_measured_to_be_faster():
    data = images(28, 28, samples=10, classes=5)

    def wide(channels: int) -> Module:
        return of_layer(nn.Conv2d(1, 16, 3), nn.Conv2d(16, channels, 3), nn.MaxPool2d(4), side=28)

    def chosen(model: ModuleModel, batch_size: int | None, data: Dataset = data) -> type:
        return type(backend_for(model, data, SEED, batch_size=batch_size))

    for batch_size in (None, 1, 16):
        assert chosen(LeNet5(), batch_size) is CompiledBackend
        assert chosen(MLP(), batch_size) is CompiledBackend
    assert chosen(wide(32), None) is chosen(wide(32), 8) is CompiledBackend
    assert chosen(wide(32), 7) is not CompiledBackend  # vectors are not full
    assert chosen(wide(160), 16) is not CompiledBackend
    assert chosen(MLP(hidden=(2000,)), 16) is not CompiledBackend  # 1,590,010 parameters
    with pytest.raises(InputError, match=r"^device: cannot use cuda. Use 'cpu' for backend = 'compiled'"):
        backend_for(MLP(), data, SEED, "compiled", "cuda")


SESSION = """
import numpy as np
from efhc.core.randomness import Randomness
from efhc.learning.backends.backend import Batch
from efhc.learning.backends.compiled_backend import CompiledBackend
from efhc.learning.data.dataset import Dataset
from efhc.learning.models import MLP

x = np.random.default_rng(0).normal(size=(40, 9))
data = Dataset(x, np.arange(40) % 3, x, np.arange(40) % 3).prepared(False, "float64")
for hidden in (2, 5):
    model = MLP(hidden=(hidden,))
    backend = CompiledBackend(model, data, Randomness(0))
    models = model.initial(data, np.random.default_rng(0))[None].astype(np.float64)
    out = np.empty_like(models)
    losses, _ = backend.grads(models, Batch(0, np.arange(20)[None]), {}, out)
    print(losses.tobytes().hex(), out.tobytes().hex(), backend.accuracies(models, {})[0])
    for kernel in (backend._training.picked, backend._testing.answers):
        print("compiled", sum(kernel.stats.cache_misses.values()))
"""


def test_a_second_process_compiles_nothing(tmp_path: Path):
    def session() -> list[str]:
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
        command = [sys.executable, "-c", SESSION]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        return done.stdout.splitlines()

    first, second = session(), session()
    assert [line for line in first if line.startswith("compiled")] == ["compiled 1"] * 4
    assert second == [line.replace("compiled 1", "compiled 0") for line in first]
