"""How the time of an iteration grows with what it works on, one thing at a time."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Row, by_turns, timed
from benchmarks.workloads import CORES, Work, Workload, fashion_mnist, sparse
from efhc.core.graph import Graph
from efhc.kernels.compiled_arithmetic import mix_and_descend
from efhc.learning.data import Dataset
from efhc.report.figures import save_figure

Points = list[tuple[int, float]]
"""Size and processor seconds per iteration."""

FIGURE = Path(__file__).parents[1] / "docs" / "scaling.png"
DEVICES = (1000, 2000, 4000, 8000)
LINKS = (5_000, 10_000, 20_000, 40_000)
FEATURES = (200, 400, 800, 1600)
BATCHES = (8, 16, 32, 64)


def measure(rounds: int) -> Iterator[Row]:
    """Time per iteration for growing numbers of devices, used links, parameters and samples; draws docs/scaling.png."""
    found: dict[str, Points] = {}
    for what, sides in {
        "devices": {m: _iterations(sparse(m)) for m in DEVICES},
        "used links (mixing alone)": {links: _mixing(1000, links) for links in LINKS},
        "parameters": {10 * (features + 1): _iterations(sparse(1000), _bytes(features)) for features in FEATURES},
        "batch": {b: _iterations(sparse(1000) | {"batch_size": b}) for b in BATCHES},
    }.items():
        times = by_turns({str(size): timed(work) for size, work in sides.items()}, rounds)
        found[what] = [(size, statistics.median(times[str(size)])) for size in sides]
        for size, seconds in found[what]:
            per_unit = f"{1e6 * seconds / size:.3g}"
            yield {"what grows": what, "size": f"{size:,}", "ms": f"{1e3 * seconds:.3g}", "us per unit": per_unit}
    draw(found, FIGURE)


def _iterations(fields: dict[str, Any], dataset: Callable[[], Dataset] = fashion_mnist) -> Work:
    return Workload("scaling", "", "", fields, 1, 2, threads=CORES, dataset=dataset).ours()


def _bytes(features: int) -> Callable[[], Dataset]:
    """Random samples with `features` features."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (2000, features), dtype=np.uint8), np.arange(2000) % 10
    data = Dataset(x, y, x, y).prepared(True, "float32", unit=255)
    return lambda: data


def _mixing(devices: int, links: int) -> Work:
    """A random graph, all of whose links are used."""
    rng = np.random.default_rng(0)
    graph = Graph.of(devices, _pairs(devices, links, rng))
    models = rng.random((devices, 7850), dtype=np.float32)
    gradients, used = np.zeros_like(models), np.ones(len(graph.links), dtype=bool)

    def work() -> int:
        mix_and_descend(graph, used, models, gradients, 0.0, CORES)
        return 1

    return work


def _pairs(devices: int, links: int, rng: np.random.Generator) -> np.ndarray:
    chosen = rng.choice(devices * (devices - 1) // 2, links, replace=False)
    later, earlier = np.tril_indices(devices, -1)
    return np.column_stack([earlier[chosen], later[chosen]])


def draw(found: dict[str, Points], out: Path) -> None:
    """A panel per thing that grows: measured times, and a straight line through them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3), layout="constrained")
    for axes, (what, points) in zip(figure.subplots(1, len(found)), found.items(), strict=True):
        sizes, seconds = np.array([size for size, _ in points]), np.array([time for _, time in points])
        slope, start = np.polyfit(sizes, 1e3 * seconds, 1)
        line = np.array([0, sizes[-1]])
        axes.plot(line, start + slope * line, color="0.7", label="least squares line")
        axes.plot(sizes, 1e3 * seconds, "o", color="tab:blue", label="measured")
        axes.set(xlabel=what, xlim=(0, None), ylim=(0, None))
    figure.axes[0].set_ylabel("processor ms per iteration")
    figure.axes[0].legend()
    save_figure(figure, out)
