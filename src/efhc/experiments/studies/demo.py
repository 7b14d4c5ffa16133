"""The demo: the paper's strategies and one beyond them on data that ships with the package, also over five radii."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from efhc.base.compiling import is_to_be_kept
from efhc.base.saving import write_safely
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.runs.events import FollowerFactory
from efhc.experiments.runs.folder import parquet
from efhc.experiments.runs.progress import RunProgress
from efhc.experiments.runs.resources import usable_cores
from efhc.experiments.runs.result import Result
from efhc.experiments.runs.simulate import simulate
from efhc.kernels.codecs import SEND_ROWS
from efhc.learning.measures import evaluated
from efhc.network.topologies import Geometric
from efhc.report.claims.panels import within_budgets
from efhc.report.claims.verdicts import too_few_seeds
from efhc.report.numbers import percent
from efhc.strategies.half_steps import Entrywise
from efhc.strategies.paper import EventTriggered, GlobalThreshold, RandomizedGossip, ZeroThreshold

RADII = (0.3, 0.4, 0.5, 0.6, 0.7)
BUDGET = 0.1
"""Panel (iv) shows the accuracy when this share of ZT's total transmission time at the default radius is spent."""
EARLY = 0.02
"""A smaller share, at which the accuracies are given as well."""

FIGURE = "figures/demo.png"
TITLE = "EF-HC, its baselines and entrywise: digits, SVM, 10 devices, 1 label each"
"""The title above the panels."""
NAMES = (
    "EF-HC has a threshold per device, by its bandwidth. GT: one global threshold. ZT: a zero threshold, so that every "
    "device always broadcasts. RG: randomized gossip, where devices broadcast at random. Beyond the paper, entrywise: "
    "a device sends only the coordinates that differ enough from what its neighbours know of it, coarsely rounded; "
    "no reply is needed, and devices correct their gradients for having different data (docs/strategies.md)."
)
"""The strategies, spelled out."""

# r of EF-HC and GT is chosen as in the paper: so that they broadcast about as often as RG. Entrywise takes the same r.
# It matters little there: on seeds 10 to 19, which the demo does not use, the mean accuracy of entrywise when `EARLY`
# is spent lies between 0.91 and 0.93 for every r of 1000, 1500, 2000, 3000, 4000, 6000 and 8000.
EXPERIMENT = Experiment(
    name="demo",
    iterations=400,
    evaluate_every=10,
    strategies={
        "EF-HC": EventTriggered(r=1500.0),
        "GT": GlobalThreshold(r=1500.0),
        "ZT": ZeroThreshold(),
        "RG": RandomizedGossip(),
        "entrywise": Entrywise(r=1500.0),
    },
)

RUNS = len(RADII) * len(EXPERIMENT.seeds) * len(EXPERIMENT.strategies)


def run_demo(out: Path, progress: RunProgress, followers: Sequence[FollowerFactory] = ()) -> tuple[Result, str]:
    """Run the demo, and keep it and its figure in `out`.

    The runs at the default radius are kept: those in `out` already are not made again, and those that were stopped go
    on where they stopped. The runs at the other radii are made each time. Returns the result at the default radius, and
    a sentence that says what to look at, with the numbers of these runs and without a verdict.
    """
    from efhc.report.figures import comparison_figure, save_figure

    with _compiling_entrywise():
        result = simulate(EXPERIMENT, out=out, resume=True, progress=progress, followers=followers)
    zero_threshold = result.metrics.filter(strategy="ZT", iteration=EXPERIMENT.iterations - 1)
    budgets = {seed: BUDGET * total for seed, total in zero_threshold["seed", "transmission_time_total"].iter_rows()}
    connectivity = []
    for radius in RADII:
        network = Geometric(radius=radius)
        at_radius = (
            result
            if network == EXPERIMENT.network
            else simulate(EXPERIMENT, network=network, progress=progress, followers=followers)
        )
        accuracy = within_budgets(evaluated(at_radius.metrics), "accuracy", budgets)
        connectivity.append(accuracy.with_columns(radius=pl.lit(radius)))
    table = pl.concat(connectivity)
    write_safely(out / "connectivity.parquet", parquet(table))
    save_figure(comparison_figure(result.metrics, table, TITLE), out / FIGURE)
    return result, sentence(result.at_budget(BUDGET), result.at_budget(EARLY))


@contextmanager
def _compiling_entrywise() -> Iterator[None]:
    """Compile the loops of entrywise in another process while the body runs, unless they are compiled already.

    A process compiles one loop at a time, and this one begins with those of the paper's strategies. It finds what the
    other one has compiled on disk.
    """
    if usable_cores() < 2 or not is_to_be_kept(SEND_ROWS["levels"]):
        yield
        return
    code = f"import {__name__} as demo; demo.compile_entrywise()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as other:
        try:
            yield
        finally:
            other.terminate()


def compile_entrywise() -> None:
    """Make two iterations of entrywise, so that their loops are compiled and kept on disk."""
    strategies = {"entrywise": EXPERIMENT.strategies["entrywise"]}
    simulate(EXPERIMENT, strategies=strategies, iterations=2, evaluate_every=1, seeds=(0,))


def sentence(found: pl.DataFrame, early: pl.DataFrame) -> str:
    """Say what to look at: the accuracy of each strategy at the budget, as the range over seeds.

    `found` has the accuracies when `BUDGET` is spent, and `early` when `EARLY` is: strategy, seed and accuracy.
    """
    efhc = dict(found.filter(strategy="EF-HC").select("seed", "accuracy").iter_rows())
    seeds = len(efhc)
    wins = {
        strategy: sum(efhc[seed] > accuracy for _, seed, accuracy in runs.iter_rows())
        for (strategy,), runs in found.select("strategy", "seed", "accuracy").group_by("strategy", maintain_order=True)
        if strategy != "EF-HC"
    }
    (first, most), *others = wins.items()
    beats = ", ".join([f"{first} on {most} of {seeds} seeds", *(f"{name} on {count}" for name, count in others)])
    few = f" {words}." if (words := too_few_seeds(seeds)) else ""
    return (
        f"Look at accuracy per transmission time, panel (iii). After spending {percent(BUDGET)} of what ZT spends on "
        f"the same seed, accuracy ranges over the {seeds} seeds {_ranges(found)}. EF-HC beats {beats}. "
        f"After spending {percent(EARLY)}, it ranges {_ranges(early)}.{few}"
    )


def _ranges(found: pl.DataFrame) -> str:
    accuracy = pl.col("accuracy")
    ranges = found.group_by("strategy", maintain_order=True).agg(accuracy.min(), accuracy.max().alias("highest"))
    return ", ".join(
        f"from {lowest:.3f} to {highest:.3f} ({strategy})" for strategy, lowest, highest in ranges.iter_rows()
    )
