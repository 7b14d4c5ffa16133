"""Steps that settle, without gradients, delay and codec: all models come to their mean, on every kind of graph."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from efhc.core.half_step_messages import Send
from efhc.core.half_steps import Arithmetic, HalfSteps, LinkLaw

GRAPHS = {
    "pair": [(0, 1)],
    "path": [(i, i + 1) for i in range(7)],
    "ring": [(i, (i + 1) % 4) for i in range(4)],
    "star": [(0, i) for i in range(1, 10)],
    "complete": list(itertools.combinations(range(10), 2)),
    "complete bipartite": [(i, j) for i in range(5) for j in range(5, 10)],
}
ARITHMETIC = Arithmetic(lambda model, told, threshold: (model.copy(), 8))


def spreads(links: list[tuple[int, int]], law: LinkLaw, iterations: int = 150) -> list[float]:
    """The standard deviation of the models after each iteration; every device sends to all in each."""
    count = 1 + max(map(max, links))
    start = np.zeros(1)
    devices = [HalfSteps(i, 0, law, start) for i in range(count)]
    for i, j in links:
        for one, other in ((i, j), (j, i)):
            devices[one].link_up(other, shared_start=start)
    for i, j in links:
        devices[i].links[j].degree = devices[j].degree
        devices[j].links[i].degree = devices[i].degree
    found, rng = [], np.random.default_rng(1)
    for device in devices:
        device.model = rng.standard_normal(1)
    for _ in range(iterations):
        sent = [
            (device.number, effect)
            for device in devices
            for effect in device.stepped(device.model, 1.0, lambda known: [0.0] * len(known), ARITHMETIC)
        ]
        while sent:
            sender, effect = sent.pop(0)
            if not isinstance(effect, Send):
                continue
            answers = devices[effect.neighbour].received(sender, effect.message, ARITHMETIC)
            sent += [(effect.neighbour, answer) for answer in answers]
        for device in devices:
            pulled = device.take_pull()
            device.model = device.model if pulled is None else device.model + pulled[0]
        found.append(float(np.std([device.model[0] for device in devices])))
    return found


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("rate", [0.5, 1.0])
def test_models_come_to_their_mean(name: str, rate: float):
    found = spreads(GRAPHS[name], LinkLaw(rate, settles=True))
    assert found[-1] < 1e-3
