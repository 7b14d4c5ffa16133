"""Reproduce figures: make the runs that are missing, draw the panels, judge the claims, write the report.

DIR/report.html          everything, in one page that works offline
DIR/claims.csv           each claim with its statistics, intervals and verdict
DIR/figures/             NAME.png, NAME.pdf; the numbers of each panel as NAME-i.csv .. NAME-iv.csv
DIR/runs/                the runs, each in a run directory named by the hash of everything that determines it
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from efhc.base.errors import InputError
from efhc.base.saving import write_safely
from efhc.experiments.config.files import to_toml
from efhc.experiments.runs.live.followers import FollowerFactory
from efhc.experiments.runs.live.tracking import name_of, tracking
from efhc.experiments.runs.provenance import provenance
from efhc.experiments.runs.run import Run, Runs
from efhc.experiments.runs.store import Engine, Failures, Progress, RunStore
from efhc.experiments.studies.changes import Size
from efhc.experiments.studies.controls import ControlsRuns
from efhc.experiments.studies.controls_file import Controls
from efhc.experiments.studies.frontier import FrontierRuns
from efhc.experiments.studies.frontier_file import Frontier
from efhc.experiments.studies.presets import RADIUS, PaperFigure
from efhc.report.claims.controls import judge_controls
from efhc.report.claims.frontier import judge_frontier
from efhc.report.claims.judging import Judgement
from efhc.report.claims.panels import panels
from efhc.report.claims.paper_claims import judge
from efhc.report.claims.wording import findings_table
from efhc.report.controls_data import ControlsSection
from efhc.report.figure_data import FigureData, Illustration, Section
from efhc.report.figures import save_figure
from efhc.report.figures.paper_figure import paper_figure
from efhc.report.frontier_data import FrontierSection
from efhc.report.page.document import page


@dataclass(frozen=True)
class FigureRuns:
    """A figure and its runs."""

    figure: PaperFigure
    curves: list[Run]
    connectivity: list[tuple[float, Run]]
    """The runs of panel (iv), each with its radius."""

    @classmethod
    def of(cls, figure: PaperFigure, runs: Runs) -> FigureRuns:
        """Return the figure with its runs. This reads its data and input files."""
        points = [(point.settings[RADIUS], point.experiment) for point in figure.connectivity]
        at_radii = [(float(radius), run) for radius, experiment in points for run in runs.of(experiment)]
        return cls(figure, runs.of(figure.experiment), at_radii)

    @property
    def all(self) -> list[Run]:
        """The runs of all panels, each once."""
        return list({run.key: run for run in [*self.curves, *(run for _, run in self.connectivity)]}.values())

    @property
    def names(self) -> dict[str, str]:
        """What trackers call the runs, by key: runs of panel (iv) by their radius."""
        figure = self.figure.name
        at_radii = {run.key: f"{figure}/radius={radius:g}/{name_of(run)}" for radius, run in self.connectivity}
        return at_radii | {run.key: f"{figure}/{name_of(run)}" for run in self.curves}

    def failed(self, failures: Failures) -> list[str]:
        """Return a line for each run that failed: the error, which names strategy and seed, and the radius."""
        lines = {run.key: f"radius {radius:g}: {failures.get(run.key)}" for radius, run in self.connectivity}
        lines |= {run.key: str(failures.get(run.key)) for run in self.curves}
        return [lines[run.key] for run in self.all if run.key in failures]

    def show(self, size: Size, store: RunStore, failures: Failures, folder: Path) -> Section:
        """Write the panels to `folder`, and return what the report shows. Raises the first failure if all failed."""
        section = _section(self, size, store, failures)
        _write_panels(section.data, folder)
        return section


AnyRuns = FigureRuns | FrontierRuns | ControlsRuns
AnySection = Section | FrontierSection | ControlsSection


def prepare(figures: Sequence[PaperFigure | Frontier | Controls]) -> list[AnyRuns]:
    """Load the data and find the runs of the figures. Raises `InputError` for whatever is wrong with them."""
    for name, files in Counter(figure.name for figure in figures).items():
        if files > 1:
            raise InputError("figure", f"{files} files named {name}", "different names: results are named after them")
    runs, prepared = Runs(), list[AnyRuns]()
    for figure in figures:
        match figure:
            case Frontier():
                prepared.append(FrontierRuns.of(figure, runs))
            case Controls():
                prepared.append(ControlsRuns.of(figure, runs))
            case _:
                prepared.append(FigureRuns.of(figure, runs))
    return prepared


def reproduce(
    figures: Sequence[AnyRuns],
    size: Size,
    out: Path,
    store: RunStore,
    engine: Engine,
    progress: Progress,
    warn: Callable[[str], None] = lambda text: None,
    followers: Sequence[FollowerFactory] = (),
) -> list[Judgement]:
    """Write everything to `out`, each figure as soon as its runs are made, and return the judged claims.

    Runs that fail are left out, listed in the report, and passed to `warn`, one line each. If all runs of panels
    (i)-(iii), all runs of ZT in a frontier, or all runs of a strategy that has controls, fail, the first failure is
    raised. Each of `followers` creates a follower of each run that is made.
    """
    sections: list[AnySection] = []
    experiments = [experiment for of_figure in figures for experiment in of_figure.figure.experiments]
    names = {key: name for of_figure in reversed(figures) for key, name in of_figure.names.items()}
    with tracking(experiments, out, warn, name=lambda run: names[run.key]) as trackers:
        for of_figure in figures:
            failures = store.complete(of_figure.all, engine, progress, followers=[*trackers, *followers])
            for line in of_figure.failed(failures):
                warn(f"{of_figure.figure.name}: {line}")
            sections.append(of_figure.show(size, store, failures, out / "figures"))
    judgements = judge({one.data.name: one.data for one in sections if isinstance(one, Section)})
    for one in sections:
        match one:
            case FrontierSection():
                judgements += judge_frontier(one.data)
            case ControlsSection():
                judgements += judge_controls(one.data)
    write_safely(out / "claims.csv", findings_table(judgements).write_csv().encode())
    write_safely(out / "report.html", page(sections, judgements, _title(sections), provenance()).encode())
    return judgements


def _title(sections: Sequence[AnySection]) -> str:
    numbers = [section.data.number for section in sections if isinstance(section, Section)]
    others = [section.data.name for section in sections if not isinstance(section, Section)]
    listed = [f"figure{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"] if numbers else []
    return f"EF-HC, {', '.join(listed + others)}"


def _write_panels(data: FigureData, folder: Path) -> None:
    for panel, table in panels(data).items():
        write_safely(folder / f"{data.name}-{panel}.csv", table.write_csv().encode())
    figure = paper_figure(data)
    for ending in ("png", "pdf"):
        save_figure(figure, folder / f"{data.name}.{ending}")


def _section(of_figure: FigureRuns, size: Size, store: RunStore, failures: Failures) -> Section:
    figure, experiment = of_figure.figure, of_figure.figure.experiment
    made = [run for run in of_figure.curves if run.key not in failures]
    if not made:
        raise failures[of_figure.curves[0].key]
    at_radii = [(radius, run) for radius, run in of_figure.connectivity if run.key not in failures]
    if not any(run.strategy == "ZT" for _, run in at_radii):  # without ZT there are no budgets
        at_radii = []
    connectivity = [store.curve(run).with_columns(radius=pl.lit(radius)) for radius, run in at_radii]
    data = FigureData(
        name=figure.name,
        number=figure.table.number,
        title=figure.table.title,
        curves=pl.concat(store.curve(run) for run in made),
        connectivity=pl.concat(connectivity) if connectivity else None,
        varied=figure.varied,
    )
    # The first seed that has the most strategies: the first of all, unless runs failed.
    per_seed = Counter(run.seed for run in made)
    seed = max(experiment.seeds, key=lambda one: per_seed[one])
    of_first_seed = [run for run in made if run.seed == seed]
    illustration = Illustration(
        seed=seed,
        network=store.table(of_first_seed[0], "network"),
        devices=store.table(of_first_seed[0], "devices"),
        events={run.strategy: store.table(run, "events") for run in of_first_seed},
    )
    return Section(
        data,
        illustration,
        to_toml(experiment),
        _facts(of_figure, size, store, failures),
        {key: store.meta(of_first_seed[0])[key] for key in ("versions", "git", "machine")},
    )


def _facts(of_figure: FigureRuns, size: Size, store: RunStore, failures: Failures) -> dict[str, str]:
    figure, experiment = of_figure.figure, of_figure.figure.experiment
    seconds = sum(store.meta(run)["wall_seconds"] for run in of_figure.all if run.key not in failures)
    radii = sorted({radius for radius, _ in of_figure.connectivity})
    tested = "all" if experiment.test_samples is None else f"{experiment.test_samples:,} samples of the"
    data = of_figure.curves[0].data
    facts = {
        "size": f"--{size}",
        "data": f"{data.name}, {len(data.y_train):,} training samples",
        "devices": str(experiment.devices),
        "iterations": f"{experiment.iterations:,}",
        "seeds": str(len(experiment.seeds)),
        "batch size": str(experiment.batch_size),
        "accuracy": f"on {tested} test set, every {experiment.evaluate_every} iterations",
        "radii of panel (iv)": ", ".join(map(str, radii)),
        "runs": str(len(of_figure.all)),
        "failed runs": "; ".join(of_figure.failed(failures)),
        "time": f"{seconds:,.0f} s, summed over runs",
        "command": f"efhc reproduce {figure.name} --{size} --seeds {len(experiment.seeds)}",
    }
    return {name: fact for name, fact in facts.items() if fact}
