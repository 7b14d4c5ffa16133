"""The runs of a strategy and its controls, and what is made of them.

DIR/figures/NAME.png, NAME.pdf   accuracy over virtual seconds, one panel per setting
DIR/figures/NAME.csv             accuracy and bytes at the end: per setting, strategy and seed
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from efhc.base.saving import write_safely
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.runs.run import Run
from efhc.experiments.runs.store import Failures, RunStore
from efhc.experiments.studies.changes import Size
from efhc.experiments.studies.controls_file import Controls, end_of
from efhc.experiments.studies.setting_runs import SettingRuns
from efhc.report.claims.controls import all_ends
from efhc.report.controls_data import ControlsData, ControlsSection, TimedSetting
from efhc.report.figures import save_figure
from efhc.report.figures.controls_figure import controls_figure


class ControlsRuns(SettingRuns[Controls]):
    """A strategy and its controls, and their runs."""

    def show(self, size: Size, store: RunStore, failures: Failures, folder: Path) -> ControlsSection:
        """Write the figure with its numbers to `folder`, and return what the report shows.

        A setting in which the leader has no run at all is left out. Raises the first failure if that leaves no setting.
        """
        table = self.figure.table
        settings = tuple(
            TimedSetting(
                setting.name,
                setting.title,
                curves,
                test_samples=len(made[0].data.y_test),
                seconds=end_of(setting.experiment),
                bandwidths=_bandwidths(made, store),
            )
            for setting, made, curves in self.made_with(table.leader, store, failures)
        )
        data = ControlsData(
            self.figure.name, table.title, settings, table.leader, table.controls, table.common, table.shuffled
        )
        write_controls(data, folder)
        facts = self.facts(size, store, failures, {"virtual seconds": lambda one: f"{end_of(one):g}"}, _every)
        return ControlsSection(data, self.configs, table.tuned, facts, self.provenance(store, failures))


def write_controls(data: ControlsData, folder: Path) -> None:
    """Write the figure and the numbers of all settings."""
    write_safely(folder / f"{data.name}.csv", all_ends(data).write_csv().encode())
    figure = controls_figure(data)
    for ending in ("png", "pdf"):
        save_figure(figure, folder / f"{data.name}.{ending}")


def _bandwidths(made: list[Run], store: RunStore) -> tuple[float, float]:
    """Return the smallest and the largest bandwidth of the devices, over all seeds."""
    one_per_seed = {run.seed: run for run in made}.values()
    values = pl.concat(store.table(run, "devices")["bandwidth"] for run in one_per_seed)
    return float(values.min()), float(values.max())  # type: ignore[arg-type]


def _every(experiment: Experiment) -> str:
    seconds = getattr(experiment.driver, "sample_seconds", None)
    return f"{experiment.evaluate_every} median steps" if seconds is None else f"{seconds:g} virtual seconds"
