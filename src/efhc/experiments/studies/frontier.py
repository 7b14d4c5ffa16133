"""The runs of a frontier, and what is made of them.

DIR/figures/NAME.png, NAME.pdf   one panel per setting
DIR/figures/NAME.csv             the means over seeds: per setting and strategy the accuracy at each budget, and what
                                 the strategy spends in total, as a share of ZT's transmission time
DIR/figures/NAME-SETTING.csv     the same per strategy and seed
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from efhc.base.saving import write_safely
from efhc.experiments.config.files import to_toml
from efhc.experiments.runs.live.tracking import name_of
from efhc.experiments.runs.run import Run, Runs
from efhc.experiments.runs.store import Failures, RunStore
from efhc.experiments.studies.changes import Size
from efhc.experiments.studies.frontier_file import Frontier, FrontierSetting
from efhc.experiments.trackers.tracker import as_folder
from efhc.report.claims.frontier import all_means, budget_table
from efhc.report.figures import save_figure
from efhc.report.figures.frontier_figure import frontier_figure
from efhc.report.frontier_data import FrontierData, FrontierSection, SettingData


@dataclass(frozen=True)
class FrontierRuns:
    """A frontier and its runs."""

    figure: Frontier
    by_setting: list[tuple[FrontierSetting, list[Run]]]

    @classmethod
    def of(cls, figure: Frontier, runs: Runs) -> FrontierRuns:
        """Return the frontier with its runs. This reads its data and input files."""
        return cls(figure, [(setting, runs.of(setting.experiment)) for setting in figure.settings])

    @property
    def all(self) -> list[Run]:
        """The runs of all settings, each once."""
        return list({run.key: run for _, runs in self.by_setting for run in runs}.values())

    @property
    def names(self) -> dict[str, str]:
        """What trackers call the runs, by key: by their setting."""
        return {
            run.key: f"{self.figure.name}/{as_folder(setting.name)}/{name_of(run)}"
            for setting, runs in reversed(self.by_setting)
            for run in runs
        }

    def failed(self, failures: Failures) -> list[str]:
        """Return a line for each run that failed: the setting, and the error, which names strategy and seed."""
        return [
            f"{setting.name}: {failures[run.key]}"
            for setting, runs in self.by_setting
            for run in runs
            if run.key in failures
        ]

    def section(self, size: Size, store: RunStore, failures: Failures) -> FrontierSection:
        """Return what the report shows. A setting in which ZT has no run at all is left out: it has no budgets.

        Raises the first failure if that leaves no setting.
        """
        settings = []
        for setting, runs in self.by_setting:
            made = [run for run in runs if run.key not in failures]
            if any(run.strategy == "ZT" for run in made):
                curves = pl.concat((store.curve(run) for run in made), how="diagonal_relaxed")
                judged_from, test_samples = self._judged_from(setting), len(made[0].data.y_test)
                settings.append(SettingData(setting.name, setting.title, curves, judged_from, test_samples))
        if not settings:
            raise next(iter(failures.values()))
        table = self.figure.table
        data = FrontierData(self.figure.name, table.title, tuple(settings), table.leaders, table.ceilings)
        first = next(run for run in self.all if run.key not in failures)
        return FrontierSection(
            data,
            {setting.title: to_toml(setting.experiment) for setting in self.figure.settings},
            table.tuned,
            self._facts(size, store, failures),
            {key: store.meta(first)[key] for key in ("versions", "git", "machine")},
        )

    def _judged_from(self, setting: FrontierSetting) -> float:
        """Return the smallest share that is judged: before its second evaluation, little is known of ZT."""
        return max(self.figure.table.judged_from, setting.experiment.evaluate_every / setting.experiment.iterations)

    def _facts(self, size: Size, store: RunStore, failures: Failures) -> dict[str, str]:
        figure, experiments = self.figure, self.figure.experiments
        seconds = sum(store.meta(run)["wall_seconds"] for run in self.all if run.key not in failures)
        data = dict.fromkeys(f"{run.data.name}, {len(run.data.y_train):,} training samples" for run in self.all)
        tested = dict.fromkeys(
            f"on {'all' if one.test_samples is None else f'{one.test_samples:,} samples of the'} test set, "
            f"every {one.evaluate_every} iterations"
            for one in experiments
        )
        facts = {
            "size": f"--{size}",
            "data": "; ".join(data),
            "devices": _each(one.devices for one in experiments),
            "iterations": _each(f"{one.iterations:,}" for one in experiments),
            "seeds": ", ".join(map(str, figure.experiment.seeds)),
            "strategies": str(len({name for one in experiments for name in one.strategies})),
            "batch size": _each(one.batch_size for one in experiments),
            "accuracy": "; ".join(tested),
            "runs": str(len(self.all)),
            "failed runs": "; ".join(self.failed(failures)),
            "time": f"{seconds:,.0f} s, summed over runs",
            "command": f"efhc reproduce {figure.name} --{size} --seeds {len(figure.experiment.seeds)}",
        }
        return {name: fact for name, fact in facts.items() if fact}


def write_frontier(data: FrontierData, folder: Path) -> None:
    """Write the figure and the numbers of each setting."""
    for setting in data.settings:
        table = budget_table(setting.curves)
        write_safely(folder / f"{data.label(setting)}.csv", table.write_csv().encode())
    write_safely(folder / f"{data.name}.csv", all_means(data).write_csv().encode())
    figure = frontier_figure(data)
    for ending in ("png", "pdf"):
        save_figure(figure, folder / f"{data.name}.{ending}")


def _each(values: Iterable[object]) -> str:
    """Return the different values of the settings."""
    return ", ".join(dict.fromkeys(map(str, values)))
