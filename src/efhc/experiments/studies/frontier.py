"""The runs of a frontier, and what is made of them.

DIR/figures/NAME.png, NAME.pdf   one panel per setting
DIR/figures/NAME.csv             the means over seeds: per setting and strategy the accuracy at each budget, and what
                                 the strategy spends in total, as a share of ZT's transmission time
DIR/figures/NAME-SETTING.csv     the same per strategy and seed
"""

from __future__ import annotations

from pathlib import Path

from efhc.base.saving import write_safely
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.runs.store import Failures, RunStore
from efhc.experiments.studies.changes import Size
from efhc.experiments.studies.frontier_file import Frontier
from efhc.experiments.studies.setting_runs import SettingRuns
from efhc.report.claims.frontier import all_means, budget_table
from efhc.report.figures import save_figure
from efhc.report.figures.frontier_figure import frontier_figure
from efhc.report.frontier_data import FrontierData, FrontierSection, SettingData


class FrontierRuns(SettingRuns[Frontier]):
    """A frontier and its runs."""

    def show(self, size: Size, store: RunStore, failures: Failures, folder: Path) -> FrontierSection:
        """Write the figure with its numbers to `folder`, and return what the report shows.

        A setting in which ZT has no run at all is left out: it has no budgets. Raises the first failure if that leaves
        no setting.
        """
        settings = tuple(
            SettingData(
                setting.name, setting.title, curves, self._judged_from(setting.experiment), len(made[0].data.y_test)
            )
            for setting, made, curves in self.made_with("ZT", store, failures)
        )
        table = self.figure.table
        data = FrontierData(self.figure.name, table.title, settings, table.leaders, table.ceilings)
        write_frontier(data, folder)
        facts = self.facts(
            size,
            store,
            failures,
            {"iterations": lambda one: f"{one.iterations:,}"},
            lambda one: f"{one.evaluate_every} iterations",
        )
        return FrontierSection(data, self.configs, table.tuned, facts, self.provenance(store, failures))

    def _judged_from(self, experiment: Experiment) -> float:
        """Return the smallest share that is judged: before its second evaluation, little is known of ZT."""
        return max(self.figure.table.judged_from, experiment.evaluate_every / experiment.iterations)


def write_frontier(data: FrontierData, folder: Path) -> None:
    """Write the figure and the numbers of each setting."""
    for setting in data.settings:
        table = budget_table(setting.curves)
        write_safely(folder / f"{data.label(setting)}.csv", table.write_csv().encode())
    write_safely(folder / f"{data.name}.csv", all_means(data).write_csv().encode())
    figure = frontier_figure(data)
    for ending in ("png", "pdf"):
        save_figure(figure, folder / f"{data.name}.{ending}")
