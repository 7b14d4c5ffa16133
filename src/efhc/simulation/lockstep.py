"""All devices step together, k = 0, 1, ...: W(k+1) = P(k) W(k) - alpha(k) G(k).

`lockstep` yields and measures nothing; whoever iterates over it looks at what it likes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from efhc.core.arrays import Flags, Floats, Ints
from efhc.core.cost import transmission_time
from efhc.core.errors import EfhcError
from efhc.core.graph import Graph
from efhc.core.iteration import State, iterate
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
    initial_models: Floats
    coins: Coins
    step_size: Schedule
    """alpha(k)"""
    threshold_decay: Schedule
    """gamma(k)"""
    exchange_at_start: bool = False
    """Whether the links of k = 0 count as new."""

    def initial_state(self) -> State:
        """The state at k = 0; nobody has drifted yet."""
        return State(0, self.initial_models, self.initial_models)

    def graphs(self, k: int) -> tuple[Graph, Graph]:
        """G(k-1) and G(k)."""
        if k > 0:
            return self.network.graph(k - 1), self.network.graph(k)
        first = self.network.graph(0)
        return Graph.of(first.devices, []) if self.exchange_at_start else first, first


class Step(NamedTuple):
    """What iteration k did, for people to look at."""

    k: int
    graph: Graph
    fired: Flags
    used: Flags
    transmission_time: float
    losses: Floats
    """Each device's loss on its batch at w_i(k)."""

    @property
    def links_used(self) -> Ints:
        """The used links, one row (i, j) each."""
        links: Ints = self.graph.links[self.used]
        return links


def lockstep(scenario: Scenario, trigger: Trigger, start: State | None = None) -> Iterator[tuple[State, Step]]:
    """Iterate without end from `start`, or from k = 0. Yields the state W(k+1) and what iteration k did."""
    state = start or scenario.initial_state()
    parameters = state.models.shape[1]
    while True:
        k = state.k
        previous_graph, graph = scenario.graphs(k)
        thresholds = trigger.thresholds(k, scenario.threshold_decay(k), scenario.bandwidths, scenario.coins)
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is told below, with its device
            gradients, losses = scenario.learner.gradients(state.models, k)
            state, info = iterate(state, graph, previous_graph, thresholds, gradients, scenario.step_size(k))
        finite = np.isfinite(losses) & np.isfinite(state.models).all(axis=1)
        if not finite.all():
            device = int(np.argmin(finite))
            raise EfhcError(
                f"training diverged at iteration {k}: loss or model of device {device} is not finite; "
                "try a smaller step_size, and look at the scale of data and initial models"
            )
        cost = transmission_time(graph, info.used, scenario.bandwidths.values, parameters)
        yield state, Step(k, graph, info.fired, info.used, cost, losses)
