"""`efhc run --monitor theory`: the theory's assumptions, watched while a run goes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from efhc.base.errors import AssumptionBroken
from efhc.core.iteration import State
from efhc.drivers.observers import Observer
from efhc.drivers.scenario import Scenario
from efhc.drivers.steps import Steps
from efhc.experiments.config.experiment import Experiment
from efhc.theory.findings import Finding
from efhc.theory.linear_problem import LinearProblem
from efhc.theory.monitor import Monitor


@dataclass(frozen=True)
class TheoryWatcher:
    """Reports each assumption that a run breaks, once; with `strict`, stops it there."""

    experiment: Experiment
    report: Callable[[str], None]
    strict: bool = False
    window: int | None = None
    """The B that is demanded; left out, a quarter of the run."""
    _smoothness: dict[int, float | None] = field(default_factory=dict, repr=False)

    @property
    def demands(self) -> str:
        """What is watched, in words."""
        return (
            "transition weights, step sizes (up to 1/(8 L) where L is known), and that in every "
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

    def tell(self, text: str) -> None:
        """Report one broken assumption; with `strict`, raise it."""
        if self.strict:
            raise AssumptionBroken(text)
        self.report(text)


class _TheoryObserver(Observer):
    """Checks every iteration of one run."""

    def __init__(self, watcher: TheoryWatcher, name: str, scenario: Scenario, smoothness: float | None) -> None:
        self._watcher, self._name, self._scenario, self._smoothness = watcher, name, scenario, smoothness

    def next_look(self, k: int) -> int | None:
        return k + 1 if self._watcher.strict else None  # a strict run keeps the state of the iteration that broke

    def begin(self, state: State) -> None:
        devices, window = len(state.models), self._watcher.within
        self._monitor = Monitor(devices, window, self._scenario.step_size, self._smoothness, state.k)

    def after(self, steps: Steps, state: State) -> None:
        for row, (fired, used) in enumerate(zip(steps.fired, steps.used, strict=True)):
            for finding in self._monitor.look(steps.k + row, steps.graph, fired, used):
                self._watcher.tell(f"{self._name}: {in_words(finding)}")


def in_words(finding: Finding) -> str:
    """One line."""
    return f"{finding.label} ({finding.what}) at iteration {finding.iteration}: {finding.detail}"


def _certain_smoothness(experiment: Experiment, scenario: Scenario) -> float | None:
    """L where it is known for certain, and finite."""
    model: Any = experiment.model
    if not LinearProblem.knows(model):
        return None
    learner = scenario.learner
    largest = LinearProblem(model, learner.data, learner.parts, experiment.batch_size).curvature(np.empty(0)).L
    return largest if math.isfinite(largest) else None
