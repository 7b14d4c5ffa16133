"""What the parts of a run use of the whole: its time, what is due, and its devices.

A part is given the run with every call and keeps no reference to it: without a cycle, the models of a run are freed as
soon as nobody holds the run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from efhc.core.device_state import Device
from efhc.core.protocol import Effect, Event
from efhc.drivers.event_driven.record import EventRecord
from efhc.drivers.event_driven.rows import Rows

GRADIENT, NETWORK, CHURN, PATIENCE, GIVE_UP, SAMPLE = range(6)
"""What is due, in the order of one instant; messages come before PATIENCE."""


class Run(Protocol):
    """A run, as its parts see it."""

    now: float
    due: list[tuple[Any, ...]]
    """A heap of (time, what, ...)."""
    devices: list[Device]
    rows: Rows
    record: EventRecord
    draining: bool
    """Whether no device makes steps any more, and only what is under way is awaited."""

    def react(self, number: int, event: Event) -> None:
        """Let a device react, and carry out what it wants done, in order."""

    def carry_out(self, number: int, effects: Iterable[Effect]) -> None:
        """Carry out what a device wants done, in order."""

    def apply(self, number: int) -> None:
        """A device that has finished makes a step at once."""
