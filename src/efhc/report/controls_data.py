"""The data from which a strategy and its controls are drawn and judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from efhc.report.frontier_data import SettingData, SettingsData, SettingsSection


@dataclass(frozen=True, eq=False)
class TimedSetting(SettingData):
    """The samples of all event-driven runs in one setting: strategy, seed, seconds, bytes, accuracy."""

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
class ControlsSection(SettingsSection):
    """The part of the report that shows a strategy and its controls."""

    data: ControlsData
