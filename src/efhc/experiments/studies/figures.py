"""Figures as config files: src/efhc/presets/NAME.toml, or a file of your own in the same form.

The file of a figure is an experiment, which `efhc run` accepts as it is, with a table [figure]. There are three kinds:

a figure of the paper   [figure] has no `kind`. The experiment gives panels (i)-(iii), and a table [sweep] over the
                        radius adds panel (iv).
kind = "frontier"       accuracy against the share of ZT's transmission time that was spent, in several settings
kind = "controls"       a strategy and its controls: which is more accurate at the end of event-driven runs

Every table [figure.settings.NAME] of a frontier or of controls is a panel: the experiment with a few changes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError

from efhc.base.errors import InputError, did_you_mean, within
from efhc.base.policy import Policy, as_input_error
from efhc.drivers.event_driven.settings import EventDriven
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import (
    FIGURE,
    LOG,
    SWEEP,
    build_experiment,
    figure_names,
    only_experiment,
    read_tables,
    to_tables,
    with_overrides,
)
from efhc.experiments.runs.tables import EVENT_DRIVEN, driver_of, require_lockstep
from efhc.experiments.studies.sweep import sweep_points

RADIUS = "network.radius"
A_FIGURE = "a figure of the paper"
Size = Literal["quick", "full"]

TableT = TypeVar("TableT", bound=Policy)


class FigureTable(Policy):
    """What every table [figure] has."""

    title: str
    core_hours: float | None = Field(default=None, gt=0)
    """The cost of --full in hours of one core; docs/reproduction.md says how it was measured."""
    quick: dict[str, Any] = Field(default_factory=dict)
    """The settings of the experiment that --quick changes."""


class PaperTable(FigureTable):
    """The table [figure] of a figure of the paper."""

    number: str
    """The number that the paper prints: 2(a)."""
    label: str = ""
    """The label in the paper's LaTeX source. It is not shown to readers."""
    varies: str | None = None
    """In an ablation, the numeric setting in which the strategies differ."""


class SettingTable(Policy):
    """A table [figure.settings.NAME]: one setting in which all strategies are compared."""

    title: str
    changes: dict[str, Any] = Field(default_factory=dict)
    """What differs from the file's experiment, merged table by table. Default: nothing."""
    without: tuple[str, ...] = Field(default=(), strict=False)
    """The strategies that are left out in this setting."""
    in_quick: bool = True
    """Whether --quick has this setting."""


class SettingsTable(FigureTable):
    """The table [figure] of a file with settings."""

    tuned: str = ""
    """How the parameters of the strategies were chosen: with which commands, on which seeds."""
    settings: dict[str, SettingTable] = Field(min_length=1)
    """The panels, by name."""


class FrontierTable(SettingsTable):
    """The table [figure] of a frontier."""

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
    """The table [figure] of a strategy and its controls."""

    kind: Literal["controls"]
    leader: str
    """The strategy that is compared with its controls."""
    controls: dict[str, str] = Field(min_length=1)
    """By name of a strategy: what it is a control for, in one sentence."""
    common: str | None = None
    """The control in which all devices do the same, whatever their bandwidth."""
    shuffled: str | None = None
    """The control in which every device goes by the bandwidth of another one."""


@dataclass(frozen=True)
class FigurePart:
    """One experiment of a figure: panels (i)-(iii), a radius of panel (iv), or a setting."""

    name: str
    """Its name within the figure. Panels (i)-(iii) have none."""
    title: str
    experiment: Experiment
    radius: float | None = None
    """The radius of panel (iv)."""


@dataclass(frozen=True)
class Figure:
    """A figure at one size, --quick or --full."""

    name: str
    table: PaperTable | FrontierTable | ControlsTable
    parts: tuple[FigurePart, ...]
    """For a figure of the paper: panels (i)-(iii), then the radii of panel (iv)."""

    @property
    def experiment(self) -> Experiment:
        """The experiment of the first part."""
        return self.parts[0].experiment

    @property
    def experiments(self) -> list[Experiment]:
        """The experiment of each part."""
        return [part.experiment for part in self.parts]

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


def paper_figures() -> list[str]:
    """Return the names of the paper's figures, in the paper's order."""
    return [name for name in figure_names() if "kind" not in read_tables(name)[FIGURE]]


def other_figures() -> list[str]:
    """Return the names of the figures beside the paper's that ship with efhc. They are made only if they are named."""
    return [name for name in figure_names() if "kind" in read_tables(name)[FIGURE]]


def load_figure(
    name: str,
    size: Size = "quick",
    seeds: int | None = None,
    radii: Sequence[float] = (),
    log: Sequence[str] | None = None,
) -> Figure:
    """Load a figure by name, or one of your own by its file.

    If `seeds` is given, the seeds of a figure of the paper are 0 .. `seeds`-1 instead of those of the file, and other
    figures have `seeds` seeds from the file's first one on, because parameters may have been chosen on the seeds before
    it. If `radii` are given, panel (iv) has these instead of those of the file. Raises `InputError` if the figure has
    no panel (iv) then, and for whatever is wrong with its file. If `log` is given, runs are logged there instead of
    where the file says.
    """
    known, path = figure_names(), Path(name)
    if name not in known and path.suffix != ".toml":
        allowed = f"{', '.join(known)}, all, list, or a file of your own that ends in .toml"
        raise InputError("figure", f"'{name}'{did_you_mean(name, known)}", allowed)
    tables = read_tables(name)
    if log:
        tables = with_overrides(tables, [f"{LOG}={json.dumps(list(log))}"])
    given = tables.get(FIGURE)
    kind = str(given.get("kind")) if isinstance(given, Mapping) else ""
    if radii and (SWEEP not in tables or kind in ("frontier", "controls")):
        given = f"a radius with {path.stem}, which has no panel (iv)"
        raise InputError("--radius", given, "a figure that has one, or no radius")
    if kind == "frontier":
        return _load_frontier(path, tables, size, seeds)
    if kind == "controls":
        return _load_controls(path, tables, size, seeds)
    return _load_paper_figure(path, tables, size, seeds, radii)


def _read_table(kind: type[TableT], tables: Mapping[str, Any]) -> TableT:
    try:
        return kind.model_validate(tables[FIGURE])
    except ValidationError as error:
        with within(FIGURE):
            raise as_input_error(error, kind) from None


def _load_paper_figure(
    path: Path, tables: dict[str, Any], size: Size, seeds: int | None, radii: Sequence[float]
) -> Figure:
    if FIGURE not in tables:
        require_lockstep(build_experiment(only_experiment(tables), path.parent), A_FIGURE)
        problem = f"{path} has no table [figure]. To run it as an experiment: efhc run {path}"
        raise InputError(FIGURE, path, "a file with a table [figure]", problem)
    table = _read_table(PaperTable, tables)
    if size == "quick":
        tables = merged(tables, table.quick)
    if radii:
        tables = merged(tables, {SWEEP: {"network": {"radius": list(radii)}}})
    base = only_experiment(tables) | ({} if seeds is None else {"seeds": list(range(seeds))})
    parts = [FigurePart("", table.title, build_experiment(base, path.parent))]
    for point in sweep_points(base, tables[SWEEP], path.parent) if SWEEP in tables else ():
        if RADIUS not in point.settings:
            raise InputError(SWEEP, f"a sweep without {RADIUS}", f"a sweep over {RADIUS}, for panel (iv)")
        radius = float(point.settings[RADIUS])
        parts.append(FigurePart(f"radius={radius:g}", table.title, point.experiment, radius))
    figure = Figure(path.stem, table, tuple(parts))
    for experiment in figure.experiments:
        require_lockstep(experiment, A_FIGURE)
    _require_zt(figure.experiment)
    varied_values(table, figure.experiment)
    return figure


def varied_values(table: PaperTable, experiment: Experiment) -> dict[str, float]:
    """Return, in an ablation, the value of each strategy that has the varied setting; else nothing.

    Raises `InputError` if that setting is no number.
    """
    setting = table.varies
    if setting is None:
        return {}
    values = {name: getattr(one, setting, None) for name, one in experiment.strategies.items()}
    given = {name: value for name, value in values.items() if value is not None}
    if not given or any(not isinstance(value, int | float) or isinstance(value, bool) for value in given.values()):
        raise InputError("figure.varies", f"'{setting}'", "a setting of the strategies that is a number, such as r")
    return {name: float(value) for name, value in given.items()}


def _load_frontier(path: Path, tables: Mapping[str, Any], size: Size, seeds: int | None) -> Figure:
    table = _read_table(FrontierTable, tables)
    figure = Figure(path.stem, table, _read_settings(table, path, tables, size, seeds))
    for part in figure.parts:
        with within(f"{FIGURE}.settings.{part.name}"):
            require_lockstep(part.experiment, "a frontier")
            _require_zt(part.experiment)
    with within(FIGURE):
        _check_names("leaders", table.leaders, figure.strategies)
        _check_names("ceilings", table.ceilings, figure.strategies)
        if both := set(table.leaders) & set(table.ceilings):
            raise InputError("ceilings", ", ".join(both), "strategies that are not among the leaders")
    return figure


def _load_controls(path: Path, tables: Mapping[str, Any], size: Size, seeds: int | None) -> Figure:
    table = _read_table(ControlsTable, tables)
    figure = Figure(path.stem, table, _read_settings(table, path, tables, size, seeds))
    with within(FIGURE):
        _check_names("leader", [table.leader], figure.strategies)
        _check_names("controls", table.controls, figure.strategies)
        if table.leader in table.controls:
            raise InputError("controls", f"'{table.leader}'", "strategies other than the leader")
        for key in ("common", "shuffled"):
            _check_names(key, filter(None, [getattr(table, key)]), table.controls)
    for part in figure.parts:
        with within(f"{FIGURE}.settings.{part.name}"):
            end_of(part.experiment)
            if table.leader not in part.experiment.strategies:
                given, allowed = ", ".join(part.experiment.strategies), f"{table.leader}, too: it is the leader"
                raise InputError("strategies", given, allowed)
    return figure


def _read_settings(
    table: SettingsTable, path: Path, tables: Mapping[str, Any], size: Size, seeds: int | None
) -> tuple[FigurePart, ...]:
    """Return a part per setting that this size has."""
    base = only_experiment(tables)
    if size == "quick":
        base = merged(base, table.quick)
    first = build_experiment(base, path.parent).seeds[0]
    if seeds is not None:
        base["seeds"] = list(range(first, first + seeds))
    parts = []
    for name, one in table.settings.items():
        if size == "quick" and not one.in_quick:
            continue
        with within(f"{FIGURE}.settings.{name}"):
            experiment = build_experiment(merged(base, one.changes), path.parent)
            _check_names("without", one.without, experiment.strategies)
        strategies = {key: value for key, value in experiment.strategies.items() if key not in one.without}
        parts.append(FigurePart(name, one.title, experiment.model_copy(update={"strategies": strategies})))
    if not parts:
        raise InputError(f"{FIGURE}.settings", "in_quick = false in all of them", "one that --quick has")
    return tuple(parts)


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


def _require_zt(experiment: Experiment) -> None:
    if "ZT" not in experiment.strategies:
        raise InputError("strategies", ", ".join(experiment.strategies), "ZT, too: its total measures budgets")


def end_of(experiment: Experiment) -> float:
    """Return the virtual second at which the runs of a setting end. Raises `InputError` if there is none."""
    driver = experiment.driver
    if not isinstance(driver, EventDriven):
        allowed = f"{EVENT_DRIVEN.driver}; controls are compared after a number of virtual seconds"
        raise InputError("driver", driver_of(experiment), allowed)
    if driver.seconds is None:
        raise InputError("driver.seconds", "none", "the virtual second at which all runs of the setting end")
    return driver.seconds
