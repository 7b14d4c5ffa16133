"""What the timeline of event-driven runs says: where each run ended, and when it reached a target."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from efhc.learning.measures import Measure, evaluated
from efhc.report.claims.intervals import bounds
from efhc.report.figure_data import RUN

TO_TARGET = ("seconds_to_target", "bytes_to_target")
"""The columns that say what it takes to reach a target."""

WITHOUT_TARGET = ("seconds_without_target", "bytes_without_target")
"""The columns that say what was spent by runs that did not reach the target."""


def timeline_summary(timeline: pl.DataFrame, measure: Measure, target: float | None = None) -> pl.DataFrame:
    """Return one row per strategy, with means over seeds at the end of the runs.

    The first columns are the measure, its worst seed, and the measure of the mean model beside it. `devices` is the
    number of devices that are there at the end. If none is, a run has no measures and no consensus error then; their
    means are over the other seeds, and null if there are none. `nobody_left` names such runs.

    With a `target`, a value of the measure, there are these columns too:

    seeds, reached              how many seeds there are, and how many of them reach the target
    seconds_to_target           the mean over the seeds that reach it; null if none does
    seconds_to_target_low       the ends of the interval of that mean (see `claims.intervals`); null unless all seeds
    seconds_to_target_high      reach the target: those that do are a biased sample
    seconds_without_target      the least of the seconds that the other seeds took in vain; null if there are none

    and the same for bytes.
    """
    beside = [one for one in (measure.beside,) if one in timeline.columns]
    runs = with_ends(timeline).group_by(*RUN, maintain_order=True).last()
    if target is not None:
        runs = runs.join(cost_to_target(timeline, measure, target), on=RUN, maintain_order="left")
    means = runs.group_by("strategy", maintain_order=True).agg(
        pl.col(measure.name).mean(),
        measure.worst,
        pl.col(beside).mean(),
        pl.col("seconds", "steps", "broadcasts", "exchanges", "bytes").cast(pl.Float64).mean(),
        pl.col("consensus_error", "devices").cast(pl.Float64).mean(),
        *([] if target is None else [pl.len().cast(pl.Int64).alias("seeds"), *target_over_seeds()]),
    )
    return means if target is None else with_target_bounds(means)


def with_ends(timeline: pl.DataFrame) -> pl.DataFrame:
    """Return the evaluations of each run and, as its last row, the end of a run at which no device was there."""
    ends = timeline.group_by(*RUN, maintain_order=True).last().filter(devices=0)
    return pl.concat([evaluated(timeline), ends.select(timeline.columns)], how="diagonal_relaxed")


def nobody_left(timeline: pl.DataFrame) -> dict[str, list[int]]:
    """Return by strategy the seeds of the runs at whose end no device was there."""
    ends = timeline.group_by(*RUN, maintain_order=True).agg(pl.col("devices").last()).filter(devices=0)
    return dict(ends.group_by("strategy", maintain_order=True).agg("seed").iter_rows())


def cost_to_target(timeline: pl.DataFrame, measure: Measure, target: float) -> pl.DataFrame:
    """Return the seconds and bytes at the first sample whose measure is at least as good as `target`, a row per run.

    The measure is of the devices that are there at the sample; it may be worse again later. The columns are strategy,
    seed, seconds_to_target and bytes_to_target, which are null if no sample reaches it.
    """
    is_there = measure.sign * pl.col(measure.name) >= measure.sign * target
    reached = evaluated(timeline).filter(is_there).group_by(*RUN, maintain_order=True).first()
    costs = reached.select(
        *RUN, pl.col("seconds").alias(TO_TARGET[0]), pl.col("bytes").cast(pl.Float64).alias(TO_TARGET[1])
    )
    return timeline.select(RUN).unique(maintain_order=True).join(costs, on=RUN, how="left", maintain_order="left")


def target_over_seeds() -> list[pl.Expr]:
    """Return what `timeline_summary` says of a target, of rows that are runs at their end and have `TO_TARGET`.

    In place of the intervals there are the values of all seeds, from which `with_target_bounds` makes them. Rows of
    runs that have failed have no seconds and no bytes.
    """
    missed = pl.col(TO_TARGET[0]).is_null()
    return [
        pl.col(TO_TARGET[0]).count().cast(pl.Int64).alias("reached"),
        *(pl.col(name).mean() for name in TO_TARGET),
        *(pl.col(name).filter(pl.col("seconds").is_not_null()).alias(f"{name}_each") for name in TO_TARGET),
        *(
            pl.col(name).filter(missed).min().cast(pl.Float64).alias(without)
            for name, without in zip(("seconds", "bytes"), WITHOUT_TARGET, strict=True)
        ),
    ]


def with_target_bounds(means: pl.DataFrame) -> pl.DataFrame:
    """Return the table with intervals in place of the values of all seeds."""
    others = [name for name in means.columns if not name.startswith((*TO_TARGET, *WITHOUT_TARGET))]
    intervals = []
    for name in TO_TARGET:
        ends = [bounds_of_all(each) for each in means[f"{name}_each"].to_list()]
        table = pl.DataFrame(ends, schema=dict.fromkeys((f"{name}_low", f"{name}_high"), pl.Float64), orient="row")
        intervals += [name, *table]
    return means.select(*others, *intervals, *WITHOUT_TARGET)


def bounds_of_all(per_seed: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Return the ends of the interval of the mean, or None if a seed has no value: the others are a biased sample."""
    values = [value for value in per_seed if value is not None]
    return bounds(values) if len(values) == len(per_seed) else (None, None)


# Predictions: how well the simulator says what nodes do

QUANTITIES = dict(zip(("seconds", "bytes"), TO_TARGET, strict=True))
"""What is predicted, and the column of `cost_to_target` that has it."""


def compare_timelines(measured: pl.DataFrame, predicted: pl.DataFrame, measure: Measure, target: float) -> pl.DataFrame:
    """Return a row per run with the seconds and bytes until the measure reaches `target`, from two timelines.

    The columns are strategy, seed, and for seconds and bytes each: measured, predicted, and the error, which is
    predicted / measured - 1. They are null where the target was not reached.
    """
    both = cost_to_target(measured, measure, target).join(
        cost_to_target(predicted, measure, target), on=RUN, how="left", suffix="_predicted", maintain_order="left"
    )
    columns = [
        column
        for name, cost in QUANTITIES.items()
        for column in (
            pl.col(cost).alias(f"{name}_measured"),
            pl.col(f"{cost}_predicted").alias(f"{name}_predicted"),
            (pl.col(f"{cost}_predicted") / pl.col(cost) - 1).alias(f"{name}_error"),
        )
    ]
    return both.select(*RUN, *columns)


def error_words(table: pl.DataFrame) -> str:
    """Return one line that states the error of all predictions in the table."""
    parts = []
    for name in QUANTITIES:
        sizes = np.abs(table[f"{name}_error"].drop_nulls().to_numpy())
        words = (
            f"{100 * sizes.mean():.0f} % in the mean, {100 * sizes.max():.0f} % at most" if len(sizes) else "unknown"
        )
        parts.append(f"{name} {words}")
    missed = int((table["seconds_measured"].is_null() | table["seconds_predicted"].is_null()).sum())
    without = f"; {missed} of {len(table)} runs did not reach the target in both" if missed else ""
    return f"Error of the prediction, relative to what was measured: {', '.join(parts)}{without}."
