"""What commands show on the terminal: progress bars, tables, how to call them."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from efhc.base.errors import InputError
from efhc.base.extras import require
from efhc.cli.escaping import cell, print_error

if TYPE_CHECKING:
    import polars as pl

    from efhc.experiments.runs.result import Result
    from efhc.experiments.runs.run import Run
    from efhc.experiments.runs.simulate import RunProgress
    from efhc.experiments.runs.store import Engine, Progress

console = Console()

BROKEN, FAILED, INTERRUPTED = 3, 4, 130
"""Exit codes: an assumption was broken that should hold; some runs failed; the user stopped it."""

TIME_UNIT = "time: transmission time in units of parameters / bandwidth (docs/algorithm.md)"
"""The caption of tables with transmission times."""

RUNS_CODE = "A setting such as strategies.mine='file.py:Name' runs the Python code in that file."

Overrides = Annotated[
    list[str] | None, typer.Argument(help="Settings to change: key.sub=value ...", metavar="KEY=VALUE")
]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine", metavar="NAME", help="local: the cores of this machine; ray: a cluster, with efhc[cluster]."
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT", help="The Ray cluster to join: auto, or HOST:PORT. Default: one is started here."
    ),
]
Jobs = Annotated[int | None, typer.Option(min=1, metavar="N", help="Number of cores to use. Default: all.")]


def choose_engine(name: str, address: str | None, jobs: int | None) -> Engine:
    """Return the engine that the options name. Raises `InputError` for options that do not go together."""
    if name == "local":
        if address is not None:
            raise InputError("--address", address, "nothing with --engine local; it is for --engine ray")
        from efhc.experiments.runs.engines.local import LocalEngine

        return LocalEngine(jobs)
    if name == "ray":
        require("cluster")
        from efhc.experiments.runs.engines.cluster import ClusterEngine

        return ClusterEngine(address, jobs)
    raise InputError("--engine", f"'{name}'", "local, ray")


def warn(text: str) -> None:
    """Print one line that is not a result to stderr."""
    print_error(text)


def this_command() -> str:
    """Return how the user can call this command: by its name if it is on the path, else as it was called."""
    if shutil.which("efhc"):
        return "efhc"
    called = Path(sys.argv[0])
    return shlex.join([sys.executable, "-m", "efhc"] if called.name == "__main__.py" else [str(called)])


@contextmanager
def iterations_progress(iterations: int) -> Iterator[RunProgress]:
    """Show a bar over all iterations of all runs. It moves every 20 iterations of a run, so that it costs little."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Bars(*columns, console=console, disable=not console.is_terminal) as bars:
        task = bars.add_task("preparing (a first run compiles for about 20 s)", total=iterations)
        last: dict[tuple[str, int], int] = {}

        def progress(strategy: str, seed: int, done: int) -> None:
            step = done - last.get((strategy, seed), 0)
            if step >= 20:
                last[strategy, seed] = done
                bars.update(task, advance=step, description=cell(f"{strategy}, seed {seed}"))

        yield progress
        bars.update(task, completed=iterations, description="done")


def print_summary(result: Result) -> None:
    """Print a table with one row per strategy; with a target accuracy, a second one with what it takes to reach it."""
    seeds, rows = len(result.experiment.seeds), result.summary()
    of_seconds = "seconds" in rows.columns
    columns = _SECONDS_COLUMNS if of_seconds else _LOCKSTEP_COLUMNS
    title = f"{result.experiment.name}: means over {seeds} seed{'s' if seeds > 1 else ''}"
    table = _table(title, rows, columns, caption=None if of_seconds else TIME_UNIT)
    for strategy, seed in result.failed:
        table.add_row(cell(strategy), f"seed {seed} failed", *[""] * (len(columns) - 1), style="red")
    console.print(table)
    if result.target_accuracy is not None:
        console.print(_table(f"until accuracy {result.target_accuracy:g} is reached", rows, _target_columns(rows)))


Columns = Mapping[str, Callable[[dict[str, Any]], str]]
"""The columns of a table after the strategy: their names, and what they show of a row."""

_ACCURACIES: Columns = {
    "accuracy": lambda row: _accuracy(row["accuracy"]),
    "worst seed": lambda row: _accuracy(row["worst_seed_accuracy"]),
    "of mean model": lambda row: _accuracy(row["mean_model_accuracy"]),
}
_LOCKSTEP_COLUMNS: Columns = {
    **_ACCURACIES,
    "fire": lambda row: f"{row['firing_share']:.1%}",
    "total time": lambda row: f"{row['transmission_time_total']:.4g}",
    "consensus error": lambda row: f"{row['consensus_error']:.3g}",
}
_SECONDS_COLUMNS: Columns = {
    **{name.replace(" seed", "\nseed").replace(" model", "\nmodel"): show for name, show in _ACCURACIES.items()},
    "seconds": lambda row: f"{row['seconds']:.4g}",
    "fired": lambda row: f"{row['broadcasts']:.0f}",
    "exchanges": lambda row: f"{row['exchanges']:.0f}",
    "MB": lambda row: _megabytes(row["bytes"]),
}


def _target_columns(rows: pl.DataFrame) -> Columns:
    from efhc.report.claims.intervals import bounds_words

    bounds = bounds_words(rows["seeds"])

    def interval(name: str, words: Callable[[float], str]) -> Callable[[dict[str, Any]], str]:
        ends = f"{name}_low", f"{name}_high"
        return lambda row: "" if row[ends[0]] is None else " - ".join(words(row[end]) for end in ends)

    return {
        "seeds": lambda row: f"{row['reached']} of {row['seeds']}",
        "seconds": lambda row: _seconds(row["seconds_to_target"]),
        bounds: interval("seconds_to_target", _seconds),
        "MB": lambda row: _megabytes(row["bytes_to_target"]),
        f"{bounds} ": interval("bytes_to_target", _megabytes),
    }


def _accuracy(accuracy: float | None) -> str:
    return "" if accuracy is None else f"{accuracy:.3f}"


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.4g}"


def _megabytes(size: float | None) -> str:
    return "" if size is None else f"{size / 1e6:.4g}"


def _table(title: str, rows: pl.DataFrame, columns: Columns, caption: str | None = None) -> Table:
    table = Table(title=cell(title), title_justify="left", caption=caption, caption_justify="left")
    table.add_column("strategy")
    for name in columns:
        table.add_column(name, justify="right")
    for row in rows.iter_rows(named=True):
        table.add_row(cell(row["strategy"]), *(show(row) for show in columns.values()))
    return table


@contextmanager
def runs_progress(runs: int) -> Iterator[Progress]:
    """Show a bar over runs; each counts by the share of it that is done."""
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[finished]}/{task.total} runs"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=console, disable=not console.is_terminal) as bars:
        task = bars.add_task("preparing", total=runs, finished=0)
        shares: dict[str, float] = {}

        def progress(run: Run, share: float) -> None:
            if share < 1.0 and share - shares.get(run.key, 0.0) < 0.01:  # seldom enough to cost nothing
                return
            shares[run.key] = share
            finished = sum(share == 1.0 for share in shares.values())
            name = cell(f"{run.strategy}, seed {run.seed}")
            bars.update(task, completed=sum(shares.values()), finished=finished, description=name)

        yield progress
        bars.update(task, description="done")
