"""A small driver for strategies that make their iterations themselves, on quadratic losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st
from problems import graphs

from efhc.base.arrays import read_only
from efhc.core.graph import Graph
from efhc.core.memory import begin, carry_over
from efhc.core.parts import Moved, Now, WholeStrategy
from efhc.core.triggers import Bandwidths


class Quadratics(NamedTuple):
    """f_i(x) = sum_l a_il (x_l - b_il)^2 / 2: every device has a minimum of its own."""

    a: np.ndarray
    b: np.ndarray

    @classmethod
    def draw(cls, devices: int, parameters: int, seed: int) -> Quadratics:
        rng = np.random.default_rng(seed)
        return cls(rng.uniform(0.5, 1.5, (devices, parameters)), rng.normal(size=(devices, parameters)))

    def gradients(self, models: np.ndarray) -> np.ndarray:
        return (self.a * (models - self.b)).astype(models.dtype)

    def gradient(self, device: int, model: np.ndarray) -> np.ndarray:
        return self.a[device] * (model - self.b[device])

    @property
    def optimum(self) -> np.ndarray:
        """The minimum of the mean of all f_i."""
        return (self.a * self.b).sum(axis=0) / self.a.sum(axis=0)

    def distance(self, models: np.ndarray) -> float:
        """The largest distance of a device's model from the optimum."""
        return float(np.linalg.norm(models - self.optimum, axis=1).max())


class Iteration(NamedTuple):
    now: Now
    models: np.ndarray
    gradients: np.ndarray
    before: dict[str, np.ndarray]
    """The memory at the beginning."""
    moved: Moved
    memory: dict[str, np.ndarray]
    """The memory afterwards."""


def now_at(k: int, graph: Graph, step_size: float = 0.1, new_links: np.ndarray | None = None, seed: int = 0) -> Now:
    m = graph.devices
    return Now(
        k=k,
        step_size=step_size,
        threshold_decay=1.0,
        graph=graph,
        new_links=np.zeros(len(graph.links), dtype=bool) if new_links is None else new_links,
        bandwidths=Bandwidths(np.ones(m), 1.0),
        losses=np.zeros(m),
        spent=np.zeros(m),
        coins=lambda _: np.zeros(m),
        random=lambda *where: np.random.default_rng([seed, k, *where]),
    )


def run(
    strategy: WholeStrategy,
    graph_at: Callable[[int], Graph],
    start: np.ndarray,
    gradients: Callable[[np.ndarray], np.ndarray],
    iterations: int,
    step_size: float = 0.1,
) -> Iterator[Iteration]:
    """Yield the iterations. What a strategy must not write to is read-only."""
    models, graph = start, graph_at(0)
    memory = begin(strategy.memory, graph, start)
    for k in range(iterations):
        previous, graph = graph, graph_at(k)
        memory = dict(carry_over(strategy.memory, memory, previous, graph, models))
        before = {name: array.copy() for name, array in memory.items()}
        own_starts = k == 0 and not (models == models[0]).all()  # nobody knows them: all links are new, as for drivers
        new_links = np.full(len(graph.links), True) if own_starts else graph.new_since(previous)
        now = now_at(k, graph, step_size, new_links)
        g = gradients(models)
        moved = strategy.step(now, read_only(models), read_only(g), memory)
        assert moved.models.shape == models.shape
        assert moved.models.dtype == models.dtype
        assert moved.bits.shape in {(graph.devices,), (2 * len(graph.links),)}
        yield Iteration(now, models, g, before, moved, {name: array.copy() for name, array in memory.items()})
        models = moved.models


def last_models(iterations: Iterator[Iteration]) -> np.ndarray:
    for iteration in iterations:
        models = iteration.moved.models
    return models


@st.composite
def changing_graphs(draw: st.DrawFn, count: int = 3) -> list[Graph]:
    """Several graphs on the same devices."""
    first = draw(graphs())
    return [first, *(draw(graphs(devices=first.devices)) for _ in range(count - 1))]


def start_of(devices: int, parameters: int, seed: int, shared: bool = False, dtype: type = np.float64) -> np.ndarray:
    start = np.random.default_rng([seed, 1]).normal(size=(1 if shared else devices, parameters))
    return np.tile(start, (devices if shared else 1, 1)).astype(dtype)


def ring(devices: int) -> Graph:
    return Graph.of(devices, [(i, (i + 1) % devices) for i in range(devices)])


def decentralized_gradient_descent(graph: Graph, problem: Quadratics, start: np.ndarray, iterations: int, alpha: float):
    """Return the models of x_i <- sum_j w_ij x_j - alpha g_i(x_i), the method that stalls where minima differ."""
    i, j = graph.links.T
    W = np.zeros((graph.devices, graph.devices))
    W[i, j] = W[j, i] = graph.metropolis_weights
    np.fill_diagonal(W, 1 - W.sum(axis=1))
    models = start
    for _ in range(iterations):
        models = W @ models - alpha * problem.gradients(models)
    return models
