"""One seed's draw of everything but the strategy: what every driver starts from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from efhc.base.arrays import Floats
from efhc.base.errors import InputError
from efhc.core.graph import Graph
from efhc.core.randomness import Coins
from efhc.core.schedules import Schedule
from efhc.core.state import State
from efhc.core.triggers import Bandwidths
from efhc.learning.learner import Learner
from efhc.network.topologies import GraphsOverTime
from efhc.scenarios.readers import DeviceReader, ScenarioReader


@dataclass(frozen=True, eq=False)
class Scenario:
    """One draw of everything but the strategy: all strategies of a seed meet the same one.

    Nothing of it changes, so runs in several threads may share it; each reads it by a `reader` of its own.
    """

    network: GraphsOverTime
    bandwidths: Bandwidths
    learner: Learner
    initial_models: Callable[[], Floats]
    """Draws w_i(0), (m, n), the same each time and in memory of their own."""
    initial_model: Callable[[int], Floats]
    """Draws w_i(0) of one device, (n,): its row of the `initial_models`, in memory of its own."""
    coins: Coins
    step_size: Schedule
    """alpha(k)"""
    threshold_decay: Schedule
    """gamma(k)"""
    exchange_at_start: bool = False
    """Whether the links of k = 0 count as new."""

    def initial_state(self) -> State:
        """The state at k = 0, where no device has drifted yet."""
        models = self.initial_models()
        return State(0, models, models.copy(), self.learner.backend.initial_local(len(models)))

    def graphs(self, k: int) -> tuple[Graph, Graph]:
        """G(k-1) and G(k)."""
        now = self.network.graph(k)
        if now.devices != (devices := len(self.bandwidths.values)):
            raise InputError("network", f"a graph of {now.devices} devices at k = {k}", f"graphs of {devices} devices")
        if k > 0:
            return self.network.graph(k - 1), now
        return Graph.of(now.devices, []) if self.exchange_at_start else now, now

    def iterations_on_graph(self, k: int, most: int) -> int:
        """Return how many iterations from k on have the graph G(k), at most `most`."""
        graph, count = self.network.graph(k), 1
        while count < most and self.network.graph(k + count) is graph:
            count += 1
        return count

    def reader(self) -> ScenarioReader:
        """What one run reads the scenario by, if all its devices are in one iteration."""
        return ScenarioReader(self)

    def device_reader(self) -> DeviceReader:
        """What one run reads the scenario by, if each device is in an iteration of its own."""
        return DeviceReader(self)
