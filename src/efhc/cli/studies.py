"""efhc reproduce, efhc sweep, efhc tune: many runs, on this machine or on a cluster."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from efhc.base.errors import EfhcError
from efhc.base.extras import require
from efhc.cli.data import fetch_data
from efhc.cli.progress import FIRST_SECONDS, LINE_SECONDS, NowAndThen, showing
from efhc.cli.terminal import (
    FAILED,
    Address,
    EngineName,
    ExperimentFile,
    Jobs,
    Log,
    MeasureName,
    Overrides,
    argument,
    cell,
    choose_engine,
    console,
    errors,
    flag,
    option,
    plain,
    print_table,
    stoppable,
    this_command,
    warn,
    with_options,
)
from efhc.cli.watching import Watch, watching
from efhc.report.numbers import TIME_UNIT

if TYPE_CHECKING:
    from efhc.experiments.config.experiment import Experiment
    from efhc.experiments.runs.store import RunStore
    from efhc.experiments.studies.figures import ControlsTable, Size
    from efhc.experiments.studies.reproduce import FigureRuns
    from efhc.experiments.studies.tune import Tuning
    from efhc.learning.measures import Measure
    from efhc.report.claims.verdicts import Judgement


STATE_WORDS = {"complete": "finished", "pruned": "stopped early", "failed": "failed"}
"""What is printed for the states of trials in trials.csv."""


def reproduce(
    figures: Annotated[
        list[str],
        argument("FIGURE", "Figures such as fig2a or frontier, files of your own, `all` of the paper, or `list`."),
    ],
    quick: Annotated[bool, flag("Use small sizes. This is the default.", "--quick")] = False,
    full: Annotated[bool, flag("Use the paper's sizes; `efhc reproduce list` shows the cost.", "--full")] = False,
    seeds: Annotated[int | None, option("N", "Number of seeds. Default: as in each figure's file.", min=1)] = None,
    radius: Annotated[
        list[float] | None, option("R", "A radius for panel (iv). May be repeated. Default: as in the file.", min=0)
    ] = None,
    estimate: Annotated[bool, flag("Print the estimated time on this machine and exit.", "--estimate")] = False,
    out: Annotated[
        Path | None,
        option(
            "DIR",
            "Where to keep figures, tables, runs and report.html. Default: runs/paper-quick; with --full, runs/paper.",
        ),
    ] = None,
    engine: EngineName = "local",
    address: Address = None,
    jobs: Jobs = None,
    log: Log = None,
    measure: MeasureName = None,
    watch: Watch = False,
) -> None:
    """Reproduce figures of the paper and judge its claims.

    Runs that exist are reused. The output is the figures, their numbers and report.html.

    `frontier` compares the accuracy of all strategies when they have spent equal shares of the transmission time of ZT
    (zero threshold), which fires at every iteration. `slow-links` compares a strategy for slow links with its controls,
    in event-driven simulation.

    Figures with neural networks need efhc[deep].
    """
    if any("=" in name and not name.endswith(".toml") for name in figures):
        raise EfhcError(f"reproduce takes no settings; use `efhc run {shlex.join(figures)}`")
    chosen_engine = choose_engine(engine, address, jobs)

    from efhc.experiments.studies.figures import ControlsTable, FrontierTable, load_figure, paper_figures

    if quick and full:
        raise EfhcError("--quick and --full exclude each other; give one of them")
    size: Size = "full" if full else "quick"
    out = out or Path("runs") / ("paper" if full else "paper-quick")
    if figures == ["list"]:
        if radius or estimate:
            raise EfhcError("`efhc reproduce list` takes neither --radius nor --estimate")
        _list_figures(seeds)
        return
    names = dict.fromkeys(one for name in figures for one in (paper_figures() if name == "all" else [name]))
    loaded = [load_figure(name, size, seeds, radius or (), with_options(None, log, measure)) for name in names]
    experiments = [experiment for figure in loaded for experiment in figure.experiments]
    fetch_data(*experiments)

    from efhc.experiments.runs.experiment_folder import OWN_RUNS
    from efhc.experiments.runs.store import RunStore
    from efhc.experiments.studies import reproduce as reproducing
    from efhc.report.claims.intervals import FEWEST_SEEDS
    from efhc.report.claims.verdicts import too_few_seeds

    with stoppable():
        figure_runs = reproducing.runs_of_figures(loaded)
        store = RunStore(out / OWN_RUNS, warn)
        if estimate or (full and engine == "local"):
            _print_estimates(figure_runs, store, jobs)
        if estimate:
            return
        runs = {run.key: run.experiment.iterations for figure in figure_runs for run in figure.all}
        with watching(out, watch), chosen_engine.session(), showing(len(runs), sum(runs.values())) as overview:
            judgements = reproducing.reproduce(
                figure_runs, size, out, store, chosen_engine, overview.progress, warn, followers=[overview.follower]
            )
    for of_figure in figure_runs:
        figure, chosen = of_figure.figure, reproducing.measure_of_figure(of_figure, store)
        numbers = out / "figures" / f"{figure.name}.csv"
        if isinstance(figure.table, FrontierTable):
            _print_means(numbers, chosen)
        elif isinstance(figure.table, ControlsTable):
            _print_controls(figure.name, figure.table, numbers, judgements, chosen)
    _print_judgements([one for one in judgements if one.control is None])
    if few := too_few_seeds(min(len(experiment.seeds) for experiment in experiments)):
        print(f"{few}: add --seeds {FEWEST_SEEDS}; finished runs are reused.")
    print(f"\nReport: {out / 'report.html'}, figures and their numbers: {out / 'figures'}")


def _print_estimates(figures: Sequence[FigureRuns], store: RunStore, jobs: int | None) -> None:
    """Print the estimated time of the missing runs of each figure, one run at a time per core."""
    from rich.status import Status

    from efhc.experiments.runs.resources import usable_cores
    from efhc.experiments.studies.estimate import estimate

    cores = jobs or usable_cores()
    for one in figures:
        missing = store.find_missing(one.all)
        with Status(f"timing {cell(one.figure.name)}", console=errors):
            found = estimate(missing)
        hours, wall = found.seconds / 3600, timedelta(seconds=round(found.on_cores(cores)))
        print(f"{one.figure.name}: {found.runs} runs, about {hours:.2g} core hours, {wall} on {cores} cores.")


def _list_figures(seeds: int | None) -> None:
    from efhc.experiments.config.files import PRESETS
    from efhc.experiments.studies.figures import load_figure, other_figures, paper_figures

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


def _print_means(path: Path, measure: Measure) -> None:
    """Print the table of a frontier: the measure at a few budgets, and what each strategy spends."""
    import polars as pl

    from efhc.report.claims.leads import SHOWN
    from efhc.report.numbers import percent

    columns = [percent(share) for share in SHOWN]
    for (setting,), rows in pl.read_csv(path).group_by("setting", maintain_order=True):
        table = []
        for row in rows.iter_rows(named=True):
            values = [row[f"at {column}"] for column in columns]
            cells = ["" if value is None else f"{value:.3f}" for value in values]
            table.append([row["strategy"], *cells, f"{100 * row['spends']:.3g} %"])
        title = f"{path.stem}-{setting}: {measure.label} at shares of ZT's time"
        print_table(("strategy", *columns, "spends"), table, title)


def _print_controls(
    name: str, table: ControlsTable, path: Path, judgements: Sequence[Judgement], measure: Measure
) -> None:
    """Print a table and a sentence per setting: the measure at the end, and the lead over each control."""
    import polars as pl

    from efhc.report.claims.intervals import bounds_words
    from efhc.report.claims.leads import end_means
    from efhc.report.claims.verdicts import bought_words, finding_words
    from efhc.report.numbers import MEGABYTE, number_words, signed

    for (setting,), rows in pl.read_csv(path).group_by("setting", maintain_order=True):
        label = f"{name}-{setting}"
        found = {one.control: one for one in judgements if one.figures == (label,)}
        bounds = bounds_words(one.findings[0].seeds for one in found.values())
        title = f"{label}: {measure.label} at the end, and the lead of {table.leader}"
        columns = ("strategy", measure.metric, "worst seed", "MB", "lead", bounds, "wins on", "")
        table_rows = []
        for row in end_means(rows, measure).iter_rows(named=True):
            cells = [
                row["strategy"],
                f"{row['mean']:.3f}",
                f"{row['worst']:.3f}",
                number_words(row["bytes"] / MEGABYTE),
            ]
            if one := found.get(row["strategy"]):
                (finding,) = one.findings
                between = f"{signed(finding.low)} to {signed(finding.high)}" if finding.seeds > 1 else ""
                above = f"{finding.seeds_above} of {finding.seeds}"
                cells += [signed(finding.mean), between, above, finding_words(finding.verdict, [finding])]
            table_rows.append(cells)
        print_table(columns, table_rows, title)
        marked = filter(None, (table.common, table.shuffled))
        if words := bought_words({one: found[one].findings[0] for one in marked if one in found}, measure.label):
            print(words)


def _print_judgements(judgements: list[Judgement]) -> None:
    from efhc.report.claims.verdicts import figures_words, verdict_parts, verdict_words

    colours = {"holds": "green", "fails": "red"}
    for (claim, statement), same in groupby(judgements, lambda one: (one.claim, one.statement)):
        group = list(same)
        about = "claim" if claim is None else f"claim {claim}"
        console.print(f"{about}: {cell(statement)}", style="bold", highlight=False)
        width = max(8, *(len(figures_words(judgement)) for judgement in group))
        for judgement in group:
            colour = colours.get(verdict_parts(judgement)[0][0], "dim")
            figures, verdict = cell(f"{figures_words(judgement):>{width}}"), cell(verdict_words(judgement))
            console.print(f"{figures}  [{colour}]{verdict}[/{colour}]", highlight=False)


def sweep(
    file: Annotated[Path, argument("FILE", "A TOML file: an experiment with a table [sweep].")],
    overrides: Overrides = None,
    out: Annotated[Path | None, option("DIR", "Output directory. Default: runs/NAME-OF-FILE-sweep.")] = None,
    engine: EngineName = "local",
    address: Address = None,
    jobs: Jobs = None,
    log: Log = None,
    measure: MeasureName = None,
    watch: Watch = False,
) -> None:
    """Run an experiment at every point of a grid or list of settings.

    The output is one table with all results.
    """
    chosen_engine = choose_engine(engine, address, jobs)

    from efhc.experiments.runs.experiment_folder import OWN_RUNS
    from efhc.experiments.runs.store import RunStore
    from efhc.experiments.studies import sweep as sweeping

    points = sweeping.load_sweep(file, with_options(overrides, log, measure))
    out = out or Path("runs") / f"{file.stem}-sweep"
    fetch_data(*(point.experiment for point in points))
    with stoppable():
        runs = sweeping.runs_of(points)
        iterations = {run.key: run.experiment.iterations for _, run in runs}
        with watching(out, watch), showing(len(iterations), sum(iterations.values())) as overview:
            table = sweeping.run_sweep(
                runs,
                out,
                RunStore(out / OWN_RUNS, warn),
                chosen_engine,
                overview.progress,
                warn,
                followers=[overview.follower],
            )
    chosen = sweeping.measure_of_sweep(runs, table)
    header, rows = sweeping.summary_rows(table, chosen)
    caption = TIME_UNIT if "time" in header else None
    print_table(header, rows, f"{chosen.label}: means over seeds, at the end", caption)
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
    file: ExperimentFile,
    overrides: Overrides = None,
    budget: Annotated[
        str,
        option(
            "BUDGET", "What one run may spend: transmission_time=T, broadcasts=N, or zt=P%, a share of what ZT spends."
        ),
    ] = "",
    strategy: Annotated[
        str | None, option("NAME", "The strategy to tune. Default: that of --parameter, or the first EF-HC.")
    ] = None,
    parameter: Annotated[
        list[str] | None,
        option(
            "NAME=LOW:HIGH",
            "A numeric setting and its range: r=100:4000, strategies.X.mixing.rate=0.05:1. Repeatable. Default: r.",
        ),
    ] = None,
    trials: Annotated[int, option("N", "Total number of trials, earlier ones included.", min=1)] = 20,
    low: Annotated[
        float | None, option("X", "Lower end of the range of a single parameter. Default: 1/100 of the file's value.")
    ] = None,
    high: Annotated[float | None, option("X", "Upper end of that range. Default: 100 times the file's value.")] = None,
    on: Annotated[
        str,
        option(
            "SAMPLES",
            "Which samples decide: `validation`, a share of each device's training samples (the setting `validation`; "
            "else a tenth), or `test`.",
        ),
    ] = "validation",
    out: Annotated[Path | None, option("DIR", "Output directory. Default: runs/NAME-OF-FILE-tune.")] = None,
    engine: EngineName = "local",
    address: Address = None,
    jobs: Jobs = None,
    log: Log = None,
    measure: MeasureName = None,
    watch: Watch = False,
) -> None:
    """Find the best r within a budget (needs efhc[tune]).

    With --parameter it tunes other settings. Values are compared on validation samples, which are set aside from each
    device's own and which no device trains on. The best value is measured on the test samples once, at the end. The
    output is a table of trials and the tuned config.
    """
    require("tune")
    chosen_engine = choose_engine(engine, address, jobs)

    from rich.status import Status

    from efhc.experiments.config.files import load_experiment
    from efhc.experiments.runs.progress import Overview
    from efhc.experiments.runs.tables import require_lockstep
    from efhc.experiments.studies import tune as tuning
    from efhc.experiments.studies.tuning_search import TuningBudget, read_ranges

    out = out or Path("runs") / f"{file.stem}-tune"
    amount = TuningBudget.parse(budget)
    experiment = load_experiment(file, with_options(overrides, log, measure))
    require_lockstep(experiment, "a tuning")
    strategy, ranges = read_ranges(parameter or ["r"], list(experiment.strategies), strategy, low, high)
    fetch_data(experiment)
    with stoppable(), watching(out, watch), chosen_engine.session(), Status("preparing", console=errors) as status:
        lines, overview = NowAndThen(FIRST_SECONDS, LINE_SECONDS), Overview(1, 1)

        def show_trial(trial: int, values: Mapping[str, float], iterations: int, share: float) -> None:
            which = {
                tuning.FINAL: "the winner, on the test samples",
                tuning.OF_ZT: "ZT, of which the budget is a share",
            }
            words = [which.get(trial, f"trial {trial} of {trials}") + ":", *_values_words(values)]
            score = f", {overview.score}" if overview.score else ""
            line = f"{' '.join(words)} {iterations:,} iterations, {100 * share:.0f} %{score}"
            status.update(cell(line))
            if not sys.stderr.isatty():
                lines.call(lambda: warn(line))

        found = tuning.tune(
            experiment,
            amount,
            out,
            chosen_engine,
            parameters=ranges,
            strategy=strategy,
            trials=trials,
            on=on,
            progress=show_trial,
            warn=warn,
            followers=[overview.follower],
        )
    _print_tuning(found)
    for line in found.advice:
        warn(line)
    best = " ".join(_values_words(found.best_values)).removesuffix(",")
    print(f"Tuned config: {plain(out / tuning.TUNED)} ({plain(best)}), curve: {plain(out / tuning.FIGURES[0])}")
    fresh = list(range(max(experiment.seeds) + 1, max(experiment.seeds) + 6))
    options = f"seeds={fresh}".replace(" ", ""), "--out", f"{out}-result"
    command = shlex.join([*shlex.split(this_command()), "run", str(out / tuning.TUNED), *options])
    print(f"{tuning.TUNED} still has the seeds that were used for tuning.")
    print(f"To report a result, run it with other seeds: {plain(command)}")


def _values_words(values: Mapping[str, float]) -> list[str]:
    return [f"{name} = {value:.4g}," for name, value in values.items()]


def _print_tuning(found: Tuning) -> None:
    search, names = found.search, found.search.names
    measure = found.measure
    title = f"{search.on} {measure.label} within {search.budget.words}"
    columns = (*names, measure.metric, f"{found.bounds} over seeds", "spent", "iterations", "")
    rows = []
    # A single parameter is read along its values; of several, the best comes first.
    by_value = len(names) == 1
    table = found.table.sort(names[0]) if by_value else found.ranked
    for row in table.iter_rows(named=True):
        best = all(row[name] == value for name, value in found.best_values.items()) and row["state"] == "complete"
        numbers = (
            *(f"{row[name]:.4g}" for name in names),
            "" if row[measure.name] is None else f"{row[measure.name]:.3f}",
            "" if row["low"] is None else f"{row['low']:.3f} to {row['high']:.3f}",
            "" if row["spent"] is None else f"{row['spent']:.4g}",
            f"{row['iterations']:,}",
        )
        rows.append(
            [Text(text, "bold" if best else "") for text in (*numbers, "best" if best else STATE_WORDS[row["state"]])]
        )
    print_table(columns, rows, title)
    if search.validation is None:
        print(f"Chosen by the {measure.label} on the test samples, which makes it too optimistic to report.")
        return
    share = f"{100 * search.validation:.0f} % of each device's training samples"
    print(f"Chosen by the {measure.label} on {share}, which no device trains on.")
    if found.test_value is None:
        print(f"No test {measure.metric}: the run of the winner on all training samples failed.")
    else:
        print(f"Test {measure.label} of the winner, trained on all training samples: {found.test_value:.3f}")
