"""efhc predict: what the simulator says against what nodes do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from efhc.cli.data import fetch_data
from efhc.cli.terminal import argument, cell, errors, option, plain, print_table, stoppable, warn
from efhc.report.numbers import MEGABYTE

if TYPE_CHECKING:
    import polars as pl

    from efhc.experiments.nodes.status_query import Answer
    from efhc.experiments.runs.run import Run


def predict(
    files: Annotated[
        list[Path] | None, argument("FILE", "Experiments, TOML files. Default: the two that come with efhc.")
    ] = None,
    out: Annotated[Path, option("DIR", "Where to keep tables, figure and runs.")] = Path("runs/prediction"),
) -> None:
    """Compare the simulator with real nodes (needs efhc[node], root).

    Each experiment runs in the simulator and with nodes in network namespaces. The table shows the seconds and bytes
    until the target accuracy, as predicted and as measured, and the error of the prediction. A command that was stopped
    continues if it is run again.
    """
    from rich.status import Status

    from efhc.experiments.config.files import load_experiment
    from efhc.experiments.studies.prediction import CURVES, EXAMPLES, FIGURE, TABLE
    from efhc.experiments.studies.prediction import predict as compare_both
    from efhc.report.timelines import error_words

    experiments = [load_experiment(file) for file in files or EXAMPLES]
    fetch_data(*experiments)
    with stoppable(), Status("preparing", console=errors) as status:
        doing = ""

        def show_step(text: str) -> None:
            nonlocal doing
            doing = text
            status.update(cell(text))

        def view(run: Run, answers: list[Answer]) -> None:
            trains = [answer.status["iteration"] for answer in answers if answer.status is not None]
            at = f", iteration {min(trains)}" if len(trains) == len(answers) else ", starting"
            status.update(cell(f"{doing}, {run.name}{at}"))

        table = compare_both(experiments, out, show_step, view, warn)
    _print_comparison(table)
    print(error_words(table))
    print(f"Table: {plain(out / TABLE)}, curves: {plain(out / CURVES)}, figure: {plain(out / FIGURE)}")


def _print_comparison(rows: pl.DataFrame) -> None:
    columns = ["experiment", "strategy", "seed"]
    columns += ["s measured", "s predicted", "error", "MB measured", "MB predicted", "error"]
    table = []
    for row in rows.iter_rows(named=True):
        cells = [row["experiment"], row["strategy"], row["seed"]]
        for quantity, unit in (("seconds", 1.0), ("bytes", MEGABYTE)):
            values = [row[f"{quantity}_{kind}"] for kind in ("measured", "predicted")]
            cells += ["not reached" if value is None else f"{value / unit:.1f}" for value in values]
            error = row[f"{quantity}_error"]
            cells.append("" if error is None else f"{100 * error:+.0f} %")
        table.append(cells)
    print_table(columns, table, "until the target accuracy: measured with nodes, predicted by the simulator", left=3)
