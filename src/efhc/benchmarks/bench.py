"""A bench: every workload by turns, ratios with their spread, memory where it matters, and all of it as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from efhc.benchmarks.against import OURS as OUR_CHECKOUT
from efhc.benchmarks.against import THEIRS, compare
from efhc.benchmarks.clocks import LOCKSTEP, OWN_CLOCKS, clocks
from efhc.benchmarks.e2e import measure_commands
from efhc.benchmarks.machine_limits import beside_ours, limits
from efhc.benchmarks.measure import by_turns, peak_memory, times_longer
from efhc.benchmarks.names import check_names
from efhc.benchmarks.scaling import scaling, scaling_figure
from efhc.benchmarks.workloads import (
    ONE_MODEL,
    OURS,
    PLAIN,
    WORKLOADS,
    Workload,
    mixing_sides,
)
from efhc.experiments.runs.provenance import provenance

MEMORY = {"resnet18-b16": (PLAIN, OURS), "svm-m10000": (OURS,)}
"""The workloads whose memory matters, and of which sides."""


def bench(names: Iterable[str], rounds: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """The results by workload, and the facts of the machine. `tell` hears what is being measured."""
    names = list(names) or list(WORKLOADS)
    check_names(names)
    chosen = [WORKLOADS[name] for name in names]
    results = {}
    for workload in chosen:
        tell(workload.name)
        results[workload.name] = measured(workload, rounds)
    if {"svm-m1000", "svm-m10000"} <= results.keys():
        small, large = (results[f"svm-m{m}"]["seconds"][OURS] / m for m in (1000, 10000))
        results["svm-m10000"]["cost per device, against svm-m1000"] = large / small
    return {"results": results, "rounds": rounds, **provenance()}


def measured(workload: Workload, rounds: int) -> dict[str, Any]:
    """Seconds per iteration of each side, and how many times the others take longer than ours."""
    with threadpool_limits(1, "blas"):  # as `simulate` has it
        times = by_turns(workload.sides(), rounds)
    result: dict[str, Any] = {
        "about": workload.about,
        "goal": workload.goal,
        "seconds": {side: each.median for side, each in times.items()},
        "ratio": times_longer(times[PLAIN], times[OURS]),
    }
    if ONE_MODEL in times:
        result["ratio of one model"] = times_longer(times[ONE_MODEL], times[OURS])
    if workload.name == "svm-m10000":
        result["ratio of mixing, all fire to 5 %"] = times_longer(*by_turns(mixing_sides(10000), rounds).values())
    if workload.name in MEMORY:
        result["peak memory"] = {side: peak_memory(workload.name, side) for side in MEMORY[workload.name]}
    return result


def bench_limit(rounds: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """What the machine can do, and what of it we use."""
    tell("products and copies")
    found = limits(rounds)
    return {**found._asdict(), "workloads": beside_ours(found, rounds, tell), **provenance()}


def bench_against(checkout: Path, names: Iterable[str], rounds: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Our iterations beside those of another checkout."""
    return {**compare(checkout, names, rounds, tell), **provenance()}


def bench_e2e(checkout: Path | None, rounds: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Whole commands, beside those of another checkout if one is given."""
    return {**measure_commands(checkout, rounds, tell), **provenance()}


def bench_scaling(rounds: int, out: Path, tell: Callable[[str], None]) -> dict[str, Any]:
    """How the time of an iteration grows with devices, links, parameters and batch, as numbers and as a picture."""
    found = scaling(rounds, tell)
    scaling_figure(found, out)
    return {"results": found, "figure": str(out), **provenance()}


def bench_clocks(rounds: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """What it costs that every device has its own clock."""
    with threadpool_limits(1, "blas"):
        return {"results": clocks(rounds, tell), "rounds": rounds, **provenance()}


def bench_node(rounds: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """What a node costs beside training: on the link, in CPU time, in steps, in memory."""
    from efhc.benchmarks.node import measure_node

    return {"results": [figure._asdict() for figure in measure_node(rounds, tell)], "rounds": rounds, **provenance()}


Rows = list[list[str]]
"""A table: its head, then its rows."""


def bench_table(found: dict[str, Any]) -> Rows:
    """One row per workload."""
    rows = [["workload", "plain loop", "efhc", *RATIO, "goal", "besides"]]
    for name, result in found["results"].items():
        times = [_time(result["seconds"][side]) for side in (PLAIN, OURS)]
        rows.append([name, *times, *_ratio(result["ratio"]), result["goal"], "; ".join(_besides(result))])
    return rows


def against_table(found: dict[str, Any]) -> Rows:
    """One row per workload: the other checkout and ours."""
    rows = [["workload", found["against"], "efhc", *RATIO]]
    for name, result in found["results"].items():
        times = [_time(result["seconds"][side]) for side in (THEIRS, OUR_CHECKOUT)]
        rows.append([name, *times, *_ratio(result["ratio"])])
    return rows


def e2e_table(found: dict[str, Any]) -> Rows:
    """One row per command; with another checkout, also its times and how many times longer they are."""
    beside = [found["against"], *RATIO] if "against" in found else []
    rows = [["command", "efhc", "least-most", "processor", *beside]]
    for name, result in found["results"].items():
        ours, processor = (f"{seconds:.2f} s" for seconds in (result["seconds"][OUR_CHECKOUT], result["processor"]))
        cells = [name, ours, f"{result['least']:.2f}-{result['most']:.2f}", processor]
        if beside:
            cells += [f"{result['seconds'][THEIRS]:.2f} s", *_ratio(result["ratio"])]
        rows.append(cells)
    return rows


RATIO = ("ratio", "least-most", "processor")
"""The columns of how many times longer the others take: on the wall, and in processor seconds."""


def _ratio(ratio: dict[str, float]) -> list[str]:
    digits = 2 if ratio["median"] < 10 else 1
    median, least, most, processor = (f"{ratio[key]:.{digits}f}" for key in ("median", "least", "most", "processor"))
    return [f"{median}x", f"{least}-{most}", f"{processor}x"]


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def clocks_table(found: dict[str, Any]) -> Rows:
    """One row per workload: microseconds per step of one device."""
    rows = [["workload", "devices", "lockstep", "own clocks", "ratio", "least-most", "goal"]]
    for name, result in found["results"].items():
        ratio = result["ratio"]
        times = [f"{1e6 * result['seconds'][side]:.0f} us" for side in (LOCKSTEP, OWN_CLOCKS)]
        spread = f"{ratio['least']:.1f}-{ratio['most']:.1f}"
        rows.append([name, f"{result['devices']:,}", *times, f"{ratio['median']:.1f}x", spread, result["goal"]])
    return rows


def clocks_legend(found: dict[str, Any]) -> list[str]:
    """One line per workload, which says what it is."""
    return [f"{name}: {result['about']}" for name, result in found["results"].items()]


def node_table(found: dict[str, Any]) -> Rows:
    """One row per figure."""
    rows = [["what", "found", "least-most", "goal", "", "besides"]]
    words = {True: "reached", False: "missed", None: ""}
    for result in found["results"]:
        cells = [result[name] for name in ("about", "value", "spread", "goal")]
        rows.append([*cells, words[result["reached"]], result["besides"]])
    return rows


def _besides(result: dict[str, Any]) -> Iterable[str]:
    for key in ("ratio of one model", "ratio of mixing, all fire to 5 %"):
        if key in result:
            yield f"{key} {result[key]['median']:.2f}"
    if (key := "cost per device, against svm-m1000") in result:
        yield f"{key} {result[key]:.2f}"
    for side, size in result.get("peak memory", {}).items():
        yield f"peak memory of {side} {f'{size / 2**30:.2f} GiB' if size else 'unknown'}"


def limit_table(found: dict[str, Any]) -> Rows:
    """What the machine can do, then one row per workload."""
    rows = [["", "arithmetic alone", "memory alone", "ours", "of the limit"]]
    for threads, flops in found["flops"].items():
        speed = [f"{flops / 1e9:.0f} GFLOP/s", f"{found['bandwidth'][threads] / 1e9:.1f} GB/s"]
        rows.append([f"threads: {threads}", *speed, "", ""])
    for row in found["workloads"]:
        ideal = max(row["arithmetic"], row["memory"])
        times = [f"{1e6 * row[key]:.0f} us" for key in ("arithmetic", "memory", "ours")]
        rows.append([row["workload"], *times, f"{ideal / row['ours']:.0%}"])
    return rows


def scaling_table(found: dict[str, Any]) -> Rows:
    """One row per size: milliseconds per iteration, and per unit of what grows."""
    rows = [["what grows", "size", "ms per iteration", "us per unit"]]
    for what, points in found["results"].items():
        for size, seconds in points:
            rows.append([what, f"{size:,}", f"{1e3 * seconds:.3g}", f"{1e6 * seconds / size:.3g}"])
    return rows
