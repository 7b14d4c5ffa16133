"""efhc launch: an experiment made by node processes on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from efhc.base.errors import InputError
from efhc.cli.data import fetch_data
from efhc.cli.node import answers_table
from efhc.cli.progress import FIRST_SECONDS, LINE_SECONDS, NowAndThen
from efhc.cli.terminal import (
    INTERRUPTED,
    ExperimentFile,
    Overrides,
    cell,
    console,
    flag,
    how_to_resume,
    option,
    plain,
    print_summary,
    warn,
)

if TYPE_CHECKING:
    from efhc.experiments.config.experiment import Experiment
    from efhc.experiments.nodes.status_query import Answer
    from efhc.experiments.runs.run import Run
    from efhc.runtime.node_settings import Mode

MODES: dict[str, Mode] = {"lockstep": "lockstep", "free-running": "free-running"}


def launch(
    file: ExperimentFile,
    overrides: Overrides = None,
    out: Annotated[Path | None, option("DIR", "Output directory. Default: runs/NAME-OF-FILE-nodes.")] = None,
    mode: Annotated[
        str | None,
        option(
            "MODE",
            "lockstep: nodes wait for each other; free-running: each has a clock of its own. Default: as the driver.",
        ),
    ] = None,
    strategy: Annotated[list[str] | None, option("NAME", "Only this strategy. May be repeated. Default: all.")] = None,
    seed: Annotated[list[int] | None, option("N", "Only this seed. May be repeated. Default: all.", min=0)] = None,
    seconds: Annotated[
        float | None,
        option(
            "S",
            "Seconds that free-running nodes train. Default: driver.seconds, or until all iterations are made.",
            min=0.001,
        ),
    ] = None,
    netns: Annotated[
        bool, flag("Give each device a network namespace with an uplink of rate b_i. Needs root.", "--netns")
    ] = False,
    resume: Annotated[bool, flag("Resume the launch in --out.", "--resume")] = False,
    keep_nodes: Annotated[bool, flag("Keep the files and logs of the nodes in DIR/nodes.", "--keep-nodes")] = False,
) -> None:
    """Run each device as a process of its own (needs efhc[node]).

    The processes run on this machine and are connected over TLS. The results become an ordinary run directory.
    """
    if mode is not None and mode not in MODES:
        raise InputError("--mode", f"'{mode}'", " or ".join(MODES))
    from efhc.experiments.config.files import load_experiment
    from efhc.experiments.nodes.launch import launch as launch_nodes

    out = out or Path("runs") / f"{file.stem}-nodes"
    experiment = _chosen(load_experiment(file, overrides or ()), strategy, seed)
    if experiment.log:
        warn("the setting log has no effect here: trackers do not follow nodes")
    fetch_data(experiment)
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
        warn(f"stopped; continue with: {how_to_resume()}")
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
    """Show how the nodes of the present run are: in place on a terminal, elsewhere as a line now and then."""
    from rich.live import Live

    lines = NowAndThen(FIRST_SECONDS, LINE_SECONDS)
    seen: list[tuple[str, int]] = []
    with Live(console=console, refresh_per_second=2, transient=True) as live:

        def view(run: Run, answers: list[Answer]) -> None:
            if run.pair not in seen:
                seen.append(run.pair)
            answering = [answer for answer in answers if answer.status is not None]
            starting = len(answers) - len(answering)
            title = f"{run.name} ({len(seen)} of {runs})" + (f", {starting} starting" if starting else "")
            if console.is_terminal:
                live.update(answers_table(answering, cell(title)))
            else:
                lines.call(lambda: warn(f"{title}: {how_far(answering)}"))

        yield view


def how_far(answers: list[Answer]) -> str:
    """Return how far nodes are: "3 nodes, slowest at 5,120 of 40,000". Nodes that the clock stops have no last one."""
    from efhc.experiments.nodes.nodes_of_run import FOR_EVER

    words = f"{len(answers)} node{'s' if len(answers) != 1 else ''}"
    reached = [(one.status["iteration"], one.status["iterations"]) for one in answers if one.status is not None]
    if not reached:
        return words
    k, last = min(reached)
    return f"{words}, slowest at {k:,}" + (f" of {last:,}" if last < FOR_EVER else "")
