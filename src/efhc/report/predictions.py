"""How well the simulator predicts what nodes do: seconds and bytes until a target accuracy, side by side."""

from __future__ import annotations

import polars as pl

from efhc.report.timelines import RUN, TO_TARGET, cost_to_target

QUANTITIES = dict(zip(("seconds", "bytes"), TO_TARGET, strict=True))
"""What is predicted, and the column of `cost_to_target` that has it."""


def compare(measured: pl.DataFrame, predicted: pl.DataFrame, target: float) -> pl.DataFrame:
    """Return a row per run with the seconds and bytes until the `target` accuracy, from two timelines.

    The columns are strategy, seed, and for seconds and bytes each: measured, predicted, and the error, which is
    predicted / measured - 1. They are null where the target was not reached.
    """
    both = cost_to_target(measured, target).join(
        cost_to_target(predicted, target), on=RUN, how="left", suffix="_predicted", maintain_order="left"
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


def errors(table: pl.DataFrame, quantity: str) -> tuple[float | None, float | None]:
    """Return the mean and the largest size of the errors of a quantity; None if no run reached the target."""
    sizes = table[f"{quantity}_error"].drop_nulls().abs()
    return (None, None) if sizes.is_empty() else (float(sizes.mean()), float(sizes.max()))  # type: ignore[arg-type]


def error_words(table: pl.DataFrame) -> str:
    """Return one line that states the error of all predictions in the table."""
    parts = []
    for name in QUANTITIES:
        mean, largest = errors(table, name)
        parts.append(f"{name} unknown" if mean is None else f"{name} {mean:.0%} in the mean, {largest:.0%} at most")
    missed = int((table["seconds_measured"].is_null() | table["seconds_predicted"].is_null()).sum())
    without = f"; {missed} of {len(table)} runs did not reach the target in both" if missed else ""
    return f"Error of the prediction, relative to what was measured: {', '.join(parts)}{without}."
