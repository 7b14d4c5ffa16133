"""The data from which a frontier is drawn and judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

PAPER = ("ZT", "EF-HC", "GT", "RG")
"""The paper's strategies, under their usual names."""


@dataclass(frozen=True, eq=False)
class SettingData:
    """The evaluated iterations of all runs in one setting."""

    name: str
    title: str
    curves: pl.DataFrame
    """strategy, seed, and the metrics of every iteration after which accuracy was measured."""
    judged_from: float = 0.005
    """The smallest share of ZT's time at which leading is judged."""
    test_samples: int | None = None
    """The number of samples that accuracy is measured on. A margin of less than one of them decides nothing."""

    @property
    def strategies(self) -> list[str]:
        """The strategies that have runs, in the order of the file."""
        return self.curves["strategy"].unique(maintain_order=True).to_list()


@dataclass(frozen=True, eq=False)
class FrontierData:
    """A frontier: several settings, and the strategies that are said to lead."""

    name: str
    """The name of its file: `frontier`."""
    title: str
    settings: tuple[SettingData, ...]
    leaders: tuple[str, ...]
    """The first is compared with all others, the next with all others but the leaders before it."""
    ceilings: tuple[str, ...] = ()
    """References that compete with nobody."""

    @property
    def strategies(self) -> list[str]:
        """The strategies of all settings, each once."""
        return list(dict.fromkeys(name for setting in self.settings for name in setting.strategies))

    @property
    def seeds(self) -> int:
        """The number of seeds."""
        return len({seed for setting in self.settings for seed in setting.curves["seed"].unique()})

    def label(self, setting: SettingData) -> str:
        """Return what files and claims call a setting: `frontier-beta`."""
        return f"{self.name}-{setting.name}"

    @property
    def in_front(self) -> list[str]:
        """The strategies that are drawn in front of the others: the leaders, EF-HC and ZT."""
        return [name for name in dict.fromkeys((*self.leaders, "EF-HC", "ZT")) if name in self.strategies]


@dataclass(frozen=True, eq=False)
class FrontierSection:
    """The part of the report that shows a frontier."""

    data: FrontierData
    configs: Mapping[str, str]
    """The complete config of each setting, as TOML, by name."""
    tuned: str
    """How the parameters of the strategies were chosen."""
    facts: Mapping[str, str]
    """The main facts: sizes, seeds, runs, time, and the command that makes the frontier."""
    provenance: Mapping[str, Any]
    """The versions, git state and machine of its runs."""
