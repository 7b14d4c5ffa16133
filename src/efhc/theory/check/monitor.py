"""Checks a run while it is being made, for the first iteration that breaks an assumption.

Nothing here knows where the iterations come from; a simulation and a device on a real link can be watched alike.
"""

from __future__ import annotations

import numpy as np

from efhc.base.arrays import Flags
from efhc.core.graph import Graph
from efhc.core.mixing import mixing_matrix
from efhc.core.schedules import Schedule
from efhc.theory.check.outcome import Check, finding
from efhc.theory.check.weight_checks import broken_weights
from efhc.theory.connectivity.windows import RecentLinks


class Monitor:
    """Checks every iteration in order, and reports each broken assumption once.

    `window` is the B that is demanded: in every `window` iterations the physical links together connect all devices
    (`assump:conn`-(a)), every device fires (-(b)), and the used links together connect all devices
    (`proposition:conn`). `smoothness` is L, where it is known: whatever the network does, no theorem allows step sizes
    above 1 / (8 L). `first` is the iteration at which watching begins.
    """

    def __init__(
        self, devices: int, window: int, step_size: Schedule, smoothness: float | None = None, first: int = 0
    ) -> None:
        self._devices, self._window, self._step_size, self._first = devices, window, step_size, first
        self._smoothness = smoothness
        self._physical, self._used = RecentLinks(devices), RecentLinks(devices)
        self._last_fired = np.full(devices, first - 1)
        self._graph: Graph | None = None
        self._reported: set[str] = set()

    def look(self, k: int, graph: Graph, fired: Flags, used: Flags) -> list[Check]:
        """Return the checks that iteration k breaks for the first time. `used` has a flag per link of the graph."""
        found = [*self._weights(k, graph), *self._steps(k), *self._connections(k, graph, fired, used)]
        new = [check for check in found if check.label not in self._reported]
        self._reported.update(check.label for check in new)
        return new

    def _weights(self, k: int, graph: Graph) -> list[Check]:
        # p_ii is least when all links are used: a graph whose full P is sound is sound with any links in use.
        if graph is self._graph:
            return []
        self._graph = graph
        broken = broken_weights(mixing_matrix(graph, graph.all_links), graph.links, k)
        return [broken] if broken else []

    def _steps(self, k: int) -> list[Check]:
        alpha, found = self._step_size(k), []
        if not alpha > 0 or (k > self._first and alpha > self._step_size(k - 1)):
            found.append(finding("step-sizes", "rises" if alpha > 0 else "not-positive", {"alpha": alpha}, k))
        if self._smoothness is not None and 8 * self._smoothness * alpha > 1:
            found.append(
                finding("step-size-limit", "above-all", {"alpha": alpha, "limit": 1 / (8 * self._smoothness)}, k)
            )
        return found

    def _connections(self, k: int, graph: Graph, fired: Flags, used: Flags) -> list[Check]:
        self._last_fired[fired] = k
        physical, information = self._physical.add(k, graph.links), self._used.add(k, graph.links[used])
        begin, silent = k - self._window + 1, int(self._last_fired.argmin())
        if begin < self._first:
            return []
        broken = {"physical-graph": physical, "broadcasts": self._last_fired[silent], "information-flow": information}
        return [
            finding(subject, "demanded", {"window": self._window}, k, silent if subject == "broadcasts" else None)
            for subject, since in broken.items()
            if since < begin
        ]
