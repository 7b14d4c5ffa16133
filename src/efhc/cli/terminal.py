"""What commands share: their options, the tables they print, and what they say when they are stopped.

Names, paths and errors come from outside. `plain` and `cell` make them safe to print.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from efhc.base.errors import InputError, printable
from efhc.base.extras import require

if TYPE_CHECKING:
    from efhc.experiments.runs.result import Result
    from efhc.experiments.runs.store import Engine

console, errors = Console(), Console(stderr=True)

BROKEN, FAILED, INTERRUPTED = 3, 4, 130
"""Exit codes: an assumption is broken; some runs failed; the user stopped the command."""

FIGURES = (".png", ".pdf", ".svg")

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
EngineName = Annotated[str, option("NAME", "local: this machine; ray: a cluster (needs efhc[cluster]).", "--engine")]
Address = Annotated[
    str | None, option("HOST:PORT", "Address of a running Ray cluster, or auto. Default: start Ray on this machine.")
]
Log = Annotated[
    list[str] | None, option("NAME", "Log to tensorboard, mlflow, wandb or your own file.py:Name. May be repeated.")
]
MeasureName = Annotated[
    str | None,
    option("NAME", "What results go by: accuracy, own_accuracy, loss, ... Default: the experiment's `measure`."),
]
Jobs = Annotated[int | None, option("N", "Number of cores to use. Default: all.", min=1)]


class DefaultCommandGroup(TyperGroup):
    """A group whose first command need not be named: `efhc theory RUN_DIR` is `efhc theory check RUN_DIR`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        word = next((arg for arg in args if not arg.startswith("-")), None)
        if word is not None and word in self.commands:
            args.remove(word)  # options may stand before it
            args = [word, *args]
        elif word is not None:
            args = [next(iter(self.commands)), *args]
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


def with_options(overrides: list[str] | None, log: list[str] | None, measure: str | None) -> list[str]:
    """Return overrides to which the options --log and --measure are added."""
    options = {"log": log or None, "measure": measure}
    added = (f"{name}={json.dumps(value)}" for name, value in options.items() if value is not None)
    return [*(overrides or ()), *added]


def plain(text: object) -> str:
    """Return `text` with every control character except line breaks escaped, so that no terminal obeys it."""
    return "\n".join(printable(line) for line in str(text).split("\n"))


def cell(text: object) -> str:
    """Return `text` for a table or message of rich: no control characters, and [brackets] are not markup."""
    return escape(plain(text))


def warn(text: object) -> None:
    """Print one line to stderr; at a terminal, a long one is broken between words."""
    line = f"efhc: {' '.join(plain(text).split())}"
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns
        line = textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
    print(line, file=sys.stderr)


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


def print_summary(result: Result) -> None:
    """Print a table with one row per strategy; with a target accuracy, a second one with what it takes to reach it."""
    summary = result.words()
    failed = [[Text(plain(name), "red"), Text(f"seed {seed} failed", "red")] for name, seed in result.failed]
    first, *others = summary.tables
    print_table(first.columns, [*first.rows, *failed], first.title, first.caption, left=1)
    for line in summary.notes:
        console.print(cell(line), highlight=False)
    for words in others:
        print_table(words.columns, words.rows, words.title, words.caption, left=1)


def print_table(
    columns: Iterable[object],
    rows: Iterable[Sequence[object]],
    title: str = "",
    caption: str | None = None,
    left: int | None = None,
) -> None:
    """Print a table of texts and numbers. The first `left` columns are aligned to the left; by default all are.

    A table that is too wide has no lines between its columns, and long cells are broken into lines, not cut off.
    """
    table = Table(title=cell(title) or None, title_justify="left", caption=caption, caption_justify="left")
    for number, name in enumerate(columns):
        table.add_column(cell(name), justify="left" if left is None or number < left else "right")
    for row in rows:
        table.add_row(*(one if isinstance(one, Text) else cell(one) for one in row))
    unlimited = console.options.update(width=1000)
    if console.measure(table, options=unlimited).maximum > console.width:
        table.box, table.padding = SIMPLE_HEAD, (0, 0)
        for column in table.columns:
            column.header, column.overflow = str(column.header).replace("_", "_\n"), "fold"
    console.print(table)


def require_figure(out: Path) -> None:
    """Raise an `InputError` if the file that --out names is no figure."""
    if out.suffix not in FIGURES:
        raise InputError("--out", out, f"a file that ends in {', '.join(FIGURES)}")
