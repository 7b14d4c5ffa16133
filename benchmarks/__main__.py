"""python -m benchmarks: a table in Markdown, row by row as it is measured, or JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from threadpoolctl import threadpool_limits

from benchmarks import backends, checkouts, clocks, evaluation, limit, networks, node, scaling, watching
from benchmarks.measure import Row
from benchmarks.workloads import WORKLOADS, against_plain_loop
from efhc.base.errors import EfhcError
from efhc.experiments.runs.provenance import provenance

ALONE = {
    "backends": backends.measure,
    "clocks": clocks.measure,
    "evaluation": evaluation.measure,
    "limit": limit.measure,
    "networks": networks.measure,
    "node": node.measure,
    "scaling": scaling.measure,
    "watching": watching.measure,
}
"""Measurements that are not of single workloads."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser("benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"{', '.join(WORKLOADS)}; or one of e2e, {', '.join(ALONE)}")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds, by turns; the median counts")
    parser.add_argument("--against", type=Path, help="another checkout of efhc, for workloads and for e2e")
    parser.add_argument("--json", action="store_true", help="print JSON, with the facts of the machine")
    chosen = parser.parse_args(arguments)
    names = chosen.names
    alone = names[0] if names and names[0] in ("e2e", *ALONE) else None
    if wrong := [name for name in names if name not in WORKLOADS and name != alone] or (names[1:] if alone else []):
        parser.error(
            f"{wrong[0]} cannot be measured here; choose workloads, or one measurement: {parser.format_usage()}"
        )
    if alone in ALONE and chosen.against:
        parser.error("--against goes with workloads and with e2e")
    if alone == "e2e":
        rows = checkouts.commands(chosen.against, chosen.rounds)
    elif alone:
        rows = ALONE[alone](chosen.rounds)
    elif chosen.against:
        rows = checkouts.against(chosen.against, names or list(WORKLOADS), chosen.rounds)
    else:
        rows = against_plain_loop(names or list(WORKLOADS), chosen.rounds)
    try:
        with threadpool_limits(1, "blas"):  # as in a run
            if chosen.json:
                print(json.dumps({"rows": list(rows), "rounds": chosen.rounds, **provenance()}, indent=2))
            else:
                for line in markdown(rows):
                    print(line, flush=True)
    except EfhcError as error:
        sys.exit(str(error))


def markdown(rows: Iterable[Row]) -> Iterator[str]:
    """Yield the lines of a table; the first row names its columns."""
    for number, row in enumerate(rows):
        if number == 0:
            yield f"| {' | '.join(row)} |"
            yield "|---" * len(row) + "|"
        yield f"| {' | '.join(row.values())} |"


if __name__ == "__main__":
    main()
