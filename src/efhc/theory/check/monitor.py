"""Watching a run while it goes: the first iteration at which an assumption does not hold any more.

Nothing here knows where the iterations come from; a simulation and a device on a real link can be watched alike.
"""

from __future__ import annotations

import numpy as np

from efhc.base.arrays import Flags
from efhc.core.graph import Graph
from efhc.core.mixing import mixing_matrix
from efhc.core.schedules import Schedule
from efhc.theory.check.connectivity_checks import weights_broken
from efhc.theory.check.outcome import Check
from efhc.theory.connectivity.weights import weights_breach
from efhc.theory.connectivity.windows import RecentLinks


class Monitor:
    """Told of every iteration in order; each assumption is reported broken once.

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
        self._told: set[str] = set()

    def look(self, k: int, graph: Graph, fired: Flags, used: Flags) -> list[Check]:
        """What iteration k breaks that was not broken before. `used` tells of each link of the graph."""
        found = [*self._weights(k, graph), *self._steps(k), *self._connections(k, graph, fired, used)]
        news = [check for check in found if check.label not in self._told]
        self._told.update(check.label for check in news)
        return news

    def _weights(self, k: int, graph: Graph) -> list[Check]:
        # p_ii is least when all links are used: a graph whose full P is sound is sound with any links in use.
        if graph is self._graph:
            return []
        self._graph = graph
        breach = weights_breach(mixing_matrix(graph, np.ones(len(graph.links), dtype=bool)), graph.links)
        return [] if breach is None else [weights_broken(breach, k)]

    def _steps(self, k: int) -> list[Check]:
        alpha, found = self._step_size(k), []
        if not alpha > 0 or (k > self._first and alpha > self._step_size(k - 1)):
            reason = "rises" if alpha > 0 else "not-positive"
            found.append(Check("step-sizes", "assump:stepsizes", "broken", reason, {"alpha": alpha}, k))
        if self._smoothness is not None and 8 * self._smoothness * alpha > 1:
            values = {"alpha": alpha, "limit": 1 / (8 * self._smoothness)}
            found.append(Check("step-size-limit", "proposition:nonIncreasing", "broken", "above-all", values, k))
        return found

    def _connections(self, k: int, graph: Graph, fired: Flags, used: Flags) -> list[Check]:
        self._last_fired[fired] = k
        physical, information = self._physical.add(k, graph.links), self._used.add(k, graph.links[used])
        begin, found = k - self._window + 1, []
        if begin < self._first:
            return []
        why, values = "demanded", {"window": self._window}
        if physical < begin:
            found.append(Check("physical-graph", "assump:conn-(a)", "broken", why, values, k))
        if self._last_fired[silent := int(self._last_fired.argmin())] < begin:
            found.append(Check("broadcasts", "assump:conn-(b)", "broken", why, values, k, silent))
        if information < begin:
            found.append(Check("information-flow", "proposition:conn", "broken", why, values, k))
        return found
