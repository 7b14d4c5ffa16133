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
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from efhc.base.errors import InputError, did_you_mean, within
from efhc.base.policy import Policy, as_input_error
from efhc.drivers.settings import EventDriven
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import (
    FIGURE,
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
Size = Literal["quick", "full"]


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
    """Strategies that are drawn as references and are not compared, such as training without a network."""
    judged_from: float = Field(default=0.005, gt=0, le=1)
    """The smallest share of ZT's time at which leading is judged. Smaller budgets are shown, and none is judged that is
    smaller than what ZT takes between two evaluations or, with evaluate_at = "budgets", than the smallest of them."""


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


TABLES: Mapping[object, type[FrontierTable | ControlsTable]] = {"frontier": FrontierTable, "controls": ControlsTable}
"""The tables of figures of several settings, by `kind`. A figure of the paper has none."""


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
    arguments: tuple[str, ...] = ()
    """What `efhc reproduce` was given for it: its name or file, and radii."""

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
    overrides: Iterable[str] = (),
) -> Figure:
    """Load a figure by name, or one of your own by its file.

    If `seeds` is given, there are `seeds` seeds from the file's first one on, because parameters may have been chosen
    on the seeds before it. If `radii` are given, panel (iv) has these instead of those of the file. Raises `InputError`
    if the figure has no panel (iv) then, and for whatever is wrong with its file.
    """
    known, path = figure_names(), Path(name)
    if name not in known and path.suffix != ".toml":
        allowed = f"{', '.join(known)}, all, list, or a file of your own that ends in .toml"
        raise InputError("figure", f"'{name}'{did_you_mean(name, known)}", allowed)
    tables = with_overrides(read_tables(name), overrides)
    if FIGURE not in tables:
        problem = f"{path} has no table [figure]. To run it as an experiment: efhc run {shlex.quote(str(path))}"
        raise InputError(FIGURE, path, "a file with a table [figure]", problem)
    given = tables[FIGURE]
    kind = TABLES.get(given.get("kind"), PaperTable) if isinstance(given, Mapping) else PaperTable
    if radii and (SWEEP not in tables or kind is not PaperTable):
        with_radius = f"a radius with {path.stem}, which has no panel (iv)"
        raise InputError("--radius", with_radius, "a figure that has one, or no radius")
    try:
        table = kind.model_validate(given)
    except ValidationError as error:
        with within(FIGURE):
            raise as_input_error(error, kind) from None
    if size == "quick":
        tables = merged(tables, table.quick)
    if radii:
        tables = merged(tables, {SWEEP: {"network": {"radius": list(radii)}}})
    base, folder = only_experiment(tables), path.parent
    arguments = (name, *(word for radius in radii for word in ("--radius", str(radius))))
    first = build_experiment(base, folder).seeds[0]
    if seeds is not None:
        base["seeds"] = list(range(first, first + seeds))
    if isinstance(table, PaperTable):
        figure = Figure(path.stem, table, tuple(_panels(table, base, tables.get(SWEEP), folder)), arguments)
        varied_values(table, figure.experiment)
    else:
        figure = Figure(path.stem, table, tuple(_settings(table, base, size, folder)), arguments)
        with within(FIGURE):
            _check_table(table, figure.strategies)
    for part in figure.parts:
        with within(f"{FIGURE}.settings.{part.name}") if isinstance(table, SettingsTable) else nullcontext():
            _check_part(table, part.experiment)
    return figure


def _panels(table: PaperTable, base: Mapping[str, Any], sweep: Any, folder: Path) -> Iterator[FigurePart]:
    """Yield panels (i)-(iii), and each radius of panel (iv)."""
    yield FigurePart("", table.title, build_experiment(base, folder))
    for point in [] if sweep is None else sweep_points(base, sweep, folder):
        if RADIUS not in point.settings:
            raise InputError(SWEEP, f"a sweep without {RADIUS}", f"a sweep over {RADIUS}, for panel (iv)")
        radius = float(point.settings[RADIUS])
        yield FigurePart(f"radius={radius:g}", table.title, point.experiment, radius)


def _settings(table: SettingsTable, base: Mapping[str, Any], size: Size, folder: Path) -> list[FigurePart]:
    """Return a part per setting that this size has."""
    parts = []
    for name, one in table.settings.items():
        if size == "quick" and not one.in_quick:
            continue
        with within(f"{FIGURE}.settings.{name}"):
            experiment = build_experiment(merged(base, one.changes), folder)
            _check_names("without", one.without, experiment.strategies)
        strategies = {key: value for key, value in experiment.strategies.items() if key not in one.without}
        parts.append(FigurePart(name, one.title, experiment.model_copy(update={"strategies": strategies})))
    if not parts:
        raise InputError(f"{FIGURE}.settings", "in_quick = false in all of them", "one that --quick has")
    return parts


def _check_table(table: FrontierTable | ControlsTable, known: Sequence[str]) -> None:
    """Raise `InputError` unless the table names strategies that are `known`, each in one role."""
    if isinstance(table, FrontierTable):
        _check_names("leaders", table.leaders, known)
        _check_names("ceilings", table.ceilings, known)
        if both := set(table.leaders) & set(table.ceilings):
            raise InputError("ceilings", ", ".join(both), "strategies that are not among the leaders")
        return
    _check_names("leader", [table.leader], known)
    _check_names("controls", table.controls, known)
    if table.leader in table.controls:
        raise InputError("controls", f"'{table.leader}'", "strategies other than the leader")
    for key in ("common", "shuffled"):
        _check_names(key, filter(None, [getattr(table, key)]), table.controls)


def _check_part(table: FigureTable, experiment: Experiment) -> None:
    """Raise `InputError` unless an experiment can be a part of a figure with this table."""
    if isinstance(table, ControlsTable):
        end_of(experiment)
        needed, why = table.leader, "it is the leader"
    else:
        require_lockstep(experiment, "a figure of the paper" if isinstance(table, PaperTable) else "a frontier")
        if experiment.early_stopping is not None:
            problem = "a figure with budgets needs runs of full length: ZT's total measures budgets. Remove it."
            raise InputError("early_stopping", experiment.early_stopping, "no value", problem)
        needed, why = "ZT", "its total measures budgets"
    if needed not in experiment.strategies:
        raise InputError("strategies", ", ".join(experiment.strategies), f"{needed}, too: {why}")


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


def end_of(experiment: Experiment) -> float:
    """Return the virtual second at which the runs of a setting end. Raises `InputError` if there is none."""
    driver = experiment.driver
    if not isinstance(driver, EventDriven):
        allowed = f"{EVENT_DRIVEN.driver}; controls are compared after a number of virtual seconds"
        raise InputError("driver", driver_of(experiment), allowed)
    if driver.seconds is None:
        raise InputError("driver.seconds", "none", "the virtual second at which all runs of the setting end")
    return driver.seconds
