"""efhc watch, efhc report, and the option --watch: a page that shows runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from efhc.base.extras import require
from efhc.cli.escaping import plain
from efhc.cli.terminal import this_command, warn

Watch = Annotated[bool, typer.Option("--watch", help="Show the runs in a browser while they run. Needs efhc[watch].")]


def watch(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run directory, or any folder with runs or nodes.")],
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, metavar="N", help="The port. Default: 8787, or the next one that is free."),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The address to listen on. Other than loopback, it needs --token.")
    ] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            envvar="EFHC_WATCH_TOKEN",
            help="The token that a browser must present. `auto` creates one and prints it.",
        ),
    ] = None,
) -> None:
    """Show runs, sweeps, reproductions, tunings and nodes under DIR on a page, while they run and afterwards.

    It only reads; nothing leaves this machine. Ctrl-C ends it.
    """
    require("watch")
    from efhc.watch.server import Server
    from efhc.watch.watched import Watched

    with Server(Watched.of(folder, may_be_empty=True), host=host, port=port, token=token) as server:
        waits = "" if folder.is_dir() else "; the folder is not there yet, runs appear when it is"
        print(f"Watching {plain(folder)} at {server.address}  (Ctrl-C ends it{waits})", flush=True)
        if open_page:
            _open(server.address)
        try:
            server.wait()
        except KeyboardInterrupt:
            print()


@contextmanager
def watching(folder: Path, asked: bool, store: Path | None = None) -> Iterator[None]:
    """Show what is made in a folder during the body, if that is `asked` for. `store` has its single runs."""
    if not asked:
        yield
        return
    require("watch", "--watch")
    from efhc.watch.server import Server
    from efhc.watch.watched import Watched

    with Server(Watched(folder, store)) as server:
        warn(f"watch it at {server.address}")
        _open(server.address)
        yield
    warn(f"the page has ended with the command; {this_command()} watch {plain(folder)} shows it again")


def _open(address: str) -> None:
    """Open the browser, where there is a screen: a browser in the terminal would be in the way."""
    has_screen = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if has_screen:
        import webbrowser

        webbrowser.open(address)


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run directory, or any folder with runs.")],
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="The page. Default: NAME-OF-DIR.html here.")] = None,
) -> None:
    """Write one page that shows all runs under DIR, with everything inside: it works offline and can be sent."""
    from efhc.watch.offline import write_page

    file = out or Path(f"{folder.absolute().name or 'runs'}.html")
    for line in write_page(folder, file):
        warn(line)
    print(f"Page: {plain(file)} ({file.stat().st_size / 1e6:.1f} MB)")
