"""What claims measure: one row per seed and one column per strategy, so that everything is compared seed by seed."""

from __future__ import annotations

import numpy as np
import polars as pl

from efhc.report.claims.panels import RUN, accuracy_at_share, accuracy_over_radii
from efhc.report.figure_data import FigureData

BASELINES = ("GT", "ZT", "RG")


def time_per_iteration(figure: FigureData) -> pl.DataFrame:
    """Return the mean transmission time per iteration over the whole run."""
    value = pl.col("transmission_time_total").last() / (pl.col("iteration").last() + 1)
    return _by_seed(figure.curves.group_by(RUN, maintain_order=True).agg(value.alias("value")))


def late_accuracy(figure: FigureData) -> pl.DataFrame:
    """Return the mean accuracy of the evaluations in the last tenth of the iterations, or of the last evaluation."""
    iteration, last = pl.col("iteration"), pl.col("iteration").max()
    late = (10 * iteration >= 9 * (last + 1)) | (iteration == last)
    runs = figure.curves.group_by(RUN, maintain_order=True)
    return _by_seed(runs.agg(pl.col("accuracy").filter(late).mean().alias("value")))


def accuracy(figure: FigureData, budget: float) -> pl.DataFrame:
    """Return the accuracy when the share `budget` of ZT's total transmission time is spent."""
    return _by_seed(accuracy_at_share(figure.curves, budget).rename({"accuracy": "value"}))


def gain_by_radius(figure: FigureData, budget: float) -> pl.DataFrame:
    """Return the least-squares slope of the accuracy at `budget` over the radius."""
    assert figure.connectivity is not None
    points = accuracy_over_radii(figure.connectivity, budget)
    return _by_seed(_slopes(points, "radius"))


def gain_by_value(figure: FigureData, budget: float) -> pl.DataFrame:
    """Return the column `slope`: of the accuracy at `budget` over log10 of the varied value, by least squares."""
    # ZT only defines the budget, and 0 has no logarithm.
    values = {name: float(np.log10(value)) for name, value in figure.varied.items() if name != "ZT" and value > 0}
    points = accuracy_at_share(figure.curves, budget).filter(pl.col("strategy").is_in(list(values)))
    power = pl.col("strategy").replace_strict(values, return_dtype=pl.Float64)
    return _by_seed(_slopes(points.with_columns(power.alias("power"), pl.lit("slope").alias("strategy")), "power"))


def margins(figure: FigureData, other: FigureData, budget: float) -> pl.DataFrame:
    """Return EF-HC's accuracy minus the best baseline's, per seed, in `figure` (`here`) and in `other` (`there`)."""
    best = pl.max_horizontal(BASELINES)
    here, there = (
        accuracy(one, budget).drop_nulls(["EF-HC", *BASELINES]).select("seed", (pl.col("EF-HC") - best).alias(name))
        for one, name in ((figure, "here"), (other, "there"))
    )
    return here.join(there, on="seed", how="inner", maintain_order="left")


def _by_seed(values: pl.DataFrame) -> pl.DataFrame:
    return values.pivot(on="strategy", index="seed", values="value").sort("seed")


def _slopes(points: pl.DataFrame, x: str) -> pl.DataFrame:
    """Σ (x - x̄) y / Σ (x - x̄)² per strategy and seed, where y is the accuracy, for those that have every x."""
    ordered = points.sort(x)
    wide = ordered.pivot(on=x, index=["strategy", "seed"], values="accuracy").drop_nulls()
    away = np.unique(ordered[x].to_numpy())
    away -= away.mean()
    with np.errstate(invalid="ignore"):  # a single x has no slope: 0/0 becomes null
        slopes = wide.drop("strategy", "seed").to_numpy() @ away / (away @ away)
    return wide.select("strategy", "seed", pl.Series("value", slopes, nan_to_null=True))
