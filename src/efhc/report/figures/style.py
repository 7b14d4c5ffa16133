"""What all pictures share: layout, titles, lines of strategies over seeds, and how a picture is written to a file."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import matplotlib as mpl
import numpy as np
import polars as pl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from efhc.base.arrays import Floats
from efhc.base.saving import write_safely
from efhc.learning.measures import Better
from efhc.report.claims.intervals import FEWEST_SEEDS, interval
from efhc.report.looks import strategy_styles

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

Width = Literal["column", "page"]
WIDTHS: Mapping[Width, float] = {"column": 3.3, "page": 7.0}
"""The widths of figures in inches: one column of a page with two, and the whole page. They are printed as they are."""
LAYOUT: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.fontsize": 7.5,
    "lines.markersize": 3,
    "axes.grid": True,
    "grid.linewidth": 0.5,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
SMALL = FontProperties(size=7.5)
DOTS_PER_INCH = 300
ON_SCREEN = 130
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

    def __init__(self, size: tuple[float, float], words: str = "") -> None:
        """`words` say what it shows to those who cannot see it."""
        super().__init__(figsize=size, layout="constrained")
        self.words = words
        FigureCanvasAgg(self)

    def finish(self, handles: Sequence[Artist], names: Sequence[str], title: str = "", columns: int = 6) -> None:
        """Write a legend below all panels, with at most `columns` columns, and the title. Names are plain text."""
        columns = max(1, min(columns, len(names)))
        legend = self.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False)
        for text in legend.get_texts():
            text.set_parse_math(False)
        if title:
            self.suptitle(title, parse_math=False, fontsize=8)

    def columns_for(self, names: Iterable[str]) -> int:
        """Return how many columns of a legend have room for the longest of the names."""
        return int(self.get_figwidth() * 17 / (8 + max(map(len, names), default=0)))

    def finish_lines(
        self,
        lines: Mapping[str, Line],
        band: str | None,
        title: str = "",
        table: str = "",
        more: Mapping[str, Artist] | None = None,
    ) -> None:
        """Write a legend of these lines, in which all in the background are one entry, and of what bands are.

        `table` is the file that has the numbers of those in the background. `more` are further entries, by name.
        """
        entries: dict[str, Artist] = {
            f"{name} (ceiling)" if one.is_ceiling else name: one.handle
            for name, one in lines.items()
            if not one.is_behind
        }
        if behind := sum(line.is_behind for line in lines.values()):
            where = f" ({table})" if table else ""
            entries[f"{behind} other{'s'[: behind != 1]}{where}"] = BEHIND.handle
        entries |= more or {}
        self.finish(list(entries.values()), list(entries), title, self.columns_for(entries))
        if band is not None:
            words = textwrap.fill(f"lines: means; bands: {band}", int(16 * self.get_figwidth()))
            self.legends[0].set_title(words, prop=SMALL)

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


PRINTED = 0.75


@dataclass(frozen=True)
class Line:
    """How a strategy is drawn. Pages draw it as wide as `width` says, prints `PRINTED` times as wide."""

    color: str
    dash: str = "-"
    """A dash pattern of matplotlib: `-`, `--`, `-.` or `:`."""
    width: float = 1.6
    reference: bool = False
    """Whether the line is drawn thin and behind the others, without its interval."""
    is_ceiling: bool = False
    """Whether the line competes with no other."""
    marker: str = ""
    """A mark of matplotlib, which tells lines apart without their colour."""
    is_behind: bool = False
    """Whether it is one of many that share a look, in the background."""

    @property
    def look(self) -> dict[str, Any]:
        """The arguments of matplotlib."""
        return {"color": self.color, "linestyle": self.dash, "linewidth": PRINTED * self.width}

    @property
    def handle(self) -> Line2D:
        """The line in a legend."""
        return Line2D([], [], **self.look, marker=self.marker or None)

    def marks(self, points: int) -> dict[str, Any]:
        """The arguments of matplotlib for marks on some of the points, at other places for each mark."""
        if not self.marker:
            return {}
        step = max(1, points // MARKS)
        return {"marker": self.marker, "markevery": (MARKERS.index(self.marker) * step // len(MARKERS), step)}


BEHIND = Line("#b4b4b4", "-", 0.8, reference=True, is_behind=True)
"""The look of strategies beyond `MOST_LINES`."""
MOST_LINES = 8
"""As many lines can be told apart in print, each by its colour, dashes and mark."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
OF_KNOWN = {"EF-HC": "o", "GT": "s", "ZT": "^", "RG": "D"}
MARKS = 7
"""The number of marks on a line."""


def strategy_lines(names: Sequence[str], in_front: Sequence[str] | None = None) -> dict[str, Line]:
    """Return the line of each strategy; those `in_front`, by default all, come first and can be told apart in print.

    No more than `MOST_LINES` are in front; all others are thin and grey.
    """
    front = [name for name in dict.fromkeys(names if in_front is None else in_front) if name in names][:MOST_LINES]
    styles = strategy_styles(names)
    marks = {name: OF_KNOWN[name] for name in front if name in OF_KNOWN}
    others = [one for one in MARKERS if one not in OF_KNOWN.values()]  # first, so that one's own keep theirs
    free = iter([*others, *(one for one in OF_KNOWN.values() if one not in marks.values())])
    marks |= {name: next(free) for name in sorted(front) if name not in marks}  # the same, whatever the order
    lines = {name: Line(*styles[name], marker=marks[name]) for name in front}
    return lines | {name: BEHIND for name in names if name not in lines}


def best_at_end(table: pl.DataFrame, measure: str, better: Better) -> list[str]:
    """Return the strategies to draw in front: EF-HC, ZT, and the best at their ends, in the order of the table."""
    ends = table.drop_nulls(measure).group_by("strategy", "seed", maintain_order=True).agg(pl.col(measure).last())
    means = ends.group_by("strategy", maintain_order=True).agg(pl.col(measure).mean())
    ranked = means.sort(measure, descending=better == "higher", maintain_order=True)["strategy"].to_list()
    always = [name for name in ("EF-HC", "ZT") if name in ranked]
    chosen = list(dict.fromkeys([*always, *ranked]))[:MOST_LINES]
    return [name for name in means["strategy"] if name in chosen]


def band_words(seeds: Iterable[int]) -> str | None:
    """Return what the bands of `band_of` are, over these numbers of seeds. None: with one seed there is none."""
    counts = sorted({count for count in seeds if count > 1})
    if not counts:
        return None
    many = str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
    if counts[-1] < FEWEST_SEEDS:
        return f"range over {many} seeds"
    few = f", below {FEWEST_SEEDS} their range" if counts[0] < FEWEST_SEEDS else ""
    return f"95 % interval over {many} seeds{few}"


def band_of(per_seed: Floats) -> tuple[Floats, Floats] | None:
    """Return the ends of the interval of the mean over seeds (axis 0), or below five seeds of their range."""
    if len(per_seed) < 2:
        return None
    if len(per_seed) < FEWEST_SEEDS:
        return per_seed.min(axis=0), per_seed.max(axis=0)
    _, low, high = interval(per_seed)
    return np.asarray(low), np.asarray(high)


def draw_mean(axes: Axes, rows: pl.DataFrame, x: str, line: Line, **more: Any) -> None:
    """Draw the mean of a strategy against column `x`."""
    axes.plot(rows[x], rows["mean"], **line.look, zorder=1.9 if line.reference else 3, **line.marks(len(rows)) | more)


def shade_band(axes: Axes, rows: pl.DataFrame, x: str, line: Line) -> None:
    """Shade the interval of a strategy unless it is a reference. Edges tell overlapping bands apart."""
    if line.reference:
        return
    shaded = rows.fill_nan(None).drop_nulls(["low", "high"])  # with a single seed there is no interval
    face, edge = (line.color, 0.12), (line.color, 0.45)
    axes.fill_between(shaded[x], shaded["low"], shaded["high"], facecolor=face, edgecolor=edge, linewidth=0.5)


LONGEST = 28
"""As many letters of a vertical axis stand in one line."""


def label(axes: Axes, title: str, x: str, y: str) -> None:
    """Write the title of a panel and the names of its axes."""
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(textwrap.fill(y, LONGEST))


def plain_numbers(axis: Axis) -> None:
    """Write large numbers as 20,000 rather than in powers of ten, and few of them, so that they do not overlap."""
    axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    if axis.get_view_interval()[1] >= 1000:
        axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


POINTS = 101
"""The largest number of places at which a curve is read off."""
BAND_POINTS = 34
"""The largest number of places at which a band is computed."""


def by_strategy(table: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return the rows of each strategy."""
    found = table.partition_by("strategy", as_dict=True, maintain_order=True).items()
    return {str(name): rows for (name,), rows in found}


def draw_seeds(axes: Axes, x: Floats, per_seed: Floats, name: str, line: Line) -> None:
    """Draw the mean over seeds (axis 0), with a band unless it is in the background."""
    order = 1.5 if line.is_behind else 3
    axes.plot(x, per_seed.mean(axis=0), label=name, zorder=order, **line.look, **line.marks(len(x)))
    some = np.unique(np.linspace(0, len(x) - 1, BAND_POINTS).round().astype(int))  # resampling takes time
    if not line.reference and (band := band_of(per_seed[:, some])) is not None:
        axes.fill_between(x[some], *band, color=line.color, alpha=0.15, linewidth=0, zorder=2)


def read_off(rows: pl.DataFrame, x: str, y: str, *, log: bool = False) -> tuple[Floats, Floats]:
    """Return places x, and column `y` of each seed there (seeds, places), given the rows of one strategy.

    `x` grows from row to row of each seed. Where seeds have different x, such as iterations of evaluation that the seed
    draws, each is interpolated between its own, at places from the first to the last that all seeds have reached. With
    `log`, places are spaced evenly on a logarithmic axis, and begin where all seeds are above 0.
    """
    seeds = [one.select(x, y).to_numpy().T for one in rows.drop_nulls([x, y]).partition_by("seed", maintain_order=True)]
    if log:
        seeds = [one[:, one[0] > 0] for one in seeds]
    first, last = max(one[0, 0] for one in seeds), min(one[0, -1] for one in seeds)
    if all(np.array_equal(one[0], seeds[0][0]) for one in seeds) and len(seeds[0][0]) <= POINTS:
        return seeds[0][0], np.stack([one[1] for one in seeds])
    space = np.geomspace if log else np.linspace
    places = np.unique(space(min(first, last), last, POINTS))
    return places, np.stack([np.interp(places, *one) for one in seeds])


def draw_against(
    axes: Axes, table: pl.DataFrame, x: str, y: str, lines: Mapping[str, Line], *, log: bool = False
) -> None:
    """Draw a line per strategy of column `y` against column `x`: see `read_off`. With `log`, the axis of x is so."""
    if log:
        axes.set_xscale("log")
    for name, rows in by_strategy(table.drop_nulls(y)).items():
        draw_seeds(axes, *read_off(rows, x, y, log=log), name, lines[name])
