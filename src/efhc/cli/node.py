"""efhc node and efhc status: one device of an experiment as a process, and how running ones are."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from efhc.cli.escaping import cell, plain
from efhc.cli.groups import DefaultCommandGroup
from efhc.cli.terminal import RUNS_CODE, Overrides, console

if TYPE_CHECKING:
    from rich.table import Table

    from efhc.experiments.nodes.status_query import Answer

SILENT = 1
"""Exit code of `efhc status` if a node did not answer, or if there is none."""
CAPTION = "drift: of the threshold; doubt: undecided exchanges; MB: sent"
"""What the columns of the table of nodes mean, in one line below it. docs/node.md says more."""
SOON_DAYS = 14
"""`efhc status` mentions a certificate that expires within this many days."""


class _NodeFileByDefault(DefaultCommandGroup):
    default = "run"


app = typer.Typer(
    cls=_NodeFileByDefault,
    help="efhc node NODE.toml: run one device of an experiment on a real network, until SIGTERM or Ctrl-C.\n\n"
    "It is short for `efhc node run NODE.toml`; `efhc node run --help` shows its options.",
    no_args_is_help=True,
)


@app.command("run", short_help="Run one device. `run` may be left out.", epilog=RUNS_CODE)
def run(
    file: Annotated[Path, typer.Argument(metavar="NODE.toml", help="The node file; `efhc node init` writes one.")],
    overrides: Overrides = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Without TLS, if all addresses are of this machine alone.")
    ] = False,
) -> None:
    """Run one device of an experiment. It logs JSON lines to stderr, and `efhc status` shows how it is.

    SIGTERM and Ctrl-C stop it: exchanges under way finish, the state is kept, exit code 0. SIGHUP makes it read the
    table of neighbours anew.
    """
    signal.signal(signal.SIGTERM, _stop_before_the_start)
    from efhc.experiments.nodes.assemble import run_node
    from efhc.experiments.nodes.node_files import read_node

    changes = overrides or ()
    run_node(read_node(file, changes), lambda: read_node(file, changes).neighbours, insecure=insecure)


def _stop_before_the_start(number: int, frame: object) -> None:
    """Stand in until the node handles SIGTERM itself: there is nothing to keep yet."""
    sys.exit(0)


@app.command("init", short_help="Write a complete node file for a device of an experiment.", epilog=RUNS_CODE)
def init(
    experiment: Annotated[str, typer.Argument(metavar="EXPERIMENT.toml", help="The experiment, a TOML file.")],
    device: Annotated[int, typer.Option(min=0, metavar="N", help="The number of the device.")],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="The file to write. Default: device-N.toml.")] = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help='Where to listen, or "none". Default: 0.0.0.0, on port 7700 + N.'),
    ] = None,
    neighbours: Annotated[
        list[str] | None,
        typer.Option(
            "--neighbour",
            metavar="J=HOST:PORT",
            help="Where device J listens; J alone if it has to connect by itself. May be repeated. Others that the "
            "network links to the device get a placeholder.",
        ),
    ] = None,
    certificates: Annotated[
        Path, typer.Option("--certs", metavar="FOLDER", help="The folder with the device's certificate.")
    ] = Path("certs"),
) -> None:
    """Write a node file in which every setting is explained. An existing file is not overwritten."""
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
        print("all devices need the same: strategy=NAME seed=N behind this command chooses others")
    if "# CHANGE" in file.read_text():
        print("Change the addresses that are marked with CHANGE, then run it:")
    print(f"  efhc node {plain(file)}")


def status(
    places: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PLACE",
            help="State folders, folders that hold some, node files, or addresses of this machine. Default: the "
            "current folder.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Ask running nodes of this machine how they are. Exit code 1 if one does not answer, or if none is running."""
    from efhc.experiments.nodes.status_query import ask_all

    places = places or ["."]
    answers = ask_all(places)
    if as_json:
        import json

        print(json.dumps([answer.status or {"place": answer.place, "problem": answer.problem} for answer in answers]))
    else:
        _print_answers(answers)
    if not answers:
        print(f"no node is running here: {plain(', '.join(places))}", file=sys.stderr)
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


def _print_answers(answers: list[Answer]) -> None:
    """Print one row per node that answered, and below it what is wrong, if anything is."""
    table = answers_table(answers)
    if table.row_count:
        console.print(table)
    for answer in answers:
        for line in _problems(answer):
            print(plain(line))


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
        f"device {device}: no connection to {one['device']}; {one['last_problem'] or 'it has not come yet'}"
        for one in links
    ]
    expires = answer.status["certificate_expires"]
    if expires is not None and (days := (expires - time.time()) / 86400) < SOON_DAYS:
        lines.append(f"device {device}: its certificate expires in {days:.1f} days; `efhc certs issue` renews it")
    return lines
