"""What is said of the strategies that lead, on real data: one seed of the first setting of the frontier, in full."""

from __future__ import annotations

import polars as pl
import pytest

import efhc
from efhc.experiments.config.files import load_experiment
from efhc.learning.measures import evaluated
from efhc.report.claims.leads import at_shares

PAPERS = ["ZT", "EF-HC", "GT", "RG"]
OURS = ["entrywise", "entrywise + momentum"]
SHARES = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0]


@pytest.mark.slow
def test_entrywise_is_above_the_papers_strategies_at_every_budget(fashion_files):
    frontier = load_experiment("frontier")
    chosen = {name: frontier.strategies[name] for name in (*PAPERS, *OURS)}
    result = efhc.simulate(frontier, seeds=10, strategies=chosen, test_samples=4000)
    found = at_shares(evaluated(result.metrics), "accuracy", SHARES).pivot(
        on="strategy", index="share", values="accuracy"
    )
    best = found.select(pl.max_horizontal(PAPERS)).to_series()
    for name in OURS:
        assert (found[name] > best).all(), found
    at_two_percent = found.filter(share=0.02)
    assert at_two_percent["entrywise"][0] >= 0.79
    assert at_two_percent["entrywise + momentum"][0] >= 0.825
    totals = dict(result.metrics.group_by("strategy").agg(pl.col("transmission_time_total").max()).iter_rows())
    assert totals["entrywise"] < 0.025 * totals["ZT"]
