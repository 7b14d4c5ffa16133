"""The command line: parse, call, print. Everything heavy is imported by the command that needs it."""

from __future__ import annotations

import os
import re
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer

from efhc import __version__
from efhc.base.errors import EfhcError
from efhc.cli import certs, checking, data, launch, node, papers, predicting, running, studies, theory, watching
from efhc.cli.terminal import INTERRUPTED, RUNS_CODE, flag, warn

UNREAD, REFUSED = 1, 2
"""Exit codes: the reader of a pipe closed it; an error that the user can fix."""

app = typer.Typer(
    help="Decentralized federated learning with personalized event-triggered communication (EF-HC).",
    epilog=f"{RUNS_CODE} Commands, settings and exit codes: docs/commands.md.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain text: no boxes around narrow columns, and [brackets] are shown as they are
    context_settings={"help_option_names": ["-h", "--help"]},
)
# The list of commands shows the first sentence of each docstring, of at most 65 characters.
COMMANDS: tuple[Callable[..., None], ...] = (
    *(running.demo, running.new, running.run, studies.reproduce, studies.sweep, studies.tune),
    *(
        papers.table,
        papers.figure,
        watching.watch,
        watching.report,
        launch.launch,
        predicting.predict,
        node.status,
        checking.doctor,
    ),
)
TAKE_SETTINGS = {running.run, launch.launch, studies.sweep, studies.tune}
for command in COMMANDS:
    app.command(epilog=RUNS_CODE if command in TAKE_SETTINGS else None)(command)
for group in (checking.app, data.app, node.app, certs.app, theory.app):
    app.add_typer(group)

debugging = False

UsageError: Any = typer.BadParameter.__base__  # typer does not export it by name


def main() -> None:
    """Run the command line. An error that the user can fix is one line and exit code 2; `--debug` shows more."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop as with Ctrl-C
    if sys.argv[1:2] == ["node"]:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a node reads its files at SIGHUP; it is about to
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: warn(message)
            code = app(standalone_mode=False, prog_name="efhc")
        if sys.stdout is not None:  # None: it was closed
            sys.stdout.flush()  # here, where a full disk is an error like others
        sys.exit(code)
    except (KeyboardInterrupt, typer.Abort):
        warn("stopped")
        sys.exit(INTERRUPTED)
    except Exception as error:
        if debugging or (text := _one_line(error)) is None:
            raise
        _refuse(error, text)


def _one_line(error: Exception) -> str | None:
    """Return the line for an error that the user can fix; None for a bug of efhc, which gets its traceback."""
    if isinstance(error, UsageError):
        return _in_our_words(error)
    if isinstance(error, EfhcError):
        return str(error)
    if isinstance(error, ImportError):
        package = (error.name or "a package").partition(".")[0]
        return f"{package} cannot be imported ({error}); `efhc doctor` lists what is installed"
    if isinstance(error, MemoryError):
        return f"there is not enough memory ({error})" if str(error) else "there is not enough memory"
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename is not None else ""
        return f"{where}{error.strerror or error}; `efhc --debug` shows where"
    return None


_OUR_WORDS = {
    "Invalid value for ": "",
    "Input should be a valid integer, unable to parse string as an integer": "use a whole number",
    "Input should be a valid number, unable to parse string as a number": "use a number",
    "Input should be ": "use a number ",
}


def _in_our_words(error: Any) -> str:
    """Return what typer says about the command line, in the words of other errors."""
    text = str(error.format_message())
    for theirs, ours in _OUR_WORDS.items():
        text = text.replace(theirs, ours)
    if error.ctx is None or ": use " in text or type(error).__name__ == "NoArgsIsHelpError":
        return re.sub(r"^'(--[\w-]+)': ", r"\1: ", text)
    return f"{text}{'' if text[-1] in '.?' else '.'} `{error.ctx.command_path} --help` shows what it accepts."


def _refuse(error: Exception, text: str) -> NoReturn:
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:  # the output is lost; the interpreter must not try once more when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        sys.exit(UNREAD)
    if type(error).__name__ == "NoArgsIsHelpError":  # its text is the help, of many lines
        print(text, file=sys.stderr)
    else:
        warn(text)
    code = getattr(error, "exit_code", REFUSED)
    if getattr(error, "cannot_clean_up", False):
        os._exit(code)
    sys.exit(code)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"efhc {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, flag("Show the full traceback of an error.", "--debug")] = False,
    version: Annotated[
        bool, flag("Show the version and exit.", "--version", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    global debugging  # noqa: PLW0603 - one process, one command line
    debugging = debug
