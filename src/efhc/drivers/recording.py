"""Noting down what a driver does, and nothing else."""

from __future__ import annotations

from efhc.core.state import State
from efhc.drivers.observers import Observer
from efhc.drivers.record import Record
from efhc.drivers.steps import Steps
from efhc.scenarios.scenario import Scenario


class Recording(Observer):
    """Adds every iteration to a record."""

    def __init__(self, scenario: Scenario, record: Record) -> None:
        self.record = record
        self._bandwidths, self._parameters = scenario.bandwidths.values, scenario.learner.backend.parameters

    def after(self, steps: Steps, state: State) -> None:
        self.record.add(steps, self._bandwidths, self._parameters)
