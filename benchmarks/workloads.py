"""The official workloads. Each makes its sides: functions that do a few iterations and return how many."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from benchmarks.measure import Ratio, Row, by_turns, milliseconds, timed
from efhc.base.errors import EfhcError
from efhc.core.randomness import Randomness
from efhc.drivers.general import driver_for
from efhc.drivers.observers import drive
from efhc.drivers.record import Record, Recording
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.runs.draw import draw_scenario
from efhc.experiments.runs.resources import usable_cores
from efhc.learning.data import CIFAR10, Dataset, FashionMNIST
from efhc.learning.models import SVM, LeNet5, ResNet18
from efhc.learning.partition import LabelsPerDevice
from efhc.network.topologies import Complete, Geometric
from efhc.scenarios.scenario import Scenario
from efhc.strategies.half_steps import Entrywise
from efhc.strategies.paper import EventTriggered

Work = Callable[[], int]
"""Does a few iterations, and returns how many."""

OURS, PLAIN, ONE_MODEL = "efhc", "plain loop", "one model"
CORES = usable_cores()
DEGREE = 13
"""Neighbours on average in the sparse geometric graphs."""
SAMPLES_EACH = 64
"""Training samples per device where there are more devices than Fashion-MNIST has samples for."""


@cache
def fashion_mnist() -> Dataset:
    """The real data."""
    return FashionMNIST().load()


@cache
def cifar10() -> Dataset:
    """The real data if they are here, else as many random bytes: how long an iteration takes is the same."""
    try:
        return CIFAR10().load()
    except EfhcError:
        rng = np.random.default_rng(0)
        x = rng.integers(0, 256, (2000, 3, 32, 32), dtype=np.uint8)
        y = np.arange(2000) % 10
        return Dataset(x, y, x, y, "random bytes in the shape of CIFAR-10").prepared(True, "float32", unit=255)


@dataclass(frozen=True)
class Workload:
    """One experiment to time, and how much of it in a round."""

    name: str
    about: str
    goal: str
    fields: dict[str, Any]
    plain_iterations: int
    our_iterations: int
    runs: int = 1
    threads: int = 1
    measures: str = "iterations"
    dataset: Callable[[], Dataset] = fashion_mnist
    strategy: str = "EF-HC"
    against: str | None = None
    """The strategy to compare with, instead of a plain loop."""

    def experiment(self) -> Experiment:
        """The experiment, with all its strategies."""
        return Experiment(**self.fields)

    def scenario(self, seed: int = 0, threads: int | None = None) -> tuple[Experiment, Scenario]:
        """What a seed draws."""
        experiment = self.experiment()
        return experiment, draw_scenario(experiment, self.dataset(), seed, threads or self.threads)

    def sides(self) -> dict[str, Work]:
        """The plain loop, ours, and for networks one model on all samples."""
        sides = {PLAIN: self.run(self.against, 0) if self.against else self.plain(), OURS: self.ours()}
        if self.name.startswith("lenet-"):
            sides[ONE_MODEL] = self.one_model()
        return sides

    def plain(self) -> Work:
        """The iterations of the plain loop, or its evaluation."""
        from benchmarks.plain import PlainLoop

        experiment, scenario = self.scenario()
        loop = PlainLoop(experiment.model, scenario, experiment.strategies["EF-HC"])
        if self.measures == "evaluation":
            return self._in_torch(lambda _: loop.accuracies(), 1)
        return self._in_torch(loop.iterate, self.plain_iterations)

    def one_model(self) -> Work:
        """One model on the batches of all devices."""
        from benchmarks.plain import OneModel

        _, scenario = self.scenario()
        return self._in_torch(OneModel(self.fields["model"], scenario).iterate, self.our_iterations)

    def _in_torch(self, iterate: Callable[[int], object], iterations: int) -> Work:
        """`iterations` iterations, with as many threads in torch as the workload may use."""
        done = 0

        def work() -> int:
            nonlocal done
            with torch_threads(self.threads):
                for _ in range(iterations):
                    iterate(done)
                    done += 1
            return iterations

        return work

    def ours(self) -> Work:
        """Our iterations with all that a run notes down of them, or our evaluation; several runs share the cores."""
        if self.measures == "evaluation":
            return self._our_evaluation()
        if self.runs > 1:
            experiment = self.experiment()
            pairs = [(strategy, seed) for seed in range(self.runs // 4) for strategy in experiment.strategies]
            runs = [self.run(strategy, seed) for strategy, seed in pairs]

            def work() -> int:
                with ThreadPoolExecutor(CORES) as pool:
                    return sum(pool.map(lambda run: run(), runs))

            return work
        return self.run(self.strategy, 0)

    def run(self, strategy: str, seed: int) -> Work:
        """The iterations of one run."""
        experiment, scenario = self.scenario(seed)
        chosen = experiment.strategies[strategy]
        driver = driver_for(scenario, chosen, self.threads)
        state = driver.initial_state()
        recording = Recording(scenario, Record())

        def work() -> int:
            nonlocal state
            recording.record = Record()
            state = drive(driver, state, state.k + self.our_iterations, [recording])
            return self.our_iterations

        return work

    def _our_evaluation(self) -> Work:
        _, scenario = self.scenario()
        models, backend = scenario.initial_models(), scenario.learner.backend
        local = backend.initial_local(len(models))

        def work() -> int:
            backend.accuracies(models, local)
            return 1

        return work


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """`threads` threads inside each operation of torch."""
    from efhc.learning.pytorch import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class WithOverlap:
    """Each device holds a few of all samples, and devices may share some: for more devices than there are samples."""

    def split(self, data: Dataset, devices: int, randomness: Randomness) -> list[np.ndarray]:
        """`SAMPLES_EACH` per device."""
        drawn = np.random.default_rng(randomness.seed).integers(len(data.y_train), size=(devices, SAMPLES_EACH))
        return list(drawn)


def sparse(devices: int) -> dict[str, Any]:
    """A geometric graph with `DEGREE` neighbours on average; large ones are seldom connected."""
    radius = math.sqrt(DEGREE / math.pi / devices)
    network = Geometric(radius=radius, connected=False)
    return {"devices": devices, "model": SVM(), "batch_size": 8, "network": network, "partition": WithOverlap()}


def _svm(batch: int) -> dict[str, Any]:
    return {"model": SVM(), "batch_size": batch}


def _lenet(batch: int) -> dict[str, Any]:
    return {"model": LeNet5(), "batch_size": batch, "partition": LabelsPerDevice(labels_per_device=2)}


_RESNET = {"model": ResNet18(), "devices": 4, "batch_size": 16, "network": Complete()}

WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("svm-b1", "SVM, Fashion-MNIST, 10 devices, batch 1, one core", "30x", _svm(1), 40, 1280),
        Workload("svm-b16", "the same, batch 16", "20x", _svm(16), 40, 640),
        Workload("svm-b64", "the same, batch 64", "8x", _svm(64), 40, 320),
        Workload(
            "entrywise-b16",
            "svm-b16 by the strategy entrywise; beside it EF-HC instead of a plain loop",
            "0.4x",
            _svm(16) | {"strategies": {"EF-HC": EventTriggered(), "entrywise": Entrywise()}},
            0,
            640,
            strategy="entrywise",
            against="EF-HC",
        ),
        Workload("svm-20runs", "4 strategies x 5 seeds at once, batch 16", "45x", _svm(16), 40, 320, runs=20),
        Workload("lenet-b16", "LeNet5, 10 devices, batch 16", "2.5x", _lenet(16), 8, 8, threads=CORES),
        Workload("lenet-b32", "the same, batch 32", "2.5x", _lenet(32), 8, 8, threads=CORES),
        Workload(
            "resnet18-b16",
            "ResNet18, CIFAR-10, 4 devices, batch 16",
            "1.2x",
            _RESNET,
            1,
            1,
            threads=CORES,
            dataset=cifar10,
        ),
        Workload("svm-m1000", "SVM, 1,000 devices, batch 8", "", sparse(1000), 1, 8, threads=CORES),
        Workload("svm-m10000", "SVM, 10,000 devices, batch 8", "", sparse(10000), 1, 2, threads=CORES),
        Workload("eval-10k", "SVM, 10 devices, 10,000 test images", "", _svm(1), 1, 1, measures="evaluation"),
        Workload("eval-10k-lenet", "LeNet5, the same", "", _lenet(16), 1, 1, threads=CORES, measures="evaluation"),
    )
}


def against_plain_loop(names: Sequence[str], rounds: int) -> Iterator[Row]:
    """Compare our iterations with those of the plain loop, and for networks with those of one model."""
    for name in names:
        workload = WORKLOADS[name]
        found = by_turns({side: timed(work) for side, work in workload.sides().items()}, rounds)
        row = {"workload": name, **{side: milliseconds(found[side]) for side in (PLAIN, OURS)}}
        one_model = Ratio.of(found[ONE_MODEL], found[OURS]).row()["ratio"] if ONE_MODEL in found else ""
        yield row | Ratio.of(found[PLAIN], found[OURS]).row() | {"goal": workload.goal, "one model": one_model}
