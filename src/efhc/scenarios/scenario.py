"""One seed's draw of everything but the strategy, which every driver starts from, and how a run reads it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from efhc.base.arrays import Floats, Ints, read_only
from efhc.base.errors import InputError
from efhc.base.own_code import is_built_in, quoting
from efhc.core.graph import Graph
from efhc.core.randomness import BlockReader, Coins
from efhc.core.schedules import Schedule
from efhc.core.state import State
from efhc.core.triggers import Bandwidths, DeviceTrigger, Trigger
from efhc.learning.backends.backend import Batch
from efhc.learning.learner import Learner
from efhc.network.topologies import GraphsOverTime

ITERATIONS = 64
"""Number of iterations whose thresholds a `DeviceReader` always keeps."""
KEPT_BYTES = 1 << 25
"""Bytes up to which it keeps thresholds of more iterations, and coins of all devices."""


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
        """Return what one run reads the scenario by, if all its devices are in one iteration."""
        return ScenarioReader(self)

    def device_reader(self) -> DeviceReader:
        """Return what one run reads the scenario by, if each device is in an iteration of its own."""
        return DeviceReader(self)


class Thresholds:
    """The thresholds of a strategy, checked, because it may be the user's own."""

    def __init__(self, threshold_decay: Schedule, bandwidths: Bandwidths, coins: BlockReader) -> None:
        self._threshold_decay, self._bandwidths, self._coins = threshold_decay, bandwidths, coins
        self._is_checked = False

    def thresholds(self, trigger: Trigger, k: int, bandwidths: Bandwidths | None = None) -> Floats:
        """threshold_i(k) of every device, (m,). Default of `bandwidths`: those of the scenario.

        Raises `InputError` if a strategy of the user's own returns anything but one number per device.
        """
        bandwidths = bandwidths or self._bandwidths
        if is_built_in(trigger):
            given = trigger.thresholds(k, self._threshold_decay(k), bandwidths, self._coins)
            return _checked(given, trigger, k, len(bandwidths.values))
        with quoting(trigger, f"strategy {type(trigger).__name__}"):
            given = trigger.thresholds(k, self._threshold_decay(k), bandwidths, self._coins)
            thresholds = _checked(given, trigger, k, len(bandwidths.values)).copy()
        if not self._is_checked:
            self._is_checked = True
            self._require_same(trigger, k, thresholds, bandwidths)
        return thresholds

    def thresholds_of_many(self, trigger: Trigger, k: int, count: int) -> Floats:
        """threshold_i of every device at k, k + 1, ..., (count, m), to the last bit those of `thresholds`."""
        if is_built_in(trigger):
            built_in: Any = trigger  # whose formula takes many iterations as well
            iterations = np.arange(k, k + count)[:, None]
            gamma = np.array([[self._threshold_decay(k + step)] for step in range(count)], dtype=np.float64)
            given: Floats = built_in.thresholds(iterations, gamma, self._bandwidths, self._coins.of_many)
            if not np.isnan(given).any():
                return given
        thresholds = np.stack([self.thresholds(trigger, k + step) for step in range(count)])
        self._require_same(trigger, k, thresholds[0])
        return thresholds

    def _require_same(self, trigger: Trigger, k: int, thresholds: Floats, bandwidths: Bandwidths | None = None) -> None:
        """Raise `InputError` if a trigger of the user's own now returns other thresholds for k.

        Thresholds are computed in advance, and again when a run is resumed.
        """
        if not is_built_in(trigger) and not np.array_equal(self.thresholds(trigger, k, bandwidths), thresholds):
            what = f"thresholds that differ when they are computed twice at k = {k}"
            allowed = "thresholds that depend on the arguments only; a strategy that remembers has `memory` and `fires`"
            raise InputError(f"strategy {type(trigger).__name__}", what, allowed)

    def threshold_of(
        self, trigger: DeviceTrigger, device: int, k: int, coin: BlockReader, bandwidths: Bandwidths | None = None
    ) -> float:
        """threshold_i(k) of one device, without those of the others; `trigger` must be built in."""
        bandwidths = bandwidths or self._bandwidths
        threshold = trigger.threshold_of(device, k, self._threshold_decay(k), bandwidths, coin)
        if math.isnan(threshold):
            raise _refused(trigger, k, len(bandwidths.values), "NaN")
        return threshold


def _checked(given: Any, trigger: Trigger, k: int, devices: int) -> Floats:
    # Called in every iteration, so quickly: the sum of squares is NaN exactly if a number is.
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
    return _checked(whole, trigger, k, devices)


def _refused(trigger: Trigger, k: int, devices: int, what: str) -> InputError:
    name = getattr(trigger, "kind", type(trigger).__name__)
    return InputError(f"strategy {name}", f"{what} as thresholds at k = {k}", f"one number per device ({devices})")


class ScenarioReader(Thresholds):
    """Reads a scenario iteration by iteration, for all devices. It keeps the blocks of batches and coins in use."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        batches = scenario.learner.batches
        self._batches = batches.reader() if batches else None
        super().__init__(scenario.threshold_decay, scenario.bandwidths, scenario.coins.reader())

    def step_sizes(self, k: int, count: int) -> Floats:
        """alpha(k), alpha(k + 1), ..., (count,)"""
        return np.array([self.scenario.step_size(k + step) for step in range(count)], dtype=np.float64)

    def batch(self, k: int) -> Batch:
        """What every device looks at in iteration k."""
        return Batch(k, self.scenario.learner.parts if self._batches is None else self._batches(k))

    def batches(self, k: int, most: int) -> Ints | list[Ints]:
        """What every device looks at in iterations k, k + 1, ..., at most `most`, (iterations, devices, batch size).

        With full batches, which are the same in every iteration: one array of samples per device.
        """
        return self.scenario.learner.parts if self._batches is None else self._batches.rows(k, most)


class DeviceReader:
    """Reads batches and thresholds device by device, in whatever order the devices reach their iterations.

    The numbers are those of `ScenarioReader`. Nothing here costs an array over all devices per device and iteration:
    batches and coins come from one block per device, and thresholds that a strategy returns for all devices at once are
    kept for the devices that reach the iteration later.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        learner, coins, devices = scenario.learner, scenario.coins, len(scenario.bandwidths.values)
        self._parts, self._batches = learner.parts, _Readers(learner.batches.of_device) if learner.batches else None
        self._batch_size = learner.batches.size if learner.batches else 0
        self._coins = _Readers(coins.of_device)
        coins_of_all = coins.reader(keep=max(2, KEPT_BYTES // (8 * Coins.BLOCK * devices)))
        self._thresholds = Thresholds(scenario.threshold_decay, scenario.bandwidths, coins_of_all)
        self._trigger: Trigger | None = None
        self._by_device: DeviceTrigger | None = None
        """The trigger, if it can compute the threshold of one device."""
        self._of_all: dict[int, Floats] = {}
        """Thresholds of the trigger by k, those that were read last at the end."""
        self._most_kept = max(ITERATIONS, KEPT_BYTES // (8 * devices))

    def samples(self, device: int, k: int) -> Ints:
        """The numbers of the training samples that a device looks at in its iteration k."""
        return self._parts[device] if self._batches is None else self._batches[device](k)

    def batch(self, devices: Ints, k: Ints) -> Batch:
        """What these devices look at, each in its own iteration."""
        if self._batches is None:
            return Batch(k, [self._parts[device] for device in devices.tolist()], devices)
        samples = np.empty((len(devices), self._batch_size), dtype=np.int32)
        for row, (device, of_device) in enumerate(zip(devices.tolist(), k.tolist(), strict=True)):
            samples[row] = self._batches[device](of_device)
        return Batch(k, samples, devices)

    def coin_of(self, device: int) -> BlockReader:
        """The coins of one device: `coin_of(device)(k)` is a number."""
        return self._coins[device]

    def threshold(self, trigger: Trigger, device: int, k: int, bandwidth: float | None = None) -> float:
        """threshold_i(k) of one device, checked. `bandwidth`: b_i as it was measured; default: the true one."""
        self._use(trigger)
        if self._by_device is None and bandwidth is None:
            return float(self.thresholds(trigger, k)[device])
        bandwidths = None
        if bandwidth is not None:
            values = self.scenario.bandwidths.values.copy()
            values[device] = bandwidth
            bandwidths = Bandwidths(read_only(values), self.scenario.bandwidths.nominal)
        if self._by_device is None:
            return float(self._thresholds.thresholds(trigger, k, bandwidths)[device])
        return self._thresholds.threshold_of(self._by_device, device, k, self._coins[device], bandwidths)

    def thresholds(self, trigger: Trigger, k: int) -> Floats:
        """threshold_i(k) of every device, (m,), read-only. Those of recent iterations are kept."""
        self._use(trigger)
        thresholds = self._of_all.pop(k, None)
        if thresholds is None:
            if len(self._of_all) == self._most_kept:
                del self._of_all[next(iter(self._of_all))]
            thresholds = read_only(self._thresholds.thresholds(trigger, k))
        self._of_all[k] = thresholds
        return thresholds

    def _use(self, trigger: Trigger) -> None:
        if trigger is not self._trigger:
            # A subclass of the user's own may have changed `thresholds` alone, which then is the law.
            self._by_device = trigger if is_built_in(trigger) and isinstance(trigger, DeviceTrigger) else None
            self._trigger, self._of_all = trigger, {}


class _Readers(dict[int, BlockReader]):
    """One reader per device, each made when it is first needed."""

    def __init__(self, make: Callable[[int], BlockReader]) -> None:
        self._make = make

    def __missing__(self, device: int) -> BlockReader:
        return self.setdefault(device, self._make(device))
