"""Observers look on while a run goes: recording, evaluation, checkpoints, progress, theory, a live page.

An observer changes nothing. It says at which iterations it needs to see the state, and is shown everything in between
as `Steps`. One that raises ends its run there; the state up to that point is still good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np

from efhc.base.arrays import Ints
from efhc.core.state import State
from efhc.drivers.steps import Steps
from efhc.scenarios.scenario import Scenario


class Driver(Protocol):
    """Moves the state of a run on."""

    def advance(self, state: State, most: int) -> tuple[State, Steps]:
        """Make at least one and at most `most` iterations. The given state must not be used afterwards."""


class Observer:
    """Does nothing; subclasses override what they need."""

    def next_look(self, k: int) -> int | None:
        """The least iteration after `k` at which the observer must see the state, or None for no more.

        `after` is then called with exactly that state. Between such iterations a driver may make many at once.
        """
        return None

    def begin(self, state: State) -> None:
        """The run begins, or goes on, from this state."""

    def after(self, steps: Steps, state: State) -> None:
        """These iterations have been made, and left this state. Copy what you keep of it: its memory is used again."""


ObserverFactory = Callable[[str, int, Scenario], Observer]
"""Creates the observer of one run, from the name of its strategy, its seed and its scenario."""


class LookAt(Observer):
    """An observer that sees the state at given iterations: `look(state)` once for each of them that comes."""

    def __init__(self, iterations: Iterable[int]) -> None:
        self._iterations: Ints = np.unique(np.fromiter(iterations, dtype=np.int64))

    def look(self, state: State) -> None:
        """The state after `state.k` iterations, one of those that were given."""
        raise NotImplementedError

    def next_look(self, k: int) -> int | None:
        place = int(np.searchsorted(self._iterations, k, side="right"))
        return int(self._iterations[place]) if place < len(self._iterations) else None

    def begin(self, state: State) -> None:
        if self.next_look(state.k - 1) == state.k:
            self.look(state)

    def after(self, steps: Steps, state: State) -> None:
        if self.next_look(state.k - 1) == state.k:
            self.look(state)


def drive(driver: Driver, state: State, until: int, observers: Sequence[Observer] = ()) -> State:
    """Make iterations `state.k` to `until` - 1 and show them to the observers, in their order. Returns the last state.

    This is the only loop over iterations: every command that makes a run goes through it.
    """
    for observer in observers:
        observer.begin(state)
    while state.k < until:
        looks = (observer.next_look(state.k) for observer in observers)
        target = min([until, *(k for k in looks if k is not None)])
        state, steps = driver.advance(state, target - state.k)
        for observer in observers:
            observer.after(steps, state)
    return state
