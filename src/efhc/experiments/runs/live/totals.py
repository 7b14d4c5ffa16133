"""What a run has spent so far. The metrics have it per iteration. Followers see only a sample of the iterations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import polars as pl

from efhc.base.arrays import Floats
from efhc.core.cost import BITS_PER_NUMBER, airtime_bits
from efhc.core.graph import Graph
from efhc.drivers.steps import Steps

SUMS = {"bits_total": "bits", "broadcasts_total": "fired"}
"""The totals, and the columns of the metrics of which they are sums."""


def with_totals(metrics: pl.LazyFrame) -> pl.LazyFrame:
    """Return the metrics of a run, which begin with its first iteration, with the totals up to each row."""
    return metrics.with_columns(pl.col(column).cum_sum().alias(total) for total, column in SUMS.items())


@dataclass
class Totals:
    """The bits on air and the broadcasts of all iterations so far. None: unknown, since an older version began it."""

    bits: float | None = 0.0
    broadcasts: int | None = 0
    _end: int = 0
    """The iteration after the last one that was added."""
    _graph: Graph | None = None
    _per_link: Floats | None = None
    """The bits on air when both ends of a link of that graph send a whole model, (links,)."""

    @classmethod
    def of(cls, facts: Mapping[str, str]) -> Self:
        """Return what a checkpoint knows."""
        bits, broadcasts = (facts.get(name) for name in SUMS)
        return cls(None if bits is None else float(bits), None if broadcasts is None else int(broadcasts))

    def add(self, steps: Steps, parameters: int) -> None:
        """Add iterations, unless they were added already."""
        if self.bits is None or self.broadcasts is None or steps.k < self._end:
            return
        self._end = steps.k + len(steps)
        self.broadcasts += int(np.count_nonzero(steps.fired))
        if steps.bits is not None:
            self.bits += float(airtime_bits(steps.graph, steps.bits.sum(axis=0)).sum())
            return
        if steps.graph is not self._graph:  # on a network that changes, each graph is there for one call only
            self._graph, self._per_link = steps.graph, None
            ends = steps.graph.links[np.nonzero(steps.used)[1]]
            self.bits += float((BITS_PER_NUMBER * parameters / steps.graph.degrees[ends]).sum())
            return
        if self._per_link is None:
            self._per_link = (BITS_PER_NUMBER * parameters / steps.graph.degrees[steps.graph.links]).sum(axis=1)
        self.bits += float(np.count_nonzero(steps.used, axis=0) @ self._per_link)

    @property
    def facts(self) -> dict[str, str]:
        """What a checkpoint keeps."""
        return {name: repr(value) for name, value in self.row.items() if value is not None}

    @property
    def row(self) -> dict[str, float | int | None]:
        """What a row says."""
        return dict(zip(SUMS, (self.bits, self.broadcasts), strict=True))
