"""What one run reads of a scenario if each device is in an iteration of its own.

Nothing here costs an array over all devices per device and iteration: batches and coins come from one block per device,
and thresholds that a strategy gives for all devices at once are kept for the devices that reach the iteration later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from efhc.base.arrays import Floats, Ints, read_only
from efhc.base.own_code import is_built_in
from efhc.core.randomness import BlockReader, Coins
from efhc.core.triggers import Bandwidths, DeviceTrigger, Trigger
from efhc.learning.backends.backend import Batch
from efhc.scenarios.thresholds import Thresholds

if TYPE_CHECKING:
    from efhc.scenarios.scenario import Scenario

ITERATIONS = 64
"""Iterations whose thresholds are always kept."""
KEPT_BYTES = 1 << 25
"""Bytes up to which thresholds of more iterations are kept, and coins of all devices."""


class DeviceReader:
    """Reads batches and thresholds device by device, in whatever order the devices reach their iterations.

    The numbers are those of `ScenarioReader`. Runs share a scenario, and each has its own reader.
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
        """The trigger, if it can be asked for the threshold of one device."""
        self._of_all: dict[int, Floats] = {}
        """Thresholds of the trigger by k, those that were read last at the end."""
        self._most_kept = max(ITERATIONS, KEPT_BYTES // (8 * devices))
        self._measured = scenario.bandwidths.values.copy()

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

    def threshold(self, trigger: Trigger, device: int, k: int) -> float:
        """threshold_i(k) of one device under this strategy, which is checked: it may be the user's own."""
        self._turn_to(trigger)
        if self._by_device is not None:
            return self._thresholds.of_device(self._by_device, device, k, self._coins[device])
        return float(self.thresholds(trigger, k)[device])

    def threshold_with(self, trigger: Trigger, device: int, k: int, bandwidth: float) -> float:
        """The same if the device's own bandwidth is `bandwidth`, as it was measured; the others' are the scenario's."""
        self._turn_to(trigger)
        true = self.scenario.bandwidths
        if self._by_device is not None:
            self._measured[device] = bandwidth
            try:
                measured = Bandwidths(self._measured, true.nominal)
                return self._thresholds.of_device(self._by_device, device, k, self._coins[device], measured)
            finally:
                self._measured[device] = true.values[device]
        values = true.values.copy()
        values[device] = bandwidth
        return float(self._thresholds.of_all(trigger, k, Bandwidths(read_only(values), true.nominal))[device])

    def thresholds(self, trigger: Trigger, k: int) -> Floats:
        """threshold_i(k) of every device, (m,), read-only. Those of recent iterations are kept."""
        self._turn_to(trigger)
        thresholds = self._of_all.pop(k, None)
        if thresholds is None:
            if len(self._of_all) == self._most_kept:
                del self._of_all[next(iter(self._of_all))]
            thresholds = read_only(self._thresholds.of_all(trigger, k))
        self._of_all[k] = thresholds
        return thresholds

    def _turn_to(self, trigger: Trigger) -> None:
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
