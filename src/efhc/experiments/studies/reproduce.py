"""Reproduce figures: make the runs that are missing, draw the panels, judge the claims, write the report.

DIR/report.html          everything, in one page that works offline
DIR/claims.csv           each claim with its statistics, intervals and verdict
DIR/figures/             NAME.png, NAME.pdf; the numbers of each panel as NAME-i.csv .. NAME-iv.csv
DIR/runs/                the runs, each in a run directory named by the hash of everything that determines it
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from efhc.base.errors import InputError
from efhc.base.saving import write_safely
from efhc.experiments.runs.events import FollowerFactory
from efhc.experiments.runs.experiment_folder import refuse_experiment
from efhc.experiments.runs.provenance import provenance
from efhc.experiments.runs.run import Runs
from efhc.experiments.runs.store import Engine, Progress, RunStore
from efhc.experiments.runs.tracking import tracking
from efhc.experiments.studies.figure_runs import ControlsRuns, FrontierRuns, PaperRuns
from efhc.experiments.studies.presets import PaperFigure
from efhc.experiments.studies.settings_figures import Controls, Frontier, Size
from efhc.report.claims.controls import judge_controls
from efhc.report.claims.frontier import judge_frontier
from efhc.report.claims.judging import Judgement
from efhc.report.claims.paper_claims import judge
from efhc.report.claims.wording import findings_table
from efhc.report.figure_data import ControlsData, FigureData, FrontierData, Section

AnyRuns = PaperRuns | FrontierRuns | ControlsRuns


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
                prepared.append(PaperRuns.of(figure, runs))
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
    refuse_experiment(out)
    sections: list[Section] = []
    experiments = [experiment for of_figure in figures for experiment in of_figure.figure.experiments]
    names = {key: name for of_figure in reversed(figures) for key, name in of_figure.names.items()}
    with tracking(experiments, out, warn, name=lambda run: names[run.key]) as trackers:
        for of_figure in figures:
            failures = store.complete(of_figure.all, engine, progress, followers=[*trackers, *followers])
            for line in of_figure.failed(failures):
                warn(f"{of_figure.figure.name}: {line}")
            sections.append(of_figure.show(size, store, failures, out / "figures"))
    judgements = judge({one.data.name: one.data for one in sections if isinstance(one.data, FigureData)})
    for one in sections:
        match one.data:
            case FrontierData():
                judgements += judge_frontier(one.data)
            case ControlsData():
                judgements += judge_controls(one.data)
    from efhc.report.page.report import report

    write_safely(out / "claims.csv", findings_table(judgements).write_csv().encode())
    write_safely(out / "report.html", report(sections, judgements, _title(sections), provenance()).encode())
    return judgements


def _title(sections: Sequence[Section]) -> str:
    numbers = [section.data.number for section in sections if isinstance(section.data, FigureData)]
    others = [section.data.name for section in sections if not isinstance(section.data, FigureData)]
    listed = [f"figure{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"] if numbers else []
    return f"EF-HC, {', '.join(listed + others)}"
