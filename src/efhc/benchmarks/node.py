"""What a node costs: how much of a link it uses, CPU per megabyte, training beside neighbours, and memory in models.

Each figure is a ratio of two things measured in this run, by turns, so that it holds on slow and busy machines too.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tomli_w

from efhc.benchmarks.node_processes import NodeProcess, Process, star, wait_until
from efhc.benchmarks.swapping import OURS, PLAIN, Swapped, swap
from efhc.benchmarks.trainer_alone import READY
from efhc.experiments.nodes.namespaces import Namespaces
from efhc.runtime.certificates import issue, make_authority

Tell = Callable[[str], None]


class Link(NamedTuple):
    """A throttled link, and what is sent over it both ways at once."""

    megabytes: float
    kilobits: int
    """Its rate in kbit/s."""


LINKS = (Link(45.0, 5000), Link(1.0, 128))
CPU_MEGABYTES, CPU_MODELS = 10.0, 10
"""What is swapped in a round that measures CPU time: the size of a model, and how many of them, each way."""
NEIGHBOURS = 9
STEP_SECONDS = 8.0
"""How long steps are counted in a round."""
FEATURES = 1_000_000
"""Of the samples whose model measures memory; with ten classes a model has 40 MB."""
IN_FLIGHT = 3
"""Exchanges in flight at once when memory is measured."""
MEMORY_SECONDS = 15.0
"""How long the peak of memory is looked for."""
SEND = 20e6
"""Bytes per second of a node whose memory is measured: exchanges that take seconds are always in flight."""


class Figure(NamedTuple):
    """One row of the table."""

    about: str
    value: str
    spread: str
    goal: str
    besides: str
    reached: bool | None
    """Whether the goal is reached; None if it was not measured."""


def measure_node(rounds: int, tell: Tell) -> list[Figure]:
    """Measure everything. Where it takes root to make slow links, the rows of goodput say so."""
    with tempfile.TemporaryDirectory(prefix="efhc-bench-") as name:
        folder = Path(name)
        certificates = folder / "certificates"
        make_authority(certificates)
        issue(certificates, range(NEIGHBOURS + 1))
        return [
            cpu(certificates, rounds, tell),
            steps(folder / "steps", certificates, rounds, tell),
            *memory(folder / "memory", certificates, rounds, tell),
            *(goodput(link, certificates, tell) for link in LINKS),
        ]


def goodput(link: Link, certificates: Path, tell: Tell) -> Figure:
    """Measure which share of a link's rate models get, when both ends send one at once."""
    about = f"goodput, {link.megabytes:g} MB both ways at once, {link.kilobits:,} kbit/s"
    goal = 0.85
    if os.geteuid() != 0:
        return Figure(about, "not measured", "", f"at least {goal:.0%}", "needs root", None)
    least = 8e3 * link.megabytes / link.kilobits
    tell(f"{about}: at least {least:.0f} s")
    with Namespaces((0, 1), dict.fromkeys((0, 1), 1e3 * link.kilobits)) as network:
        inside = [network.command(device) for device in (0, 1)]
        swapped = swap(OURS, link.megabytes, 1, certificates, network.address(0), inside, timeout=60 + 3 * least)
    share = least / swapped.seconds
    besides = f"{swapped.seconds:.1f} s, {least:.1f} s without any overhead"
    return Figure(about, f"{share:.0%}", "", f"at least {goal:.0%}", besides, share >= goal)


def cpu(certificates: Path, rounds: int, tell: Tell) -> Figure:
    """Measure CPU time per megabyte of models, by turns over our transport and over plain asyncio streams with TLS."""
    total = 2 * CPU_MODELS * CPU_MEGABYTES
    found: dict[str, list[Swapped]] = {PLAIN: [], OURS: []}
    for number in range(1, rounds + 1):
        for side, swaps in found.items():
            tell(f"CPU per megabyte, {side}, round {number} of {rounds}")
            swaps.append(swap(side, CPU_MEGABYTES, CPU_MODELS, certificates))
    ours, plain = ([one.cpu_seconds for one in found[side]] for side in (OURS, PLAIN))
    value, spread = _ratio(ours, plain)
    besides = ", ".join(
        f"{side} {1e3 * statistics.median(each) / total:.1f} ms" for side, each in ((OURS, ours), (PLAIN, plain))
    )
    about = "CPU per exchanged MB, against plain asyncio and TLS"
    low, high = spread
    return Figure(about, f"{value:.2f}x", f"{low:.2f}-{high:.2f}", "at most 2x", besides, value <= 2)


def steps(folder: Path, certificates: Path, rounds: int, tell: Tell) -> Figure:
    """Measure steps per second of a node with neighbours that are up and send nothing, against those of a lone one."""
    folder.mkdir()
    experiment = folder / "experiment.toml"
    experiment.write_text(
        tomli_w.dumps(
            {
                "devices": NEIGHBOURS + 1,
                "iterations": 10**9,
                "seeds": [0],
                "data": {"kind": "fashion-mnist"},
                "model": {"kind": "svm"},
                "network": {"kind": "complete"},
                "strategies": {"never": {"kind": "never"}},
            }
        )
    )
    centre, *others = star(experiment, certificates, NEIGHBOURS, {}, {"pace": 3600.0})
    lone = centre | {"neighbours": []}
    first, *more = sorted(os.sched_getaffinity(0))
    per_second: dict[str, list[float]] = {"alone": [], "neighbours": []}
    per_cpu: dict[str, list[float]] = {"alone": [], "neighbours": []}
    with ExitStack() as stack:
        tell(f"steps per second: starting {NEIGHBOURS} neighbours")
        for number, settings in enumerate(others, 1):
            node = stack.enter_context(NodeProcess(folder / f"neighbour-{number}", settings, more or [first]))
            node.wait_until(lambda status: status["state"] == "training", "training")
        for number in range(1, rounds + 1):
            for side, settings, links in (("alone", lone, 0), ("neighbours", centre, NEIGHBOURS)):
                tell(f"steps per second, {side}, round {number} of {rounds}")
                with NodeProcess(folder / f"{side}-{number}", settings, [first]) as node:
                    node.wait_until(partial(_is_quiet, links), "linked and quiet")
                    seconds, cpu_seconds = _seconds_per_step(node)
                per_second[side].append(1 / seconds)
                per_cpu[side].append(1 / cpu_seconds)
    value, (low, high) = _ratio(per_second["neighbours"], per_second["alone"])
    per_cpu_second, _ = _ratio(per_cpu["neighbours"], per_cpu["alone"])
    rates = " and ".join(f"{statistics.median(each):,.0f}" for each in (per_second["alone"], per_second["neighbours"]))
    besides = f"{rates} steps per second; {per_cpu_second:.1%} per CPU second"
    about = f"steps per second, {NEIGHBOURS} neighbours up and nothing to send, against a lone node"
    return Figure(about, f"{value:.1%}", f"{low:.0%}-{high:.0%}", "at least 95%", besides, value >= 0.95)


def _is_quiet(links: int, status: dict[str, Any]) -> bool:
    """Whether a node trains, and has made the exchanges that new links bring."""
    done = sum(neighbour["exchanges"]["committed"] for neighbour in status["neighbours"])
    return bool(status["steps"] > 0 and status["links_up"] == links and done >= links)


def _seconds_per_step(node: NodeProcess) -> tuple[float, float]:
    """Return the seconds, and the CPU seconds, that a step takes."""
    before, started, cpu_started = node.status()["steps"], time.perf_counter(), node.cpu_seconds()
    time.sleep(STEP_SECONDS)
    made = node.status()["steps"] - before
    return (time.perf_counter() - started) / made, (node.cpu_seconds() - cpu_started) / made


def memory(folder: Path, certificates: Path, rounds: int, tell: Tell) -> list[Figure]:
    """Measure the peak memory of a node above that of a process that only trains, in models.

    The largest round counts.
    """
    folder.mkdir()
    experiment = _large_model(folder)
    size = 40 * (FEATURES + 1)  # ten classes, float32
    shared: dict[str, Any] = {
        "strategy": "ZT", "pace": 0.2, "limits": {"send": SEND}, "checkpoint_seconds": 3600.0
    }  # fmt: skip
    centre, *others = star(experiment, certificates, IN_FLIGHT, shared, shared)
    # Who never fires holds its last broadcast, too; who always does, does not: it is the model.
    lone = NodeProcess(folder / "lone", centre | {"neighbours": [], "strategy": "never"})
    tell("memory of training alone")
    with Process(["-m", "efhc.benchmarks.trainer_alone", str(lone.file)], folder / "training.txt") as training:
        wait_until(lambda: READY in training.printed(), "training alone has not begun")
        base = training.peak_memory(MEMORY_SECONDS)
    tell("memory of a node without a neighbour")
    with lone:
        lone.wait_until(lambda status: status["steps"] > 3, "training")
        figures = [_in_models("memory above training, no exchange in flight", lone, base, size, 3, rounds)]
    with ExitStack() as stack:
        tell(f"memory of a node with {IN_FLIGHT} exchanges in flight")
        nodes = [
            stack.enter_context(NodeProcess(folder / f"device-{number}", settings))
            for number, settings in enumerate((centre, *others))
        ]
        nodes[0].wait_until(partial(_is_quiet, IN_FLIGHT), "linked")
        about = f"memory above training, {IN_FLIGHT} exchanges in flight"
        figures.append(_in_models(about, nodes[0], base, size, 3 + 2 * IN_FLIGHT, rounds))
    return figures


def _in_models(about: str, node: NodeProcess, base: int, size: int, most: int, rounds: int) -> Figure:
    peaks = [node.peak_memory(MEMORY_SECONDS) for _ in range(rounds)]
    models, least = ((peak - base) / size for peak in (max(peaks), min(peaks)))
    besides = ", ".join(
        f"{what} {memory / 2**20:,.0f} MiB"
        for what, memory in (("peak", max(peaks)), ("training alone", base), ("a model", size))
    )
    goal = f"at most {most}"
    return Figure(about, f"{models:.1f} models", f"{least:.1f}-{models:.1f}", goal, besides, models <= most)


def _large_model(folder: Path) -> Path:
    """Write an experiment with a large model and few samples; returns its file."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (20, FEATURES), dtype=np.uint8), np.arange(20) % 10
    np.savez(folder / "samples.npz", x_train=x, y_train=y, x_test=x[:1], y_test=y[:1])
    experiment = folder / "experiment.toml"
    table = {
        "devices": IN_FLIGHT + 1,
        "iterations": 10**9,
        "seeds": [0],
        "batch_size": 1,
        "data": {"kind": "npz", "path": str(folder / "samples.npz")},
        "partition": {"kind": "iid"},
        "model": {"kind": "svm"},
        "network": {"kind": "complete"},
        "strategies": {"ZT": {"kind": "zt"}, "never": {"kind": "never"}},
    }
    experiment.write_text(tomli_w.dumps(table))
    return experiment


def _ratio(ours: Sequence[float], others: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Return the ratio of the medians, and the least and largest ratio of a round."""
    each = [own / other for own, other in zip(ours, others, strict=True)]
    return statistics.median(ours) / statistics.median(others), (min(each), max(each))
