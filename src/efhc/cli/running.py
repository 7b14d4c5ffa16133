"""efhc demo, efhc run: one experiment."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from efhc.base.errors import AssumptionBroken, InputError
from efhc.cli.data import fetch_missing, require_extras
from efhc.cli.escaping import plain
from efhc.cli.progress import showing
from efhc.cli.terminal import (
    BROKEN,
    FAILED,
    INTERRUPTED,
    Address,
    EngineName,
    Jobs,
    Log,
    Overrides,
    choose_engine,
    console,
    print_summary,
    this_command,
    warn,
    with_log,
)
from efhc.cli.watching import Watch, watching

if TYPE_CHECKING:
    from efhc.experiments.config.experiment import Experiment
    from efhc.experiments.studies.theory_monitor import TheoryWatcher


def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to keep the results.")] = Path("runs/demo"),
) -> None:
    """Compare EF-HC with GT, ZT, RG and entrywise on the digits, in under a minute: a table and four panels."""
    from efhc.experiments.studies.demo import EXPERIMENT, NAMES, RUNS, run_demo

    with showing(RUNS, RUNS * EXPERIMENT.iterations) as overview:
        shown = run_demo(out, overview.progress_of(EXPERIMENT.iterations), [overview.follower])
    print_summary(shown.result)
    console.print(NAMES, highlight=False)
    console.print(shown.sentence, highlight=False)
    figure = out / "figures" / "demo.png"
    shown.draw(figure)
    efhc, config = this_command(), shlex.quote(str(out / "config.toml"))
    print(f"\nThe paper's four panels: {figure}")
    print(f"All results:             {out}")
    console.print("\nTry next:", style="bold")
    print(f"  {efhc} run {config} strategies.EF-HC.r=500 --out runs/smaller-threshold")
    print(f"  {efhc} run {config} network.kind=random-links --out runs/links-that-fail")
    print(f"  {efhc} config show            every setting and its default")


def run(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="The experiment: a TOML file, or a figure of the paper such as fig2a."),
    ],
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The run directory. Default: runs/NAME-OF-FILE.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run that was stopped there.")] = False,
    store: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="A folder of single runs: those in it are not made again, and new ones stay in it."
        ),
    ] = None,
    engine: EngineName = "local",
    address: Address = None,
    jobs: Jobs = None,
    log: Log = None,
    figure: Annotated[
        bool,
        typer.Option("--figure/--no-figure", help="Draw figures/comparison.png; of an event-driven run, seconds.png."),
    ] = True,
    monitor: Annotated[
        str | None,
        typer.Option(metavar="theory", help="`theory`: report each assumption of the paper that the run breaks."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="With --monitor: stop there, with exit code 3.")] = False,
    window: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="With --monitor: number of iterations within which every device must fire and be connected to all "
            "others. Default: a quarter of the run.",
        ),
    ] = None,
    watch: Watch = False,
) -> None:
    """Run an experiment and keep it in a run directory."""
    out = out or Path("runs") / file.stem
    if monitor not in (None, "theory"):
        raise typer.BadParameter(f"got {monitor}; allowed: theory", param_hint="--monitor")
    if not monitor and (strict or window):
        raise typer.BadParameter("they go with --monitor theory", param_hint="--strict or --window")
    if monitor and engine != "local":
        raise InputError(
            "--monitor", f"{monitor} with --engine {engine}", "--engine local, where observers see the runs"
        )
    use = choose_engine(engine, address, jobs)
    try:
        from efhc.experiments.config.files import SWEEP, load_experiment, read_tables
        from efhc.experiments.runs.simulate import simulate

        experiment = load_experiment(file, with_log(overrides, log))
        if SWEEP in read_tables(file):
            warn(f"the table [sweep] is not used here; `{this_command()} sweep {file}` runs it")
        if resume and not _holds_run(out):
            warn(f"there is no run in {out} to go on with; it is begun")
        watcher = _watcher(experiment, strict, window) if monitor else None
        require_extras(experiment)
        fetch_missing(experiment)
        runs = len(experiment.seeds) * len(experiment.strategies)
        with watching(out, watch, store), showing(runs, runs * experiment.iterations) as overview:
            result = simulate(
                experiment,
                out=out,
                resume=resume,
                store=store,
                engine=use,
                jobs=jobs,
                progress=overview.progress_of(experiment.iterations),
                observers=watcher,
                followers=overview.follower,
                warn=warn,
            )
        if watcher:
            warn(watcher.summary())
    except (KeyboardInterrupt, AssumptionBroken) as stopped:
        given = {
            "--store": store,
            "--engine": None if engine == "local" else engine,
            "--address": address,
            "--jobs": jobs,
        }
        options = [word for name, value in given.items() if value is not None for word in (name, str(value))]
        options += [word for name in log or () for word in ("--log", name)]
        options += [] if figure else ["--no-figure"]
        words = shlex.join(["run", str(file), *(overrides or ()), "--out", str(out), *options, "--resume"])
        go_on = f"go on with: {this_command()} {words}" if _holds_run(out) else "nothing was written"
        why = f", {stopped}" if str(stopped) else ""
        warn(f"stopped{why}; {go_on}")
        raise typer.Exit(INTERRUPTED if isinstance(stopped, KeyboardInterrupt) else BROKEN) from None
    print_summary(result)
    drawn = out / "figures" / result.figure_name
    if figure and not drawn.exists():
        result.plot(drawn)
    print(plain(f"\nResults: {out}" + (f", figure: {drawn}" if drawn.exists() else "")))
    if result.failed:
        raise typer.Exit(FAILED)


def _watcher(experiment: Experiment, strict: bool, window: int | None) -> TheoryWatcher:
    from efhc.experiments.studies.theory_monitor import TheoryWatcher

    watcher = TheoryWatcher(experiment, warn, strict, window)
    warn(f"watching: {watcher.demands}")
    return watcher


def _holds_run(out: Path) -> bool:
    from efhc.experiments.runs.directory import RunDirectory

    return RunDirectory(out).is_begun
