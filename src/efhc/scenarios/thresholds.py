"""The thresholds of a strategy in a scenario, checked: it may be the user's own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from efhc.base.arrays import Floats
from efhc.base.errors import InputError
from efhc.base.own_code import is_built_in, quoting
from efhc.core.randomness import BlockReader
from efhc.core.schedules import Schedule
from efhc.core.triggers import Bandwidths, DeviceTrigger, Trigger


class Thresholds:
    """What one run asks its strategy."""

    def __init__(self, threshold_decay: Schedule, bandwidths: Bandwidths, coins: BlockReader) -> None:
        self._threshold_decay, self._bandwidths, self._coins = threshold_decay, bandwidths, coins
        self._asked_own = False

    def of_all(self, trigger: Trigger, k: int, bandwidths: Bandwidths | None = None) -> Floats:
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
        if not self._asked_own:
            self._asked_own = True
            self.check_forgetful(trigger, k, thresholds, bandwidths)
        return thresholds

    def of_many(self, trigger: Trigger, k: int, count: int) -> Floats:
        """threshold_i of every device at k, k + 1, ..., (count, m), to the last bit those of `of_all`.

        Raises `InputError` as `of_all` does, and if a strategy of the user's own has other thresholds at k than when it
        was asked before.
        """
        if is_built_in(trigger):
            built_in: Any = trigger  # whose formula takes many iterations as well
            iterations = np.arange(k, k + count)[:, None]
            gamma = np.array([[self._threshold_decay(k + step)] for step in range(count)], dtype=np.float64)
            given: Floats = built_in.thresholds(iterations, gamma, self._bandwidths, self._coins.of_many)
            if not np.isnan(given).any():
                return given
        thresholds = np.stack([self.of_all(trigger, k + step) for step in range(count)])
        self.check_forgetful(trigger, k, thresholds[0])
        return thresholds

    def check_forgetful(
        self, trigger: Trigger, k: int, thresholds: Floats, bandwidths: Bandwidths | None = None
    ) -> None:
        """Raise `InputError` if a trigger of the user's own has other thresholds at k than when it was asked before.

        Thresholds are asked for in advance, and again when a run is resumed.
        """
        if not is_built_in(trigger) and not np.array_equal(self.of_all(trigger, k, bandwidths), thresholds):
            what = f"thresholds that differ when they are computed twice at k = {k}"
            allowed = "thresholds that depend on the arguments only; a strategy that remembers has `memory` and `fires`"
            raise InputError(f"strategy {type(trigger).__name__}", what, allowed)

    def of_device(
        self, trigger: DeviceTrigger, device: int, k: int, coin: BlockReader, bandwidths: Bandwidths | None = None
    ) -> float:
        """threshold_i(k) of one device, without those of the others; `trigger` must be built in."""
        bandwidths = bandwidths or self._bandwidths
        threshold = trigger.threshold_of(device, k, self._threshold_decay(k), bandwidths, coin)
        if math.isnan(threshold):
            raise _refused(trigger, k, len(bandwidths.values), "NaN")
        return threshold


def _checked(given: Any, trigger: Trigger, k: int, devices: int) -> Floats:
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
    return _checked(whole, trigger, k, devices)


def _refused(trigger: Trigger, k: int, devices: int, what: str) -> InputError:
    name = getattr(trigger, "kind", type(trigger).__name__)
    return InputError(f"strategy {name}", f"{what} as thresholds at k = {k}", f"one number per device ({devices})")
