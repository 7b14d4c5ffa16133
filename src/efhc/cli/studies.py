"""efhc reproduce, efhc sweep, efhc tune: many runs, on this machine or on a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from efhc.base.errors import InputError
from efhc.cli.data import fetch_missing
from efhc.cli.terminal import INTERRUPTED, Overrides, console, runs_progress, warn

if TYPE_CHECKING:
    from efhc.experiments.runs.store import Engine
    from efhc.experiments.studies.presets import Size
    from efhc.report.claims.judging import Judgement

EngineName = Annotated[str, typer.Option("--engine", help="local: the cores of this machine; ray: a cluster.")]
Address = Annotated[
    str | None, typer.Option(help="The Ray cluster to join: auto, or HOST:PORT; by default one is started here.")
]
Jobs = Annotated[int | None, typer.Option(min=1, help="Cores to use; by default all.")]


def reproduce(
    figures: Annotated[list[str], typer.Argument(help="list, all, or figures: fig2a fig3b ...")],
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, for a first look (the default).")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="The paper's sizes; `efhc reproduce list` shows the cost.")
    ] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many; by default those of each figure.")] = None,
    out: Annotated[Path, typer.Option(help="Where to keep figures, tables, runs and report.html.")] = Path(
        "runs/paper"
    ),
    engine: EngineName = "local",
    address: Address = None,
    jobs: Jobs = None,
) -> None:
    """Reproduce figures of the paper, and judge its claims: runs what is missing, draws, and writes report.html."""
    from efhc.experiments.config.files import figure_names
    from efhc.experiments.studies.presets import load_figure

    if quick and full:
        raise InputError("size", "--quick and --full", "one of the two")
    size: Size = "full" if full else "quick"
    if figures == ["list"]:
        _list_figures(seeds)
        return
    names = list(dict.fromkeys(figure_names() if "all" in figures else figures))
    loaded = [load_figure(name, size, seeds) for name in names]
    for figure in loaded:
        fetch_missing(figure.experiment)

    from efhc.experiments.runs.store import RunStore
    from efhc.experiments.studies import reproduce as reproducing

    use = _engine(engine, address, jobs)
    with _stoppable():
        prepared = reproducing.prepare(loaded)
        runs = {run.key for figure in prepared for run in figure.all}
        with use.session(), runs_progress(len(runs)) as progress:
            store = RunStore(out / "runs", warn)
            judgements = reproducing.reproduce(prepared, size, out, store, use, progress)
    _print_judgements(judgements)
    print(f"\nReport: {out / 'report.html'}, figures and their numbers: {out / 'figures'}")


def _list_figures(seeds: int | None) -> None:
    from efhc.experiments.config.files import PRESETS, figure_names
    from efhc.experiments.studies.presets import load_figure

    table = Table("figure", "--quick", "--full", "core hours", "", box=None)
    for name in figure_names():
        small, large = load_figure(name, "quick", seeds), load_figure(name, "full", seeds)
        sizes = [f"{figure.runs} x {figure.experiment.iterations:,}" for figure in (small, large)]
        cost = f"{large.table.core_hours:g}" if large.table.core_hours else ""
        table.add_row(name, *sizes, cost, large.table.title)
    console.print(table)
    print("Sizes: runs x iterations. Core hours: what --full takes, measured or estimated (docs/reproduction.md).")
    print(f"Their config files: {PRESETS}")


def _print_judgements(judgements: list[Judgement]) -> None:
    from efhc.report.claims.wording import figures_words, statement_words, verdict_parts, verdict_words

    colours = {"holds": "green", "fails": "red"}
    for (claim, *said), group in groupby(judgements, lambda one: (one.claim, one.statement, one.setting)):
        console.print(f"claim {claim}: {escape(statement_words(*said))}", style="bold", highlight=False)
        for judgement in group:
            colour = colours.get(verdict_parts(judgement)[0][0], "dim")
            figures, verdict = escape(f"{figures_words(judgement):>8}"), escape(verdict_words(judgement))
            console.print(f"{figures}  [{colour}]{verdict}[/{colour}]", highlight=False)


def sweep(
    file: Annotated[Path, typer.Argument(help="An experiment with a table [sweep], a TOML file.")],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Where to keep it; by default runs/NAME-OF-FILE-sweep.")] = None,
    engine: EngineName = "local",
    address: Address = None,
    jobs: Jobs = None,
) -> None:
    """Run an experiment at every point of a grid or list of settings; all results in one tidy table."""
    from efhc.experiments.runs.store import RunStore
    from efhc.experiments.studies import sweep as sweeping

    points = sweeping.load_sweep(file, overrides or ())
    out = out or Path("runs") / f"{file.stem}-sweep"
    for point in points:
        fetch_missing(point.experiment)
    use = _engine(engine, address, jobs)
    with _stoppable():
        runs = sweeping.runs_of(points)
        with runs_progress(len({run.key for _, run in runs})) as progress:
            table = sweeping.run_sweep(runs, out, RunStore(out / "runs", warn), use, progress)
    summary = sweeping.summary(table)
    shown = Table(
        *(escape(name) for name in summary.columns), title="means over seeds, at the end", title_justify="left"
    )
    for row in summary.rows():
        shown.add_row(*(f"{value:.4g}" if isinstance(value, float) else escape(str(value)) for value in row))
    console.print(shown)
    print(f"All results: {out / sweeping.RESULTS}")


def tune(
    file: Annotated[Path, typer.Argument(help="The experiment, a TOML file.")],
    overrides: Overrides = None,
    budget: Annotated[str, typer.Option(help="transmission_time=T or broadcasts=N, for one run.")] = "",
    strategy: Annotated[str | None, typer.Option(help="Whose r to tune; by default the first EF-HC's.")] = None,
    trials: Annotated[int, typer.Option(min=1, help="Values of r to try.")] = 20,
    low: Annotated[float | None, typer.Option(help="The least r; by default a hundredth of the file's.")] = None,
    high: Annotated[float | None, typer.Option(help="The greatest r; by default a hundred times the file's.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where to keep it; by default runs/NAME-OF-FILE-tune.")] = None,
    engine: EngineName = "local",
    address: Address = None,
    jobs: Jobs = None,
) -> None:
    """Find the r that reaches the best accuracy within a communication budget, and write the tuned config."""
    from rich.status import Status

    from efhc.experiments.config.files import load_experiment
    from efhc.experiments.studies import tune as tuning

    out = out or Path("runs") / f"{file.stem}-tune"
    amount = tuning.Budget.parse(budget)
    experiment = load_experiment(file, overrides or ())
    fetch_missing(experiment)
    use = _engine(engine, address, jobs)
    with _stoppable(), use.session(), Status("preparing", console=Console(stderr=True)) as status:

        def tell(trial: int, r: float, iterations: int, share: float) -> None:
            status.update(f"trial {trial} of {trials}: r = {r:.4g}, {iterations:,} iterations, {share:.0%}")

        found = tuning.tune(
            experiment, amount, out, use, strategy=strategy, trials=trials, low=low, high=high, progress=tell, warn=warn
        )
    shown = Table(
        "r", "accuracy", "95 % over seeds", "spent", "iterations", "", title=f"within {amount}", title_justify="left"
    )
    for row in found.table.sort("r").iter_rows(named=True):
        best = row["r"] == found.best_r and row["state"] == "complete"
        interval = f"{row['low']:.3f} to {row['high']:.3f}" if row["low"] is not None else ""
        words = f"{row['r']:.4g}", f"{row['accuracy']:.3f}", interval, f"{row['spent']:.4g}", f"{row['iterations']:,}"
        shown.add_row(*words, "best" if best else row["state"], style="bold" if best else None)
    console.print(shown)
    if found.advice:
        warn(found.advice)
    print(f"Tuned config: {out / tuning.TUNED} (r = {found.best_r:g}), curve: {out / tuning.FIGURES[0]}")


def _engine(name: str, address: str | None, jobs: int | None) -> Engine:
    if name == "local":
        if address is not None:
            raise InputError("--address", address, "nothing with --engine local; it is for --engine ray")
        from efhc.experiments.runs.engines.local import LocalEngine

        return LocalEngine(jobs)
    if name == "ray":
        from efhc.experiments.runs.engines.cluster import ClusterEngine

        return ClusterEngine(address, jobs)
    raise InputError("--engine", f"'{name}'", "local, ray")


@contextmanager
def _stoppable() -> Iterator[None]:
    """Runs that have been made stay, and others where they are: the same command goes on from there."""
    try:
        yield
    except KeyboardInterrupt:
        warn("stopped; the same command goes on from here")
        raise typer.Exit(INTERRUPTED) from None
