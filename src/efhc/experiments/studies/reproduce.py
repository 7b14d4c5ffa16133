"""Reproduce figures: make the runs that are missing, draw the panels, judge the claims, write the report.

DIR/report.html                       everything, in one page that works offline
DIR/claims.csv                        each claim with its statistics, intervals and verdict
DIR/figures/NAME.png, NAME.pdf        each figure, 7 inches wide
DIR/figures/NAME-column.pdf           of a frontier or of controls: 3.3 inches wide
DIR/figures/NAME-i.csv .. NAME-iv.csv of the paper: the numbers of each panel
DIR/figures/NAME.csv                  of a frontier, the means over seeds: per setting and strategy the measure at each
                                      budget, and what the strategy spends in total, as a share of ZT's transmission
                                      time; of controls, measure and bytes at the end: per setting, strategy and seed
DIR/figures/NAME-SETTING.csv          of a frontier: the same per strategy and seed
DIR/runs/                             the runs, each in a run directory named by its key
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from efhc.base.errors import InputError
from efhc.base.saving import write_safely
from efhc.drivers.settings import EventDriven
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import to_toml
from efhc.experiments.runs.events import FollowerFactory
from efhc.experiments.runs.experiment_folder import refuse_experiment
from efhc.experiments.runs.provenance import provenance
from efhc.experiments.runs.run import Run, Runs
from efhc.experiments.runs.store import Engine, Failures, Progress, RunStore
from efhc.experiments.runs.study import SettingName, list_runs
from efhc.experiments.runs.tracking import tracking
from efhc.experiments.studies.figures import (
    ControlsTable,
    Figure,
    FigurePart,
    FrontierTable,
    PaperTable,
    SettingsTable,
    Size,
    end_of,
    varied_values,
)
from efhc.experiments.studies.sweep import each_reason_once, tracker_names
from efhc.experiments.trackers.tracker import as_folder
from efhc.learning.measures import Measure, measure_of
from efhc.report.claims.leads import all_ends, all_means, budget_table, judge_controls, judge_frontier
from efhc.report.claims.panels import panels
from efhc.report.claims.paper_claims import judge
from efhc.report.claims.verdicts import Judgement, findings_table
from efhc.report.figure_data import (
    ACCURACY,
    ControlsData,
    FigureData,
    FrontierData,
    Illustration,
    Section,
    SettingData,
    TimedSetting,
)

if TYPE_CHECKING:
    from efhc.report.figures import Picture


@dataclass(frozen=True)
class FigureRuns:
    """A figure and the runs of each of its parts."""

    figure: Figure
    parts: list[tuple[FigurePart, list[Run]]]

    @property
    def all(self) -> list[Run]:
        """The runs of all parts, each once."""
        return list({run.key: run for _, runs in self.parts for run in runs}.values())


def runs_of_figures(figures: Sequence[Figure]) -> list[FigureRuns]:
    """Load the data and find the runs of the figures. Raises `InputError` for whatever is wrong with them."""
    for name, files in Counter(figure.name for figure in figures).items():
        if files > 1:
            raise InputError("figure", f"{files} files named {name}", "different names: results are named after them")
    runs = Runs()
    return [FigureRuns(figure, [(part, runs.of(part.experiment)) for part in figure.parts]) for figure in figures]


def measure_of_figure(runs: FigureRuns, store: RunStore) -> Measure:
    """Return the measure that a figure of made runs shows."""
    missing = {run.key for run in store.find_missing(runs.all)}
    made = next(run for run in runs.all if run.key not in missing)
    return measure_of(store.curve(made), runs.figure.experiment.measure)


def reproduce(
    figures: Sequence[FigureRuns],
    size: Size,
    out: Path,
    store: RunStore,
    engine: Engine,
    progress: Progress,
    warn: Callable[[str], None] = lambda text: None,
    followers: Sequence[FollowerFactory] = (),
) -> list[Judgement]:
    """Write everything to `out`, each figure as soon as its runs are made, and return the judged claims.

    Runs that fail are left out, listed in the report, and passed to `warn`, a line per reason. If all runs of panels
    (i)-(iii), all runs of ZT in a frontier, or all runs of a strategy that has controls, fail, the first failure is
    raised. Each of `followers` creates a follower of each run that is made.
    """
    refuse_experiment(out)
    settings = {
        run.key: SettingName(part.name, part.title)
        for one in figures
        if isinstance(one.figure.table, SettingsTable)
        for part, runs in reversed(one.parts)
        for run in runs
    }
    list_runs((run for one in figures for run in one.all), store.folder, settings)
    sections: list[Section] = []
    experiments = [experiment for one in figures for experiment in one.figure.experiments]
    names = tracker_names(
        ("/".join(filter(None, [one.figure.name, part.name and as_folder(part.name)])), runs)
        for one in figures
        for part, runs in one.parts
    )
    with tracking(experiments, out, warn, name=names) as trackers:
        for one in figures:
            failures = store.make_missing(one.all, engine, progress, followers=[*trackers, *followers])
            made = _Made(one, store, failures)
            for line in made.failed:
                warn(f"{one.figure.name}: {line}")
            sections.append(_show(made, size, out))
    judgements = judge({one.data.name: one.data for one in sections if isinstance(one.data, FigureData)})
    for one_section in sections:
        match one_section.data:
            case FrontierData() as data:
                judgements += judge_frontier(data)
            case ControlsData() as data:
                judgements += judge_controls(data)
    from efhc.report.page.report import report

    write_safely(out / "claims.csv", findings_table(judgements).write_csv().encode())
    write_safely(out / "report.html", report(sections, judgements, _title(sections), provenance()).encode())
    return judgements


def _title(sections: Sequence[Section]) -> str:
    numbers = [section.data.number for section in sections if isinstance(section.data, FigureData)]
    others = [section.data.name for section in sections if not isinstance(section.data, FigureData)]
    listed = [f"figure{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"] if numbers else []
    return f"EF-HC, {', '.join(listed + others)}"


# One figure


@dataclass(frozen=True)
class _Made:
    """The runs of a figure that were made."""

    figure_runs: FigureRuns
    store: RunStore
    failures: Failures

    @property
    def failed(self) -> list[str]:
        """A line for each reason for which runs failed: the first one's part, and its error with strategy and seed."""
        parts = {run.key: part.name for part, runs in reversed(self.figure_runs.parts) for run in runs}
        failed = [run for run in self.figure_runs.all if run.key in self.failures]
        lines = (
            (
                str(self.failures[run.key]).removeprefix(run.name),
                ": ".join(filter(None, [parts[run.key], str(self.failures[run.key])])),
            )
            for run in failed
        )
        return each_reason_once(lines)

    @property
    def parts(self) -> list[tuple[FigurePart, list[Run]]]:
        """Each part with those of its runs that were made."""
        return [(part, [run for run in runs if run.key not in self.failures]) for part, runs in self.figure_runs.parts]

    def curves(self, runs: Iterable[Run]) -> pl.DataFrame:
        """Return the evaluations of the runs."""
        return pl.concat((self.store.curve(run) for run in runs), how="diagonal_relaxed")

    def bandwidths(self, runs: Iterable[Run]) -> tuple[float, float]:
        """Return the smallest and the largest bandwidth of the devices, over all seeds."""
        one_per_seed = {run.seed: run for run in runs}.values()
        values = np.concatenate([self.store.table(run, "devices")["bandwidth"] for run in one_per_seed])
        return float(values.min()), float(values.max())

    def with_strategy(self, strategy: str) -> list[tuple[FigurePart, list[Run]]]:
        """Return the parts in which this strategy was made, with all runs that were. Raises if there is none."""
        found = [(part, runs) for part, runs in self.parts if any(run.strategy == strategy for run in runs)]
        if not found:
            raise next(iter(self.failures.values()))
        return found


class _Drawn(NamedTuple):
    """A figure with its numbers."""

    data: FigureData | FrontierData | ControlsData
    numbers: Mapping[str, pl.DataFrame]
    """The tables, by the names of their files."""
    picture: Picture
    column: Picture | None = None
    """The same, as wide as a column."""
    illustration: Illustration | None = None


def _show(made: _Made, size: Size, out: Path) -> Section:
    """Write the figure with its numbers to `out`/figures, and return what the report shows.

    Raises the first failure if too many runs failed to draw anything.
    """
    from efhc.report.figures import save_figure

    figure, folder = made.figure_runs.figure, out / "figures"
    table = figure.table
    if isinstance(table, PaperTable):
        drawn = _draw_paper(figure, table, made)
    elif isinstance(table, FrontierTable):
        drawn = _draw_frontier(figure.name, table, made)
    else:
        drawn = _draw_controls(figure.name, table, made)
    for name, numbers in drawn.numbers.items():
        write_safely(folder / f"{name}.csv", numbers.write_csv().encode())
    for ending in ("png", "pdf"):
        save_figure(drawn.picture, folder / f"{figure.name}.{ending}")
    if drawn.column is not None:
        save_figure(drawn.column, folder / f"{figure.name}-column.pdf")
    has_settings = isinstance(table, SettingsTable)
    shown = figure.parts if has_settings else figure.parts[:1]
    metas = [made.store.meta(run) for run in made.figure_runs.all if run.key not in made.failures]
    seconds = sum(meta["wall_seconds"] for meta in metas)
    options = f"--{size}", "--seeds", str(len(figure.experiment.seeds)), "--out", str(out)
    named = ("--measure", drawn.data.measure.name) if drawn.data.measure != ACCURACY else ()
    facts = _facts(made.figure_runs, size) | {
        "failed runs": "; ".join(made.failed),
        "time": f"{seconds:,.0f} s, summed over runs",
        "command": shlex.join(["efhc", "reproduce", *figure.arguments, *options, *named]),
    }
    return Section(
        drawn.data,
        configs={part.title if has_settings else "": to_toml(part.experiment) for part in shown},
        facts={name: fact for name, fact in facts.items() if fact},
        provenance={key: metas[0][key] for key in ("versions", "git", "machine")},
        tuned=table.tuned if isinstance(table, SettingsTable) else "",
        illustration=drawn.illustration,
    )


def _facts(of_figure: FigureRuns, size: Size) -> dict[str, str]:
    figure, experiments = of_figure.figure, of_figure.figure.experiments
    timed = isinstance(figure.experiment.driver, EventDriven)
    tested = (
        f"on {'all' if one.test_samples is None else f'{one.test_samples:,}'} test samples, {_interval(one)}"
        for one in experiments
    )
    lengths = (f"{end_of(one):g}" if timed else f"{one.iterations:,}" for one in experiments)
    radii = sorted(part.radius for part in figure.parts if part.radius is not None)
    return {
        "size": f"--{size}",
        "data": _each((f"{run.data.name}, {len(run.data.y_train):,} training samples" for run in of_figure.all), "; "),
        "devices": _each(one.devices for one in experiments),
        ("virtual seconds" if timed else "iterations"): _each(lengths),
        "seeds": ", ".join(map(str, figure.experiment.seeds)),
        "strategies": str(len(figure.strategies)),
        "batch size": _each(one.batch_size for one in experiments),
        "evaluation": _each(tested, "; "),
        "radii of panel (iv)": _each(radii),
        "runs": str(len(of_figure.all)),
    }


def _draw_paper(figure: Figure, table: PaperTable, made: _Made) -> _Drawn:
    from efhc.report.figures.paper import paper_figure

    (_, curves), *at_radii = made.parts
    if not curves:
        raise next(iter(made.failures.values()))
    measure = measure_of(first := made.curves(curves), figure.experiment.measure)
    connectivity = [
        made.store.curve(run).with_columns(radius=pl.lit(part.radius)) for part, runs in at_radii for run in runs
    ]
    has_budgets = any(run.strategy == "ZT" for _, runs in at_radii for run in runs)
    data = FigureData(
        name=figure.name,
        number=table.number,
        title=table.title,
        curves=first,
        connectivity=pl.concat(connectivity) if has_budgets else None,
        varied=varied_values(table, figure.experiment),
        measure=measure,
    )
    # The first seed that has the most strategies: the first of all, unless runs failed.
    per_seed = Counter(run.seed for run in curves)
    seed = max(figure.experiment.seeds, key=lambda one: per_seed[one])
    of_seed = [run for run in curves if run.seed == seed]
    illustration = Illustration(
        seed=seed,
        network=made.store.table(of_seed[0], "network"),
        devices=made.store.table(of_seed[0], "devices"),
        events={run.strategy: made.store.table(run, "events") for run in of_seed},
    )
    numbers = {f"{figure.name}-{panel}": rows for panel, rows in panels(data).items()}
    return _Drawn(data, numbers, paper_figure(data), illustration=illustration)


def _first_judged(experiment: Experiment) -> float:
    """Return the smallest share of ZT's time at which enough is known of ZT: the first budget or second evaluation."""
    if experiment.evaluate_at == "budgets":
        return min(experiment.budgets)
    return min(1.0, experiment.evaluate_every / experiment.iterations)


def _draw_frontier(name: str, table: FrontierTable, made: _Made) -> _Drawn:
    from efhc.report.figures.paper import frontier_figure

    settings = tuple(
        SettingData(
            part.name,
            part.title,
            curves := made.curves(runs),
            max(table.judged_from, _first_judged(part.experiment)),
            test_samples=len(runs[0].data.y_test),
            measure=measure_of(curves, part.experiment.measure),
        )
        for part, runs in made.with_strategy("ZT")  # without ZT, a setting has no budgets
    )
    data = FrontierData(name, table.title, settings, table.leaders, table.ceilings)
    numbers = {data.label(setting): budget_table(setting.curves, setting.measure.name) for setting in settings}
    return _Drawn(data, numbers | {name: all_means(data)}, frontier_figure(data), frontier_figure(data, "column"))


def _draw_controls(name: str, table: ControlsTable, made: _Made) -> _Drawn:
    from efhc.report.figures.paper import controls_figure

    settings = tuple(
        TimedSetting(
            part.name,
            part.title,
            curves := made.curves(runs),
            test_samples=len(runs[0].data.y_test),
            measure=measure_of(curves, part.experiment.measure),
            seconds=end_of(part.experiment),
            bandwidths=made.bandwidths(runs),
        )
        for part, runs in made.with_strategy(table.leader)
    )
    data = ControlsData(name, table.title, settings, table.leader, table.controls, table.common, table.shuffled)
    return _Drawn(data, {name: all_ends(data)}, controls_figure(data), controls_figure(data, "column"))


def _interval(experiment: Experiment) -> str:
    """Return how often models are evaluated."""
    driver = experiment.driver
    if not isinstance(driver, EventDriven):
        every = f"every {experiment.evaluate_every} iterations"
        if experiment.evaluate_at != "budgets":
            return every
        shares = ", ".join(f"{100 * share:g}" for share in sorted(experiment.budgets))
        return f"{every} and at {shares} % of ZT's transmission time"
    seconds = driver.sample_seconds
    return (
        f"every {experiment.evaluate_every} median steps" if seconds is None else f"every {seconds:g} virtual seconds"
    )


def _each(values: Iterable[object], separator: str = ", ") -> str:
    """Return the different values, in their order."""
    return separator.join(dict.fromkeys(map(str, values)))
