"""What a figure of the paper is drawn and judged from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

BUDGETS = (0.02, 0.05, 0.1, 0.2, 0.5)
"""Shares of ZT's total transmission time at which strategies are compared."""


@dataclass(frozen=True, eq=False)
class FigureData:
    """The evaluated iterations of all its runs."""

    name: str
    """fig2a"""
    number: str
    """2(a), as the paper's LaTeX numbers it."""
    title: str
    curves: pl.DataFrame
    """Panels (i)-(iii): strategy, seed, and the metrics of every iteration after which accuracy was measured."""
    connectivity: pl.DataFrame | None = None
    """Panel (iv): the same, with the column `radius`."""
    varied: Mapping[str, float] = field(default_factory=dict)
    """In an ablation, the value that each of its strategies stands for. ZT is there only as the measure of budgets."""


@dataclass(frozen=True, eq=False)
class Illustration:
    """One seed of a figure, to be looked at: its network, its devices, and who fired when."""

    seed: int
    network: pl.DataFrame
    """network.parquet of that seed."""
    devices: pl.DataFrame
    """devices.parquet of that seed."""
    events: Mapping[str, pl.DataFrame]
    """events.parquet of each strategy."""


@dataclass(frozen=True, eq=False)
class Section:
    """A figure's part of the report."""

    data: FigureData
    illustration: Illustration
    config: str
    """The complete config of panels (i)-(iii), as TOML."""
    facts: Mapping[str, str]
    """What to know of it at a glance: sizes, runs, time, the command that makes it."""
    provenance: Mapping[str, Any]
    """Versions, git state and machine of its runs."""
