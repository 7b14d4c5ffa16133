"""What all pictures share: layout, titles, lines of strategies over seeds, and how a picture is written to a file."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
import polars as pl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from efhc.base.arrays import Floats
from efhc.base.saving import write_safely
from efhc.report.looks import strategy_styles

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

LAYOUT: Any = {
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
DOTS_PER_INCH = 200
ON_SCREEN = 90
"""Dots per inch of a picture in a notebook."""
# Text stays text: publishers ask for TrueType (42), and a reader can search it.
FILES: Any = {"pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "efhc"}
UNDATED: dict[str, Any] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}

UNNAMED = "experiment"
"""The name of an experiment that was given none."""


def run_title(experiment: Any) -> str:
    """Return a title that says what an `Experiment` runs: `fmnist: fashion-mnist, svm, 10 devices, 3 seeds`."""
    data, model = (str(getattr(one, "kind", type(one).__name__)) for one in (experiment.data, experiment.model))
    seeds = len(experiment.seeds)
    words = f"{data}, {model}, {experiment.devices} devices, {seeds} seed{'s' if seeds != 1 else ''}"
    return words if experiment.name == UNNAMED else f"{experiment.name}: {words}"


def grid_of(figure: Figure | SubFigure, panels: int, columns: int, *, sharey: bool = False) -> list[Axes]:
    """Return the axes of these panels, in rows of at most `columns`. With `sharey`, rows share their vertical axis."""
    columns = min(columns, panels)
    grid = figure.subplots(-(-panels // columns), columns, squeeze=False, sharey=sharey)
    for axes in grid.flat[panels:]:
        axes.set_visible(False)
    return list(grid.flat[:panels])


class Picture(Figure):
    """A figure that draws itself without pyplot, and that a notebook shows when a cell ends with it."""

    def __init__(self, size: tuple[float, float]) -> None:
        super().__init__(figsize=size, layout="constrained")
        FigureCanvasAgg(self)

    def finish(self, handles: Sequence[Artist], names: Sequence[str], title: str = "", columns: int = 6) -> None:
        """Write a legend below all panels, with at most `columns` columns, and the title. Names are plain text."""
        columns = max(1, min(columns, len(names)))
        legend = self.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False)
        for text in legend.get_texts():
            text.set_parse_math(False)
        if title:
            self.suptitle(title, parse_math=False, fontsize=11)

    def columns_for(self, names: Iterable[str]) -> int:
        """Return how many columns of a legend have room for the longest of the names."""
        return int(self.get_figwidth() * 11 / (6 + max(map(len, names))))

    def png(self) -> bytes:
        """Return the figure as a PNG file for a screen."""
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=ON_SCREEN)
        return buffer.getvalue()

    def _repr_png_(self) -> bytes:
        return self.png()


def save_figure(figure: Figure, path: Path) -> None:
    """Write the figure safely, in the format that the file's ending names. The same figure gives the same bytes."""
    kind = path.suffix.lstrip(".").lower() or "png"
    buffer = io.BytesIO()
    with mpl.rc_context(FILES):
        figure.savefig(buffer, format=kind, dpi=DOTS_PER_INCH, metadata=UNDATED.get(kind))
    write_safely(path, buffer.getvalue())


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
