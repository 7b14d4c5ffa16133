"""The numbers behind a figure's panels, per strategy and point: the mean over seeds, the range in which the mean of
equally many other seeds is expected (95 %), and the value of each seed.

Every function takes the evaluated iterations (strategy, seed, iteration, transmission_time_total, measures), with the
rows of each run in order, and the column of the measure. Strategies keep the order in which they first appear. Seeds
may be evaluated at different iterations: curves are linear between evaluations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import polars as pl

from efhc.base.arrays import Flags, Floats
from efhc.report.claims.intervals import interval, of_other_seeds
from efhc.report.figure_data import BUDGETS, RUN, FigureData

NEARLY = 1e-9
"""A relative rounding error of a sum of times."""


@lru_cache(maxsize=32)
def panels(data: FigureData) -> Mapping[str, pl.DataFrame]:
    """Return the panels by number: i, ii, iii, and iv if connectivity was varied."""
    measure = data.measure.name
    tables = {
        "i": time_per_iteration(data.curves),
        "ii": over_seeds(at_places(data.curves, "iteration", measure), "iteration", measure),
        "iii": per_time(data.curves, measure),
    }
    if data.connectivity is not None:
        tables["iv"] = by_radius(data.connectivity, measure)
    return tables


def at_places(curves: pl.DataFrame, x: str, value: str) -> pl.DataFrame:
    """Return strategy, seed, x and value of all runs, at the places x of the first run of each strategy.

    These places end where the shortest run does.
    """
    tables = []
    for (strategy,), runs in curves.drop_nulls(value).group_by("strategy", maintain_order=True):
        seeds = list(runs.group_by("seed", maintain_order=True))
        places = seeds[0][1][x].to_numpy()
        places = places[places <= min(run[x].to_numpy().max() for _, run in seeds)]
        for (seed,), run in seeds:
            columns = {"strategy": strategy, "seed": seed, x: places, value: np.interp(places, run[x], run[value])}
            tables.append(pl.DataFrame(columns))
    return pl.concat(tables)


def time_per_iteration(curves: pl.DataFrame) -> pl.DataFrame:
    """Return the mean transmission time of the iterations since the previous evaluation, or since the start."""
    total, iteration = pl.col("transmission_time_total"), pl.col("iteration")
    per_iteration = (total - total.shift(fill_value=0)) / (iteration - iteration.shift(fill_value=-1))
    read_off = at_places(curves, "iteration", "transmission_time_total")
    return over_seeds(read_off.with_columns(per_iteration.over(RUN).alias("value")), "iteration", "value")


def per_time(curves: pl.DataFrame, measure: str, points: int = 200) -> pl.DataFrame:
    """Interpolate each seed's curve at the same times, up to the last time that all seeds of the strategy reached."""
    read_off = []
    for (strategy,), runs in curves.drop_nulls(measure).group_by("strategy", maintain_order=True):
        seeds = list(runs.group_by("seed", maintain_order=True))
        furthest = min(run["transmission_time_total"].to_numpy().max() for _, run in seeds)
        times = np.unique(np.linspace(0.0, furthest, points))  # a strategy that never transmits has the time 0 alone
        for (seed,), run in seeds:
            values = np.interp(times, run["transmission_time_total"], run[measure])
            columns = {"strategy": strategy, "seed": seed, "transmission_time": times, measure: values}
            read_off.append(pl.DataFrame(columns))
    return over_seeds(pl.concat(read_off), "transmission_time", measure)


def by_radius(connectivity: pl.DataFrame, measure: str) -> pl.DataFrame:
    """Return the measure at each budget by radius. A budget is a share of ZT's time at the same seed and radius."""
    tables = []
    for budget in BUDGETS:
        table = over_seeds(over_radii(connectivity, measure, budget), "radius", measure)
        tables.append(table.select(pl.lit(budget).alias("budget"), pl.all()))
    return pl.concat(tables)


def over_radii(connectivity: pl.DataFrame, measure: str, share: float) -> pl.DataFrame:
    """Return strategy, seed, the measure and radius: `at_share` of each radius, from the smallest."""
    radii = connectivity.sort("radius", maintain_order=True).group_by("radius", maintain_order=True)
    return pl.concat(
        at_share(curves, measure, share).with_columns(pl.lit(radius).alias("radius")) for (radius,), curves in radii
    )


def at_share(curves: pl.DataFrame, measure: str, share: float) -> pl.DataFrame:
    """Return the measure `within_budgets` of a share of the total transmission time of ZT with the same seed."""
    return within_budgets(curves, measure, {seed: share * total for seed, total in totals_of(curves).items()})


def within_budgets(curves: pl.DataFrame, measure: str, budgets: Mapping[int, float]) -> pl.DataFrame:
    """Return strategy, seed and the measure of each run when it has spent the transmission time `budgets[seed]`.

    It is null where `values_at` has none. Seeds without a budget are left out.
    """
    runs = curves.drop_nulls(measure).group_by(RUN, maintain_order=True)
    rows = [
        (strategy, seed, float(values_at(budgets[seed], np.array(times), values)))
        for strategy, seed, times, values in runs.agg("transmission_time_total", measure).iter_rows()
        if seed in budgets
    ]
    schema = {"strategy": pl.String, "seed": pl.Int64, measure: pl.Float64}
    return pl.DataFrame(rows, schema, orient="row").fill_nan(None)


def totals_of(curves: pl.DataFrame, strategy: str = "ZT") -> dict[int, float]:
    """Return the total transmission time of a strategy by seed."""
    totals = curves.filter(strategy=strategy).group_by("seed").agg(pl.col("transmission_time_total").max())
    return dict(totals.iter_rows())


def values_at(budgets: Floats | float, spent: Floats, values: Sequence[float]) -> Floats:
    """Return the values of a run when it has spent these budgets, given what it had spent at each evaluation.

    They are linear between evaluations. A run that spends less is taken at its end. It has no value (NaN) where it had
    spent more when it was first evaluated.
    """
    return np.where(is_early(budgets, spent), np.nan, np.interp(budgets, spent, values))


def is_early(budgets: Floats | float, spent: Floats) -> Flags:
    """Return whether a run had spent more than these budgets when it was first evaluated."""
    return np.asarray(np.asarray(budgets) * (1 + NEARLY) < spent[0])


def means_over_seeds(rows: pl.DataFrame, x: str, value: str, *, with_band: bool) -> pl.DataFrame:
    """Return strategy, x, mean, low and high, sorted by x; low and high are null without a band, or with one seed."""
    if with_band:
        table = over_seeds(rows, x, value).select("strategy", x, "mean", "low", "high")
        return table.with_columns(pl.col("low", "high").fill_nan(None))
    means = rows.group_by("strategy", x, maintain_order=True).agg(mean=pl.col(value).mean())
    none = pl.lit(None, pl.Float64)
    return means.sort(x).with_columns(low=none, high=none)


def over_seeds(rows: pl.DataFrame, x: str, value: str) -> pl.DataFrame:
    """Return strategy, x, mean, low, high and the value of each seed, from one row per strategy, seed and x."""
    tables = []
    for (strategy,), runs in rows.group_by("strategy", maintain_order=True):
        wide = runs.pivot(on="seed", index=x, values=value).sort(x)
        per_seed = wide.drop(x).rename(lambda seed: f"seed {seed}")
        over_seeds = pl.DataFrame(of_other_seeds(interval(per_seed.to_numpy().T))._asdict())
        if not (per_seed.to_numpy() < 0).any():  # such as times and accuracies, of which none is ever negative
            over_seeds = over_seeds.with_columns(pl.col("low").clip(0))
        columns = [pl.Series("strategy", [strategy] * len(wide), pl.String), wide[x], *over_seeds, *per_seed]
        tables.append(pl.DataFrame(columns))
    return pl.concat(tables, how="diagonal")
