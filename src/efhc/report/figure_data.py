"""The data from which figures are drawn and judged: those of the paper, and those of several settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from efhc.learning.measures import CLASSIFICATION, Measure, measures_of

RUN = ("strategy", "seed")
"""The columns that tell runs apart."""
BUDGETS = (0.02, 0.05, 0.1, 0.2, 0.5)
"""The shares of ZT's total transmission time at which strategies are compared."""
ACCURACY = measures_of(CLASSIFICATION)["accuracy"]
"""The paper's measure: the mean over devices, on the global test set."""
PAPER = ("ZT", "EF-HC", "GT", "RG")
"""The paper's strategies, under their usual names."""


@dataclass(frozen=True, eq=False)
class FigureData:
    """The evaluated iterations of all runs of a figure."""

    name: str
    """The name of its file: `fig2a`."""
    number: str
    """The number that the paper prints: `2(a)`."""
    title: str
    curves: pl.DataFrame
    """Panels (i)-(iii): strategy, seed, and the metrics of every iteration after which models were evaluated."""
    connectivity: pl.DataFrame | None = None
    """Panel (iv): the same columns, and the column `radius`."""
    varied: Mapping[str, float] = field(default_factory=dict)
    """In an ablation, the value that each strategy stands for. ZT has none: it only defines the budgets."""
    measure: Measure = ACCURACY
    """What panels (ii)-(iv) and claims go by."""

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
class SettingData:
    """The evaluated iterations of all runs in one setting."""

    name: str
    title: str
    curves: pl.DataFrame
    """strategy, seed, and the metrics of every iteration after which models were evaluated."""
    judged_from: float = 0.005
    """The smallest share of ZT's time at which leading is judged."""
    test_samples: int | None = None
    """The number of samples that accuracy is measured on. A margin of less than one of them decides nothing."""
    measure: Measure = ACCURACY
    """What the figure shows, and claims go by."""

    @property
    def least(self) -> float:
        """The smallest margin that decides anything: one test sample of an accuracy."""
        return 1 / self.test_samples if self.test_samples and self.measure.metric == ACCURACY.name else 0.0

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
    def measure(self) -> Measure:
        """What the figure shows, and claims go by."""
        return self.settings[0].measure

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
class TimedSetting(SettingData):
    """The samples of all event-driven runs in one setting: strategy, seed, seconds, bytes, measures."""

    seconds: float = 0.0
    """The virtual second at which all runs end."""
    bandwidths: tuple[float, float] = (0.0, 0.0)
    """The smallest and the largest bandwidth of a device, over all seeds, in parameters per second."""


@dataclass(frozen=True, eq=False)
class ControlsData(SettingsData):
    """A strategy, and the controls that it is compared with in several settings."""

    settings: tuple[TimedSetting, ...]
    leader: str
    controls: Mapping[str, str]
    """By name: what a strategy is a control for, in one sentence."""
    common: str | None = None
    """The control in which all devices do the same, whatever their bandwidth."""
    shuffled: str | None = None
    """The control in which every device goes by the bandwidth of another one."""

    @property
    def of_bandwidth(self) -> list[str]:
        """The controls that say what it buys to go by one's own bandwidth."""
        return [name for name in (self.common, self.shuffled) if name is not None]

    @property
    def in_front(self) -> list[str]:
        """The strategies that are drawn in front of the others: the leader, and the controls of its bandwidths."""
        return [name for name in (self.leader, *self.of_bandwidth) if name in self.strategies]


@dataclass(frozen=True, eq=False)
class Section:
    """The part of the report that shows one figure."""

    data: FigureData | FrontierData | ControlsData
    configs: Mapping[str, str]
    """The complete config of each setting, as TOML, by its title; a figure of the paper has one, without a title."""
    facts: Mapping[str, str]
    """The main facts: sizes, runs, time, and the command that makes the figure."""
    provenance: Mapping[str, Any]
    """The versions, git state and machine of its runs."""
    tuned: str = ""
    """How the parameters of the strategies were chosen."""
    illustration: Illustration | None = None
    """An example, which figures of the paper have."""
