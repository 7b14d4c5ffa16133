"""efhc reproduce, efhc sweep, efhc tune: many runs, on this machine or on a cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from efhc.base.errors import InputError
from efhc.base.extras import require
from efhc.cli.data import fetch_missing, require_extras
from efhc.cli.escaping import cell, plain
from efhc.cli.progress import FIRST_SECONDS, LINE_SECONDS, NowAndThen, showing
from efhc.cli.terminal import (
    FAILED,
    INTERRUPTED,
    Address,
    EngineName,
    Jobs,
    Log,
    Overrides,
    choose_engine,
    console,
    print_table,
    warn,
    with_log,
)
from efhc.cli.watching import Watch, watching
from efhc.report.numbers import TIME_UNIT

if TYPE_CHECKING:
    from efhc.experiments.config.experiment import Experiment
    from efhc.experiments.runs.store import RunStore
    from efhc.experiments.studies.changes import Size
    from efhc.experiments.studies.controls_file import Controls
    from efhc.experiments.studies.reproduce import AnyRuns
    from efhc.experiments.studies.tune import Tuning
    from efhc.report.claims.judging import Judgement

File = Annotated[Path, typer.Argument(metavar="FILE", help="The experiment, a TOML file.")]


def reproduce(
    figures: Annotated[
        list[str],
        typer.Argument(
            metavar="FIGURE",
            help="`list`, `all` of the paper's, or names: fig2a frontier slow-links, or your own files.",
        ),
    ],
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, for a first look. This is the default.")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="The paper's sizes; `efhc reproduce list` shows the cost.")
    ] = False,
    seeds: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Number of seeds. Default: as many as each figure sets.")
    ] = None,
    radius: Annotated[
        list[float] | None,
        typer.Option(min=0, metavar="R", help="A radius of panel (iv). May be repeated. Default: those of the file."),
    ] = None,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Print how long it will take on this machine, and make nothing.")
    ] = False,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where to keep figures, tables, runs and report.html.")
    ] = Path("runs/paper"),
    engine: EngineName = "local",
    address: Address = None,
    jobs: Jobs = None,
    log: Log = None,
    watch: Watch = False,
) -> None:
    """Reproduce figures of the paper and judge its claims: make the missing runs, draw, and write report.html.

    `frontier` compares all strategies: accuracy against the share of ZT's transmission time that was spent, in several
    settings, and who leads. `slow-links` compares a strategy for slow links with its controls, on virtual clocks.

    The figures that train neural networks need PyTorch, the extra [deep].
    """
    use = choose_engine(engine, address, jobs)

    from efhc.experiments.studies.controls_file import Controls
    from efhc.experiments.studies.frontier_file import Frontier
    from efhc.experiments.studies.presets import load_figure, paper_figures

    if quick and full:
        raise InputError("size", "--quick and --full", "one of the two")
    size: Size = "full" if full else "quick"
    if figures == ["list"]:
        if radius or estimate:
            raise InputError(
                "figure", "list with --radius or --estimate", "the names of figures with them, or list alone"
            )
        _list_figures(seeds)
        return
    names = dict.fromkeys(one for name in figures for one in (paper_figures() if name == "all" else [name]))
    loaded = [load_figure(name, size, seeds, radius or (), log) for name in names]
    experiments = [experiment for figure in loaded for experiment in figure.experiments]
    for experiment in experiments:
        require_extras(experiment)
    for experiment in experiments:
        fetch_missing(experiment)

    from efhc.experiments.runs.store import RunStore
    from efhc.experiments.studies import reproduce as reproducing

    with _stoppable():
        prepared = reproducing.prepare(loaded)
        store = RunStore(out / "runs", warn)
        if estimate or (full and engine == "local"):
            _print_estimates(prepared, store, jobs)
        if estimate:
            return
        runs = {run.key: run.experiment.iterations for figure in prepared for run in figure.all}
        with watching(out, watch), use.session(), showing(len(runs), sum(runs.values())) as overview:
            judgements = reproducing.reproduce(
                prepared, size, out, store, use, overview.progress, warn, followers=[overview.follower]
            )
    for figure in loaded:
        numbers = out / "figures" / f"{figure.name}.csv"
        if isinstance(figure, Frontier):
            _print_means(numbers)
        elif isinstance(figure, Controls):
            _print_controls(figure, numbers, judgements)
    _print_judgements([one for one in judgements if one.statement != "beats control"])
    print(f"\nReport: {out / 'report.html'}, figures and their numbers: {out / 'figures'}")


def _print_estimates(figures: Sequence[AnyRuns], store: RunStore, jobs: int | None) -> None:
    """Print how long the missing runs of each figure will take on this machine, if each core makes one at a time."""
    from rich.status import Status

    from efhc.experiments.runs.resources import usable_cores
    from efhc.experiments.studies.estimate import estimate

    cores = jobs or usable_cores()
    for one in figures:
        missing = store.find_missing(one.all)
        with Status(f"timing {cell(one.figure.name)}", console=Console(stderr=True)):
            found = estimate(missing)
        hours, wall = found.seconds / 3600, timedelta(seconds=round(found.on_cores(cores)))
        print(f"{one.figure.name}: {found.runs} runs, about {hours:.2g} core hours, {wall} on {cores} cores.")


def _list_figures(seeds: int | None) -> None:
    from efhc.experiments.config.files import PRESETS
    from efhc.experiments.studies.presets import load_figure, other_figures, paper_figures

    table = Table("figure", "--quick", "--full", "core hours", "", box=None)
    others = other_figures()
    for name in [*paper_figures(), *others]:
        if name in others[:1]:
            table.add_section()
        small, large = load_figure(name, "quick", seeds), load_figure(name, "full", seeds)
        sizes = [f"{figure.runs} x {_length(figure.experiment)}" for figure in (small, large)]
        cost = f"{large.table.core_hours:g}" if large.table.core_hours else ""
        table.add_row(cell(name), *sizes, cost, cell(large.table.title))
    console.print(table)
    print("Sizes: runs x iterations, or x virtual seconds (s).")
    print("Core hours: what --full takes, measured or estimated (docs/reproduction.md).")
    print("`efhc reproduce all` makes the figures of the paper; the others are made if they are named.")
    print(f"Their config files: {PRESETS}")


def _length(experiment: Experiment) -> str:
    """Return how long the runs are: their iterations, or the virtual second at which they end."""
    seconds = getattr(experiment.driver, "seconds", None)
    return f"{experiment.iterations:,}" if seconds is None else f"{seconds:g} s"


def _print_means(path: Path) -> None:
    """Print the table of a frontier: accuracy at a few budgets, and what each strategy spends."""
    import polars as pl

    from efhc.report.claims.frontier import SHOWN
    from efhc.report.numbers import percent

    columns = [percent(share) for share in SHOWN]
    for (setting,), rows in pl.read_csv(path).group_by("setting", maintain_order=True):
        table = Table(
            "strategy", *columns, "spends", title=cell(f"{path.stem}-{setting}: accuracy at shares of ZT's time")
        )
        table.title_justify = "left"
        for row in rows.iter_rows(named=True):
            values = [row[f"at {column}"] for column in columns]
            cells = ["" if value is None else f"{value:.3f}" for value in values]
            table.add_row(cell(row["strategy"]), *cells, f"{100 * row['spends']:.3g} %")
        console.print(table)


def _print_controls(figure: Controls, path: Path, judgements: Sequence[Judgement]) -> None:
    """Print a table and a sentence per setting: accuracy at the end, and the lead over each control."""
    import polars as pl

    from efhc.report.claims.controls import end_means
    from efhc.report.claims.intervals import bounds_words
    from efhc.report.claims.wording import bought_words, finding_words
    from efhc.report.numbers import MEGABYTE, number_words, signed

    for (setting,), rows in pl.read_csv(path).group_by("setting", maintain_order=True):
        label = f"{figure.name}-{setting}"
        found = {one.names[1]: one for one in judgements if one.figures == (label,)}
        bounds = bounds_words(one.findings[0].seeds for one in found.values())
        title = f"{label}: accuracy at the end, and the lead of {figure.table.leader}"
        table = Table("strategy", "accuracy", "least", "MB", "lead", bounds, "above on", "", title=cell(title))
        table.title_justify = "left"
        for row in end_means(rows).iter_rows(named=True):
            cells = [f"{row['mean']:.3f}", f"{row['least']:.3f}", number_words(row["bytes"] / MEGABYTE)]
            if one := found.get(row["strategy"]):
                (finding,) = one.findings
                between = f"{signed(finding.low)} to {signed(finding.high)}" if finding.seeds > 1 else ""
                above = f"{finding.seeds_above} of {finding.seeds}"
                cells += [signed(finding.mean), between, above, finding_words(finding)]
            table.add_row(cell(row["strategy"]), *cells)
        print_table(table)
        marked = filter(None, (figure.table.common, figure.table.shuffled))
        if words := bought_words([found[name].findings[0] for name in marked if name in found]):
            print(words)


def _print_judgements(judgements: list[Judgement]) -> None:
    from efhc.report.claims.wording import figures_words, statement_words, verdict_parts, verdict_words

    colours = {"holds": "green", "fails": "red"}
    for said, same in groupby(judgements, lambda one: (one.claim, one.statement, one.setting, one.names)):
        (claim, *statement), group = said, list(same)
        about = "claim" if claim is None else f"claim {claim}"
        console.print(f"{about}: {cell(statement_words(*statement))}", style="bold", highlight=False)
        width = max(8, *(len(figures_words(judgement)) for judgement in group))
        for judgement in group:
            colour = colours.get(verdict_parts(judgement)[0][0], "dim")
            figures, verdict = cell(f"{figures_words(judgement):>{width}}"), cell(verdict_words(judgement))
            console.print(f"{figures}  [{colour}]{verdict}[/{colour}]", highlight=False)


def sweep(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A TOML file: an experiment with a table [sweep].")],
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to keep it. Default: runs/NAME-OF-FILE-sweep.")
    ] = None,
    engine: EngineName = "local",
    address: Address = None,
    jobs: Jobs = None,
    log: Log = None,
    watch: Watch = False,
) -> None:
    """Run an experiment at every point of a grid or list of settings; all results go into one tidy table."""
    use = choose_engine(engine, address, jobs)

    from efhc.experiments.runs.store import RunStore
    from efhc.experiments.studies import sweep as sweeping

    points = sweeping.load_sweep(file, with_log(overrides, log))
    out = out or Path("runs") / f"{file.stem}-sweep"
    for point in points:
        require_extras(point.experiment)
    for point in points:
        fetch_missing(point.experiment)
    with _stoppable():
        runs = sweeping.runs_of(points)
        iterations = {run.key: run.experiment.iterations for _, run in runs}
        with watching(out, watch), showing(len(iterations), sum(iterations.values())) as overview:
            table = sweeping.run_sweep(
                runs, out, RunStore(out / "runs", warn), use, overview.progress, warn, followers=[overview.follower]
            )
    header, rows = sweeping.summary_rows(table)
    caption = TIME_UNIT if "time" in header else None
    shown = Table(*map(cell, header), title="means over seeds, at the end", title_justify="left", caption=caption)
    shown.caption_justify = "left"
    for row in rows:
        shown.add_row(*map(cell, row))
    print_table(shown)
    failed = sweeping.failed_runs(table)
    for line in failed:
        warn(line)
    settings = len(sweeping.varying_settings(table))
    drawn = settings <= sweeping.MOST_SETTINGS
    figure = f"figure: {plain(out / sweeping.FIGURES[0])}" if drawn else f"no figure: {settings} settings vary"
    print(f"All results: {plain(out / sweeping.RESULTS)}, {figure}")
    if failed:
        raise typer.Exit(FAILED)


def tune(
    file: File,
    overrides: Overrides = None,
    budget: Annotated[
        str,
        typer.Option(
            metavar="BUDGET",
            help="What one run may spend: transmission_time=T, broadcasts=N, or zt=P%, a share of what ZT takes.",
        ),
    ] = "",
    strategy: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The strategy to tune. Default: that of --parameter, or the first EF-HC."),
    ] = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=LOW:HIGH",
            help="A number of the strategy and its range: r=100:4000, or strategies.X.mixing.rate=0.05:1 with the "
            "strategy and a part of it. Give it several times to tune several. Default: r.",
        ),
    ] = None,
    trials: Annotated[
        int, typer.Option(min=1, metavar="N", help="Total number of trials, earlier ones included.")
    ] = 20,
    low: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="The smallest value of a single parameter. Default: a hundredth of the file's, within its bounds.",
        ),
    ] = None,
    high: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="The largest value of a single parameter. Default: a hundred times the file's, within its bounds.",
        ),
    ] = None,
    on: Annotated[
        str,
        typer.Option(
            metavar="SAMPLES",
            help="Choose by `validation` samples, a tenth of the training samples (or the share that the file sets as "
            "`validation`), or by `test` samples.",
        ),
    ] = "validation",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to keep it. Default: runs/NAME-OF-FILE-tune.")
    ] = None,
    engine: EngineName = "local",
    address: Address = None,
    jobs: Jobs = None,
    log: Log = None,
    watch: Watch = False,
) -> None:
    """Find the r, or other numbers, of the best accuracy within a communication budget, and write the tuned config.

    Values are compared by their accuracy on validation samples, which no device trains on. The test accuracy of the
    winner is measured once, at the end.

    Needs Optuna, the extra [tune].
    """
    require("tune")
    use = choose_engine(engine, address, jobs)

    from rich.status import Status

    from efhc.experiments.config.files import load_experiment
    from efhc.experiments.runs.live.overview import Accuracies
    from efhc.experiments.runs.tables import require_lockstep
    from efhc.experiments.studies import tune as tuning

    out = out or Path("runs") / f"{file.stem}-tune"
    amount = tuning.Budget.parse(budget)
    experiment = load_experiment(file, with_log(overrides, log))
    require_lockstep(experiment, "a tuning")
    strategy, ranges = tuning.read_ranges(parameter or ["r"], list(experiment.strategies), strategy, low, high)
    require_extras(experiment)
    fetch_missing(experiment)
    with _stoppable(), watching(out, watch), use.session(), Status("preparing", console=Console(stderr=True)) as status:
        lines, accuracies = NowAndThen(FIRST_SECONDS, LINE_SECONDS), Accuracies()

        def tell(trial: int, values: Mapping[str, float], iterations: int, share: float) -> None:
            which = {0: "the winner, on the test samples", -1: "ZT, of which the budget is a share"}
            words = [which.get(trial, f"trial {trial} of {trials}") + ":", *_values_words(values)]
            line = f"{' '.join(words)} {iterations:,} iterations, {share:.0%}{accuracies.words}"
            status.update(cell(line))
            if not sys.stderr.isatty():
                lines.call(lambda: warn(line))

        found = tuning.tune(
            experiment,
            amount,
            out,
            use,
            parameters=ranges,
            strategy=strategy,
            trials=trials,
            on=on,
            progress=tell,
            warn=warn,
            followers=[accuracies.follower],
        )
    _print_tuning(found)
    for line in found.advice:
        warn(line)
    best = " ".join(_values_words(found.best_values)).removesuffix(",")
    print(f"Tuned config: {plain(out / tuning.TUNED)} ({plain(best)}), curve: {plain(out / tuning.FIGURES[0])}")
    print("It has the seeds of the tuning. For a result, take others: efhc run FILE 'seeds=[...]'.")


def _values_words(values: Mapping[str, float]) -> list[str]:
    return [f"{name} = {value:.4g}," for name, value in values.items()]


def _print_tuning(found: Tuning) -> None:
    search, names = found.search, found.search.names
    title = f"{search.on} accuracy within {search.budget.words}"
    shown = Table(
        *map(cell, names), "accuracy", f"{found.bounds} over seeds", "spent", "iterations", "", title=cell(title)
    )
    shown.title_justify = "left"
    # A single parameter is read along its values; of several, the best comes first.
    by_value = len(names) == 1
    table = found.table.sort(names[0]) if by_value else found.table.sort("accuracy", descending=True, nulls_last=True)
    for row in table.iter_rows(named=True):
        best = all(row[name] == value for name, value in found.best_values.items()) and row["state"] == "complete"
        numbers = (
            *(f"{row[name]:.4g}" for name in names),
            "" if row["accuracy"] is None else f"{row['accuracy']:.3f}",
            "" if row["low"] is None else f"{row['low']:.3f} to {row['high']:.3f}",
            "" if row["spent"] is None else f"{row['spent']:.4g}",
            f"{row['iterations']:,}",
        )
        shown.add_row(*numbers, "best" if best else row["state"], style="bold" if best else None)
    console.print(shown)
    if search.validation is None:
        print("Chosen by the accuracy on the test samples, so the winner's accuracy is too good to quote.")
        return
    print(f"Chosen by the accuracy on {search.validation:.0%} of the training samples, which no device trains on.")
    if found.test_accuracy is None:
        print("The winner failed when it was trained on all training samples: it has no test accuracy.")
    else:
        print(f"Test accuracy of the winner, trained on all training samples: {found.test_accuracy:.3f}")


@contextmanager
def _stoppable() -> Iterator[None]:
    """Ctrl-C ends the command with one line. Runs are kept as far as they are, so the same command continues them."""
    try:
        yield
    except KeyboardInterrupt:
        warn("stopped; the same command goes on from here")
        raise typer.Exit(INTERRUPTED) from None
