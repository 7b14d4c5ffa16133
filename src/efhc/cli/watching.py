"""efhc watch, efhc report, and the option --watch: a page that shows runs."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from efhc.base.extras import require
from efhc.cli.terminal import argument, flag, option, plain, this_command, warn

Watch = Annotated[bool, flag("Show the runs in a browser (needs efhc[watch]).", "--watch")]


def watch(
    folder: Annotated[Path, argument("DIR", "A run directory, or any folder with runs or nodes.")],
    port: Annotated[int | None, option("N", "The port. Default: 8787, or the next free one.", min=0, max=65535)] = None,
    open_page: Annotated[bool, flag("Open the page in the browser.", "--open")] = False,
    host: Annotated[
        str, option("ADDRESS", "The address to listen on. One that others can reach needs --token.")
    ] = "127.0.0.1",
    token: Annotated[
        str | None,
        option(
            "TOKEN",
            "The token that a browser must present. `auto` creates one and prints it.",
            envvar="EFHC_WATCH_TOKEN",
        ),
    ] = None,
) -> None:
    """Show runs and nodes on a live page (needs efhc[watch]).

    The page shows all runs, studies and nodes under DIR. The command never writes to DIR. By default only this machine
    can open the page; --host and --token share it. Press Ctrl-C to stop.
    """
    require("watch")
    from efhc.watch.server import Server
    from efhc.watch.watcher import Watcher

    with Server(Watcher.of(folder, may_be_empty=True), host=host, port=port, token=token) as server:
        waits = "" if folder.is_dir() else "; the folder does not exist yet, and runs appear once it does"
        print(f"Watching {plain(folder)} at {server.address}  (Ctrl-C ends it{waits})", flush=True)
        if open_page:
            _open(server.address)
        try:
            server.wait()
        except KeyboardInterrupt:
            print()


@contextmanager
def watching(folder: Path, wanted: bool, store: Path | None = None) -> Iterator[None]:
    """Serve the page of a folder during the body, if `wanted`. `store` holds its single runs."""
    if not wanted:
        yield
        return
    require("watch", "--watch")
    from efhc.watch.server import Server
    from efhc.watch.watcher import Watcher

    with Server(Watcher(folder, store)) as server:
        warn(f"watch the runs at {server.address}")
        _open(server.address)
        yield
    warn(
        f"the page closed with this command; `{this_command()} watch {plain(shlex.quote(str(folder)))}` shows it again"
    )


def _open(address: str) -> None:
    """Open the browser, but only where there is a screen: a text browser would take over the terminal."""
    has_screen = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if has_screen:
        import webbrowser

        webbrowser.open(address)


def report(
    folder: Annotated[Path, argument("DIR", "A run directory, or any folder with runs.")],
    out: Annotated[Path | None, option("FILE", "The page. Default: NAME-OF-DIR.html in the current folder.")] = None,
) -> None:
    """Write one offline page that shows all runs under DIR.

    The file contains everything it needs: it can be sent by mail or archived.
    """
    from efhc.watch.offline import write_page

    file = out or Path(f"{folder.absolute().name or 'runs'}.html")
    for line in write_page(folder, file):
        warn(line)
    print(f"Page: {plain(file)} ({file.stat().st_size / 1e6:.1f} MB)")
