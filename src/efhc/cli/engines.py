"""Where runs are made: the options of the commands that make many, and the engine that they name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from efhc.base.errors import InputError
from efhc.base.extras import require
from efhc.cli.terminal import INTERRUPTED, warn

if TYPE_CHECKING:
    from efhc.experiments.runs.store import Engine

EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="NAME",
        help="local: the cores of this machine. ray: a Ray cluster; needs efhc[cluster].",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="The Ray cluster to join, or `auto`. Default: one is started here."),
]
Jobs = Annotated[int | None, typer.Option(min=1, metavar="N", help="Number of cores to use. Default: all.")]


def check_engine(name: str, address: str | None) -> None:
    """Refuse what cannot be used. This imports nothing heavy, so it answers at once."""
    if name not in ("local", "ray"):
        raise InputError("--engine", f"'{name}'", "local, ray")
    if name == "local" and address is not None:
        raise InputError("--address", address, "nothing with --engine local; it is for --engine ray")
    if name == "ray":
        require("cluster")


def engine_named(name: str, address: str | None, jobs: int | None) -> Engine:
    """Return the engine that the options name."""
    check_engine(name, address)
    if name == "local":
        from efhc.experiments.runs.engines.local import LocalEngine

        return LocalEngine(jobs)
    from efhc.experiments.runs.engines.cluster import ClusterEngine

    return ClusterEngine(address, jobs)


@contextmanager
def stoppable() -> Iterator[None]:
    """Ctrl-C ends the command with one line. Runs are kept as far as they are, so the same command continues them."""
    try:
        yield
    except KeyboardInterrupt:
        warn("stopped; the same command goes on from here")
        raise typer.Exit(INTERRUPTED) from None
