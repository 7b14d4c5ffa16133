"""Whether a run with `early_stopping` is to end, given the rows that were evaluated so far and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from efhc.core.state import State
from efhc.experiments.config.experiment import Experiment
from efhc.learning.measures import EVALUATION, measure_in, measures_of
from efhc.scenarios.scenario import Scenario


class EndsEarly(Exception):
    """Raised by an observer to end a run in lockstep here. It is complete."""

    def __init__(self, state: State) -> None:
        """`state` is the last one of the run."""
        super().__init__()
        self.state = state


class Patience:
    """Counts evaluations without an improvement. It is a function of the rows that were evaluated so far."""

    def __init__(
        self, experiment: Experiment, scenario: Scenario, rows: Callable[[], Iterable[Mapping[str, Any]]]
    ) -> None:
        """`rows` returns those of the metrics or the timeline that were evaluated before, in their order.

        It is not called without `early_stopping`: then the run never ends early.
        """
        self._settings = experiment.early_stopping
        self._best = float("-inf")
        self._without_gain = 0
        self.over_after: int | None = None
        """The iteration after which there were too many of them; -1 in event-driven runs. None: not yet."""
        if self._settings is not None:
            known = measures_of(scenario.learner.backend.metrics)
            self._measure = measure_in(self._settings.measure, known, "early_stopping.measure")
            for row in rows():
                self.note(row)

    def note(self, row: Mapping[str, Any]) -> None:
        """Take an evaluated row into account. Of several that make up one evaluation, the first one counts."""
        if self._settings is None or self.over_after is not None:
            return
        value, iteration = row.get(self._measure.name), row.get("iteration", -1)
        if value is None or row.get(EVALUATION, iteration) != iteration:
            return
        value *= self._measure.sign
        self._without_gain += 1
        if value - self._best > self._settings.least_gain:
            self._best, self._without_gain = value, 0
        if self._without_gain >= self._settings.patience:
            self.over_after = iteration
