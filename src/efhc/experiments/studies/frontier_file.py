"""The file of a frontier: accuracy against the share of ZT's transmission time that was spent, in several settings.

src/efhc/presets/frontier.toml is such a file; settings_file.py has what it shares with others.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from efhc.base.errors import InputError, within
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import FIGURE
from efhc.experiments.runs.tables import require_lockstep
from efhc.experiments.studies.changes import Size
from efhc.experiments.studies.settings_file import SettingsFigure, SettingsTable, check_names, read_settings


class FrontierTable(SettingsTable):
    """The table [figure] of a frontier's file."""

    kind: Literal["frontier"]
    leaders: tuple[str, ...] = Field(strict=False, min_length=1)
    """The strategies of which it is judged whether they lead. The first is compared with all others, the next with all
    others but the leaders before it."""
    ceilings: tuple[str, ...] = Field(default=(), strict=False)
    """Strategies that are drawn as references and compete with nobody, such as training without a network."""
    judged_from: float = Field(default=0.005, gt=0, le=1)
    """The smallest share of ZT's time at which leading is judged. Smaller budgets are shown, and none is judged that is
    smaller than what ZT takes between two evaluations."""


class Frontier(SettingsFigure[FrontierTable]):
    """A frontier at one size, --quick or --full."""


def build_frontier(path: Path, tables: Mapping[str, Any], size: Size, seeds: int | None) -> Frontier:
    """Return the frontier of a file's tables: see `read_settings`."""
    frontier = Frontier(*read_settings(FrontierTable, path, tables, size, seeds, _check))
    table = frontier.table
    with within(FIGURE):
        check_names("leaders", table.leaders, frontier.strategies)
        check_names("ceilings", table.ceilings, frontier.strategies)
    if both := set(table.leaders) & set(table.ceilings):
        raise InputError(f"{FIGURE}.ceilings", ", ".join(both), "strategies that are not among the leaders")
    return frontier


def _check(experiment: Experiment) -> None:
    require_lockstep(experiment, "a frontier")
    if "ZT" not in experiment.strategies:
        raise InputError("strategies", ", ".join(experiment.strategies), "also ZT: its total measures budgets")
