"""The file of a strategy and its controls: which is more accurate at the end of event-driven runs, seed by seed.

src/efhc/presets/slow-links.toml is such a file; settings_file.py has what it shares with others.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from efhc.base.errors import InputError, within
from efhc.drivers.event_driven.settings import EventDriven
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import FIGURE
from efhc.experiments.runs.tables import EVENT_DRIVEN, driver_of
from efhc.experiments.studies.changes import Size
from efhc.experiments.studies.settings_file import SettingsFigure, SettingsTable, check_names, read_settings


class ControlsTable(SettingsTable):
    """The table [figure] of a file with controls."""

    kind: Literal["controls"]
    leader: str
    """The strategy that is compared with its controls."""
    controls: dict[str, str] = Field(min_length=1)
    """By name of a strategy: what it is a control for, in one sentence."""
    common: str | None = None
    """The control in which all devices do the same, whatever their bandwidth."""
    shuffled: str | None = None
    """The control in which every device goes by the bandwidth of another one."""


class Controls(SettingsFigure[ControlsTable]):
    """A strategy and its controls at one size, --quick or --full."""


def build_controls(path: Path, tables: Mapping[str, Any], size: Size, seeds: int | None) -> Controls:
    """Return the figure of a file's tables: see `read_settings`."""
    figure = Controls(*read_settings(ControlsTable, path, tables, size, seeds, end_of))
    table = figure.table
    with within(FIGURE):
        check_names("leader", [table.leader], figure.strategies)
        check_names("controls", table.controls, figure.strategies)
        if table.leader in table.controls:
            raise InputError("controls", f"'{table.leader}'", "strategies other than the leader")
        for key in ("common", "shuffled"):
            check_names(key, filter(None, [getattr(table, key)]), table.controls)
        for one in figure.settings:
            if table.leader not in one.experiment.strategies:
                given, allowed = ", ".join(one.experiment.strategies), f"also {table.leader}, the leader"
                raise InputError(f"settings.{one.name}.strategies", given, allowed)
    return figure


def end_of(experiment: Experiment) -> float:
    """Return the virtual second at which the runs of a setting end. Raises `InputError` if there is none."""
    driver = experiment.driver
    if not isinstance(driver, EventDriven):
        allowed = f"{EVENT_DRIVEN.driver}; controls are compared after a number of virtual seconds"
        raise InputError("driver", driver_of(experiment), allowed)
    if driver.seconds is None:
        raise InputError("driver.seconds", "none", "the virtual second at which all runs of the setting end")
    return driver.seconds
