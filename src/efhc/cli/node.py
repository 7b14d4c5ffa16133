"""efhc node and efhc status: one device of an experiment as a process, and the status of running ones."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from efhc.cli.terminal import (
    RUNS_CODE,
    DefaultCommandGroup,
    Overrides,
    argument,
    cell,
    console,
    flag,
    option,
    plain,
    warn,
)

if TYPE_CHECKING:
    from rich.table import Table

    from efhc.experiments.nodes.status_query import Answer

SILENT = 1
"""Exit code of `efhc status` if a node did not answer, or if there is none."""
CAPTION = "drift: of the threshold; doubt: undecided exchanges; MB: sent"
"""One line below the table of nodes that explains its columns. docs/node.md has more."""
SOON_DAYS = 14
"""`efhc status` mentions a certificate that expires within this many days."""


app = typer.Typer(
    name="node",
    cls=DefaultCommandGroup,
    help="Run one device of an experiment on a real network.\n\n"
    "`efhc node NODE.toml` is short for `efhc node run NODE.toml`; `efhc node run --help` shows its options.",
    no_args_is_help=True,
)


@app.command("run", epilog=RUNS_CODE)
def run(
    file: Annotated[Path, argument("NODE.toml", "The node file; `efhc node init` writes one.")],
    overrides: Overrides = None,
    insecure: Annotated[bool, flag("Use no TLS. Allowed if all addresses are on this machine.", "--insecure")] = False,
) -> None:
    """Run one device; the word `run` may be left out.

    The node logs JSON lines to stderr, and `efhc status` shows its state. SIGTERM and Ctrl-C stop it: exchanges under
    way finish, the state is kept, and the exit code is 0. On SIGHUP it reads its table of neighbours again.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # until the node handles it: there is nothing to keep yet
    from efhc.experiments.nodes.assemble import run_node
    from efhc.experiments.nodes.node_files import read_node

    changes = overrides or ()
    run_node(read_node(file, changes), lambda: read_node(file, changes).neighbours, insecure=insecure)


@app.command("init", epilog=RUNS_CODE)
def init(
    experiment: Annotated[str, argument("FILE", "The experiment, a TOML file.")],
    device: Annotated[int, option("N", "The number of the device.", min=0)],
    overrides: Overrides = None,
    out: Annotated[Path | None, option("FILE", "The file to write. Default: device-N.toml.")] = None,
    listen: Annotated[
        str | None, option("HOST:PORT", 'Where to listen, or "none". Default: 0.0.0.0, on port 7700 + N.')
    ] = None,
    neighbours: Annotated[
        list[str] | None,
        option(
            "J=HOST:PORT",
            "Where device J listens, or J alone if J connects to this device. May be repeated. Default: "
            "placeholders for all devices that the network links to this one.",
            "--neighbour",
        ),
    ] = None,
    certificates: Annotated[Path, option("FOLDER", "The folder with the device's certificate.", "--certs")] = Path(
        "certs"
    ),
) -> None:
    """Write a complete node file for a device of an experiment.

    The file explains every setting. An existing file is not overwritten.
    """
    from efhc.experiments.nodes.node_files import write_new_node

    file = out or Path(f"device-{device}.toml")
    settings, loaded = write_new_node(
        file,
        experiment,
        device,
        certificates=certificates,
        listen=listen,
        neighbours=neighbours or (),
        overrides=overrides or (),
    )
    linked = ", ".join(str(neighbour.device) for neighbour in settings.neighbours) or "none"
    print(f"{plain(file)}: device {device}, neighbours {linked}")
    if len(loaded.strategies) > 1 or len(loaded.seeds) > 1:
        strategies, seeds = ", ".join(loaded.strategies), ", ".join(map(str, loaded.seeds))
        print(f"strategy {plain(settings.strategy)} (of {plain(strategies)}), seed {settings.seed} (of {seeds});")
        print("all devices need the same; to choose others, add strategy=NAME seed=N to this command")
    if "# CHANGE" in file.read_text():
        print("Change the addresses that are marked with CHANGE, then run it:")
    print(f"  efhc node {plain(file)}")


def status(
    places: Annotated[
        list[str] | None,
        argument(
            "PLACE",
            "State folders, folders that contain some, node files or addresses on this machine. Default: this folder.",
        ),
    ] = None,
    as_json: Annotated[bool, flag("Print JSON.", "--json")] = False,
) -> None:
    """Show the status of the nodes on this machine.

    The exit code is 1 if a node does not answer, or if none is running.
    """
    from efhc.experiments.nodes.status_query import query_all

    places = places or ["."]
    answers = query_all(places)
    if as_json:
        import json

        print(json.dumps([answer.status or {"place": answer.place, "problem": answer.problem} for answer in answers]))
    else:
        table = answers_table(answers)
        if table.row_count:
            console.print(table)
        for line in (line for answer in answers for line in _problems(answer)):
            print(plain(line))
    if not answers:
        where = ", ".join("this folder" if place == "." else place for place in places)
        warn(f"no node is running in {where}; give its state folder, node file or address")
    if not answers or any(answer.status is None for answer in answers):
        raise typer.Exit(SILENT)


def answers_table(answers: list[Answer], title: str | None = None) -> Table:
    """Return one row per node that answered."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=0, title=title, caption=CAPTION)
    table.title_justify = table.caption_justify = "left"
    for name in ("device", "state", "k", "loss", "drift", "fired", "exchanges", "links", "doubt", "MB"):
        table.add_column(name, justify="left" if name in {"device", "state"} else "right", no_wrap=True)
    for answer in answers:
        if answer.status is not None:
            table.add_row(*map(cell, _row(answer.status)))
    return table


def _row(status: dict[str, Any]) -> list[str]:
    neighbours, threshold = status["neighbours"], status["threshold"]
    return [
        str(status["device"]),
        status["state"],
        f"{status['iteration']}/{status['iterations']}",
        "-" if status["loss"] is None else f"{status['loss']:.3g}",
        f"{status['drift'] / threshold:.0%}" if threshold and status["drift"] is not None else "-",
        str(status["broadcasts"]),
        str(sum(one["exchanges"]["committed"] for one in neighbours)),
        f"{sum(one['up'] for one in neighbours)}/{len(neighbours)}",
        str(status["in_doubt"]),
        f"{sum(one['bytes_sent'] for one in neighbours) / 1e6:.1f}",
    ]


def _problems(answer: Answer) -> list[str]:
    if answer.status is None:
        return [f"{answer.place}: {answer.problem}"]
    device = answer.status["device"]
    links = [one for one in answer.status["neighbours"] if not one["connected"]]
    lines = [
        f"device {device}: no connection to {one['device']}; {one['last_problem'] or 'it has not connected yet'}"
        for one in links
    ]
    expires = answer.status["certificate_expires"]
    if expires is not None and (days := (expires - time.time()) / 86400) < SOON_DAYS:
        lines.append(f"device {device}: its certificate expires in {days:.1f} days; `efhc certs issue` renews it")
    return lines
