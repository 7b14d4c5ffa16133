"""Compiled loops against torch, network by network: the measurements behind `compiled_backend.is_faster`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.measure import Row, by_turns, timed
from efhc.core.randomness import Randomness
from efhc.learning.backends.backend import Batch
from efhc.learning.backends.compiled_backend import CompiledBackend
from efhc.learning.backends.stacked import StackedBackend
from efhc.learning.data.dataset import Dataset
from efhc.learning.models import MLP, LeNet5, Module, ModuleModel
from efhc.learning.pytorch import nn

DEVICES, SAMPLES, TESTED = 10, 600, 512
BATCHES = (1, 8, 16, 64)


def convolutions(first: int, second: int, side: int, kernel: int) -> Callable[[], nn.Module]:
    """Two convolutions that keep the size of an image, each with pooling, and a linear layer."""

    def build() -> nn.Module:
        padding = kernel // 2
        return nn.Sequential(
            nn.Conv2d(1, first, kernel, padding=padding), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(first, second, kernel, padding=padding), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(second * (side // 4) ** 2, 10),
        )  # fmt: skip

    return build


CASES: dict[str, tuple[ModuleModel, tuple[int, ...]]] = {
    "mlp, hidden 32": (MLP(hidden=(32,)), (28, 28)),
    "mlp, hidden 128": (MLP(hidden=(128,)), (28, 28)),
    "mlp, hidden 512": (MLP(hidden=(512,)), (28, 28)),
    "LeNet5, 28x28": (LeNet5(), (28, 28)),
    "LeNet5, 3x32x32": (LeNet5(), (3, 32, 32)),
    "3x3, 4 and 8 channels": (Module(module=convolutions(4, 8, 28, 3)), (28, 28)),
    "3x3, 16 and 32": (Module(module=convolutions(16, 32, 28, 3)), (28, 28)),
    "3x3, 32 and 64": (Module(module=convolutions(32, 64, 28, 3)), (28, 28)),
    "5x5, 32 and 64": (Module(module=convolutions(32, 64, 28, 5)), (28, 28)),
}


def measure(rounds: int) -> Iterator[Row]:
    """How many times longer `stacked` takes than `compiled`, network by network."""
    for name, (model, shape) in CASES.items():
        columns = (*(f"batch {size}" for size in BATCHES), "evaluation")
        found = ratios(model, shape, BATCHES, rounds)
        yield {"network": name} | {column: f"{ratio:.1f}x" for column, ratio in zip(columns, found, strict=True)}


def ratios(model: ModuleModel, shape: tuple[int, ...], batches: tuple[int, ...], rounds: int) -> list[float]:
    """Processor time of `stacked` over that of `compiled`: gradients of all devices by batch, then an evaluation."""
    stream = np.random.default_rng(0)
    x, y = stream.integers(0, 256, (SAMPLES, *shape), dtype=np.uint8), np.arange(SAMPLES) % 10
    data = Dataset(x, y, x[:TESTED], y[:TESTED]).prepared(True, "float32", unit=255)
    models = np.stack([model.initial(data, np.random.default_rng(i)) for i in range(DEVICES)]).astype(np.float32)
    gradients = np.empty_like(models)
    stacked = StackedBackend(model, data, Randomness(0))
    found = []
    for batch in batches:
        compiled = CompiledBackend(model, data, Randomness(0), batch_size=batch)
        drawn = Batch(0, stream.integers(0, SAMPLES, (DEVICES, batch)).astype(np.int32))

        def compute(backend: Any, drawn: Batch = drawn) -> None:
            backend.grads(models, drawn, {}, gradients)

        found.append(_ratio(compute, stacked, compiled, rounds))
    return [*found, _ratio(lambda backend: backend.accuracies(models, {}), stacked, compiled, rounds)]


def _ratio(work: Callable[[Any], Any], stacked: Any, compiled: Any, rounds: int) -> float:
    def side(backend: Any) -> Callable[[], int]:
        def call() -> int:
            for _ in range(4):
                work(backend)
            return 4

        return call

    found = by_turns({"stacked": timed(side(stacked)), "compiled": timed(side(compiled))}, rounds)
    return min(found["stacked"]) / min(found["compiled"])
