"""Who looks on while a run goes. Watching changes nothing; a watch that raises ends its run, with its state kept."""

from __future__ import annotations

from typing import Protocol

from efhc.drivers.scenario import Scenario
from efhc.drivers.steps import Steps


class Watch(Protocol):
    """Looks at one run."""

    def __call__(self, steps: Steps) -> None:
        """These iterations have been made; they come in order."""


class Watcher(Protocol):
    """Sends somebody to every run."""

    def __call__(self, strategy: str, seed: int, scenario: Scenario, first: int) -> Watch:
        """Who looks at this run, from iteration `first` on."""
