"""The tables of docs/asynchrony.md on slow and faulty links: make the runs, and write the tables into the page.

python docs/asynchrony_tables.py wall-clock      examples/wall-clock.toml, about 6 minutes of processor time
python docs/asynchrony_tables.py faults          the same links with loss, latency and churn, about 5 minutes
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

import polars as pl

import efhc

DOCS = Path(__file__).parent
EXAMPLE = DOCS.parent / "examples" / "wall-clock.toml"
TARGETS, MOMENTS = (0.7, 0.75), (5, 10, 25, 50)
FAULTS: dict[str, dict[str, Any]] = {
    "none": {},
    "loss 1 %": {"links": {"loss": 0.01}},
    "loss 10 %": {"links": {"loss": 0.1}},
    "loss 20 %": {"links": {"loss": 0.2}},
    "latency 0 s": {"links": {"latency": 0.0}},
    "latency 0.1 s": {"links": {"latency": 0.1}},
    "latency 1 s": {"links": {"latency": 1.0}},
    "churn": {"churn": {"crash_every": 30.0, "restart_after": 5.0, "leave_every": 60.0, "join_after": 10.0}},
}
SECONDS = 60.0


def wall_clock() -> list[str]:
    """How long, and how many bytes, until two accuracies; and the accuracy at some seconds."""
    config = tomllib.loads(EXAMPLE.read_text()) | {"evaluate_at": "multiples"}  # at the seconds of the table
    timeline = efhc.simulate(**config).timeline
    heads = [f"at {second} s" for second in MOMENTS] + [f"to {target:.0%}" for target in TARGETS]
    lines = [f"| strategy | {' | '.join(heads)} |", "|---|" + "---|" * len(heads)]
    for (strategy,), rows in timeline.group_by(["strategy"], maintain_order=True):
        at = [rows.filter(pl.col("seconds") == second)["accuracy"].mean() for second in MOMENTS]
        cells = [f"{mean:.3f}" for mean in at] + [reached(rows, target) for target in TARGETS]
        lines.append(f"| {strategy} | {' | '.join(cells)} |")
    return lines


def reached(rows: pl.DataFrame, target: float) -> str:
    """The means over the seeds that reach a target, and how many do."""
    first = rows.filter(pl.col("accuracy") >= target).sort("seconds").group_by("seed").first()
    seeds = rows["seed"].n_unique()
    if not len(first):
        return f"0 of {seeds}"
    seconds, size, most = first["seconds"].mean(), first["bytes"].mean() / 1e6, first["seconds"].max()
    return f"{seconds:.0f} s (at most {most:.0f}), {size:.3g} MB, {len(first)} of {seeds}"


def faults() -> list[str]:
    """Accuracy and MB after a minute."""
    config = tomllib.loads(EXAMPLE.read_text())
    names = ["EF-HC", "ZT", "entrywise", "one-way"]
    strategies = {name: config["strategies"][name] for name in names}
    lines = [f"| fault | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    for fault, changes in FAULTS.items():
        driver = config["driver"] | {"seconds": SECONDS, "sample_seconds": SECONDS, "target": None}
        driver |= {"links": driver["links"] | changes.get("links", {}), "churn": changes.get("churn")}
        driver = {name: value for name, value in driver.items() if value is not None}
        fields = config | {"driver": driver, "strategies": strategies, "seeds": [0, 1, 2]}
        last = efhc.simulate(warn=lambda text: None, **fields).tables["timeline"].filter(pl.col("seconds") == SECONDS)
        cells = []
        for name in names:
            rows = last.filter(pl.col("strategy") == name)
            cells.append(f"{rows['accuracy'].mean():.3f}, {rows['bytes'].mean() / 1e6:.3g} MB")
        lines.append(f"| {fault} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)  # noqa: T201
    return lines


def write(name: str, lines: list[str]) -> None:
    """Put a table into its place on the page."""
    page, begin, end = DOCS / "asynchrony.md", f"<!-- table: {name} -->", "<!-- end of table -->"
    before, found, rest = page.read_text().partition(begin)
    assert found, name
    page.write_text("\n".join([before + begin, "", *lines, "", end + rest.partition(end)[2]]))


if __name__ == "__main__":
    if sys.argv[1:] == ["wall-clock"]:
        write("wall-clock", wall_clock())
    else:
        write("loss, latency and churn", faults())
