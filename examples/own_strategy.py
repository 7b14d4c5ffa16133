"""Two strategies of your own that remember something: `efhc run examples/own-strategy.toml`.

The same from Python: `python examples/own_strategy.py`.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

import efhc
from efhc.core.mixing import mixing_matrix


class Steady(efhc.Strategy):
    """A device moves its threshold so that it fires in the given share of all iterations, whatever the data."""

    share: float = Field(default=0.2, gt=0, lt=1)
    memory: ClassVar = {"threshold": efhc.Memory(per="device", start=0.001)}

    def fires(self, seen, memory):
        fires = seen.drift >= memory["threshold"]
        memory["threshold"] *= np.exp(0.5 * (fires - self.share))
        return fires


class Extra(efhc.Strategy):
    """EXTRA (Shi et al. 2015): x <- W x - alpha (g - h), h <- h + (W x - x) / (2 alpha), all devices at once."""

    memory: ClassVar = {"correction": efhc.Memory(per="device", size="model")}

    def step(self, now, models, gradients, memory):
        W = mixing_matrix(now.graph, now.graph.all_links).astype(models.dtype)
        alpha, pull = models.dtype.type(now.step_size), W @ models - models
        moved = models + pull - alpha * (gradients - memory["correction"])
        memory["correction"] += pull / (2 * alpha)
        return efhc.Moved(moved, np.where(now.graph.degrees > 0, 8 * models[0].nbytes, 0))


if __name__ == "__main__":
    result = efhc.simulate(
        iterations=300,
        seeds=[0],
        initial_models=efhc.Shared(),
        strategies={"steady": Steady(share=0.1), "EXTRA": Extra(), "ZT": efhc.ZeroThreshold()},
        out="runs/own-strategy",
    )
    print(result.summary())
