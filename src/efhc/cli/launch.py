"""efhc launch: an experiment made by node processes on this machine."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from efhc.base.errors import InputError
from efhc.cli.data import fetch_missing, require_extras
from efhc.cli.escaping import cell, plain
from efhc.cli.node import answers_table
from efhc.cli.terminal import INTERRUPTED, Overrides, console, print_summary, this_command, warn

if TYPE_CHECKING:
    from efhc.experiments.config.experiment import Experiment
    from efhc.experiments.nodes.launch import Mode
    from efhc.experiments.nodes.status_query import Answer
    from efhc.experiments.runs.run import Run

MODES: dict[str, Mode] = {"lockstep": "lockstep", "free-running": "free-running"}


def launch(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="The experiment: a TOML file, or a figure of the paper such as fig2a."),
    ],
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The run directory. Default: runs/NAME-OF-FILE-nodes.")
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help="lockstep: nodes wait for each other, as in `efhc run`; free-running: each has its own clock. "
            "Default: by the driver of the experiment.",
        ),
    ] = None,
    strategy: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this strategy. May be repeated. Default: all.")
    ] = None,
    seed: Annotated[
        list[int] | None, typer.Option(min=0, metavar="N", help="Only this seed. May be repeated. Default: all.")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            metavar="S",
            help="How long free-running nodes train. Default: driver.seconds, or until each has made all iterations.",
        ),
    ] = None,
    netns: Annotated[
        bool,
        typer.Option("--netns", help="A network namespace per device, with b_i as the rate of its uplink. Needs root."),
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what was stopped there.")] = False,
    keep_nodes: Annotated[
        bool, typer.Option("--keep-nodes", help="Keep the nodes' files and logs, in DIR/nodes.")
    ] = False,
) -> None:
    """Run each device of an experiment as a process of its own, over TLS, and collect one ordinary run directory."""
    if mode is not None and mode not in MODES:
        raise typer.BadParameter(f"got {mode}; allowed: {', '.join(MODES)}", param_hint="--mode")
    from efhc.experiments.config.files import load_experiment
    from efhc.experiments.nodes.launch import launch as launch_nodes
    from efhc.experiments.nodes.launch import words_to_resume

    out = out or Path("runs") / f"{file.stem}-nodes"
    experiment = _chosen(load_experiment(file, overrides or ()), strategy, seed)
    if experiment.log:
        warn("the setting log is not used here: nodes are not logged")
    require_extras(experiment)
    fetch_missing(experiment)
    try:
        with _live_table(len(experiment.strategies) * len(experiment.seeds)) as view:
            result = launch_nodes(
                experiment,
                out,
                mode=None if mode is None else MODES[mode],
                seconds=seconds,
                netns=netns,
                resume=resume,
                keep_nodes=keep_nodes,
                view=view,
                warn=warn,
            )
    except KeyboardInterrupt:
        words = words_to_resume(
            file,
            out,
            mode=mode,
            netns=netns,
            overrides=overrides or (),
            strategies=strategy or (),
            seeds=seed or (),
            seconds=seconds,
        )
        warn(f"stopped; go on with: {this_command()} {shlex.join(words)}")
        raise typer.Exit(INTERRUPTED) from None
    print_summary(result)
    print(plain(f"\nResults: {out}"))


def _chosen(experiment: Experiment, strategies: list[str] | None, seeds: list[int] | None) -> Experiment:
    """Return the experiment with these strategies and seeds only."""
    from efhc.experiments.config.files import build_experiment

    for name in strategies or ():
        if name not in experiment.strategies:
            raise InputError("--strategy", name, ", ".join(experiment.strategies))
    for number in seeds or ():
        if number not in experiment.seeds:
            raise InputError("--seed", number, ", ".join(map(str, experiment.seeds)))
    kept = {name: one for name, one in experiment.strategies.items() if strategies is None or name in strategies}
    return build_experiment(dict(experiment) | {"strategies": kept, "seeds": seeds or experiment.seeds})


@contextmanager
def _live_table(runs: int) -> Iterator[Callable[[Run, list[Answer]], None]]:
    """Show how the nodes of the present run are, in place; nothing if the output is no terminal."""
    from rich.live import Live

    seen: list[tuple[str, int]] = []
    with Live(console=console, refresh_per_second=2, transient=True) as live:

        def view(run: Run, answers: list[Answer]) -> None:
            if run.pair not in seen:
                seen.append(run.pair)
            if console.is_terminal:
                answering = [answer for answer in answers if answer.status is not None]
                starting = len(answers) - len(answering)
                title = f"{run.name} ({len(seen)} of {runs})" + (f", {starting} starting" if starting else "")
                live.update(answers_table(answering, cell(title)))

        yield view
