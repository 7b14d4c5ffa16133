"""efhc table, efhc figure: what a paper shows of finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from efhc.base.errors import InputError
from efhc.cli.terminal import argument, console, option, plain, print_table, require_figure, warn

if TYPE_CHECKING:
    from efhc.experiments.runs.result import Result

Directories = Annotated[list[Path], argument("DIR...", "Folders of finished experiments, sweeps or reproductions.")]
Measures = Annotated[
    str | None,
    option(
        "NAMES",
        "Measures, such as accuracy,own_accuracy,own_accuracy_min. Default: the experiment's `measure`.",
    ),
]
MOST_COLUMNS = 4
"""As many columns of numbers fit into a terminal."""
MOST_NAMED = 4
"""Experiments that an error names at most."""
Of = Annotated[str, option("NAME", "The strategy whose transmission time measures budgets.")]


def table(
    directories: Directories,
    measure: Measures = None,
    budget: Annotated[
        str | None,
        option("SHARES", "Shares of ZT's transmission time, such as 0.02,0.1. Default: the end of the runs."),
    ] = None,
    of: Of = "ZT",
    out: Annotated[
        list[Path] | None, option("FILE", "Also write the table: a .tex, .csv or .md file. May be repeated.")
    ] = None,
) -> None:
    """Print a table for a paper: mean and interval per strategy.

    Rows are strategies; columns are settings, measures and budgets. The best mean of a column is bold (in the terminal:
    *), and a dagger marks means that are not distinguishable from it. The caption says what the numbers are.
    """
    from efhc.experiments.runs.result import Result
    from efhc.report.tables import cell_words

    shares = None if budget is None else numbers("--budget", budget)
    measures = None if measure is None else measure.replace(" ", "").split(",")
    found = Result.compared(results_in(directories), measures, shares, of)
    for file in out or ():
        found.save(file)
    for part in found.parts(MOST_COLUMNS):
        first = part.columns[0]
        heads = [" ".join(filter(None, (one.measure, one.budget_words))) for one in part.columns]
        rows = [[strategy, *cells] for strategy, cells in part.texts(cell_words) if any(cells)]
        print_table(("strategy", *heads), rows, first.setting, left=1)
    for note in found.notes:
        console.print(plain(note.replace("Bold:", "*:")), markup=False, highlight=False)
    for file in out or ():
        print(f"Table: {plain(file)}")


def results_in(directories: list[Path]) -> dict[str, Result]:
    """Return the results in these folders by name; a study has several. Folders whose names coincide are named too."""
    from efhc.experiments.runs.result import Result
    from efhc.experiments.runs.study import Study

    found: dict[str, Result] = {}
    for directory in directories:
        loaded = Result.load(directory)
        if isinstance(loaded, Study) and loaded.old_failures:
            warn(f"{directory}: {loaded.old_words}")
        for name, result in loaded.items() if isinstance(loaded, Study) else [(loaded.experiment.name, loaded)]:
            found[name if name not in found else f"{directory}: {name}"] = result
    return found


def numbers(field: str, text: str) -> list[float]:
    """Return the numbers in a text with commas between them. Raises `InputError` if it has anything else."""
    try:
        return [float(one) for one in text.split(",")]
    except ValueError:
        raise InputError(field, f"'{text}'", "numbers with commas between them, such as 0.02,0.1") from None


def figure(
    directory: Annotated[Path, argument("DIR", "The folder of a finished experiment or study.")],
    measure: Annotated[
        str | None, option("NAME", "What is drawn, such as own_accuracy. Default: the experiment's `measure`.")
    ] = None,
    against: Annotated[
        str | None,
        option(
            "AXIS",
            "Draw one panel: against iterations, transmission_time, budget (shares of ZT's transmission time); of "
            "event-driven runs: seconds, bytes. Default: four panels.",
        ),
    ] = None,
    width: Annotated[str, option("WIDTH", "column: 3.3 inches; page: 7 inches. Print it as it is.")] = "column",
    leader: Annotated[
        list[str] | None, option("NAME", "With --against budget: a strategy to draw in front. May be repeated.")
    ] = None,
    out: Annotated[
        Path | None, option("FILE", "A .pdf, .png or .svg file. Default: DIR/figures/WIDTH-AXIS.pdf.")
    ] = None,
) -> None:
    """Draw a figure for a paper, as wide as a column or a page.

    Lines are told apart by colour, dashes and marks, so that a print without colour can be read; the legend says what
    bands are.
    """
    from efhc.report.figures import WIDTHS

    if width not in WIDTHS:
        raise InputError("--width", f"'{width}'", " or ".join(WIDTHS))
    file = out or directory / "figures" / f"{width}{f'-{against}' if against else ''}.pdf"
    require_figure(file)
    results = results_in([directory])
    if len(results) > 1:
        names = "; ".join(list(results)[:MOST_NAMED])
        how = f"in Python: efhc.Result.load({str(directory)!r})[NAME].plot(...), of {names}, .."
        raise InputError("DIR", directory, "one experiment", f"{directory} has {len(results)} experiments; {how}")
    (result,) = results.values()
    if against == "budget":
        result.frontier(file, leader or (), measure, width=width)  # type: ignore[arg-type]
    else:
        result.plot(file, measure=measure, width=width, against=against)  # type: ignore[arg-type]
    print(f"Figure: {plain(file)}")
