"""Strategies beyond the paper as loops over devices and neighbours that read like their papers' pseudocode.

`neighbours[i]` is the set of the neighbours of device i, `gradient(i, x)` the gradient of device i at x, and C a
compression. Each function returns the models after the last iteration.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Vector = np.ndarray
Gradient = Callable[[int, Vector], Vector]
Neighbours = list[set[int]]


def weight(neighbours: Neighbours, i: int, j: int) -> float:
    """w_ij: the Metropolis weight of a link."""
    return min(1 / (1 + len(neighbours[i])), 1 / (1 + len(neighbours[j])))


def average(neighbours: Neighbours, vectors: list[Vector], i: int) -> Vector:
    """sum_j w_ij v_j, with w_ii = 1 - sum of the others."""
    own = 1 - sum(weight(neighbours, i, j) for j in neighbours[i])
    return own * vectors[i] + sum(weight(neighbours, i, j) * vectors[j] for j in neighbours[i])


def gradient_tracking(neighbours: Neighbours, x: list[Vector], gradient: Gradient, alpha: float, iterations: int):
    """DSGT, Pu & Nedić 2021, equation (4)."""
    devices = range(len(x))
    g = [gradient(i, x[i]) for i in devices]
    s = list(g)
    for _ in range(iterations):
        descended = [x[i] - alpha * s[i] for i in devices]
        x = [average(neighbours, descended, i) for i in devices]
        g_before, g = g, [gradient(i, x[i]) for i in devices]
        s = [average(neighbours, s, i) + g[i] - g_before[i] for i in devices]
    return x


def beer(
    neighbours: Neighbours,
    x: list[Vector],
    gradient: Gradient,
    C: Callable[[Vector], Vector],
    gamma: float,
    alpha: float,
    iterations: int,
):
    """BEER, Zhao et al. 2022, Algorithm 1, from H = x and G = C(V)."""
    devices = range(len(x))
    g = [gradient(i, x[i]) for i in devices]
    v = list(g)
    h, known_v = list(x), [C(v[i]) for i in devices]
    for _ in range(iterations):
        x = [x[i] + gamma * (average(neighbours, h, i) - h[i]) - alpha * v[i] for i in devices]
        h = [h[i] + C(x[i] - h[i]) for i in devices]
        g_before, g = g, [gradient(i, x[i]) for i in devices]
        mixed = [gamma * (average(neighbours, known_v, i) - known_v[i]) for i in devices]
        v = [v[i] + mixed[i] + g[i] - g_before[i] for i in devices]
        known_v = [known_v[i] + C(v[i] - known_v[i]) for i in devices]
    return x


def relay(tree: Neighbours, x: list[Vector], gradient: Gradient, alpha: float, iterations: int):
    """RelaySGD, Vogels et al. 2021, Algorithm 1; `tree` are the neighbours in the tree."""
    devices = range(len(x))
    links = [(i, j) for i in devices for j in tree[i]]
    message = {link: np.zeros_like(x[0]) for link in links}
    count = dict.fromkeys(links, 0)
    for _ in range(iterations):
        y = [x[i] - alpha * gradient(i, x[i]) for i in devices]
        message = {(i, j): y[i] + sum(message[other, i] for other in tree[i] - {j}) for i, j in links}
        count = {(i, j): 1 + sum(count[other, i] for other in tree[i] - {j}) for i, j in links}
        heard = [1 + sum(count[j, i] for j in tree[i]) for i in devices]
        x = [(y[i] + sum(message[j, i] for j in tree[i])) / heard[i] for i in devices]
    return x


def central(x: list[Vector], gradient: Gradient, alpha: float, iterations: int):
    """SGD on the mean loss; the first gradients are taken where the devices start."""
    devices = range(len(x))
    g = [gradient(i, x[i]) for i in devices]
    mean = sum(x) / len(x)
    for _ in range(iterations):
        mean = mean - alpha * sum(g) / len(x)
        g = [gradient(i, mean) for i in devices]
    return [mean for _ in devices]
