"""efhc demo, efhc new, efhc run: one experiment."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from efhc.base.errors import AssumptionBroken, EfhcError, InputError
from efhc.cli.data import fetch_data
from efhc.cli.progress import showing
from efhc.cli.terminal import (
    BROKEN,
    FAILED,
    INTERRUPTED,
    Address,
    EngineName,
    ExperimentFile,
    Jobs,
    Log,
    MeasureName,
    Overrides,
    argument,
    choose_engine,
    console,
    flag,
    how_to_resume,
    option,
    plain,
    print_summary,
    this_command,
    warn,
    with_options,
)
from efhc.cli.watching import Watch, watching

if TYPE_CHECKING:
    from efhc.experiments.config.experiment import Experiment
    from efhc.experiments.studies.theory_monitor import TheoryMonitor


def demo(
    out: Annotated[Path, option("DIR", "Where to keep the results.")] = Path("runs/demo"),
) -> None:
    """Compare EF-HC, its baselines and entrywise.

    It takes a minute or two; the first run also compiles. The data set is digits. The output is a table and the four
    panels of the paper's figures.
    """
    from efhc.experiments.studies.demo import EXPERIMENT, FIGURE, NAMES, RUNS, run_demo

    with showing(RUNS, RUNS * EXPERIMENT.iterations) as overview:
        result, sentence = run_demo(out, overview.progress_of(EXPERIMENT.iterations), [overview.follower])
    print_summary(result)
    console.print(NAMES, highlight=False)
    console.print(sentence, highlight=False)
    efhc, config = this_command(), shlex.quote(str(out / "config.toml"))
    print(f"\nThe paper's four panels: {out / FIGURE}")
    print(f"All results:             {out}")
    console.print("\nTry next:", style="bold")
    print(f"  {efhc} run {config} strategies.EF-HC.r=500 --out runs/smaller-threshold")
    print(f"  {efhc} run {config} network.kind=random-links --out runs/links-that-fail")
    print(f"  {efhc} config show            every setting and its default")


def new(
    name: Annotated[Path, argument("NAME", "The folder to make; its last part is the name.")],
) -> None:
    """Make a folder with an experiment and a strategy of your own.

    It also holds a test of the strategy, a notebook and a README.
    """
    from efhc.experiments.new_project import make_project

    for file in make_project(name):
        print(plain(file))
    console.print("\nTry next:", style="bold")
    print(plain(f"  cd {shlex.quote(str(name))}"))
    print(f"  {this_command()} run {name.name}.toml")
    print("  pytest")
    print(f"  jupyter lab {name.name}.ipynb")


def run(
    file: ExperimentFile,
    overrides: Overrides = None,
    out: Annotated[Path | None, option("DIR", "Output directory. Default: runs/NAME-OF-FILE.")] = None,
    resume: Annotated[bool, flag("Resume the experiment in --out.", "--resume")] = False,
    store: Annotated[
        Path | None, option("FOLDER", "Folder of runs to reuse; new runs are saved there. Default: DIR/runs.")
    ] = None,
    engine: EngineName = "local",
    address: Address = None,
    jobs: Jobs = None,
    log: Log = None,
    measure: MeasureName = None,
    figure: Annotated[
        bool, flag("Draw DIR/figures/comparison.png (event-driven: seconds.png).", "--figure/--no-figure")
    ] = True,
    monitor: Annotated[str | None, option("theory", "Report each assumption of the paper that a run breaks.")] = None,
    strict: Annotated[
        bool, flag("With --monitor: stop at the first broken assumption, with exit code 3.", "--strict")
    ] = False,
    window: Annotated[
        int | None,
        option(
            "N",
            "With --monitor: iterations within which every device must fire, and links must connect all devices. "
            "Default: a quarter of the run.",
            min=1,
        ),
    ] = None,
    watch: Watch = False,
) -> None:
    """Run an experiment and save its results to a directory."""
    out = out or Path("runs") / file.stem
    if monitor not in (None, "theory"):
        raise InputError("--monitor", f"'{monitor}'", "theory")
    if not monitor and (strict or window):
        raise EfhcError("--strict and --window need --monitor theory")
    if monitor and engine != "local":
        raise InputError("--monitor", f"{monitor} with --engine {engine}", "--engine local")
    chosen_engine = choose_engine(engine, address, jobs)
    try:
        from efhc.experiments.config.files import SWEEP, load_experiment, read_tables
        from efhc.experiments.runs.simulate import simulate

        experiment = load_experiment(file, with_options(overrides, log, measure))
        if SWEEP in read_tables(file):
            warn(f"`efhc run` ignores the table [sweep]; run it with `{this_command()} sweep {shlex.quote(str(file))}`")
        if resume and not _holds_run(out):
            warn(f"{out} holds no run to resume; a new one begins")
        theory = _theory_monitor(experiment, strict, window) if monitor else None
        fetch_data(experiment)
        runs = len(experiment.seeds) * len(experiment.strategies)
        with watching(out, watch, store), showing(runs, runs * experiment.iterations) as overview:
            result = simulate(
                experiment,
                out=out,
                resume=resume,
                store=store,
                engine=chosen_engine,
                jobs=jobs,
                progress=overview.progress_of(experiment.iterations),
                observers=theory,
                followers=overview.follower,
                warn=warn,
            )
        if theory:
            warn(theory.summary())
    except (KeyboardInterrupt, AssumptionBroken) as stopped:
        why = f", {stopped}" if str(stopped) else ""
        warn(f"stopped{why}; " + (f"continue with: {how_to_resume()}" if _holds_run(out) else "nothing was written"))
        raise typer.Exit(INTERRUPTED if isinstance(stopped, KeyboardInterrupt) else BROKEN) from None
    print_summary(result)
    if experiment.backend == "auto" and (taken := _backends_in(out) & {"loop", "stacked"}):
        print(f"Backend that auto took, which may be another one elsewhere: {' and '.join(sorted(taken))}")
    drawn = out / "figures" / result.figure_name
    if figure and (measure or not drawn.exists()):
        result.plot(drawn)
    print(plain(f"\nResults: {out}" + (f", figure: {drawn}" if drawn.exists() else "")))
    if result.failed:
        raise typer.Exit(FAILED)


def _backends_in(out: Path) -> set[str]:
    """Return the backends that the runs of an experiment were made by."""
    from efhc.experiments.runs.experiment_folder import ExperimentFolder
    from efhc.experiments.runs.folder import RunFolder

    folder = ExperimentFolder(out)
    runs = [RunFolder(folder.store / key) for key in folder.keys.values()]
    return {run.meta.get("backend", "") for run in runs if run.has("meta.json")}


def _theory_monitor(experiment: Experiment, strict: bool, window: int | None) -> TheoryMonitor:
    from efhc.experiments.studies.theory_monitor import TheoryMonitor

    monitor = TheoryMonitor(experiment, warn, strict, window)
    warn(f"watching: {monitor.demands}")
    return monitor


def _holds_run(out: Path) -> bool:
    from efhc.experiments.runs.experiment_folder import ExperimentFolder

    return ExperimentFolder(out).is_begun
