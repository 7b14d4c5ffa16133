"""What all pictures share: colours, layout, titles, and how a picture is written to a file."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure

from efhc.base.saving import write_safely

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

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


class RunSettings(Protocol):
    """The settings of an experiment that a title mentions."""

    @property
    def name(self) -> str: ...
    @property
    def data(self) -> object: ...
    @property
    def model(self) -> object: ...
    @property
    def devices(self) -> int: ...
    @property
    def seeds(self) -> Collection[int]: ...


def run_title(experiment: RunSettings) -> str:
    """Return a title that says what was run: `fmnist: fashion-mnist, svm, 10 devices, 3 seeds`."""
    data, model = (str(getattr(one, "kind", type(one).__name__)) for one in (experiment.data, experiment.model))
    seeds = len(experiment.seeds)
    told = f"{data}, {model}, {experiment.devices} devices, {seeds} seed{'s' if seeds != 1 else ''}"
    return told if experiment.name == UNNAMED else f"{experiment.name}: {told}"


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
