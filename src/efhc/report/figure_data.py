"""The data from which a figure of the paper is drawn and judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

BUDGETS = (0.02, 0.05, 0.1, 0.2, 0.5)
"""The shares of ZT's total transmission time at which strategies are compared."""


@dataclass(frozen=True, eq=False)
class FigureData:
    """The evaluated iterations of all runs of a figure."""

    name: str
    """The name of its file: `fig2a`."""
    number: str
    """The number that the paper prints: `2(a)`."""
    title: str
    curves: pl.DataFrame
    """Panels (i)-(iii): strategy, seed, and the metrics of every iteration after which accuracy was measured."""
    connectivity: pl.DataFrame | None = None
    """Panel (iv): the same columns, and the column `radius`."""
    varied: Mapping[str, float] = field(default_factory=dict)
    """In an ablation, the value that each strategy stands for. ZT has none: it only defines the budgets."""

    @property
    def seeds(self) -> int:
        """The number of seeds."""
        return self.curves["seed"].n_unique()


@dataclass(frozen=True, eq=False)
class Illustration:
    """One seed of a figure as an example: its network, its devices, and which devices fired when."""

    seed: int
    network: pl.DataFrame
    """network.parquet of that seed."""
    devices: pl.DataFrame
    """devices.parquet of that seed."""
    events: Mapping[str, pl.DataFrame]
    """events.parquet of each strategy."""


@dataclass(frozen=True, eq=False)
class Section:
    """The part of the report that shows one figure."""

    data: FigureData
    illustration: Illustration
    config: str
    """The complete config of panels (i)-(iii), as TOML."""
    facts: Mapping[str, str]
    """The main facts: sizes, runs, time, and the command that makes the figure."""
    provenance: Mapping[str, Any]
    """The versions, git state and machine of its runs."""
