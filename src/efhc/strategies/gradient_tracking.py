"""Decentralized SGD in which every device follows the mean gradient instead of its own."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from efhc.base.arrays import Floats
from efhc.core.cost import whole_message_bits
from efhc.core.memory import Arrays, Memories, Memory
from efhc.core.parts import Moved, Now, Strategy
from efhc.strategies.parts.averaging import averaging_matrix, broadcast_bits


class GradientTracking(Strategy):
    """DSGT (Pu & Nedić, Mathematical Programming 2021): neighbours average their models and their gradient trackers.

        x_i(k+1) = sum_j w_ij (x_j(k) - alpha(k) s_j(k))
        s_i(k+1) = sum_j w_ij s_j(k) + g_i(k+1) - g_i(k),   s_i(0) = g_i(0)

    x: `models`; g: `gradients`; alpha(k): `now.step_size`; w: the Metropolis weights of G(k). The mean of the trackers
    s is the mean gradient, so a constant step leads to the minimum of the mean loss, however different the devices'
    data are. `correction` is c = s - g, whose mean is zero:

        s = c + g,   c <- W s - g

    Every device sends two models per iteration, x - alpha s and s, to all neighbours.
    """

    kind: Literal["dsgt"] = "dsgt"
    memory: ClassVar[Memories] = {"correction": Memory(size="model")}

    @np.errstate(over="ignore", invalid="ignore")
    def step(self, now: Now, models: Floats, gradients: Floats, memory: Arrays) -> Moved:
        W = averaging_matrix(now.graph, models.dtype)
        trackers = memory["correction"] + gradients
        memory["correction"][...] = W @ trackers - gradients
        moved = W @ (models - models.dtype.type(now.step_size) * trackers)
        return Moved(moved, broadcast_bits(now.graph, 2 * whole_message_bits(models)))
