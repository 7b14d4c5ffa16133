"""The file of a frontier: accuracy against the share of ZT's transmission time that was spent, in several settings.

The file is an experiment, which `efhc run` accepts as it is, with a table [figure] of the kind "frontier". Every table
[figure.settings.NAME] is a panel: the experiment with a few changes. src/efhc/presets/frontier.toml is such a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from efhc.base.errors import InputError, did_you_mean, within
from efhc.base.policy import Policy
from efhc.base.problems import as_input_error
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import FIGURE, build_experiment, only_experiment
from efhc.experiments.runs.tables import require_lockstep
from efhc.experiments.studies.changes import Size, merged

KIND = "frontier"


class SettingTable(Policy):
    """A table [figure.settings.NAME]: one setting in which all strategies are compared."""

    title: str
    changes: dict[str, Any] = Field(default_factory=dict)
    """What differs from the file's experiment, merged table by table. Default: nothing."""
    without: tuple[str, ...] = Field(default=(), strict=False)
    """The strategies that are left out in this setting."""
    in_quick: bool = True
    """Whether --quick has this setting."""


class FrontierTable(Policy):
    """The table [figure] of a frontier's file."""

    kind: Literal["frontier"]
    title: str
    leaders: tuple[str, ...] = Field(strict=False, min_length=1)
    """The strategies of which it is judged whether they lead. The first is compared with all others, the next with all
    others but the leaders before it."""
    ceilings: tuple[str, ...] = Field(default=(), strict=False)
    """Strategies that are drawn as references and compete with nobody, such as training without a network."""
    judged_from: float = Field(default=0.005, gt=0, le=1)
    """The smallest share of ZT's time at which leading is judged. Smaller budgets are shown, and none is judged that is
    smaller than what ZT takes between two evaluations."""
    tuned: str = ""
    """How the parameters of the strategies were chosen: with which commands, on which seeds."""
    core_hours: float | None = Field(default=None, gt=0)
    """The cost of --full in hours of one core."""
    quick: dict[str, Any] = Field(default_factory=dict)
    """The settings of the experiment that --quick changes."""
    settings: dict[str, SettingTable] = Field(min_length=1)
    """The panels, by name."""


@dataclass(frozen=True)
class FrontierSetting:
    """One setting of a frontier at one size."""

    name: str
    title: str
    experiment: Experiment


@dataclass(frozen=True)
class Frontier:
    """A frontier at one size, --quick or --full."""

    name: str
    table: FrontierTable
    settings: tuple[FrontierSetting, ...]

    @property
    def experiments(self) -> list[Experiment]:
        """The experiment of each setting."""
        return [setting.experiment for setting in self.settings]

    @property
    def experiment(self) -> Experiment:
        """The experiment of the first setting."""
        return self.settings[0].experiment

    @property
    def runs(self) -> int:
        """The number of runs."""
        return sum(len(one.strategies) * len(one.seeds) for one in self.experiments)


def is_frontier(tables: Mapping[str, Any]) -> bool:
    """Return whether these are the tables of a frontier's file."""
    figure = tables.get(FIGURE)
    return isinstance(figure, Mapping) and figure.get("kind") == KIND


def build_frontier(path: Path, tables: Mapping[str, Any], size: Size, seeds: int | None) -> Frontier:
    """Return the frontier of a file's tables.

    If `seeds` is given, there are so many, counted from the file's first one: the seeds before it may be those that
    parameters were chosen on. Raises `InputError` for whatever is wrong with the tables.
    """
    try:
        table = FrontierTable.model_validate(tables[FIGURE])
    except ValidationError as error:
        with within(FIGURE):
            raise as_input_error(error, FrontierTable) from None
    base = only_experiment(tables)
    if size == "quick":
        base = merged(base, table.quick)
    first = build_experiment(base, path.parent).seeds[0]
    if seeds is not None:
        base["seeds"] = list(range(first, first + seeds))
    chosen = {name: one for name, one in table.settings.items() if size == "full" or one.in_quick}
    if not chosen:
        raise InputError(f"{FIGURE}.settings", "in_quick = false in all of them", "one that --quick has")
    settings = tuple(_setting(name, one, base, path.parent) for name, one in chosen.items())
    frontier = Frontier(path.stem, table, settings)
    known = dict.fromkeys(name for one in frontier.experiments for name in one.strategies)
    with within(FIGURE):
        _check_names("leaders", table.leaders, known)
        _check_names("ceilings", table.ceilings, known)
    if both := set(table.leaders) & set(table.ceilings):
        raise InputError(f"{FIGURE}.ceilings", ", ".join(both), "strategies that are not among the leaders")
    return frontier


def _setting(name: str, table: SettingTable, base: Mapping[str, Any], folder: Path) -> FrontierSetting:
    with within(f"{FIGURE}.settings.{name}"):
        experiment = build_experiment(merged(base, table.changes), folder)
        require_lockstep(experiment, "a frontier")
        _check_names("without", table.without, experiment.strategies)
        strategies = {key: one for key, one in experiment.strategies.items() if key not in table.without}
        if "ZT" not in strategies:
            raise InputError("strategies", ", ".join(strategies), "also ZT: its total measures budgets")
    return FrontierSetting(name, table.title, experiment.model_copy(update={"strategies": strategies}))


def _check_names(key: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in set(known):
            given = f"'{name}'{did_you_mean(name, list(known))}"
            raise InputError(key, given, ", ".join(known))
