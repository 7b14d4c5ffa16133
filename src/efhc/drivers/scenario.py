"""One seed's draw of everything but the strategy: what every driver, and every single device, starts from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from efhc.base.arrays import Floats
from efhc.base.errors import InputError
from efhc.core.graph import Graph
from efhc.core.iteration import State
from efhc.core.randomness import Coins
from efhc.core.schedules import Schedule
from efhc.core.triggers import Bandwidths, Trigger
from efhc.learning.learner import Learner
from efhc.network.over_time import GraphsOverTime


@dataclass(frozen=True, eq=False)
class Scenario:
    """One draw of everything but the strategy: all strategies of a seed meet the same one."""

    network: GraphsOverTime
    bandwidths: Bandwidths
    learner: Learner
    initial_models: Callable[[], Floats]
    """Draws w_i(0), (m, n), the same each time: nobody keeps them."""
    coins: Coins
    step_size: Schedule
    """alpha(k)"""
    threshold_decay: Schedule
    """gamma(k)"""
    exchange_at_start: bool = False
    """Whether the links of k = 0 count as new."""

    def initial_state(self) -> State:
        """The state at k = 0; nobody has drifted yet."""
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

    def thresholds(self, trigger: Trigger, k: int) -> Floats:
        """r rho_i gamma(k) of every device under this strategy."""
        given = trigger.thresholds(k, self.threshold_decay(k), self.bandwidths, self.coins)
        return np.broadcast_to(np.asarray(given, dtype=np.float64), self.bandwidths.values.shape)
