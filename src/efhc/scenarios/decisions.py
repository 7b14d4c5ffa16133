"""When a device sends off lockstep: its trigger is evaluated for one device at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from efhc.base.arrays import Floats, read_only
from efhc.base.own_code import quoting
from efhc.core.half_steps import LinkEnd
from efhc.core.memory import Memories
from efhc.core.parts import FeedbackTrigger, Seen
from efhc.core.triggers import Bandwidths
from efhc.kernels import model_loops as loops
from efhc.scenarios.scenario import DeviceReader

Decide = Callable[[Sequence[Floats]], Sequence[float | None]]
"""For each version of a model that neighbours know: the threshold of the codec's coordinates; None for no message."""


class Decisions:
    """The trigger of one run, and what it remembers of each device."""

    def __init__(self, trigger: Any, memories: Memories, reader: DeviceReader) -> None:
        self._trigger, self._reader, self._scenario = trigger, reader, reader.scenario
        self._feedback = trigger if isinstance(trigger, FeedbackTrigger) else None
        self.is_entrywise = bool(getattr(trigger, "is_entrywise", False))
        devices, parameters = len(self._scenario.bandwidths.values), self._scenario.learner.backend.parameters
        precision = np.dtype(self._scenario.learner.data.precision)
        self._memories = memories
        self.memory: dict[str, np.ndarray] = {}
        """What the trigger remembers, one row per device."""
        for name, one in memories.items():
            size = () if one.size is None else (parameters if one.size == "model" else one.size,)
            self.memory[name] = np.empty((devices, *size), one.type(precision))
        for number in range(devices if memories else 0):
            self.forget(number)

    def forget(self, number: int) -> None:
        """Reset what the trigger remembers of a device to its value at the start."""
        for name, one in self._memories.items():
            start = self._scenario.initial_model(number) if one.start == "models" else one.start
            self.memory[name][number] = start

    def threshold(self, number: int, k: int, bandwidth: float | None = None) -> float:
        """threshold_i(k); NaN of a trigger that has none. `bandwidth` is b_i, if it is not the scenario's."""
        if self._feedback is not None:
            return float("nan")
        return self._reader.threshold(self._trigger, number, k, bandwidth)

    def decide(
        self, number: int, k: int, model: Floats, seen: tuple[float, float, int], bandwidth: float | None = None
    ) -> Decide:
        """Return how a device decides after its local step. `seen` are its loss, transmission time and degree."""
        if self.is_entrywise:
            threshold = self.threshold(number, k, bandwidth)
            return lambda versions: [threshold] * len(versions)

        def by_drift(versions: Sequence[Floats]) -> Sequence[float | None]:
            drifts = np.array([drift_of(model, known) for known in versions])
            if self._feedback is None:
                fires = drifts >= self.threshold(number, k, bandwidth)
            else:
                drift = float(drifts.max(initial=0.0))
                fires = np.full(len(drifts), self._fires(number, k, drift, seen, bandwidth))
            return [0.0 if one else None for one in fires]

        return by_drift

    def _fires(
        self, number: int, k: int, drift: float, seen: tuple[float, float, int], bandwidth: float | None
    ) -> bool:
        """Evaluate a trigger that looks at what a device sees, as in a run of one device."""
        assert self._feedback is not None
        loss, spent, degree = seen
        drawn, coins = self._scenario.bandwidths, self._reader.coin_of(number)
        own_bandwidth = drawn.values[[number]] if bandwidth is None else np.array([bandwidth])
        view = Seen(
            k,
            float(self._scenario.threshold_decay(k)),
            read_only(np.array([drift])),
            read_only(np.array([loss])),
            read_only(np.array([spent])),
            read_only(np.array([degree])),
            Bandwidths(read_only(own_bandwidth), drawn.nominal),
            lambda at: np.array([coins(at)]),
        )
        own = {name: rows[[number]] for name, rows in self.memory.items()}
        with quoting(self._feedback, f"strategy {type(self._feedback).__name__}"):
            fires = bool(np.asarray(self._feedback.fires(view, own)).all())
        for name, rows in own.items():
            self.memory[name][number] = rows[0]
        return fires


def drift_of(model: Floats, known: Floats) -> float:
    """(1/n)^(1/2) ||model - known||, with the bits of every driver."""
    return float(loops.drift_of(model[None], 0, known[None], 0))


def largest_drift(model: Floats, links: Iterable[LinkEnd]) -> float:
    """Return the largest distance of a model from what a neighbour knows of it; 0 without neighbours."""
    sent = [end for end in links if end.known_there is not None]
    versions = {id(end.known_there if end.moved_by_other is None else end): end for end in sent}
    return max([0.0, *(drift_of(model, end.known_model()) for end in versions.values())])
