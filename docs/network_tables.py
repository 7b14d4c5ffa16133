"""The tables of docs/networks.md: write them into the page.

python docs/network_tables.py facts      degrees and spectral gaps of graphs of 25 and 64 devices, some seconds
python docs/network_tables.py digits     ZT and EF-HC on the digits over nine graphs, about 2 minutes
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

import efhc
from efhc.core.mixing import mixing_matrix
from efhc.core.randomness import Randomness
from efhc.network.topologies import GraphList, Network

PAGE = Path(__file__).parent / "networks.md"
BASE = {f"`base-graph`, `peers = {k}`": efhc.BaseGraph(peers=k) for k in (1, 2, 3, 4)}
COMPARED: dict[str, Network] = {
    "`ring`": efhc.Ring(),
    "`exponential`": efhc.Exponential(),
    "`one-peer-exponential`": efhc.OnePeerExponential(),
    **BASE,
    "`random-peers`, `peers = 1`": efhc.RandomPeers(),
    "`complete`": efhc.Complete(),
}
FACTS: dict[str, Network] = {
    "`dumbbell`": efhc.Dumbbell(),
    "`ring`": efhc.Ring(),
    "`grid`": efhc.Grid(),
    "`grid`, `torus = true`": efhc.Grid(torus=True),
    "`star`": efhc.Star(),
    "`geometric` (default)": efhc.Geometric(),
    "`small-world`": efhc.SmallWorld(),
    "`random-regular`": efhc.RandomRegular(),
    "`exponential`": efhc.Exponential(),
    "`complete`": efhc.Complete(),
    "`one-peer-exponential`": efhc.OnePeerExponential(),
    **BASE,
    "`random-peers`, `peers = 1`": efhc.RandomPeers(),
}
WINDOW = 20
"""Iterations over which the mean rate of graphs that are drawn anew is measured."""


def facts() -> Iterator[str]:
    """Mean and largest degree, and how fast models agree, if all links are used; graphs that are drawn: seed 0."""
    yield "| `network` | neighbours, mean (largest), 25 devices | 64 devices | spectral gap, 25 devices | 64 devices |"
    yield "|---|---|---|---|---|"
    for name, network in FACTS.items():
        found = [_facts(network, devices) for devices in (25, 64)]
        yield f"| {name} | {' | '.join(one[0] for one in found)} | {' | '.join(one[1] for one in found)} |"


def _facts(network: Network, devices: int) -> tuple[str, str]:
    over_time = network.over_time(devices, Randomness(0))
    count = len(over_time.recurring) if isinstance(over_time, GraphList) else WINDOW
    graphs = [over_time.graph(k) for k in range(count)]
    product = np.eye(devices)
    for graph in graphs:
        product = mixing_matrix(graph, graph.all_links) @ product
    norm = float(np.linalg.norm(product - 1 / devices, 2))
    degrees = np.array([graph.degrees for graph in graphs])
    exact = f"exact after {count}" if count > 1 else "1"
    gap = exact if norm < 1e-12 else f"{1 - norm ** (1 / count):.3f}"
    return f"{degrees.mean():.3g} ({degrees.max()})", gap


ITERATIONS, SEEDS, SHARES, MODELS = 600, list(range(5)), (0.05, 0.25, 1.0), 400
"""Budgets are shares of what ZT spends in 400 iterations on the ring; iterations beyond 400 are for graphs on which
some devices rest."""


def digits() -> Iterator[str]:
    """Accuracy and consensus error within budgets of transmission time, and accuracy within a number of models sent."""
    heads = [f"accuracy at {share:.0%}" for share in SHARES] + [f"consensus error at {share:.0%}" for share in SHARES]
    yield f"| `network` | strategy | {' | '.join(heads)} | accuracy after {MODELS} models sent per device |"
    yield "|---|---|" + "---|" * (len(heads) + 1)
    budget = None
    for name, network in COMPARED.items():
        result = efhc.simulate(
            devices=25,
            network=network,
            strategies={"ZT": "zt", "EF-HC": {"kind": "ef-hc", "r": 1500.0}},
            iterations=ITERATIONS,
            seeds=SEEDS,
            evaluate_every=1,  # every other spacing would meet the periods of some graphs
        )
        for strategy in ("ZT", "EF-HC"):
            cells = []
            for seed in SEEDS:
                rows = result.evaluations.filter(strategy=strategy, seed=seed)  # every iteration
                rows = rows.with_columns(sent=2 * rows["links_used"].cum_sum() / 25)  # both ends of a link send
                if budget is None:
                    budget = {s: _time_of_400(result, s) for s in SEEDS}
                near = [_near(rows, "transmission_time_total", share * budget[seed]) for share in SHARES]
                errors = [one["consensus_error"].log().mean() for one in near]
                last = _near(rows, "sent", MODELS)["accuracy"].mean()
                cells.append([*(one["accuracy"].mean() for one in near), *errors, last])
            *means, last = np.mean(cells, axis=0)
            shown = [f"{one:.3f}" for one in means[:3]] + [f"{np.exp(one):.2g}" for one in means[3:]]
            yield f"| {name} | {strategy} | {' | '.join(shown)} | {last:.3f} |"


def _near(rows: pl.DataFrame, column: str, budget: float) -> pl.DataFrame:
    """Return the evaluations within 10 % of a budget, so that all phases of a sequence count; else the nearest one."""
    found = rows.filter(pl.col(column).is_between(0.9 * budget, 1.1 * budget))
    return found if len(found) else rows.sort((pl.col(column) - budget).abs()).head(1)


def _time_of_400(result: efhc.Result, seed: int) -> float:
    return float(
        result.metrics.filter(pl.col("iteration") == 399, strategy="ZT", seed=seed)["transmission_time_total"][0]
    )


def main() -> None:
    """Write the table that is named between its two marks."""
    which = sys.argv[1]
    lines = "\n".join({"facts": facts, "digits": digits}[which]())
    before, mark, rest = PAGE.read_text().partition(f"<!-- {which} -->\n")
    after = rest.partition(f"<!-- end of {which} -->")[2]
    PAGE.write_text(f"{before}{mark}\n{lines}\n\n<!-- end of {which} -->{after}")


if __name__ == "__main__":
    main()
