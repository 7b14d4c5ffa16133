"""Whether a run with `early_stopping` is to end, given the rows that were evaluated so far and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from efhc.core.state import State
from efhc.experiments.config.early_stopping import EarlyStopping
from efhc.experiments.config.experiment import Experiment
from efhc.learning.measures import EVALUATION, Measure, measure_in, measures_of
from efhc.scenarios.scenario import Scenario


class EndsEarly(Exception):
    """Raised by an observer to end a run in lockstep here. It is complete."""

    def __init__(self, state: State) -> None:
        """`state` is the last one of the run."""
        super().__init__()
        self.state = state


class Patience:
    """What a run with early stopping remembers. It is a function of the rows that were evaluated so far."""

    def __init__(
        self, settings: EarlyStopping | None, measure: Measure, rows: Iterable[Mapping[str, Any]] = ()
    ) -> None:
        """`rows` are those of the metrics or the timeline that were evaluated before, in their order.

        Without settings, a run never ends early.
        """
        self._settings, self._measure = settings, measure
        self._best = float("-inf")
        self._without_gain = 0
        for row in rows:
            self.note(row)

    @property
    def is_over(self) -> bool:
        """Whether the run is to end."""
        return self._settings is not None and self._without_gain >= self._settings.patience

    def note(self, row: Mapping[str, Any]) -> None:
        """Take an evaluated row into account. Of several that make up one evaluation, the first one counts."""
        if self._settings is None:
            return
        value, first = row.get(self._measure.name), row.get(EVALUATION)
        if value is None or (first is not None and "iteration" in row and first != row["iteration"]):
            return
        gain = self._measure.sign * value - self._best
        self._without_gain = 0 if gain > self._settings.least_gain else self._without_gain + 1
        self._best = max(self._best, self._measure.sign * value)


def patience_of(experiment: Experiment, scenario: Scenario, rows: Iterable[Mapping[str, Any]]) -> Patience:
    """Return the patience of a run that has these evaluated rows, in their order."""
    settings = experiment.early_stopping
    wanted = experiment.measure if settings is None else settings.measure
    return Patience(settings, measure_in(wanted, measures_of(scenario.learner.backend.metrics)), rows)
