"""What a server that hears everything for nothing would do."""

from __future__ import annotations

from typing import Literal

import numpy as np

from efhc.base.arrays import Floats
from efhc.core.memory import Arrays
from efhc.core.parts import Moved, Now, Strategy


class CentralSGD(Strategy):
    """Centralised SGD, the ceiling: all devices have one model, which descends along the mean gradient.

        x(k+1) = x(k) - alpha(k) (1/m) sum_i g_i(x(k))

    x: the mean of `models`; g_i: `gradients`; alpha(k): `now.step_size`; m: the number of devices. Nothing is sent or
    paid. If devices start apart, x(0) is their mean, and the gradients of k = 0 are at their own models.
    """

    kind: Literal["central"] = "central"

    @np.errstate(over="ignore", invalid="ignore")
    def step(self, now: Now, models: Floats, gradients: Floats, memory: Arrays) -> Moved:
        # The mean of equal rows, in double precision, is that row to the last bit of a single-precision model.
        mean_model, mean_gradient = (rows.mean(axis=0, dtype=np.float64) for rows in (models, gradients))
        one = (mean_model - now.step_size * mean_gradient).astype(models.dtype)
        return Moved(np.tile(one, (len(models), 1)), np.zeros(len(models), dtype=np.int64))
