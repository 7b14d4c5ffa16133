"""One seed's draw of everything but the strategy: what every driver starts from."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from efhc.base.arrays import Floats, Ints
from efhc.base.errors import InputError
from efhc.base.own_code import is_built_in, quoting
from efhc.core.graph import Graph
from efhc.core.iteration import State
from efhc.core.randomness import Coins
from efhc.core.schedules import Schedule
from efhc.core.triggers import Bandwidths, Trigger
from efhc.learning.backends.backend import Batch
from efhc.learning.learner import Learner
from efhc.network.over_time import GraphsOverTime


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

    def reader(self) -> ScenarioReader:
        """What one run reads the scenario by."""
        return ScenarioReader(self)


class ScenarioReader:
    """What one run reads of a scenario, iteration by iteration.

    It keeps the blocks of batches and coins that the run is in. Runs share a scenario, and each has its own reader.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        batches = scenario.learner.batches
        self._coins, self._batches = scenario.coins.reader(), batches.reader() if batches else None
        self._asked_own = False

    def thresholds(self, trigger: Trigger, k: int) -> Floats:
        """r rho_i gamma(k) of every device under this strategy, which is checked: it may be the user's own."""
        scenario = self.scenario
        if is_built_in(trigger):
            given = trigger.thresholds(k, scenario.threshold_decay(k), scenario.bandwidths, self._coins)
            return _checked_thresholds(given, trigger, k, len(scenario.bandwidths.values))
        return self._own_thresholds(trigger, k)

    def _own_thresholds(self, trigger: Trigger, k: int) -> Floats:
        """Those of a strategy of the user's own: it may fail, or remember what it was asked before."""
        scenario, asked = self.scenario, []
        with quoting(trigger, f"strategy {type(trigger).__name__}"):
            for _ in range(1 if self._asked_own else 2):
                given = trigger.thresholds(k, scenario.threshold_decay(k), scenario.bandwidths, self._coins)
                asked.append(_checked_thresholds(given, trigger, k, len(scenario.bandwidths.values)).copy())
        if not np.array_equal(asked[0], asked[-1]):
            what = f"other thresholds when it was asked at k = {k} for the second time"
            allowed = "thresholds that depend on the arguments only: runs are stopped, resumed and shared"
            raise InputError(f"strategy {type(trigger).__name__}", what, allowed)
        self._asked_own = True
        return asked[-1]

    def batch(self, k: int) -> Batch:
        """What every device looks at in iteration k."""
        return Batch(k, self.scenario.learner.parts if self._batches is None else self._batches(k))

    def batches(self, k: int, most: int) -> Ints | list[Ints]:
        """What every device looks at in iterations k, k + 1, ..., at most `most`, (iterations, devices, batch size).

        With full batches, which are the same in every iteration: one array of samples per device.
        """
        return self.scenario.learner.parts if self._batches is None else self._batches.rows(k, most)


def _checked_thresholds(given: Any, trigger: Trigger, k: int, devices: int) -> Floats:
    # Asked at every iteration, so quickly: the sum of squares is NaN exactly if a number is.
    if type(given) is np.ndarray and given.dtype == np.float64 and given.shape == (devices,):
        if not math.isnan(given.dot(given)):
            return given
        raise _refused(trigger, k, devices, "NaN")
    try:
        thresholds = np.asarray(given)
    except (TypeError, ValueError) as error:
        raise _refused(trigger, k, devices, f"what NumPy cannot read ({error})") from None
    if thresholds.dtype.kind not in "fiu" or thresholds.shape not in {(), (1,), (devices,)}:
        raise _refused(trigger, k, devices, f"{thresholds.dtype} of shape {thresholds.shape}")
    whole = np.array(np.broadcast_to(thresholds, (devices,)), dtype=np.float64)
    return _checked_thresholds(whole, trigger, k, devices)


def _refused(trigger: Trigger, k: int, devices: int, what: str) -> InputError:
    name = getattr(trigger, "kind", type(trigger).__name__)
    return InputError(f"strategy {name}", f"{what} as thresholds at k = {k}", f"one number per device ({devices})")
