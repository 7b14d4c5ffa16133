"""What a run gives back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from efhc.base.arrays import Floats
from efhc.base.errors import InputError
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.runs.directory import TABLES, RunDirectory

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Result:
    """The metrics, events and final models of an experiment."""

    experiment: Experiment
    metrics: pl.DataFrame
    """One row per strategy, seed and iteration."""
    events: pl.DataFrame
    """The devices that fired and the links used, one row per strategy, seed and iteration."""
    network: pl.DataFrame
    """The physical links, one row per seed and iteration at which they changed."""
    devices: pl.DataFrame
    """Bandwidth, samples and labels, one row per seed and device."""
    models: dict[tuple[str, int], Floats]
    """The final models (m, n) by strategy and seed."""

    @classmethod
    def load(cls, directory: Path | str) -> Result:
        """The result in a run directory."""
        run = RunDirectory(Path(directory))
        if not run.is_complete:
            raise InputError("run directory", directory, "the directory of a run that has finished")
        tables = {name: run.load_table(name) for name in TABLES}
        return cls(run.load_experiment(), models=run.load_models(), **tables)

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """By the names of their files in a run directory."""
        return {name: getattr(self, name) for name in TABLES}

    def summary(self) -> pl.DataFrame:
        """One row per strategy, means over seeds: final accuracies, share of devices firing, transmission time."""
        last = pl.col("iteration") == pl.col("iteration").max()
        return self.metrics.group_by("strategy", maintain_order=True).agg(
            pl.col("accuracy").filter(last).mean(),
            pl.col("accuracy").filter(last).min().alias("worst_seed_accuracy"),
            pl.col("mean_model_accuracy").filter(last).mean(),
            (pl.col("fired").mean() / self.experiment.devices).alias("firing_share"),
            pl.col("transmission_time_total").filter(last).mean(),
            pl.col("consensus_error").filter(last).mean(),
        )

    def plot(self, path: Path | str | None = None) -> Figure:
        """The paper's panels of this run; written to `path` if one is given."""
        from efhc.report.figures import comparison_figure, run_title, save_figure

        figure = comparison_figure(self.metrics, title=run_title(self.experiment))
        if path is not None:
            save_figure(figure, Path(path))
        return figure
