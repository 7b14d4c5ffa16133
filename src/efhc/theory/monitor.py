"""Watching a run while it goes: the first iteration at which an assumption does not hold any more.

Nothing here knows where the iterations come from; a simulation and a device on a real link can be watched alike.
"""

from __future__ import annotations

import numpy as np

from efhc.base.arrays import Flags
from efhc.core.graph import Graph
from efhc.core.mixing import mixing_matrix
from efhc.core.schedules import Schedule
from efhc.theory.connectivity import RecentLinks
from efhc.theory.findings import Finding
from efhc.theory.weights import weights_breach


class Monitor:
    """Told of every iteration in order; each assumption is reported broken once.

    `window` is the B that is demanded: in every so many iterations all physical links together are connected
    (`assump:conn`-(a)), every device fires (-(b)), and all used links together are connected (`proposition:conn`).
    `smoothness` is L, where it is known: whatever the network does, no theorem allows step sizes above 1 / (8 L).
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

    def look(self, k: int, graph: Graph, fired: Flags, used: Flags) -> list[Finding]:
        """What iteration k breaks that was not broken before. `used` tells of each link of the graph."""
        found = [*self._weights(k, graph), *self._steps(k), *self._connections(k, graph, fired, used)]
        news = [finding for finding in found if finding.label not in self._told]
        self._told.update(finding.label for finding in news)
        return news

    def _weights(self, k: int, graph: Graph) -> list[Finding]:
        # p_ii is least when all links are used: a graph whose full P is sound is sound with any links in use.
        if graph is self._graph:
            return []
        self._graph = graph
        breach = weights_breach(mixing_matrix(graph, np.ones(len(graph.links), dtype=bool)), graph.links)
        if breach is None:
            return []
        label = f"assump:weights-{breach.condition}"
        return [Finding(label, "transition weights", "broken", breach.detail, k, breach.device)]

    def _steps(self, k: int) -> list[Finding]:
        alpha, found = self._step_size(k), []
        if not alpha > 0 or (k > self._first and alpha > self._step_size(k - 1)):
            detail = f"alpha({k}) = {alpha:.3g} is not positive, or above the one before"
            found.append(Finding("assump:stepsizes", "step sizes", "broken", detail, k))
        if self._smoothness is not None and 8 * self._smoothness * alpha > 1:
            limit = 1 / (8 * self._smoothness)
            detail = f"alpha({k}) = {alpha:.3g} is above 1/(8 L) = {limit:.3g}: with this L no network allows it"
            found.append(Finding("proposition:nonIncreasing", "step-size limit", "broken", detail, k))
        return found

    def _connections(self, k: int, graph: Graph, fired: Flags, used: Flags) -> list[Finding]:
        self._last_fired[fired] = k
        physical, information = self._physical.add(k, graph.links), self._used.add(k, graph.links[used])
        if k - self._window + 1 < self._first:
            return []
        words = f"in the {self._window} iterations up to {k}, which is the window demanded"
        begin, found = k - self._window + 1, []
        if physical < begin:
            found.append(
                Finding(
                    "assump:conn-(a)", "physical graph", "broken", f"its links do not connect all devices {words}", k
                )
            )
        if self._last_fired[silent := int(self._last_fired.argmin())] < begin:
            detail = f"device {silent} did not fire {words}"
            found.append(Finding("assump:conn-(b)", "broadcasts", "broken", detail, k, silent))
        if information < begin:
            detail = f"the links used do not connect all devices {words}"
            found.append(Finding("proposition:conn", "information flow", "broken", detail, k))
        return found
