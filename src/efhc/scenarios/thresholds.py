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
        return self._of_own(trigger, k, bandwidths)

    def of_device(
        self, trigger: DeviceTrigger, device: int, k: int, coin: BlockReader, bandwidths: Bandwidths | None = None
    ) -> float:
        """threshold_i(k) of one device, without those of the others; `trigger` must be built in."""
        bandwidths = bandwidths or self._bandwidths
        threshold = trigger.threshold_of(device, k, self._threshold_decay(k), bandwidths, coin)
        if math.isnan(threshold):
            raise _refused(trigger, k, len(bandwidths.values), "NaN")
        return threshold

    def _of_own(self, trigger: Trigger, k: int, bandwidths: Bandwidths) -> Floats:
        """Those of a strategy of the user's own: it may fail, or remember what it was asked before."""
        asked = []
        with quoting(trigger, f"strategy {type(trigger).__name__}"):
            for _ in range(1 if self._asked_own else 2):
                given = trigger.thresholds(k, self._threshold_decay(k), bandwidths, self._coins)
                asked.append(_checked(given, trigger, k, len(bandwidths.values)).copy())
        if not np.array_equal(asked[0], asked[-1]):
            what = f"other thresholds when it was asked at k = {k} for the second time"
            allowed = "thresholds that depend on the arguments only: runs are stopped, resumed and shared"
            raise InputError(f"strategy {type(trigger).__name__}", what, allowed)
        self._asked_own = True
        return asked[-1]


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
