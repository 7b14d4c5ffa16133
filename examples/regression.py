"""Regression on a table: numbers to predict, devices that hold whole towns, a metric of one's own.

Run `python examples/regression.py`. It writes houses.csv, as you may have one, and prints what each strategy reaches.
"""

from __future__ import annotations

import numpy as np
import polars as pl

import efhc


def write_table(path="houses.csv", houses=800, towns=20):
    """Prices that depend on area, age and rooms, in the same way in all towns, which have houses of their own kind."""
    rng = np.random.default_rng(0)
    town = rng.integers(0, towns, houses)
    area = rng.gamma(8, 10 + town / 2)
    age, rooms = rng.uniform(0, 80, houses), np.maximum(1, area // 25)
    price = 0.02 * area + 0.1 * rooms - 0.01 * age * (area > 80) + 0.1 * rng.normal(size=houses)
    columns = {"town": [f"town {one}" for one in town], "area": area, "age": age, "rooms": rooms, "price": price}
    pl.DataFrame(columns).write_csv(path)


def within_a_tenth(scores, prices):
    """Whether each prediction is within 10 % of the price: 1 or 0."""
    return ((scores[:, 0] - prices).abs() < 0.1 * prices.abs()).to(scores.dtype)


def main():
    write_table()
    result = efhc.simulate(
        name="regression",
        data=efhc.CsvFile(path="houses.csv", label="price", label_kind="number", group="town"),
        partition="groups",
        model=efhc.MLP(
            hidden=(16,),
            loss="mean-squared-error",
            metrics={"within_a_tenth": {"function": within_a_tenth, "better": "higher"}},
        ),
        initial_models="shared",
        iterations=300,
        seeds=[0],
        step_size=efhc.Constant(value=0.05),
        strategies={"EF-HC": "ef-hc", "ZT": "zt", "Never": "never"},
    )
    ends = result.evaluations.group_by("strategy", maintain_order=True).last()
    print(ends.select("strategy", "loss", "own_loss", "loss_max", "mean_absolute_error", "within_a_tenth"))
    return result


if __name__ == "__main__":
    main()
