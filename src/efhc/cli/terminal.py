"""What commands show on the terminal: progress bars, tables, how to call them."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from efhc.base.errors import InputError
from efhc.base.extras import require
from efhc.cli.escaping import cell, print_error

if TYPE_CHECKING:
    from efhc.experiments.runs.result import Result
    from efhc.experiments.runs.store import Engine

console = Console()

BROKEN, FAILED, INTERRUPTED = 3, 4, 130
"""Exit codes: an assumption was broken that should hold; some runs failed; the user stopped it."""

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
Log = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Log the runs to tensorboard, mlflow, wandb or your own file.py:Name. May be repeated.",
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


def with_log(overrides: list[str] | None, log: list[str] | None) -> list[str]:
    """Return overrides to which the option --log is added as one."""
    return [*(overrides or ()), *([f"log={json.dumps(log)}"] if log else ())]


def warn(text: str) -> None:
    """Print one line that is not a result to stderr."""
    print_error(text)


def this_command() -> str:
    """Return how the user can call this command: by its name if it is on the path, else as it was called."""
    if shutil.which("efhc"):
        return "efhc"
    called = Path(sys.argv[0])
    return shlex.join([sys.executable, "-m", "efhc"] if called.name == "__main__.py" else [str(called)])


def print_summary(result: Result) -> None:
    """Print a table with one row per strategy; with a target accuracy, a second one with what it takes to reach it."""
    summary = result.words()
    for number, words in enumerate(summary.tables):
        table = Table(title=cell(words.title), title_justify="left", caption=words.caption, caption_justify="left")
        for name in words.columns:
            table.add_column(name, justify="left" if name == words.columns[0] else "right")
        for row in words.rows:
            table.add_row(*map(cell, row))
        if number == 0:
            for strategy, seed in result.failed:
                table.add_row(cell(strategy), f"seed {seed} failed", style="red")
        print_table(table)
        for line in summary.notes if number == 0 else ():
            console.print(cell(line), highlight=False)


def print_table(table: Table) -> None:
    """Print a table; if it is too wide, without lines between its columns, and with broken lines before cut numbers."""
    unlimited = console.options.update(width=1000)
    if console.measure(table, options=unlimited).maximum > console.width:
        table.box, table.padding = SIMPLE_HEAD, (0, 0)
        for column in table.columns:
            column.header, column.overflow = str(column.header).replace("_", "_\n"), "fold"
    console.print(table)
