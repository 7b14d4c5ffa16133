"""What all pictures share: colours, layout, titles, and how a picture is written to a file."""

from __future__ import annotations

import io
import zlib
from collections.abc import Collection, Iterable
from itertools import product
from pathlib import Path
from typing import Any, Protocol

import matplotlib as mpl
from matplotlib.figure import Figure

from efhc.base.saving import write_safely

# Okabe-Ito colours, which readers with any colour vision can tell apart, and a dash pattern for prints without colour.
STYLES = [("#0072B2", "-"), ("#D55E00", "--"), ("#009E73", "-."), ("#CC79A7", ":"), ("#E69F00", "-"), ("#56B4E9", "--")]
KNOWN = dict(zip(("EF-HC", "GT", "ZT", "RG"), STYLES, strict=False)) | {
    "Never": ("#000000", ":"),
    "entrywise": ("#E69F00", "-"),
    "entrywise + momentum": ("#882255", "-"),
}
"""The look of the built-in strategies under their usual names."""
# Colours vary fastest, so that neighbours in this list differ in colour.
OTHERS = [
    (colour, dash)
    for dash, colour in product(
        ("-", "--", "-.", ":"), ("#56B4E9", "#44AA99", "#999933", "#332288", "#661100", "#AA4499", "#117733")
    )
]

LAYOUT: Any = {
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
DOTS_PER_INCH = 200
# Text stays text: publishers ask for TrueType (42), and a reader can search it.
FILES: Any = {"pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "efhc"}
UNDATED: dict[str, Any] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}

UNNAMED = "experiment"
"""The name of an experiment that was given none."""


def strategy_styles(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the colour and the dash pattern of each strategy.

    The look depends on the name alone, so a strategy looks the same in all figures. Names outside of `KNOWN` choose by
    a checksum of the name; where two of one figure choose the same look, the alphabetically later one takes the next
    that is free.
    """
    ordered = list(dict.fromkeys(names))
    styles = {name: KNOWN[name] for name in ordered if name in KNOWN}
    for name in sorted(set(ordered) - set(KNOWN)):
        first = zlib.crc32(name.encode()) % len(OTHERS)
        candidates = OTHERS[first:] + OTHERS[:first]
        styles[name] = next((style for style in candidates if style not in styles.values()), candidates[0])
    return {name: styles[name] for name in ordered}


def strategy_colours(names: Iterable[str]) -> dict[str, str]:
    """Return the colour of each strategy, the same in all figures."""
    return {name: colour for name, (colour, _) in strategy_styles(names).items()}


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


def save_figure(figure: Figure, path: Path) -> None:
    """Write the figure safely, in the format that the file's ending names. The same figure gives the same bytes."""
    kind = path.suffix.lstrip(".").lower() or "png"
    buffer = io.BytesIO()
    with mpl.rc_context(FILES):
        figure.savefig(buffer, format=kind, dpi=DOTS_PER_INCH, metadata=UNDATED.get(kind))
    write_safely(path, buffer.getvalue())
