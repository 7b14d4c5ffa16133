"""efhc demo, efhc run: one experiment."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from efhc.base.errors import AssumptionBroken
from efhc.cli.data import fetch_missing
from efhc.cli.terminal import (
    BROKEN,
    INTERRUPTED,
    Overrides,
    console,
    iterations_progress,
    print_summary,
    this_command,
    warn,
)

if TYPE_CHECKING:
    from efhc.experiments.config.experiment import Experiment
    from efhc.experiments.studies.theory_monitor import TheoryWatcher


def demo(
    out: Annotated[Path, typer.Option(help="Where to keep the results.")] = Path("runs/demo"),
) -> None:
    """EF-HC against GT, ZT and RG on the digits, in under a minute: a table and the paper's four panels."""
    from efhc.experiments.studies.demo import EXPERIMENT, RUNS, run_demo

    with iterations_progress(RUNS * EXPERIMENT.iterations) as progress:
        shown = run_demo(out, progress)
    print_summary(shown.result)
    console.print(shown.sentence, highlight=False)
    efhc, config = this_command(), shlex.quote(str(out / "config.toml"))
    print(f"\nThe paper's four panels: {shown.figure}")
    print(f"All results:             {out}")
    console.print("\nTry next:", style="bold")
    print(f"  {efhc} run {config} strategies.EF-HC.r=500 --out runs/smaller-threshold")
    print(f"  {efhc} run {config} network.kind=random-links --out runs/links-that-fail")
    print(f"  {efhc} config show            every setting and its default")


def run(
    file: Annotated[Path, typer.Argument(help="The experiment, a TOML file, or a figure of the paper: fig2a.")],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The run directory; by default runs/NAME-OF-FILE.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run that was stopped there.")] = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="Cores to use; by default all.")] = None,
    monitor: Annotated[
        str | None, typer.Option(help="`theory`: say which assumption of the paper the run breaks, and when.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="With --monitor: stop there, exit code 3.")] = False,
    window: Annotated[
        int | None,
        typer.Option(
            min=1, help="With --monitor: in so many iterations all fire and are connected; by default a quarter of all."
        ),
    ] = None,
) -> None:
    """Run an experiment and keep it in a run directory."""
    out = out or Path("runs") / file.stem
    if monitor not in (None, "theory"):
        raise typer.BadParameter(f"got {monitor}; allowed: theory", param_hint="--monitor")
    if not monitor and (strict or window):
        raise typer.BadParameter("they go with --monitor theory", param_hint="--strict or --window")
    try:
        from efhc.experiments.config.files import SWEEP, load_experiment, read_tables
        from efhc.experiments.runs.execute import simulate

        experiment = load_experiment(file, overrides or ())
        if SWEEP in read_tables(file):
            warn(f"the table [sweep] is left alone; `{this_command()} sweep {file}` runs it")
        if resume and not _holds_run(out):
            warn(f"there is no run in {out} to go on with; it is begun")
        fetch_missing(experiment)
        with iterations_progress(
            len(experiment.seeds) * len(experiment.strategies) * experiment.iterations
        ) as progress:
            watcher = _watcher(experiment, strict, window) if monitor else None
            result = simulate(experiment, out=out, resume=resume, progress=progress, jobs=jobs, watcher=watcher)
    except (KeyboardInterrupt, AssumptionBroken) as stopped:
        words = shlex.join(["run", str(file), *(overrides or ()), "--out", str(out), "--resume"])
        go_on = f"go on with: {this_command()} {words}" if _holds_run(out) else "nothing was written"
        why = f", {stopped}" if str(stopped) else ""
        warn(f"stopped{why}; {go_on}")
        raise typer.Exit(INTERRUPTED if isinstance(stopped, KeyboardInterrupt) else BROKEN) from None
    print_summary(result)
    print(f"\nResults: {out}, figure: {out / 'figures' / 'comparison.png'}")


def _watcher(experiment: Experiment, strict: bool, window: int | None) -> TheoryWatcher:
    from efhc.experiments.studies.theory_monitor import TheoryWatcher

    watcher = TheoryWatcher(experiment, warn, strict, window)
    warn(f"watching: {watcher.demands}")
    return watcher


def _holds_run(out: Path) -> bool:
    return os.path.exists(out / "config.toml")  # noqa: PTH110 - unlike Path.exists, it never fails
