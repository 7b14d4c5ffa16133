"""What the files of a frontier and of controls share: one experiment, compared in several settings.

The file is an experiment, which `efhc run` accepts as it is, with a table [figure] that has a `kind`. Every table
[figure.settings.NAME] is a panel: the experiment with a few changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import Field, ValidationError

from efhc.base.errors import InputError, did_you_mean, within
from efhc.base.policy import Policy
from efhc.base.problems import as_input_error
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import FIGURE, build_experiment, only_experiment
from efhc.experiments.studies.changes import Size, merged


class SettingTable(Policy):
    """A table [figure.settings.NAME]: one setting in which all strategies are compared."""

    title: str
    changes: dict[str, Any] = Field(default_factory=dict)
    """What differs from the file's experiment, merged table by table. Default: nothing."""
    without: tuple[str, ...] = Field(default=(), strict=False)
    """The strategies that are left out in this setting."""
    in_quick: bool = True
    """Whether --quick has this setting."""


class SettingsTable(Policy):
    """The table [figure] of a file with settings."""

    title: str
    tuned: str = ""
    """How the parameters of the strategies were chosen: with which commands, on which seeds."""
    core_hours: float | None = Field(default=None, gt=0)
    """The cost of --full in hours of one core."""
    quick: dict[str, Any] = Field(default_factory=dict)
    """The settings of the experiment that --quick changes."""
    settings: dict[str, SettingTable] = Field(min_length=1)
    """The panels, by name."""


TableT = TypeVar("TableT", bound=SettingsTable)


@dataclass(frozen=True)
class FigureSetting:
    """One setting of a figure at one size."""

    name: str
    title: str
    experiment: Experiment


@dataclass(frozen=True)
class SettingsFigure(Generic[TableT]):
    """A figure with settings at one size, --quick or --full."""

    name: str
    table: TableT
    settings: tuple[FigureSetting, ...]

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

    @property
    def strategies(self) -> list[str]:
        """The strategies of all settings, each once."""
        return list(dict.fromkeys(name for one in self.experiments for name in one.strategies))


def read_settings(
    kind: type[TableT],
    path: Path,
    tables: Mapping[str, Any],
    size: Size,
    seeds: int | None,
    check: Callable[[Experiment], object],
) -> tuple[str, TableT, tuple[FigureSetting, ...]]:
    """Return the name, the table [figure], which is of this kind, and the settings of a file's tables.

    If `seeds` is given, there are so many, counted from the file's first one: the seeds before it may be those that
    parameters were chosen on. `check` raises `InputError` for an experiment that cannot be a setting. Raises
    `InputError` for whatever is wrong with the tables.
    """
    try:
        table = kind.model_validate(tables[FIGURE])
    except ValidationError as error:
        with within(FIGURE):
            raise as_input_error(error, kind) from None
    base = only_experiment(tables)
    if size == "quick":
        base = merged(base, table.quick)
    first = build_experiment(base, path.parent).seeds[0]
    if seeds is not None:
        base["seeds"] = list(range(first, first + seeds))
    chosen = {name: one for name, one in table.settings.items() if size == "full" or one.in_quick}
    if not chosen:
        raise InputError(f"{FIGURE}.settings", "in_quick = false in all of them", "one that --quick has")
    settings = []
    for name, one in chosen.items():
        with within(f"{FIGURE}.settings.{name}"):
            experiment = build_experiment(merged(base, one.changes), path.parent)
            check_names("without", one.without, experiment.strategies)
            strategies = {key: value for key, value in experiment.strategies.items() if key not in one.without}
            experiment = experiment.model_copy(update={"strategies": strategies})
            check(experiment)
        settings.append(FigureSetting(name, one.title, experiment))
    return path.stem, table, tuple(settings)


def check_names(key: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise `InputError` unless all of these are names of strategies."""
    for name in names:
        if name not in set(known):
            given = f"'{name}'{did_you_mean(name, list(known))}"
            raise InputError(key, given, ", ".join(known))
