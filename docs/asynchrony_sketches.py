"""Two sketches of docs/asynchrony.md: what becomes of models if w_i itself is offered, or if the rate is above 1/2.

python docs/asynchrony_sketches.py               a second
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def spread_left(offered: Callable[[Array, Array, Array], Array], half: int = 16, *, seed: int) -> float:
    """Exchanges of one unit of time on a complete bipartite graph, no gradients: the spread after 60 units."""
    random = np.random.default_rng(seed)
    w, q = random.standard_normal(2 * half), 1 / (1 + half)
    aside, in_flight = np.zeros(2 * half), np.zeros(2 * half)  # sum of q_e u_e, sum of q_e
    start, sent = np.ptp(w), {}
    due = [(random.random(), i, j) for i in range(half) for j in range(half, 2 * half)]
    heapq.heapify(due)
    while due[0][0] < 60:
        time, *link = due[0]
        if tuple(link) in sent:  # both ends make their step
            u = sent[tuple(link)]
            w[link] += q * (u[::-1] - u)
            aside[link] -= q * u
            in_flight[link] -= q
        u = sent[tuple(link)] = offered(w[link], aside[link], in_flight[link])
        aside[link] += q * u
        in_flight[link] += q
        heapq.heapreplace(due, (time + 1, link[0], link[1]))
    return float(np.ptp(w) / start)


def norms(weight: float, half: int = 16, iterations: int = 500) -> tuple[float, float]:
    """Half-steps on the same graph, no gradients, no delay: the largest and the last norm, relative to the first."""
    link = np.kron([[0, 1], [1, 0]], np.ones((half, half)))
    laplacian = weight * (np.diag(link.sum(axis=1)) - link)
    before = x = np.random.default_rng(0).standard_normal(2 * half)
    found = [np.linalg.norm(x - x.mean())]
    for _ in range(iterations):
        before, x = x, x - laplacian @ (x + before)
        found.append(np.linalg.norm(x - x.mean()))
    return float(max(found) / found[0]), float(found[-1] / found[0])


def lines() -> list[str]:
    """Return what the page quotes."""
    found = []
    for seed in range(2):
        with_w = spread_left(lambda w, aside, in_flight: w, seed=seed)
        with_u = spread_left(lambda w, aside, in_flight: (w - aside) / (1 - in_flight), seed=seed)
        found.append(f"seed {seed}: w_i offered {with_w:.2g}, shares set aside {with_u:.2g}")
    for name, weight in {"rate 1/2": 0.5 / 17, "rate 0.55": 0.55 / 17, "rate 1 with the guard": 1 / 32}.items():
        found.append("{}: largest {:.2g}, last {:.2g}".format(name, *norms(weight)))
    return found


if __name__ == "__main__":
    print("\n".join(lines()))  # noqa: T201
