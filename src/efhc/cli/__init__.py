"""The command line: parse, call, print. Everything heavy is imported by the command that needs it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from efhc import __version__
from efhc.base.errors import EfhcError
from efhc.cli import checking, data, running, studies, theory
from efhc.cli.terminal import INTERRUPTED

app = typer.Typer(
    help="Decentralized federated learning with personalized event-triggered communication (EF-HC).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS: list[Callable[..., None]] = [
    running.demo,
    running.run,
    studies.reproduce,
    studies.sweep,
    studies.tune,
    checking.doctor,
    checking.bench,
]
for command in COMMANDS:
    app.command()(command)
app.add_typer(checking.config_app, name="config")
app.add_typer(data.app, name="data")
app.add_typer(theory.app, name="theory")

debugging = False

UsageError: Any = typer.BadParameter.__base__  # typer does not export it by name


def main() -> None:
    """Errors that the user can mend are one line and exit code 2; `--debug` shows where they came from."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # asked to end: stop as with Ctrl-C
    try:
        sys.exit(app(standalone_mode=False))
    except (EfhcError, UsageError) as error:
        if debugging:
            raise
        if type(error).__name__ != "NoArgsIsHelpError":  # then the help is printed already
            text = error.format_message() if isinstance(error, UsageError) else str(error)
            print(f"efhc: {' '.join(text.split())}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        print("efhc: stopped", file=sys.stderr)
        sys.exit(INTERRUPTED)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"efhc {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the full traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    global debugging  # noqa: PLW0603 - one process, one command line
    debugging = debug
