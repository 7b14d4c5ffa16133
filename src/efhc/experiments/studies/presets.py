"""The figures of the paper as config files: src/efhc/presets/NAME.toml, or a file of your own in the same form.

A figure's file is an experiment, panels (i)-(iii), which `efhc run` runs as it is; with a table [sweep] over the
radius, panel (iv); and a table [figure], which says what to call it and what --quick makes smaller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from efhc.base.errors import InputError, did_you_mean, within
from efhc.base.policy import Policy
from efhc.base.problems import as_input_error
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import FIGURE, SWEEP, build_experiment, figure_names, only_experiment, read_tables
from efhc.experiments.studies.sweep import Point, sweep_points

Size = Literal["quick", "full"]
RADIUS = "network.radius"


class FigureTable(Policy):
    """The table [figure] of a file."""

    number: str
    """As the paper prints it: 2(a)."""
    label: str = ""
    """The label in the paper's LaTeX."""
    title: str
    varies: str | None = None
    """In an ablation, the setting in which its strategies differ."""
    core_hours: float | None = Field(default=None, gt=0)
    """What --full takes, in hours of one core; docs/reproduction.md says how this was found."""
    quick: dict[str, Any] = Field(default_factory=dict)
    """Tables that --quick changes."""


@dataclass(frozen=True)
class PaperFigure:
    """A figure at one size."""

    name: str
    table: FigureTable
    experiment: Experiment
    """Panels (i)-(iii)."""
    connectivity: list[Point]
    """Panel (iv): one point per radius."""

    @property
    def varied(self) -> dict[str, float]:
        """In an ablation, the value of each strategy that has one."""
        if self.table.varies is None:
            return {}
        values = {name: getattr(s, self.table.varies, None) for name, s in self.experiment.strategies.items()}
        return {name: float(value) for name, value in values.items() if value is not None}

    @property
    def runs(self) -> int:
        """How many runs it is made of, those that panels share counted twice."""
        experiments = [self.experiment, *(point.experiment for point in self.connectivity)]
        return sum(len(experiment.seeds) * len(experiment.strategies) for experiment in experiments)


def load_figure(name: str, size: Size = "quick", seeds: int | None = None) -> PaperFigure:
    """A figure of the paper by its name, or of your own by its file; with seeds 0 .. `seeds`-1 instead of its own."""
    known, path = figure_names(), Path(name)
    if name not in known and path.suffix != ".toml":
        allowed = f"{', '.join(known)}, all, list, or a file of your own that ends in .toml"
        raise InputError("figure", f"'{name}'{did_you_mean(name, known)}", allowed)
    tables = read_tables(name)
    try:
        table = FigureTable.model_validate(tables.get(FIGURE, {}))
    except ValidationError as error:
        with within(FIGURE):
            raise as_input_error(error, FigureTable) from None
    if size == "quick":
        tables = _merged(tables, table.quick)
    base = only_experiment(tables) | ({} if seeds is None else {"seeds": list(range(seeds))})
    points = sweep_points(base, tables[SWEEP], path.parent) if SWEEP in tables else []
    figure = PaperFigure(path.stem, table, build_experiment(base, path.parent), points)
    if "ZT" not in figure.experiment.strategies:
        raise InputError("strategies", ", ".join(figure.experiment.strategies), "also ZT: its total measures budgets")
    if any(RADIUS not in point.settings for point in points):
        raise InputError(SWEEP, f"no {RADIUS}", f"a sweep over {RADIUS}, for panel (iv)")
    return figure


def _merged(tables: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`tables` with `changes`, table by table."""
    merged = dict(tables)
    for key, change in changes.items():
        before = merged.get(key)
        both = isinstance(before, Mapping) and isinstance(change, Mapping)
        merged[key] = _merged(before, change) if both else change  # type: ignore[arg-type]
    return merged
