"""The measures of a run, which say how good the models are: columns of metrics.parquet or timeline.parquet.

A metric X (accuracy, loss, or one of the user's own) has a value for each model and test sample. Of these come

    X                      each device's model on the global test set: the mean over devices
    X_min, X_max, X_std    the extremes and the standard deviation over devices
    X_p10 or X_p90         the 10th percentile over devices; the 90th where smaller is better
    own_X, own_X_min, ...  the same, with each device on its own distribution (`learning.own_distribution`)
    mean_model_X           the mean of all models, on the global test set
    mean_model_own_X       the same, on the devices' own distributions: the mean over devices

The name of a column is the word that chooses a measure, wherever one can be chosen.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

import numpy as np

from efhc.base.arrays import Floats, Ints
from efhc.base.errors import InputError, did_you_mean

if TYPE_CHECKING:  # reading a config needs the names of measures, and no tables
    import polars as pl

    Frame = TypeVar("Frame", pl.DataFrame, pl.LazyFrame, pl.DataFrame | pl.LazyFrame)

Better = Literal["higher", "lower"]
Metrics = Mapping[str, Better]
"""The metrics of a run by name, and whether higher or lower values are better."""
CLASSIFICATION: Metrics = {"accuracy": "higher", "loss": "lower"}
DECILE: Mapping[Better, str] = {"higher": "p10", "lower": "p90"}
OWN, MEAN_MODEL = "own_", "mean_model_"
EVALUATION = "evaluation"
"""The column with the iteration in which an evaluation begins. Rows with the same one are one evaluation."""
WORDS = {
    "min": "smallest of all devices", "max": "largest of all devices", "std": "standard deviation over devices",
    "p10": "10th percentile over devices", "p90": "90th percentile over devices",
}  # fmt: skip


@dataclass(frozen=True)
class Measure:
    """A column of measures, and what it says."""

    name: str
    """The name of the column, such as "own_accuracy_min"."""
    metric: str
    is_own: bool
    """Whether each device is tested on its own distribution."""
    of_mean_model: bool
    statistic: str
    """"mean", "min", "max", "std", "p10" or "p90", over devices."""
    better: Better

    @property
    def label(self) -> str:
        """The measure in words, for axes and tables: "accuracy on own data, smallest of all devices"."""
        where = " on own data" if self.is_own else ""
        of = " of the mean model" if self.of_mean_model else ""
        return self.metric + of + where + (f", {WORDS[self.statistic]}" if self.statistic != "mean" else "")

    @property
    def of(self) -> str:
        """The measure in words, followed by "of"."""
        return f"{self.label}, of" if "," in self.label else f"{self.label} of"

    @property
    def sign(self) -> int:
        """1 if higher values are better, -1 if lower ones are."""
        return 1 if self.better == "higher" else -1

    @property
    def worst(self) -> pl.Expr:
        """The worst of all rows, as a column `worst_seed_NAME`."""
        import polars as pl

        values = pl.col(self.name)
        return (values.min() if self.better == "higher" else values.max()).alias(self.worst_name)

    @property
    def worst_name(self) -> str:
        """What tables over seeds call the value of the worst seed."""
        return f"worst_seed_{self.name}"

    @property
    def beside(self) -> str | None:
        """The measure of the mean model that is shown beside this one; None if this one is of the mean model."""
        return None if self.of_mean_model else MEAN_MODEL + (OWN if self.is_own else "") + self.metric


def measures_of(metrics: Metrics) -> dict[str, Measure]:
    """Return the measures of these metrics by name, in the order of their columns."""
    found: dict[str, Measure] = {}
    for metric, better in metrics.items():
        for prefix in ("", OWN):
            for statistic in ("mean", "min", "max", DECILE[better], "std"):
                name = prefix + metric + ("" if statistic == "mean" else f"_{statistic}")
                spread: Better = "lower" if statistic == "std" else better
                found[name] = Measure(name, metric, bool(prefix), False, statistic, spread)
        for prefix in (MEAN_MODEL, MEAN_MODEL + OWN):
            found[prefix + metric] = Measure(prefix + metric, metric, prefix != MEAN_MODEL, True, "mean", better)
    return found


def metrics_in(columns: Collection[str]) -> dict[str, Better]:
    """Return the metrics that a table with these columns has. Tables of efhc 0.2 have accuracy alone."""
    found: dict[str, Better] = {"accuracy": "higher"} if "accuracy" in columns else {}
    for column in columns:
        for better, decile in DECILE.items():
            metric = column.removesuffix(f"_{decile}")
            if metric != column and not metric.startswith(OWN) and metric in columns:
                found[metric] = better
    return found


def measure_in(name: str | None, columns: Collection[str], field: str = "measure") -> Measure:
    """Return the measure of that name in a table with these columns. Raises `InputError` if it has none.

    Default: accuracy, or the first metric of a table without it.
    """
    metrics = metrics_in(columns)
    known = {one: measure for one, measure in measures_of(metrics).items() if one in columns}
    name = name or next(iter(known), "none")
    if name not in known:
        raise InputError(field, f"'{name}'{did_you_mean(name, known)}", ", ".join(known) or "a table with measures")
    return known[name]


def measure_of(table: pl.DataFrame, name: str | None = None, field: str = "measure") -> Measure:
    """Return the named measure. Raises `InputError` unless every seed in the table has values of it.

    Default: accuracy, or the first metric that has values. A table without values has every measure.
    """
    import polars as pl

    columns = [one for one in measures_of(metrics_in(table.columns)) if one in table.columns]
    values = table.group_by("seed") if "seed" in table.columns else table.group_by(pl.lit(0, pl.Int64).alias("seed"))
    counts = values.agg(pl.col(columns).count())
    some = [one for one in columns if counts[one].sum()] or columns
    measure = measure_in(name, columns if name in columns else some, field)
    without = counts.filter(pl.col(measure.name) == 0, pl.col(measure.metric) > 0)["seed"].sort().to_list()
    if without or measure.name not in some:
        reason = "was not recorded"
        if measure.is_own:
            reason = f"is not known: with seed {without[0]}, a device holds only labels or groups without test samples"
        raise InputError(field, measure.name, ", ".join(some), f"{measure.label} {reason}. Use {', '.join(some)}.")
    return measure


def evaluated(table: Frame) -> Frame:
    """Return a row for each evaluation in metrics or a timeline.

    An evaluation that consists of several rows has the means of their measures, and all else from the last of them.
    """
    import polars as pl

    columns = table.collect_schema().names()
    metrics = metrics_in(columns)
    rows = table.filter(pl.any_horizontal(pl.col(metric).is_not_null() for metric in metrics))
    if EVALUATION not in columns:
        return rows
    measures: list[str] = [name for name in measures_of(metrics) if name in columns]
    keys: list[str] = [name for name in ("strategy", "seed", EVALUATION) if name in columns]
    others = [name for name in columns if name not in (*measures, *keys)]
    grouped = rows.group_by(keys, maintain_order=True).agg(pl.col(others).last(), pl.col(measures).mean())
    return grouped.select(columns)


# Evaluations


class Scores(NamedTuple):
    """One metric of all models."""

    every: Floats
    """Each device's model on the global test set, (m,)."""
    own: Floats
    """Each device's model on its own distribution, (m,); NaN where that is not known."""
    mean_model: float
    mean_model_own: float


@dataclass(frozen=True)
class Evaluation:
    """How good the models of one moment are."""

    metrics: Metrics
    scores: Mapping[str, Scores]
    """By metric."""
    devices: Ints
    """The numbers of the devices, (m,)."""

    def of_all(self, metric: str, count: int, *, own: bool = False) -> list[float] | None:
        """Return a metric of `count` devices, NaN for those that are not here; None if the run has no such metric."""
        if metric not in self.scores:
            return None
        found = np.full(count, np.nan)
        found[self.devices] = self.scores[metric].own if own else self.scores[metric].every
        return found.tolist()

    @property
    def columns(self) -> dict[str, float | None]:
        """The measures by name. None: not known, or not finite."""
        values = np.stack([one for scores in self.scores.values() for one in (scores.every, scores.own)])
        ordered = np.sort(values)  # NaN comes last
        with np.errstate(invalid="ignore"):  # of losses that have become infinite
            by_suffix = {"": values.mean(axis=1), "_min": values.min(axis=1), "_max": values.max(axis=1)}
            by_suffix |= {"_p10": _decile(ordered, 0.1), "_p90": _decile(ordered, 0.9), "_std": values.std(axis=1)}
        found: dict[str, float] = {}
        for place, (metric, scores) in enumerate(self.scores.items()):
            other = "_p90" if DECILE[self.metrics[metric]] == "p10" else "_p10"
            suffixes = [suffix for suffix in by_suffix if suffix != other]
            for row, prefix in enumerate(("", OWN), 2 * place):
                found |= {prefix + metric + suffix: by_suffix[suffix][row] for suffix in suffixes}
            found[MEAN_MODEL + metric] = scores.mean_model
            found[MEAN_MODEL + OWN + metric] = scores.mean_model_own
        return {name: float(value) if isfinite(value) else None for name, value in found.items()}


def _decile(ordered: Floats, share: float) -> Floats:
    """Return a decile of each row, between the two nearest values in proportion, as `np.quantile` does by default.

    As the mean, it is NaN if a value is.
    """
    low, part = divmod(share * (ordered.shape[1] - 1), 1)
    below, above = ordered[:, int(low)], ordered[:, min(int(low) + 1, ordered.shape[1] - 1)]
    return np.where(np.isnan(ordered[:, -1]), np.nan, below + part * (above - below))
