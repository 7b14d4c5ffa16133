"""Alg. 1 in plain loops, line by line, one device after the other: the law that the drivers are held to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt

from efhc.base.arrays import Floats


def reference_iteration(
    models: Sequence[Floats],
    last_broadcast: Sequence[Floats],
    neighbours: Sequence[set[int]],
    previous_neighbours: Sequence[set[int]],
    thresholds: Sequence[float],
    gradient: Callable[[int, Floats], Floats],
    step_size: float,
) -> tuple[list[Floats], list[Floats], set[int], set[tuple[int, int]]]:
    """One iteration: the next models, the next last broadcasts, who fired, and the links used as pairs (i, j), i < j.

    `gradient(i, w)` is device i's stochastic gradient at w.
    """
    devices = range(len(models))
    degree = [len(neighbours[i]) for i in devices]
    received: list[dict[int, tuple[Floats, int]]] = [{} for _ in devices]

    def exchange(i: int, j: int) -> None:
        received[i][j] = models[j], degree[j]
        received[j][i] = models[i], degree[i]

    # Event 1. Neighbour connection. A device that is gone from `neighbours` is simply forgotten.
    for i in devices:
        for j in neighbours[i] - previous_neighbours[i]:
            exchange(i, j)

    # Event 2. Broadcast.
    fired = set()
    next_last_broadcast = list(last_broadcast)
    for i in devices:
        n = len(models[i])
        distance = sqrt(sum((float(a) - float(b)) ** 2 for a, b in zip(models[i], last_broadcast[i], strict=True)))
        if sqrt(1 / n) * distance >= thresholds[i]:
            fired.add(i)
            for j in neighbours[i]:
                exchange(i, j)
            next_last_broadcast[i] = models[i]

    next_models = []
    for i in devices:
        # Event 3. Aggregation.
        mixed = models[i]
        for w_j, d_j in received[i].values():
            beta = min(1 / (1 + degree[i]), 1 / (1 + d_j))
            mixed = mixed + beta * (w_j - models[i])
        # Event 4. Gradient descent, the gradient taken at the model before it was mixed.
        next_models.append(mixed - step_size * gradient(i, models[i]))

    used = {(min(i, j), max(i, j)) for i in devices for j in received[i]}
    return next_models, next_last_broadcast, fired, used
