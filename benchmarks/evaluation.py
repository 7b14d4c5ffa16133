"""How much of a run is evaluation: the time inside it against that of the same run evaluated at its ends only."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from benchmarks.measure import Row, processor_seconds
from efhc.base.arrays import Floats, Ints
from efhc.core.state import Local
from efhc.experiments.runs.simulate import simulate
from efhc.learning.data import FashionMNIST
from efhc.learning.learner import Learner
from efhc.learning.measures import Evaluation
from efhc.learning.models import LeNet5
from efhc.learning.partition import LabelsPerDevice
from efhc.strategies.paper import EventTriggered

FASHION: dict[str, Any] = {"data": FashionMNIST()}
LENET: dict[str, Any] = {**FASHION, "model": LeNet5(), "partition": LabelsPerDevice(labels_per_device=2)}
RUNS: list[tuple[str, int, int, dict[str, Any]]] = [
    ("digits, SVM, b = 16 (the default experiment)", 50, 5000, {}),
    ("Fashion-MNIST, SVM, b = 16", 50, 3000, FASHION),
    ("Fashion-MNIST, SVM, b = 16", 2000, 20000, FASHION),
    ("Fashion-MNIST, LeNet5, b = 16", 50, 200, LENET),
]
"""What is run, the interval, the iterations, the settings that differ from the default."""


def measure(rounds: int) -> Iterator[Row]:
    """The share of evaluation in the processor time of a run, for each of `RUNS`."""
    for name, interval, iterations, fields in RUNS:
        found = statistics.median(share(interval, iterations, fields) for _ in range(rounds))
        yield {"experiment": name, "evaluated every": str(interval), "share of evaluation": f"{found:.0%}"}


def share(interval: int, iterations: int, fields: dict[str, Any]) -> float:
    """Return the share of evaluation in a run on one core."""
    with_all, evaluating = _timed(interval, iterations, fields)
    with_few, evaluating_few = _timed(iterations, iterations, fields)
    return evaluating / (evaluating + min(with_few - evaluating_few, with_all - evaluating))


def _timed(interval: int, iterations: int, fields: dict[str, Any]) -> tuple[float, float]:
    """Return the processor seconds of a run, and of the evaluations in it."""
    inside = 0.0
    plain = Learner.evaluate

    def timed(self: Learner, models: Floats, local: Local, devices: Ints | None = None) -> Evaluation:
        nonlocal inside
        started = processor_seconds()
        found = plain(self, models, local, devices)
        inside += processor_seconds() - started
        return found

    strategies = {"EF-HC": EventTriggered()}
    simulate(**fields, iterations=2, evaluate_every=1, seeds=[0], strategies=strategies, jobs=1)  # to warm up
    Learner.evaluate = timed  # type: ignore[method-assign]
    try:
        started = processor_seconds()
        simulate(**fields, iterations=iterations, evaluate_every=interval, seeds=[0], strategies=strategies, jobs=1)
        return processor_seconds() - started, inside
    finally:
        Learner.evaluate = plain  # type: ignore[method-assign]
