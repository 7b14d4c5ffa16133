"""`efhc run --monitor theory`: the theory's assumptions, watched while a run goes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from efhc.base.arrays import Flags
from efhc.base.errors import AssumptionBroken
from efhc.core.graph import Graph
from efhc.core.mixing import mixing_matrix
from efhc.core.schedules import Schedule
from efhc.core.state import State
from efhc.drivers.observers import Observer
from efhc.drivers.steps import Steps
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.runs.tables import require_papers_form
from efhc.scenarios.scenario import Scenario
from efhc.theory.checks import broken_weights
from efhc.theory.connectivity import RecentLinks
from efhc.theory.findings import Check, finding
from efhc.theory.linear_problem import LinearProblem


@dataclass(frozen=True)
class TheoryMonitor:
    """Reports each assumption that a run breaks, once; with `strict`, stops it there."""

    experiment: Experiment
    report: Callable[[str], None]
    strict: bool = False
    window: int | None = None
    """The number of iterations within which every device must fire and be reached. Default: a quarter of the run."""
    _smoothness: dict[int, float | None] = field(default_factory=dict, repr=False)
    broken: dict[str, int] = field(default_factory=dict, repr=False)
    """By run, the number of assumptions that it broke."""

    def __post_init__(self) -> None:
        require_papers_form(self.experiment)

    @property
    def demands(self) -> str:
        """The demands that are watched, as text."""
        return (
            "transition weights, step sizes (at most 1/(8 L) where L is known), and that in every "
            f"{self.within} iterations all devices fire, and physical and used links connect them"
        )

    @property
    def within(self) -> int:
        """The number of iterations within which every device must fire and be reached."""
        return self.window or max(1, self.experiment.iterations // 4)

    def __call__(self, strategy: str, seed: int, scenario: Scenario) -> Observer:
        """Creates the observer of one run."""
        if seed not in self._smoothness:  # all strategies of a seed have the same data
            self._smoothness[seed] = _certain_smoothness(self.experiment, scenario)
        return _TheoryObserver(self, f"{strategy}, seed {seed}", scenario, self._smoothness[seed])

    def summary(self) -> str:
        """One line for the end: in how many of the runs no watched assumption was broken."""
        sound, runs = sum(broken == 0 for broken in self.broken.values()), len(self.broken)
        which = "the run" if sound == runs == 1 else f"all {runs} runs" if sound == runs else f"{sound} of {runs} runs"
        return f"theory: no watched assumption was broken in the iterations of {which}"


class _TheoryObserver(Observer):
    """Checks every iteration of one run."""

    def __init__(self, theory: TheoryMonitor, name: str, scenario: Scenario, smoothness: float | None) -> None:
        self._theory, self._name, self._scenario, self._smoothness = theory, name, scenario, smoothness

    def next_look(self, k: int) -> int | None:
        return k + 1 if self._theory.strict else None  # a strict run keeps the state of the iteration that broke

    def begin(self, state: State) -> None:
        self._theory.broken.setdefault(self._name, 0)
        devices, window = len(state.models), self._theory.within
        self._monitor = Monitor(devices, window, self._scenario.step_size, self._smoothness, state.k)

    def after(self, steps: Steps, state: State) -> None:
        for row, (fired, used) in enumerate(zip(steps.fired, steps.used, strict=True)):
            for check in self._monitor.look(steps.k + row, steps.graph, fired, used):
                self._theory.broken[self._name] += 1
                text = f"{self._name}: {check.warning}"
                if self._theory.strict:
                    raise AssumptionBroken(text)
                self._theory.report(text)


def _certain_smoothness(experiment: Experiment, scenario: Scenario) -> float | None:
    """L where it is known for certain, and finite."""
    model: Any = experiment.model
    if not LinearProblem.knows(model):
        return None
    learner = scenario.learner
    largest = LinearProblem(model, learner.data, learner.parts, experiment.batch_size).curvature(np.empty(0)).L
    return largest if math.isfinite(largest) else None


class Monitor:
    """Checks every iteration in order, and reports each broken assumption once.

    `window` is the B that is demanded: in every `window` iterations the physical links together connect all devices
    (`assump:conn`-(a)), every device fires (-(b)), and the used links together connect all devices
    (`proposition:conn`). `smoothness` is L, where it is known: whatever the network does, no theorem allows step sizes
    above 1 / (8 L). `first` is the iteration at which watching begins.
    """

    def __init__(
        self, devices: int, window: int, step_size: Schedule, smoothness: float | None = None, first: int = 0
    ) -> None:
        self._devices, self._window, self._step_size, self._first = devices, window, step_size, first
        self._smoothness = smoothness
        self._physical, self._used = RecentLinks(devices), RecentLinks(devices)
        self._last_fired = np.full(devices, first - 1)
        self._graph: Graph | None = None
        self._reported: set[str] = set()

    def look(self, k: int, graph: Graph, fired: Flags, used: Flags) -> list[Check]:
        """Return the checks that iteration k breaks for the first time. `used` has a flag per link of the graph."""
        found = [*self._weights(k, graph), *self._steps(k), *self._connections(k, graph, fired, used)]
        new = [check for check in found if check.label not in self._reported]
        self._reported.update(check.label for check in new)
        return new

    def _weights(self, k: int, graph: Graph) -> list[Check]:
        # p_ii is least when all links are used: a graph whose full P is sound is sound with any links in use.
        if graph is self._graph:
            return []
        self._graph = graph
        broken = broken_weights(mixing_matrix(graph, graph.all_links), graph.links, k)
        return [broken] if broken else []

    def _steps(self, k: int) -> list[Check]:
        alpha, found = self._step_size(k), []
        if not alpha > 0 or (k > self._first and alpha > self._step_size(k - 1)):
            found.append(finding("step-sizes", "rises" if alpha > 0 else "not-positive", {"alpha": alpha}, k))
        if self._smoothness is not None and 8 * self._smoothness * alpha > 1:
            limit = 1 / (8 * self._smoothness)
            found.append(finding("step-size-limit", "above-all", {"alpha": alpha, "limit": limit}, k))
        return found

    def _connections(self, k: int, graph: Graph, fired: Flags, used: Flags) -> list[Check]:
        self._last_fired[fired] = k
        physical, information = self._physical.add(k, graph.links), self._used.add(k, graph.links[used])
        begin, silent = k - self._window + 1, int(self._last_fired.argmin())
        if begin < self._first:
            return []
        broken = {"physical-graph": physical, "broadcasts": self._last_fired[silent], "information-flow": information}
        return [
            finding(subject, "demanded", {"window": self._window}, k, silent if subject == "broadcasts" else None)
            for subject, since in broken.items()
            if since < begin
        ]
