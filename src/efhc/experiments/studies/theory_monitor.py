"""`efhc run --monitor theory`: the theory's assumptions, watched while a run goes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from efhc.base.errors import AssumptionBroken
from efhc.drivers.observers import Watch
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
            f"{self._within} iterations all devices fire, and physical and used links connect them"
        )

    @property
    def _within(self) -> int:
        return self.window or max(1, self.experiment.iterations // 4)

    def __call__(self, strategy: str, seed: int, scenario: Scenario, first: int) -> Watch:
        """Watch one run from iteration `first` on."""
        window = self._within
        if seed not in self._smoothness:  # all strategies of a seed have the same data
            self._smoothness[seed] = _certain_smoothness(self.experiment, scenario)
        monitor = Monitor(self.experiment.devices, window, scenario.step_size, self._smoothness[seed], first)

        def watch(steps: Steps) -> None:
            for row, (fired, used) in enumerate(zip(steps.fired, steps.used, strict=True)):
                for finding in monitor.look(steps.k + row, steps.graph, fired, used):
                    self._tell(f"{strategy}, seed {seed}: {in_words(finding)}")

        return watch

    def _tell(self, text: str) -> None:
        if self.strict:
            raise AssumptionBroken(text)
        self.report(text)


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
