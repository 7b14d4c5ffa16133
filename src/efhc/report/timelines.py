"""What the timeline of event-driven runs says: where each run ended, and when it reached a target accuracy."""

from __future__ import annotations

import polars as pl

from efhc.report.claims.intervals import bounds

RUN = ("strategy", "seed")
"""The columns that tell runs apart."""

TO_TARGET = ("seconds_to_target", "bytes_to_target")
"""The columns that say what it takes to reach a target accuracy."""


def timeline_summary(timeline: pl.DataFrame, target: float | None = None) -> pl.DataFrame:
    """Return one row per strategy, with means over seeds at the end of the runs.

    A sample at which no device was there has no accuracy; then the last accuracy before it counts.

    With a `target` accuracy there are columns for the seconds and bytes to it. `seconds_to_target` is the mean over
    seeds, `seconds_to_target_low` and `seconds_to_target_high` the ends of its interval (see `claims.intervals`), and
    likewise for bytes. If some seeds do not reach the target, these are null: `reached` is the number of seeds that do.
    """
    at_end = pl.col("seconds", "steps", "broadcasts", "exchanges", "bytes").cast(pl.Float64).last()
    measured = pl.col("accuracy", "mean_model_accuracy", "consensus_error").drop_nulls().last()
    runs = timeline.group_by(*RUN, maintain_order=True).agg(measured, at_end)
    means = runs.group_by("strategy", maintain_order=True).agg(
        pl.col("accuracy").mean(),
        pl.col("accuracy").min().alias("worst_seed_accuracy"),
        pl.col("mean_model_accuracy").mean(),
        pl.col("seconds", "steps", "broadcasts", "exchanges", "bytes", "consensus_error").mean(),
    )
    return means if target is None else means.join(_to_target(timeline, target), on="strategy", maintain_order="left")


def cost_to_target(timeline: pl.DataFrame, target: float) -> pl.DataFrame:
    """Return the seconds and bytes at the first sample with at least the `target` accuracy, one row per run.

    The columns are strategy, seed, seconds_to_target and bytes_to_target, which are null if no sample reaches it.
    """
    is_there = pl.col("accuracy") >= target
    return timeline.group_by(*RUN, maintain_order=True).agg(
        pl.col("seconds").filter(is_there).first().alias(TO_TARGET[0]),
        pl.col("bytes").filter(is_there).first().cast(pl.Float64).alias(TO_TARGET[1]),
    )


def _to_target(timeline: pl.DataFrame, target: float) -> pl.DataFrame:
    rows = []
    for (strategy,), seeds in cost_to_target(timeline, target).group_by("strategy", maintain_order=True):
        reached = len(seeds) - seeds[TO_TARGET[0]].null_count()
        row: dict[str, object] = {"strategy": strategy, "reached": reached, "seeds": len(seeds)}
        for name in TO_TARGET:
            all_reach = reached == len(seeds)
            low, high = bounds(seeds[name].to_list()) if all_reach else (None, None)
            row |= {name: seeds[name].mean() if all_reach else None, f"{name}_low": low, f"{name}_high": high}
        rows.append(row)
    names = (f"{name}{end}" for name in TO_TARGET for end in ("", "_low", "_high"))
    schema: dict[str, pl.DataType] = {"strategy": pl.String(), "reached": pl.Int64(), "seeds": pl.Int64()}
    return pl.DataFrame(rows, schema=schema | dict.fromkeys(names, pl.Float64()))
