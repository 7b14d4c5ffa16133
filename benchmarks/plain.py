"""EF-HC as it is commonly written: a list of torch modules, autograd and SGD one device after the other.

The same algorithm on the same draws as ours, so that the two can be compared in what they do and in how long they take.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from efhc.base.arrays import Flags, Floats
from efhc.core.graph import Graph
from efhc.learning.data.dataset import Dataset, Numbers
from efhc.learning.models import LinearModel, ModuleModel
from efhc.learning.models.modules import input_shape
from efhc.learning.pytorch import torch
from efhc.scenarios.scenario import Scenario
from efhc.strategies.forms import trigger_of


def module_of(model: LinearModel | ModuleModel, data: Dataset) -> torch.nn.Module:
    """The model in torch."""
    return torch.nn.Linear(data.features, data.classes) if isinstance(model, LinearModel) else model.build(data)


def tensor_of(model: LinearModel | ModuleModel, data: Dataset, rows: Numbers) -> torch.Tensor:
    """Samples in floating point from the start, as a DataLoader's usual transforms make them."""
    shape = (-1,) if isinstance(model, LinearModel) else input_shape(data)
    return torch.from_numpy(data.inputs(rows)).reshape(len(rows), *shape)


class PlainLoop:
    """All devices of a scenario, each an `nn.Module` with an optimizer of its own."""

    def __init__(self, model: LinearModel | ModuleModel, scenario: Scenario, strategy: Any) -> None:
        data = scenario.learner.data
        self._scenario, self._trigger, self._reader = scenario, trigger_of(strategy), scenario.reader()
        self._x, self._x_test = (tensor_of(model, data, rows) for rows in (data.x_train, data.x_test))
        self._y, self._y_test = torch.from_numpy(data.y_train), torch.from_numpy(data.y_test)
        initial = scenario.initial_models()
        self.modules = [module_of(model, data) for _ in initial]
        self._loss = torch.nn.MultiMarginLoss() if isinstance(model, LinearModel) else torch.nn.CrossEntropyLoss()
        for module, w in zip(self.modules, initial, strict=True):
            torch.nn.utils.vector_to_parameters(torch.from_numpy(w), module.parameters())
        self._last_broadcast = torch.from_numpy(initial.copy())
        self._optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in self.modules]

    @staticmethod
    def _vector(module: torch.nn.Module) -> torch.Tensor:
        return torch.nn.utils.parameters_to_vector(module.parameters()).detach()

    def iterate(self, k: int) -> None:
        """Iteration k."""
        scenario = self._scenario
        graph = scenario.network.graph(k)
        samples = torch.from_numpy(np.array(self._reader.batch(k).samples))
        old = torch.stack([self._vector(module) for module in self.modules])
        drifts = (old - self._last_broadcast).norm(dim=1) / old.shape[1] ** 0.5
        fired = drifts.numpy() >= self._reader.thresholds(self._trigger, k)
        for module, optimizer, mine in zip(self.modules, self._optimizers, samples, strict=True):
            optimizer.zero_grad()
            self._loss(module(self._x[mine]), self._y[mine]).backward()
        for i in np.flatnonzero(fired):
            self._last_broadcast[i] = old[i]
        self._aggregate(graph, fired, old)
        for optimizer in self._optimizers:
            optimizer.param_groups[0]["lr"] = scenario.step_size(k)
            optimizer.step()

    @torch.no_grad()
    def _aggregate(self, graph: Graph, fired: Flags, old: torch.Tensor) -> None:
        starts, neighbours, link_of, _ = graph.rows
        for i, module in enumerate(self.modules):
            heard = slice(starts[i], starts[i + 1])
            used = fired[i] | fired[neighbours[heard]]
            if used.any():
                received = old[torch.from_numpy(neighbours[heard][used])]
                weights = torch.from_numpy(graph.metropolis_weights[link_of[heard][used]]).to(old.dtype)
                mixed = old[i] + weights @ (received - old[i])
                torch.nn.utils.vector_to_parameters(mixed, module.parameters())

    def models(self) -> Floats:
        """W, as ours."""
        return np.stack([self._vector(module).numpy() for module in self.modules])

    @torch.no_grad()
    def accuracies(self) -> Floats:
        """One device after the other, a thousand test samples at a time."""
        starts = range(0, len(self._y_test), 1000)
        right = [
            sum(int((m(self._x_test[s : s + 1000]).argmax(1) == self._y_test[s : s + 1000]).sum()) for s in starts)
            for m in self.modules
        ]
        return np.array(right) / len(self._y_test)


class OneModel:
    """One module on the batches of all devices together: what the same samples cost with nothing decentralized."""

    def __init__(self, model: ModuleModel, scenario: Scenario) -> None:
        data = scenario.learner.data
        self._reader, self._module = scenario.reader(), model.build(data)
        self._x, self._y = tensor_of(model, data, data.x_train), torch.from_numpy(data.y_train)
        self._optimizer = torch.optim.SGD(self._module.parameters(), lr=0.01)

    def iterate(self, k: int) -> None:
        """A step on all samples of iteration k."""
        samples = torch.from_numpy(np.concatenate(list(self._reader.batch(k).samples)))
        self._optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(self._module(self._x[samples]), self._y[samples])
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
