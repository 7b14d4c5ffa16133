"""Who leads in several settings, seed by seed: at shares of ZT's transmission time, or at the end of timed runs.

A frontier compares strategies by a measure, such as accuracy, at shares of ZT's total transmission time. A share is
taken seed by seed: with one seed, the time of each run is divided by the total time of ZT. `panels.values_at` says how
the measure is read off there.

Controls are compared with one strategy at the end of event-driven runs, at their last sample. A verdict is about the
seeds, the seconds and the bandwidths of one setting only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
import polars as pl

from efhc.learning.measures import Measure
from efhc.report.claims.panels import NEARLY, is_early, means_over_seeds, totals_of, values_at
from efhc.report.claims.verdicts import Finding, Judgement, find
from efhc.report.figure_data import ACCURACY, PAPER, RUN, ControlsData, FrontierData, SettingData, TimedSetting
from efhc.report.numbers import number_words, percent

SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""The budgets of tables and verdicts, as shares of ZT's total transmission time."""
SHOWN = (0.005, 0.02, 0.1, 0.5, 1.0)
"""The budgets of a short table."""
POINTS = 61
"""The number of shares at which curves are drawn."""


def at_shares(curves: pl.DataFrame, measure: str, shares: Sequence[float], of: str = "ZT") -> pl.DataFrame:
    """Return strategy, seed, spends, share and the measure: a row per run and share.

    Shares are those of the total transmission time of the strategy `of` with the same seed. `spends` is what the run
    spends in all, as such a share. Seeds without a run of that strategy are left out.
    """
    totals = totals_of(curves, of)
    wanted = np.array(shares)
    tables = []
    runs = curves.drop_nulls(measure).group_by(RUN, maintain_order=True)
    for strategy, seed, times, values in runs.agg("transmission_time_total", measure).iter_rows():
        if not totals.get(seed):
            continue
        spent = np.array(times) / totals[seed]
        found = values_at(wanted, spent, values)
        columns = {"strategy": strategy, "seed": seed, "spends": spent[-1], "share": wanted, measure: found}
        tables.append(pl.DataFrame(columns))
    schema = dict.fromkeys(("spends", "share", measure), pl.Float64)
    empty = pl.DataFrame(schema={"strategy": pl.String, "seed": pl.Int64, **schema})
    return pl.concat([empty, *(table.cast({"seed": pl.Int64}) for table in tables)]).fill_nan(None)


def unresolved(curves: pl.DataFrame, measure: str, shares: Sequence[float], of: str = "ZT") -> str | None:
    """Return a sentence about the shares of `at_shares` that evaluation does not resolve; None if it resolves all.

    A share is not resolved by a run that had spent more when it was first evaluated, or that was not evaluated between
    this share and the next smaller one of `shares`.
    """
    ordered = sorted(shares)
    coarse: dict[float, list[str]] = {}
    early: dict[str, float] = {}
    totals = totals_of(curves, of)
    runs = curves.drop_nulls(measure).group_by(RUN, maintain_order=True).agg("transmission_time_total")
    for strategy, seed, times in runs.iter_rows():
        if not totals.get(seed):
            continue
        spent = np.array(times) / totals[seed]
        if is_early(ordered[0], spent):
            early[strategy] = max(spent[0], early.get(strategy, 0.0))
        places = np.searchsorted(spent, np.array(ordered) * (1 + NEARLY), "right")
        for share, before, place in zip(ordered[1:], places, places[1:], strict=False):
            if 0 < before == place < len(spent) and strategy not in coarse.setdefault(share, []):
                coarse[share].append(strategy)
    coarse = {share: names for share, names in coarse.items() if names}
    if early:
        names = ", ".join(f"{name} ({100 * spent:.2g} %)" for name, spent in early.items())
        budget = f"a budget of {percent(ordered[0])} of {of}'s time"
        return f"{budget} is less than what is spent at the first evaluation: {names}"
    if coarse:
        share, without = next(iter(coarse.items()))
        names = ", ".join(without)
        return (
            f"no evaluation between {percent(share)} of {of}'s time and the next smaller budget ({names}); "
            'evaluate_at = "budgets" evaluates where budgets are reached'
        )
    return None


def budget_table(curves: pl.DataFrame, measure: str) -> pl.DataFrame:
    """Return the table of NAME-SETTING.csv: strategy, seed, spends, and the measure at each of `SHARES` (`at 2 %`)."""
    rows = at_shares(curves, measure, SHARES).with_columns(
        column=pl.col("share").replace_strict({share: f"at {percent(share)}" for share in SHARES})
    )
    index = ["strategy", "seed", "spends"]
    return rows.pivot(on="column", index=index, values=measure, maintain_order=True)


def mean_table(curves: pl.DataFrame, measure: str, shares: Iterable[float] = SHOWN) -> pl.DataFrame:
    """Return the means over seeds: strategy, `at 0.5 %` .. `at 100 %`, spends; and the number of seeds.

    A budget at which a seed of the strategy has no value has no mean.
    """
    columns = [f"at {percent(share)}" for share in shares]
    runs = budget_table(curves, measure).group_by("strategy", maintain_order=True)
    means = (pl.when(pl.col(column).count() == pl.len()).then(pl.col(column).mean()) for column in [*columns, "spends"])
    return runs.agg(*means, pl.len().cast(pl.Int64).alias("seeds"))


def all_means(data: FrontierData) -> pl.DataFrame:
    """Return the table of NAME.csv: setting and strategy, with the means over seeds at each of `SHARES`."""
    return pl.concat(
        mean_table(setting.curves, setting.measure.name, SHARES).select(pl.lit(setting.name).alias("setting"), pl.all())
        for setting in data.settings
    )


@lru_cache(maxsize=32)
def frontier_curves(setting: SettingData, with_bands: tuple[str, ...] = ()) -> pl.DataFrame:
    """Return strategy, share, mean, low, high and spends, at shares from 0.1 to 100 % and at what the strategy spends.

    `spends` is the mean over seeds; beyond it, most seeds are at their end. The band (where the mean of equally many
    other seeds is expected) is that of the strategies `with_bands`; others have none.
    """
    tables = []
    measure = setting.measure.name
    totals = mean_table(setting.curves, measure)
    for strategy, spends in totals.select("strategy", "spends").iter_rows():
        of_strategy = setting.curves.filter(pl.col("strategy").is_in([strategy, "ZT"]))
        shares = np.unique([*np.geomspace(SHARES[0], SHARES[-1], POINTS), min(max(spends, SHARES[0]), SHARES[-1])])
        rows = at_shares(of_strategy, measure, shares.tolist()).filter(strategy=strategy)
        everyone = pl.col(measure).count().over("share") == rows["seed"].n_unique()
        rows = rows.filter(everyone)
        if not len(rows):
            continue
        table = means_over_seeds(rows, "share", measure, with_band=strategy in with_bands)
        tables.append(table.with_columns(spends=pl.lit(spends)))
    return pl.concat(tables)


def judge_frontier(data: FrontierData) -> list[Judgement]:
    """Judge whether each leader leads: over all of its rivals, and over the paper's strategies, in each setting."""
    judgements = []
    for place, leader in enumerate(data.leaders):
        before = data.leaders[:place]
        rivals = [name for name in data.strategies if name not in {leader, *before, *data.ceilings}]
        everyone = "all other strategies" + (f" but {' and '.join(before)}" if before else "")
        of_paper = [name for name in PAPER if name in rivals]
        groups = {everyone: rivals, ", ".join(of_paper): of_paper}
        for words, group in groups.items():
            if not group:
                continue
            for setting in data.settings:
                if leader not in setting.strategies:
                    continue
                budgets = [share for share in SHARES if share >= setting.judged_from * (1 - NEARLY)]
                findings = _margins(setting, leader, group, words, budgets)
                statement = (
                    f"{leader} leads at every budget from {100 * budgets[0]:g} to {percent(budgets[-1])} of ZT's time: "
                    f"its mean margin{_in(setting)} over the best of {words} with the same seed is above 0"
                )
                judgements.append(Judgement(None, statement, (data.label(setting),), findings))
    return judgements


def _margins(
    setting: SettingData, leader: str, rivals: Sequence[str], words: str, budgets: Sequence[float]
) -> tuple[Finding, ...]:
    measure = setting.measure
    quantity = lead_words(measure, leader, f"the best of {words}")
    table = at_shares(setting.curves, measure.name, budgets).with_columns(pl.col(measure.name) * measure.sign)
    findings = []
    for budget in budgets:
        rows = table.filter(share=budget)
        best = rows.filter(pl.col("strategy").is_in(rivals)).group_by("seed").agg(best=pl.col(measure.name).max())
        pairs = rows.filter(strategy=leader).join(best, on="seed").sort("seed")
        margins = (pairs[measure.name] - pairs["best"]).drop_nulls()
        findings.append(find(quantity, budget, margins.to_numpy(), setting.least))
    return tuple(findings)


def lead_words(measure: Measure, first: str, other: str) -> str:
    """Return what is above 0 if `first` is better: "accuracy of A minus B", "loss of B minus A"."""
    ahead, behind = (first, other) if measure.better == "higher" else (other, first)
    return f"{measure.of} {ahead} minus {behind}"


def _in(setting: SettingData) -> str:
    """Return ` in` and the measure, for claims that are not about accuracy."""
    return "" if setting.measure == ACCURACY else f" in {setting.measure.label},"


def ends(curves: pl.DataFrame, measure: str) -> pl.DataFrame:
    """Return strategy, seed, the measure and bytes of each run at its end, without runs that end with no device."""
    return curves.group_by(RUN, maintain_order=True).agg(pl.col(measure, "bytes").last()).drop_nulls(measure)


def all_ends(data: ControlsData) -> pl.DataFrame:
    """Return the table of NAME.csv: setting, strategy, seed, the measure and bytes."""
    return pl.concat(
        ends(setting.curves, setting.measure.name).select(pl.lit(setting.name).alias("setting"), pl.all())
        for setting in data.settings
    )


def end_means(runs: pl.DataFrame, measure: Measure) -> pl.DataFrame:
    """Return strategy, the mean of the measure and its worst seed, mean bytes, and the number of seeds."""
    mean = pl.col(measure.name).mean().alias("mean")
    return runs.group_by("strategy", maintain_order=True).agg(
        mean, measure.worst.alias("worst"), pl.col("bytes").mean(), seeds=pl.len()
    )


@lru_cache(maxsize=64)
def leads(setting: TimedSetting, leader: str) -> dict[str, Finding]:
    """Return by strategy: how much better the leader is than the strategy with the same seed, at the end."""
    measure = setting.measure
    runs = ends(setting.curves, measure.name)
    of_leader = runs.filter(strategy=leader).select("seed", ahead=measure.name)
    found = {}
    for name in setting.strategies:
        if name != leader:
            pairs = of_leader.join(runs.filter(strategy=name), on="seed").sort("seed")
            ahead = measure.sign * (pairs["ahead"] - pairs[measure.name]).to_numpy()
            found[name] = find(lead_words(measure, leader, name), None, ahead, setting.least)
    return found


def judge_controls(data: ControlsData) -> list[Judgement]:
    """Judge in each setting whether the leader is above each of its controls."""
    judgements = []
    for setting in data.settings:
        found = leads(setting, data.leader)
        better = "more accurate" if setting.measure == ACCURACY else f"better in {setting.measure.label}"
        slowest, fastest = (number_words(round(value)) for value in setting.bandwidths)
        for control in data.controls:
            if control in found:
                statement = (
                    f"{data.leader} is {better} than {control} on average over these seeds, "
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
    measure = setting.measure.name
    samples = setting.curves.drop_nulls(measure)
    runs = samples.group_by(RUN, maintain_order=True).agg("seconds", measure)
    times = np.array(runs["seconds"][0])
    tables: dict[str, list[pl.DataFrame]] = {}
    for strategy, seed, seconds, values in runs.iter_rows():
        columns = {"seconds": times, measure: np.interp(times, seconds, values)}
        tables.setdefault(strategy, []).append(pl.DataFrame({"strategy": strategy, "seed": seed, **columns}))
    return pl.concat(
        means_over_seeds(pl.concat(of_seeds), "seconds", measure, with_band=strategy in with_bands)
        for strategy, of_seeds in tables.items()
    )
