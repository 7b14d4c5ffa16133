"""The data from which a frontier is drawn and judged, and what other figures of several settings share with it."""

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
class SettingsData:
    """A figure of several settings."""

    name: str
    """The name of its file: `frontier`."""
    title: str
    settings: tuple[SettingData, ...]

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
        """The strategies that are drawn in front of the others, with bands."""
        return []

    @property
    def behind_all(self) -> list[str]:
        """The strategies that are drawn as references."""
        return []


@dataclass(frozen=True, eq=False)
class FrontierData(SettingsData):
    """A frontier, and the strategies that are said to lead."""

    leaders: tuple[str, ...]
    """The first is compared with all others, the next with all others but the leaders before it."""
    ceilings: tuple[str, ...] = ()
    """References that compete with nobody."""

    @property
    def in_front(self) -> list[str]:
        """The leaders, EF-HC and ZT."""
        return [name for name in dict.fromkeys((*self.leaders, "EF-HC", "ZT")) if name in self.strategies]

    @property
    def behind_all(self) -> list[str]:
        """The ceilings that have runs."""
        return [name for name in self.ceilings if name in self.strategies]


@dataclass(frozen=True, eq=False)
class SettingsSection:
    """The part of the report that shows a figure of several settings."""

    data: SettingsData
    configs: Mapping[str, str]
    """The complete config of each setting, as TOML, by title."""
    tuned: str
    """How the parameters of the strategies were chosen."""
    facts: Mapping[str, str]
    """The main facts: sizes, seeds, runs, time, and the command that makes the figure."""
    provenance: Mapping[str, Any]
    """The versions, git state and machine of its runs."""


@dataclass(frozen=True, eq=False)
class FrontierSection(SettingsSection):
    """The part of the report that shows a frontier."""

    data: FrontierData
