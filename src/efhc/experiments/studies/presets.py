"""The figures of the paper as config files: src/efhc/presets/NAME.toml, or a file of your own in the same form.

The file of a figure is an experiment, which gives panels (i)-(iii) and which `efhc run` accepts as it is. A table
[sweep] over the radius adds panel (iv), and a table [figure] holds the number, the title and what --quick changes.
A table [figure] with a `kind` makes a figure of several settings (settings_figures.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from efhc.base.errors import InputError, did_you_mean, within
from efhc.base.policy import Policy, as_input_error
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import (
    FIGURE,
    LOG,
    SWEEP,
    build_experiment,
    figure_names,
    only_experiment,
    read_tables,
    with_overrides,
)
from efhc.experiments.runs.driver_tables import require_lockstep
from efhc.experiments.studies.settings_figures import (
    Controls,
    FigureSpec,
    Frontier,
    Size,
    build_controls,
    build_frontier,
    merged,
    require_zt,
)
from efhc.experiments.studies.sweep import SweepPoint, sweep_points

RADIUS = "network.radius"
A_FIGURE = "a figure of the paper"
OTHERS: Mapping[str, Callable[[Path, Mapping[str, Any], Size, int | None], Frontier | Controls]] = {
    "frontier": build_frontier,
    "controls": build_controls,
}
"""How figures that are not in the paper's form are made of their tables, by kind."""


class FigureTable(Policy):
    """The table [figure] of a figure's file."""

    number: str
    """The number that the paper prints: 2(a)."""
    label: str = ""
    """The label in the paper's LaTeX source. It is not shown to readers."""
    title: str
    varies: str | None = None
    """In an ablation, the numeric setting in which the strategies differ."""
    core_hours: float | None = Field(default=None, gt=0)
    """The cost of --full in hours of one core; docs/reproduction.md says how it was measured."""
    quick: dict[str, Any] = Field(default_factory=dict)
    """The settings that --quick changes."""


@dataclass(frozen=True)
class PaperFigure(FigureSpec):
    """A figure of the paper."""

    table: FigureTable
    experiment: Experiment
    """Panels (i)-(iii)."""
    connectivity: list[SweepPoint]
    """Panel (iv): one point per radius."""

    @property
    def parts(self) -> list[tuple[str, Experiment]]:
        """Panels (i)-(iii), which have no name, and each radius of panel (iv)."""
        return [("", self.experiment), *((f"radius={radius_of(one):g}", one.experiment) for one in self.connectivity)]

    @property
    def varied(self) -> dict[str, float]:
        """In an ablation, the value of each strategy that has the varied setting."""
        if self.table.varies is None:
            return {}
        values = {name: getattr(s, self.table.varies, None) for name, s in self.experiment.strategies.items()}
        return {name: float(value) for name, value in values.items() if value is not None}


def radius_of(point: SweepPoint) -> float:
    """Return the radius at a point of panel (iv)."""
    return float(point.settings[RADIUS])


def paper_figures() -> list[str]:
    """Return the names of the paper's figures, in the paper's order."""
    return [name for name in figure_names() if _kind(read_tables(name)) is None]


def other_figures() -> list[str]:
    """Return the names of the figures beside the paper's that ship with efhc. They are made only if they are named."""
    return [name for name in figure_names() if _kind(read_tables(name)) is not None]


def _kind(tables: Mapping[str, Any]) -> str | None:
    """Return one of the kinds of `OTHERS`, or None if these are the tables of a figure in the paper's form."""
    figure = tables.get(FIGURE)
    kind = figure.get("kind") if isinstance(figure, Mapping) else None
    return kind if isinstance(kind, str) and kind in OTHERS else None


def load_figure(
    name: str,
    size: Size = "quick",
    seeds: int | None = None,
    radii: Sequence[float] = (),
    log: Sequence[str] | None = None,
) -> PaperFigure | Frontier | Controls:
    """Load a figure by name, or one of your own by its file.

    If `seeds` is given, the seeds of a figure of the paper are 0 .. `seeds`-1 instead of those of the file, and other
    figures have `seeds` seeds from the file's first one on. If `radii` are given, panel (iv) has these instead of those
    of the file. Raises `InputError` if the figure has no panel (iv) then. If `log` is given, runs are logged there
    instead of where the file says.
    """
    known, path = figure_names(), Path(name)
    if name not in known and path.suffix != ".toml":
        allowed = f"{', '.join(known)}, all, list, or a file of your own that ends in .toml"
        raise InputError("figure", f"'{name}'{did_you_mean(name, known)}", allowed)
    tables = read_tables(name)
    if log:
        tables = with_overrides(tables, [f"{LOG}={json.dumps(list(log))}"])
    kind = _kind(tables)
    if radii and (kind or SWEEP not in tables):
        raise InputError(
            "--radius", f"a radius with {path.stem}, which has no panel (iv)", "a figure that has one, or no radius"
        )
    if kind:
        return OTHERS[kind](path, tables, size, seeds)
    return _build_paper_figure(path, tables, size, seeds, radii)


def _build_paper_figure(
    path: Path, tables: dict[str, Any], size: Size, seeds: int | None, radii: Sequence[float]
) -> PaperFigure:
    try:
        table = FigureTable.model_validate(tables.get(FIGURE, {}))
    except ValidationError as error:
        require_lockstep(build_experiment(only_experiment(tables), path.parent), A_FIGURE)
        if FIGURE not in tables:
            problem = f"{path} has no table [figure]. To run it as an experiment: efhc run {path}"
            raise InputError(FIGURE, path, "a file with a table [figure]", problem) from None
        with within(FIGURE):
            raise as_input_error(error, FigureTable) from None
    if size == "quick":
        tables = merged(tables, table.quick)
    if radii:
        tables = merged(tables, {SWEEP: {"network": {"radius": list(radii)}}})
    base = only_experiment(tables) | ({} if seeds is None else {"seeds": list(range(seeds))})
    points = sweep_points(base, tables[SWEEP], path.parent) if SWEEP in tables else []
    if any(RADIUS not in point.settings for point in points):
        raise InputError(SWEEP, f"a sweep without {RADIUS}", f"a sweep over {RADIUS}, for panel (iv)")
    figure = PaperFigure(path.stem, table, build_experiment(base, path.parent), points)
    for experiment in figure.experiments:
        require_lockstep(experiment, A_FIGURE)
    require_zt(figure.experiment)
    _check_varied(figure)
    return figure


def _check_varied(figure: PaperFigure) -> None:
    setting = figure.table.varies
    if setting is None:
        return
    values = [getattr(strategy, setting, None) for strategy in figure.experiment.strategies.values()]
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if not numbers or len(numbers) < sum(value is not None for value in values):
        raise InputError("figure.varies", f"'{setting}'", "a setting of the strategies that is a number, such as r")
