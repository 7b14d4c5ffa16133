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
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from efhc.base.errors import InputError
from efhc.base.extras import require
from efhc.cli.escaping import cell, print_error
from efhc.report.numbers import MEGABYTE, cost_words, number_words

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
    columns = dict(_SECONDS_COLUMNS if of_seconds else _LOCKSTEP_COLUMNS)
    if seeds == 1:
        columns = {name: show for name, show in columns.items() if not name.startswith("worst")}
    if of_seconds and (rows["devices"] != result.experiment.devices).any():
        columns["devices"] = lambda row: number_words(row["devices"])
    title = f"{result.experiment.name}: means over {seeds} seed{'s' if seeds > 1 else ''}"
    table = _table(title, rows, columns, caption=None if of_seconds else TIME_UNIT)
    for strategy, seed in result.failed:
        table.add_row(cell(strategy), f"seed {seed} failed", *[""] * (len(columns) - 1), style="red")
    print_table(table)
    if not of_seconds:
        return
    for line in _nobody_left_lines(result):
        console.print(line, highlight=False)
    if result.target_accuracy is not None:
        title, caption = f"until accuracy {result.target_accuracy:g} is reached", None
        if (rows["reached"] < rows["seeds"]).any():
            caption = "> x: not reached within x"
        print_table(_table(title, rows, _target_columns(rows), caption))


def _nobody_left_lines(result: Result) -> Iterator[str]:
    """Yield a line for each strategy that has runs at whose end no device was there."""
    from efhc.report.timelines import nobody_left

    seeds: dict[str, list[str]] = {}
    for strategy, seed in nobody_left(result.timeline):
        seeds.setdefault(strategy, []).append(str(seed))
    for strategy, of_strategy in seeds.items():
        words = f"seed{'s' if len(of_strategy) > 1 else ''} {', '.join(of_strategy)}"
        yield cell(f"{strategy}, {words}: no device is there at the end, so there is no accuracy")


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
    "seconds": lambda row: number_words(row["seconds"]),
    "fired": lambda row: f"{row['broadcasts']:,.0f}",
    "exchanges": lambda row: f"{row['exchanges']:,.0f}",
    "MB": lambda row: number_words(row["bytes"] / MEGABYTE),
}


def _target_columns(rows: pl.DataFrame) -> Columns:
    from efhc.report.claims.intervals import bounds_words

    bounds = bounds_words(rows["seeds"])

    def cost(name: str, unit: float) -> Callable[[dict[str, Any]], str]:
        return lambda row: cost_words(row[f"{name}_to_target"], row[f"{name}_without_target"], unit)

    def interval(name: str, unit: float) -> Callable[[dict[str, Any]], str]:
        ends = f"{name}_to_target_low", f"{name}_to_target_high"
        return lambda row: "" if row[ends[0]] is None else " - ".join(number_words(row[end] / unit) for end in ends)

    columns = {
        "seeds": lambda row: f"{row['reached']} of {row['seeds']}",
        "seconds": cost("seconds", 1.0),
        bounds: interval("seconds", 1.0),
        "MB": cost("bytes", MEGABYTE),
        f"{bounds} ": interval("bytes", MEGABYTE),
    }
    has_interval = rows["seconds_to_target_low"].count() > 0
    return {name: show for name, show in columns.items() if has_interval or name.rstrip() != bounds}


def _accuracy(accuracy: float | None) -> str:
    return "" if accuracy is None else f"{accuracy:.3f}"


def _table(title: str, rows: pl.DataFrame, columns: Columns, caption: str | None = None) -> Table:
    table = Table(title=cell(title), title_justify="left", caption=caption, caption_justify="left")
    table.add_column("strategy")
    for name in columns:
        table.add_column(name, justify="right")
    for row in rows.iter_rows(named=True):
        table.add_row(cell(row["strategy"]), *(show(row) for show in columns.values()))
    return table


def print_table(table: Table) -> None:
    """Print a table; if it is too wide, without lines between its columns, and with broken lines before cut numbers."""
    unlimited = console.options.update(width=1000)
    if console.measure(table, options=unlimited).maximum > console.width:
        table.box, table.padding = SIMPLE_HEAD, (0, 0)
        for column in table.columns:
            column.header, column.overflow = str(column.header).replace("_", "_\n"), "fold"
    console.print(table)


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
