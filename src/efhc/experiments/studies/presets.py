"""The figures of the paper as config files: src/efhc/presets/NAME.toml, or a file of your own in the same form.

The file of a figure is an experiment, which gives panels (i)-(iii) and which `efhc run` accepts as it is. A table
[sweep] over the radius adds panel (iv), and a table [figure] holds the number, the title and what --quick changes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from efhc.base.errors import InputError, did_you_mean, within
from efhc.base.policy import Policy
from efhc.base.problems import as_input_error
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import (
    FIGURE,
    SWEEP,
    build_experiment,
    figure_names,
    only_experiment,
    read_tables,
    to_tables,
)
from efhc.experiments.runs.tables import require_lockstep
from efhc.experiments.studies.sweep import Point, sweep_points

Size = Literal["quick", "full"]
RADIUS = "network.radius"
A_FIGURE = "a figure of the paper"


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
class PaperFigure:
    """A figure of the paper at one size, --quick or --full."""

    name: str
    table: FigureTable
    experiment: Experiment
    """Panels (i)-(iii)."""
    connectivity: list[Point]
    """Panel (iv): one point per radius."""

    @property
    def varied(self) -> dict[str, float]:
        """In an ablation, the value of each strategy that has the varied setting."""
        if self.table.varies is None:
            return {}
        values = {name: getattr(s, self.table.varies, None) for name, s in self.experiment.strategies.items()}
        return {name: float(value) for name, value in values.items() if value is not None}

    @property
    def runs(self) -> int:
        """The number of distinct runs; panels share the runs that have the same settings."""
        distinct = set()
        for experiment in [self.experiment, *(point.experiment for point in self.connectivity)]:
            tables = to_tables(experiment)
            strategies = [json.dumps(one, sort_keys=True) for one in tables["strategies"].values()]
            rest = json.dumps({**tables, "name": "", "seeds": [], "strategies": {}}, sort_keys=True, default=str)
            distinct |= {(rest, strategy, seed) for strategy in strategies for seed in experiment.seeds}
        return len(distinct)


def load_figure(name: str, size: Size = "quick", seeds: int | None = None) -> PaperFigure:
    """Load a figure of the paper by name, or a figure of your own by its file.

    If `seeds` is given, the seeds are 0 .. `seeds`-1 instead of those of the file.
    """
    known, path = figure_names(), Path(name)
    if name not in known and path.suffix != ".toml":
        allowed = f"{', '.join(known)}, all, list, or a file of your own that ends in .toml"
        raise InputError("figure", f"'{name}'{did_you_mean(name, known)}", allowed)
    tables = read_tables(name)
    try:
        table = FigureTable.model_validate(tables.get(FIGURE, {}))
    except ValidationError as error:
        require_lockstep(build_experiment(only_experiment(tables), path.parent), A_FIGURE)
        with within(FIGURE):
            raise as_input_error(error, FigureTable) from None
    if size == "quick":
        tables = _merged(tables, table.quick)
    base = only_experiment(tables) | ({} if seeds is None else {"seeds": list(range(seeds))})
    points = sweep_points(base, tables[SWEEP], path.parent) if SWEEP in tables else []
    figure = PaperFigure(path.stem, table, build_experiment(base, path.parent), points)
    for experiment in (figure.experiment, *(point.experiment for point in points)):
        require_lockstep(experiment, A_FIGURE)
    if "ZT" not in figure.experiment.strategies:
        raise InputError("strategies", ", ".join(figure.experiment.strategies), "also ZT: its total measures budgets")
    _check_varied(figure)
    if any(RADIUS not in point.settings for point in points):
        raise InputError(SWEEP, f"no {RADIUS}", f"a sweep over {RADIUS}, for panel (iv)")
    return figure


def _check_varied(figure: PaperFigure) -> None:
    setting = figure.table.varies
    if setting is None:
        return
    values = [getattr(strategy, setting, None) for strategy in figure.experiment.strategies.values()]
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if not numbers or len(numbers) < sum(value is not None for value in values):
        raise InputError("figure.varies", f"'{setting}'", "a setting of the strategies that is a number, such as r")


def _merged(tables: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `tables` with `changes`, merged table by table."""
    merged = dict(tables)
    for key, change in changes.items():
        before = merged.get(key)
        both = isinstance(before, Mapping) and isinstance(change, Mapping)
        merged[key] = _merged(before, change) if both else change  # type: ignore[arg-type]
    return merged
