"""What commands share: their options, the tables they print, and what they say when they are stopped."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from efhc.base.errors import InputError
from efhc.base.extras import require
from efhc.cli.escaping import cell, print_error

if TYPE_CHECKING:
    from efhc.experiments.runs.result import Result
    from efhc.experiments.runs.store import Engine

console = Console()

BROKEN, FAILED, INTERRUPTED = 3, 4, 130
"""Exit codes: an assumption is broken; some runs failed; the user stopped the command."""

RUNS_CODE = "A setting such as strategies.mine='file.py:Name' runs the Python code in that file."


def option(metavar: str, about: str, *names: str, **more: Any) -> Any:
    """Return an option with a value. With a metavar, the help page shows no Python type."""
    return typer.Option(*names, metavar=metavar, help=about, **more)


def flag(about: str, *names: str, **more: Any) -> Any:
    """Return an option without a value."""
    return typer.Option(*names, help=about, **more)


def argument(metavar: str, about: str, **more: Any) -> Any:
    """Return an argument."""
    return typer.Argument(metavar=metavar, help=about, **more)


ExperimentFile = Annotated[
    Path, argument("FILE", "The experiment: a TOML file, or a figure of the paper such as fig2a.")
]
Overrides = Annotated[list[str] | None, argument("KEY=VALUE", "Settings to change, such as network.radius=0.5.")]
EngineName = Annotated[str, option("NAME", "local: this machine; ray: a cluster, with efhc[cluster].", "--engine")]
Address = Annotated[
    str | None, option("HOST:PORT", "A running Ray cluster, or auto. Default: start Ray on this machine.")
]
Log = Annotated[
    list[str] | None, option("NAME", "Log to tensorboard, mlflow, wandb or your own file.py:Name. May be repeated.")
]
Jobs = Annotated[int | None, option("N", "Number of cores to use. Default: all.", min=1)]


class DefaultCommandGroup(TyperGroup):
    """A group with a default command: `efhc theory RUN_DIR` is `efhc theory check RUN_DIR`."""

    default: ClassVar[str]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        word = next((arg for arg in args if not arg.startswith("-")), None)
        if word is not None and word in self.commands:
            args.remove(word)  # options may stand before it
            args = [word, *args]
        elif word is not None:
            args = [self.default, *args]
        return super().parse_args(ctx, args)


def choose_engine(name: str, address: str | None, jobs: int | None) -> Engine:
    """Return the engine that the options name. Raises `InputError` for options that do not go together."""
    if name == "local":
        if address is not None:
            raise InputError("--address", f"{address} with --engine local", "--engine ray, or leave --address out")
        from efhc.experiments.runs.engines.local import LocalEngine

        return LocalEngine(jobs)
    if name == "ray":
        require("cluster")
        from efhc.experiments.runs.engines.cluster import ClusterEngine

        return ClusterEngine(address, jobs)
    raise InputError("--engine", f"'{name}'", "local or ray")


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


def how_to_resume() -> str:
    """Return the command that the user typed, with --resume. It does not stop again where --strict stopped it."""
    words = [word for word in sys.argv[1:] if word not in ("--resume", "--strict")]
    return f"{this_command()} {shlex.join([*words, '--resume'])}"


@contextmanager
def stoppable() -> Iterator[None]:
    """End the command with one line at Ctrl-C. Runs are kept as far as they are: the same command continues them."""
    try:
        yield
    except KeyboardInterrupt:
        warn("stopped; the same command continues from here")
        raise typer.Exit(INTERRUPTED) from None


def titled_table(*columns: str, title: str, caption: str | None = None) -> Table:
    """Return a table whose title and caption stand at its left."""
    return Table(*columns, title=title, title_justify="left", caption=caption, caption_justify="left")


def print_summary(result: Result) -> None:
    """Print a table with one row per strategy; with a target accuracy, a second one with what it takes to reach it."""
    summary = result.words()
    for number, words in enumerate(summary.tables):
        table = titled_table(title=cell(words.title), caption=words.caption)
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
