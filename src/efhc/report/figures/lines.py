"""Lines of strategies over seeds: what figures share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from efhc.base.arrays import Floats
from efhc.report.looks import strategy_styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis


@dataclass(frozen=True)
class Line:
    """How a strategy is drawn."""

    color: str
    dash: str = "-"
    """A dash pattern of matplotlib: `-`, `--`, `-.` or `:`."""
    width: float = 1.6
    reference: bool = False
    """Whether the line is drawn thin and behind the others, without its interval."""
    is_ceiling: bool = False
    """Whether the line competes with no other."""

    @property
    def look(self) -> dict[str, Any]:
        """The arguments of matplotlib."""
        return {"color": self.color, "linestyle": self.dash, "linewidth": self.width}


def draw_mean(axes: Axes, rows: pl.DataFrame, x: str, line: Line, **more: Any) -> None:
    """Draw the mean of a strategy against column `x`."""
    axes.plot(rows[x], rows["mean"], **line.look, zorder=1.9 if line.reference else 3, **more)


def shade_band(axes: Axes, rows: pl.DataFrame, x: str, line: Line) -> None:
    """Shade the interval of a strategy unless it is a reference. Edges tell overlapping bands apart."""
    if line.reference:
        return
    shaded = rows.fill_nan(None).drop_nulls(["low", "high"])  # with a single seed there is no interval
    face, edge = (line.color, 0.12), (line.color, 0.45)
    axes.fill_between(shaded[x], shaded["low"], shaded["high"], facecolor=face, edgecolor=edge, linewidth=0.5)


def label(axes: Axes, title: str, x: str, y: str) -> None:
    """Write the title of a panel and the names of its axes."""
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def plain_numbers(axis: Axis) -> None:
    """Write large numbers as 20,000 rather than in powers of ten, and few of them, so that they do not overlap."""
    axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    if axis.get_view_interval()[1] >= 1000:
        axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def by_strategy(table: pl.DataFrame) -> list[tuple[str, pl.DataFrame, dict[str, Any]]]:
    """Return the name, the rows and the look of each strategy."""
    named = table.partition_by("strategy", as_dict=True, maintain_order=True).items()
    styles = strategy_styles(str(name) for (name,), _ in named)
    return [
        (str(name), rows, dict(zip(("color", "linestyle"), styles[str(name)], strict=True))) for (name,), rows in named
    ]


def draw_seeds(axes: Axes, x: Floats, per_seed: Floats, name: str, style: dict[str, Any]) -> None:
    """Draw the mean over seeds (axis 0), with the range between seeds shaded."""
    axes.plot(x, per_seed.mean(axis=0), label=name, **style)
    axes.fill_between(x, per_seed.min(axis=0), per_seed.max(axis=0), color=style["color"], alpha=0.15, linewidth=0)


def draw_against(axes: Axes, table: pl.DataFrame, x: str, y: str, *, log: bool = False) -> None:
    """Draw a line per strategy of column `y` against column `x`, which grows from row to row of each seed.

    Each seed's curve is interpolated at the same places, up to the last that all seeds of the strategy reached. With
    `log`, the axis of x is logarithmic, and a curve begins where all seeds are above 0.
    """
    if log:
        axes.set_xscale("log")
    for name, rows, style in by_strategy(table.drop_nulls(y)):
        seeds = rows.partition_by("seed", maintain_order=True)
        furthest = min(seed[x].max() for seed in seeds)  # type: ignore[type-var]
        if log:
            first = max(seed.filter(pl.col(x) > 0)[x].min() for seed in seeds)  # type: ignore[type-var]
            places = np.geomspace(float(first), float(furthest), 200)  # type: ignore[arg-type]
        else:
            places = np.linspace(0, float(furthest), 200)  # type: ignore[arg-type]
        curves = [np.interp(places, seed[x], seed[y]) for seed in seeds]
        draw_seeds(axes, places, np.stack(curves), name, style)
