"""A strategy against its controls: accuracy at the end of event-driven runs, seed by seed.

The accuracy of a run is the mean over its devices at its last sample. A verdict is about the seeds, the seconds and the
bandwidths of one setting, and about nothing else.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import polars as pl

from efhc.report.claims.judging import Finding, Judgement, find
from efhc.report.claims.panels import RUN, means_over_seeds
from efhc.report.figure_data import ControlsData, TimedSetting
from efhc.report.numbers import number_words


def ends(curves: pl.DataFrame) -> pl.DataFrame:
    """Return strategy, seed, accuracy and bytes of each run at its end, without runs that end with no device."""
    runs = curves.group_by(RUN, maintain_order=True).agg(pl.col("accuracy", "bytes").last())
    return runs.drop_nulls("accuracy")


def all_ends(data: ControlsData) -> pl.DataFrame:
    """Return the table of NAME.csv: setting, strategy, seed, accuracy and bytes."""
    return pl.concat(
        ends(setting.curves).select(pl.lit(setting.name).alias("setting"), pl.all()) for setting in data.settings
    )


def end_means(runs: pl.DataFrame) -> pl.DataFrame:
    """Return strategy, mean and least accuracy over seeds, mean bytes, and the number of seeds."""
    accuracy = pl.col("accuracy")
    return runs.group_by("strategy", maintain_order=True).agg(
        accuracy.mean().alias("mean"), accuracy.min().alias("least"), pl.col("bytes").mean(), seeds=pl.len()
    )


@lru_cache(maxsize=64)
def leads(setting: TimedSetting, leader: str) -> dict[str, Finding]:
    """Return by strategy: the accuracy of the leader minus that of the strategy with the same seed, at the end."""
    runs = ends(setting.curves)
    one_sample = 1 / setting.test_samples if setting.test_samples else 0.0
    of_leader = runs.filter(strategy=leader).select("seed", ahead="accuracy")
    found = {}
    for name in setting.strategies:
        if name != leader:
            pairs = of_leader.join(runs.filter(strategy=name), on="seed").sort("seed")
            ahead = (pairs["ahead"] - pairs["accuracy"]).to_numpy()
            found[name] = find(f"accuracy of {leader} minus {name}", None, ahead, one_sample)
    return found


def judge_controls(data: ControlsData) -> list[Judgement]:
    """Judge in each setting whether the leader is above each of its controls."""
    judgements = []
    for setting in data.settings:
        found = leads(setting, data.leader)
        slowest, fastest = (number_words(round(value)) for value in setting.bandwidths)
        for control in data.controls:
            if control in found:
                statement = (
                    f"{data.leader} is more accurate than {control} on average over these seeds, "
                    f"after {setting.seconds:g} virtual seconds, "
                    f"at bandwidths of {slowest} to {fastest} parameters per second"
                )
                judgements.append(Judgement(None, statement, (data.label(setting),), (found[control],), control))
    return judgements


@lru_cache(maxsize=64)
def seconds_curves(setting: TimedSetting, with_bands: tuple[str, ...] = ()) -> pl.DataFrame:
    """Return strategy, seconds, mean, low and high. The strategies `with_bands` have a band, others have none.

    Runs are read off at the samples of the first one; all of them are sampled then if the file says when.
    """
    samples = setting.curves.drop_nulls("accuracy")
    runs = samples.group_by(RUN, maintain_order=True).agg("seconds", "accuracy")
    times = np.array(runs["seconds"][0])
    tables: dict[str, list[pl.DataFrame]] = {}
    for strategy, seed, seconds, accuracies in runs.iter_rows():
        columns = {"seconds": times, "accuracy": np.interp(times, seconds, accuracies)}
        tables.setdefault(strategy, []).append(pl.DataFrame({"strategy": strategy, "seed": seed, **columns}))
    return pl.concat(
        means_over_seeds(pl.concat(of_seeds), "seconds", "accuracy", with_band=strategy in with_bands)
        for strategy, of_seeds in tables.items()
    )
