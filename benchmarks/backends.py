"""What `auto` takes, and how many times faster than plain torch each backend computes the gradients of all devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.measure import Row, Side, by_turns, milliseconds, timed
from efhc.base.errors import InputError
from efhc.core.randomness import Randomness
from efhc.learning.backends import backend_for
from efhc.learning.backends.backend import Batch
from efhc.learning.data.dataset import Dataset
from efhc.learning.models import MLP, LeNet5, Module, ModuleModel
from efhc.learning.models.modules import input_shape
from efhc.learning.pytorch import nn, torch

DEVICES, SAMPLES, BATCH = 10, 600, 16


class Transformer(nn.Module):
    """Two of torch's encoder layers; the features of a sample are cut into tokens."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.tokens, self.embedding = tokens, nn.LazyLinear(width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(width, 10)
        self(torch.zeros(1, 1, 28, 28))  # the embedding sees how wide a token is

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(1).reshape(len(x), self.tokens, -1)
        scores: torch.Tensor = self.head(self.layers(self.embedding(tokens)).mean(1))
        return scores


def tanh() -> nn.Module:
    """A small network with a layer that compiled loops do not know."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.Tanh(), nn.Linear(32, 10))


CASES: dict[str, ModuleModel] = {
    "mlp, hidden 128": MLP(hidden=(128,)),
    "LeNet5": LeNet5(),
    "mlp with tanh": Module(module=tanh),
    "transformer, 7 tokens": Module(module=lambda: Transformer(7, 32)),
    "transformer, 56 tokens": Module(module=lambda: Transformer(56, 64)),
}


def measure(rounds: int) -> Iterator[Row]:
    """Compare the backends with plain torch, network by network, with one thread."""
    for name, model in CASES.items():
        taken, found = times(model, rounds)
        plain = min(found["plain torch"])
        ratios = {kind: f"{plain / min(found[kind]):.2f}x" if kind in found else "" for kind in NAMES}
        yield {"network": name, "plain torch": milliseconds(found["plain torch"]), **ratios, "auto takes": taken}


NAMES = ("stacked", "loop", "compiled")


def times(model: ModuleModel, rounds: int, batch: int = BATCH) -> tuple[str, dict[str, list[float]]]:
    """Return what `auto` takes, and by way the processor seconds of each round for the gradients of all devices."""
    stream = np.random.default_rng(0)
    x = stream.integers(0, 256, (SAMPLES, 28, 28), dtype=np.uint8)
    data = Dataset(x, np.arange(SAMPLES) % 10, x[:10], np.arange(10)).prepared(True, "float32", unit=255)
    drawn = Batch(0, stream.integers(0, SAMPLES, (DEVICES, batch)).astype(np.int32))
    models = np.stack([model.initial(data, np.random.default_rng(i)) for i in range(DEVICES)]).astype(np.float32)
    sides = {"plain torch": timed(_plain(model, data, models, drawn))}
    for name in NAMES:
        try:
            backend = backend_for(model, data, Randomness(0), name, batch_size=batch)
        except InputError:
            continue
        sides[name] = _of(backend, models, drawn)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        taken = backend_for(model, data, Randomness(0), batch_size=batch, devices=DEVICES).name
        return taken, by_turns(sides, rounds)
    finally:
        torch.set_num_threads(before)


def _of(backend: Any, models: np.ndarray, drawn: Batch) -> Side:
    out = np.empty_like(models)

    def work() -> int:
        for _ in range(4):
            backend.grads(models, drawn, backend.initial_local(len(models)), out)
        return 4

    return timed(work)


def _plain(model: ModuleModel, data: Dataset, models: np.ndarray, drawn: Batch) -> Callable[[], int]:
    """A module per device, and torch's autograd one device after the other."""
    modules = [model.build(data) for _ in models]
    for module, own in zip(modules, models, strict=True):
        nn.utils.vector_to_parameters(torch.from_numpy(own.copy()), module.parameters())
    x = torch.from_numpy(data.inputs(data.x_train)).reshape(-1, *input_shape(data))
    y = torch.from_numpy(data.y_train)

    def work() -> int:
        for _ in range(4):
            for module, samples in zip(modules, drawn.samples, strict=True):
                module.zero_grad()
                nn.functional.cross_entropy(module(x[samples]), y[samples]).backward()  # type: ignore[no-untyped-call]
        return 4

    return work
