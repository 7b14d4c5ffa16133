"""Figures of one experiment in several settings, read from their files: a frontier, or a strategy and its controls.

The file is an experiment, which `efhc run` accepts as it is, with a table [figure] that has a `kind`. Every table
[figure.settings.NAME] is a panel: the experiment with a few changes. src/efhc/presets/ has frontier.toml and
slow-links.toml.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from pydantic import Field, ValidationError

from efhc.base.errors import InputError, did_you_mean, within
from efhc.base.policy import Policy, as_input_error
from efhc.drivers.event_driven.settings import EventDriven
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import FIGURE, build_experiment, only_experiment, to_tables
from efhc.experiments.runs.driver_tables import EVENT_DRIVEN, driver_of, require_lockstep

Size = Literal["quick", "full"]


@dataclass(frozen=True)
class FigureSpec:
    """What a figure shows, at one size, --quick or --full."""

    name: str

    @property
    @abstractmethod
    def parts(self) -> Sequence[tuple[str, Experiment]]:
        """The experiments whose runs the figure shows, each with its name within the figure."""

    @property
    def experiments(self) -> list[Experiment]:
        """The experiment of each part."""
        return [experiment for _, experiment in self.parts]

    @property
    def strategies(self) -> list[str]:
        """The strategies of all parts, each once."""
        return list(dict.fromkeys(name for one in self.experiments for name in one.strategies))

    @property
    def runs(self) -> int:
        """The number of distinct runs; parts share the runs that have the same settings."""
        distinct = set()
        for experiment in self.experiments:
            tables = to_tables(experiment)
            strategies = [json.dumps(one, sort_keys=True) for one in tables["strategies"].values()]
            rest = json.dumps({**tables, "name": "", "seeds": [], "strategies": {}}, sort_keys=True, default=str)
            distinct |= {(rest, strategy, seed) for strategy in strategies for seed in experiment.seeds}
        return len(distinct)


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


TableT = TypeVar("TableT", bound=SettingsTable)


@dataclass(frozen=True)
class FigureSetting:
    """One setting of a figure at one size."""

    name: str
    title: str
    experiment: Experiment


@dataclass(frozen=True)
class SettingsFigure(FigureSpec, Generic[TableT]):
    """A figure with settings."""

    table: TableT
    settings: tuple[FigureSetting, ...]

    @property
    def parts(self) -> list[tuple[str, Experiment]]:
        """The experiment of each setting."""
        return [(setting.name, setting.experiment) for setting in self.settings]

    @property
    def experiment(self) -> Experiment:
        """The experiment of the first setting."""
        return self.settings[0].experiment


class Frontier(SettingsFigure[FrontierTable]):
    """Accuracy against the share of ZT's transmission time that was spent, in several settings."""


class Controls(SettingsFigure[ControlsTable]):
    """A strategy and its controls: which is more accurate at the end of event-driven runs, seed by seed."""


def build_frontier(path: Path, tables: Mapping[str, Any], size: Size, seeds: int | None) -> Frontier:
    """Return the frontier of a file's tables: see `_read_settings`."""
    frontier = Frontier(path.stem, *_read_settings(FrontierTable, path, tables, size, seeds, _check_frontier))
    table = frontier.table
    with within(FIGURE):
        _check_names("leaders", table.leaders, frontier.strategies)
        _check_names("ceilings", table.ceilings, frontier.strategies)
        if both := set(table.leaders) & set(table.ceilings):
            raise InputError("ceilings", ", ".join(both), "strategies that are not among the leaders")
    return frontier


def build_controls(path: Path, tables: Mapping[str, Any], size: Size, seeds: int | None) -> Controls:
    """Return the strategy and its controls of a file's tables: see `_read_settings`."""
    figure = Controls(path.stem, *_read_settings(ControlsTable, path, tables, size, seeds, end_of))
    table = figure.table
    with within(FIGURE):
        _check_names("leader", [table.leader], figure.strategies)
        _check_names("controls", table.controls, figure.strategies)
        if table.leader in table.controls:
            raise InputError("controls", f"'{table.leader}'", "strategies other than the leader")
        for key in ("common", "shuffled"):
            _check_names(key, filter(None, [getattr(table, key)]), table.controls)
        for one in figure.settings:
            if table.leader not in one.experiment.strategies:
                given, allowed = ", ".join(one.experiment.strategies), f"{table.leader}, too: it is the leader"
                raise InputError(f"settings.{one.name}.strategies", given, allowed)
    return figure


def _read_settings(
    kind: type[TableT],
    path: Path,
    tables: Mapping[str, Any],
    size: Size,
    seeds: int | None,
    check: Callable[[Experiment], object],
) -> tuple[TableT, tuple[FigureSetting, ...]]:
    """Return the table [figure], which is of this kind, and the settings of a file's tables.

    `seeds` is the number of seeds, counted from the file's first one, because parameters may have been chosen on the
    seeds before it. Default: those of the file. `check` raises `InputError` for an experiment that cannot be a setting.
    Raises `InputError` for whatever is wrong with the tables.
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
            _check_names("without", one.without, experiment.strategies)
            strategies = {key: value for key, value in experiment.strategies.items() if key not in one.without}
            experiment = experiment.model_copy(update={"strategies": strategies})
            check(experiment)
        settings.append(FigureSetting(name, one.title, experiment))
    return table, tuple(settings)


def merged(tables: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `tables` with `changes`, merged table by table. A table of another `kind` replaces the old one."""
    result = dict(tables)
    for key, change in changes.items():
        before = result.get(key)
        both = isinstance(before, Mapping) and isinstance(change, Mapping)
        if both and change.get("kind", before.get("kind")) == before.get("kind"):  # type: ignore[union-attr]
            result[key] = merged(before, change)  # type: ignore[arg-type]
        else:
            result[key] = change
    return result


def _check_names(key: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise `InputError` unless all of these are names of strategies."""
    for name in names:
        if name not in set(known):
            raise InputError(key, f"'{name}'{did_you_mean(name, list(known))}", ", ".join(known))


def require_zt(experiment: Experiment) -> None:
    """Raise `InputError` unless ZT is among the strategies."""
    if "ZT" not in experiment.strategies:
        raise InputError("strategies", ", ".join(experiment.strategies), "ZT, too: its total measures budgets")


def _check_frontier(experiment: Experiment) -> None:
    require_lockstep(experiment, "a frontier")
    require_zt(experiment)


def end_of(experiment: Experiment) -> float:
    """Return the virtual second at which the runs of a setting end. Raises `InputError` if there is none."""
    driver = experiment.driver
    if not isinstance(driver, EventDriven):
        allowed = f"{EVENT_DRIVEN.driver}; controls are compared after a number of virtual seconds"
        raise InputError("driver", driver_of(experiment), allowed)
    if driver.seconds is None:
        raise InputError("driver.seconds", "none", "the virtual second at which all runs of the setting end")
    return driver.seconds
