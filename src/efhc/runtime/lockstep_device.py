"""One device of a node in lockstep: what it computes, and what it says to its neighbours in each iteration.

A link law is a subclass: `LockstepExchange`, or `LockstepHalfSteps` of another module. Nothing here waits: `Lockstep`
calls `look`, `descend`, `send` and `finish` of an iteration in its worker thread, and waits for the neighbours before
the last two.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from efhc.base.arrays import Floats
from efhc.core.device_state import Step
from efhc.core.graph import Graph
from efhc.core.state import Diverged
from efhc.runtime.links_ahead import neighbours_in
from efhc.runtime.messages import IterationHeader, IterationModel
from efhc.runtime.state.iterations import LOCAL, IterationState
from efhc.runtime.training import Trainer

Heard = Mapping[type, Any]
"""What a neighbour has said of an iteration, by the type of the message."""


@dataclass
class Iteration(ABC):
    """One iteration at this device, of which the neighbours are being told."""

    k: int
    neighbours: dict[int, int]
    """The neighbours in G(k), ascending, and the number of neighbours that each of them has."""
    is_decided: bool
    """Whether the device knows whether it fires."""

    @abstractmethod
    def says(self, number: int, heard: Heard) -> list[Any]:
        """Return all that a neighbour is to be told of this iteration, as far as it is known by now."""

    @abstractmethod
    def lacks(self, number: int, heard: Heard) -> bool:
        """Whether the device cannot go on before it hears more of a neighbour."""


class Made(NamedTuple):
    """What one iteration made."""

    fired: bool
    loss: float
    drift: float
    threshold: float
    bits: Mapping[int, int]
    """By neighbour, the bits that were sent, if that depends on more than who fired."""


class LockstepDevice(ABC):
    """The device of a node in lockstep."""

    messages: ClassVar[tuple[type, ...]]
    """What neighbours say of an iteration with this link law."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer, self._number = trainer, trainer.device
        self._before: Any = None
        """What `_kept` returned before the iteration that is under way."""

    @property
    @abstractmethod
    def model(self) -> Floats:
        """w_i(k)"""

    @abstractmethod
    def begin(self, state: IterationState | None) -> None:
        """Begin with the state of a checkpoint; without one, with the first iteration.

        Raises `KeyError` or `ValueError` if something is missing in it.
        """

    @abstractmethod
    def _kept(self) -> Any:
        """Return all that a checkpoint needs. Later iterations do not change it."""

    @abstractmethod
    def _state(self, k: int, kept: Any) -> IterationState:
        """Return a checkpoint of what `_kept` returned."""

    def state(self, k: int) -> IterationState:
        """Return a checkpoint of iteration k, before anything of it was made."""
        return self._state(k, self._kept() if self._before is None else self._before)

    def _local(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Take what the device keeps to itself from a checkpoint."""
        own = {name.removeprefix(LOCAL): rows for name, rows in tensors.items() if name.startswith(LOCAL)}
        self._trainer.local = own

    def look(self, k: int) -> Iteration:
        """Begin iteration k: find out who is linked to this device."""
        self._before = self._kept()
        before, now = self._trainer.scenario.graphs(k)
        neighbours = {number: int(now.degrees[number]) for number in neighbours_in(now, self._number)}
        return self._look(k, neighbours, self._new(before, now))

    def _new(self, before: Graph, now: Graph) -> frozenset[int]:
        """Return the neighbours to which the link is new (Event 1)."""
        links = now.links[now.new_since(before)]
        return frozenset(links[(links == self._number).any(axis=1)].ravel().tolist()) - {self._number}

    @abstractmethod
    def _look(self, k: int, neighbours: dict[int, int], new: frozenset[int]) -> Iteration: ...

    @abstractmethod
    def descend(self, iteration: Any) -> None:
        """Compute gradients at the model of this iteration. Raises `Diverged`."""

    @abstractmethod
    def send(self, iteration: Any, heard: Mapping[int, Heard]) -> None:
        """Decide what is sent. Called if `look` has not decided it."""

    def finish(self, iteration: Any, heard: Mapping[int, Heard]) -> Made:
        """Make the iteration with what all neighbours have said. Raises `Diverged` if the model is not finite."""
        made = self._finish(iteration, heard)
        self._before = None
        return made

    @abstractmethod
    def _finish(self, iteration: Any, heard: Mapping[int, Heard]) -> Made: ...

    def _diverged(self, k: int) -> Diverged:
        return Diverged(k, "model", np.arange(self._number + 1) != self._number)


# The paper's exchange


@dataclass
class ExchangeIteration(Iteration):
    """Models are exchanged on links that are new, and where an end fires."""

    model: Floats
    """w_i(k)"""
    new: frozenset[int]
    threshold: float
    fired: bool
    """Event 2."""

    def is_used(self, number: int, heard: Heard) -> bool:
        """Whether models are exchanged with a neighbour."""
        header = heard.get(IterationHeader)
        return number in self.new or self.fired or (header is not None and header.fired)

    def says(self, number: int, heard: Heard) -> list[Any]:
        header = IterationHeader(self.k, self.fired, len(self.neighbours))
        return [header, IterationModel(self.k, self.model)] if self.is_used(number, heard) else [header]

    def lacks(self, number: int, heard: Heard) -> bool:
        return IterationHeader not in heard or (self.is_used(number, heard) and IterationModel not in heard)


class LockstepExchange(LockstepDevice):
    """A row of W(k+1) = P(k) W(k) - alpha(k) G(k)."""

    messages = (IterationHeader, IterationModel)
    _model: Floats
    _last_broadcast: Floats

    @property
    def model(self) -> Floats:
        return self._model

    def begin(self, state: IterationState | None) -> None:
        if state is None:
            self._model = self._last_broadcast = self._trainer.initial_model()
        else:
            self._model, self._last_broadcast = state.model, state.tensors["last_broadcast"]
            self._local(state.tensors)
        self._drift = self._trainer.drift(self.model, self._last_broadcast)

    def _kept(self) -> Any:
        return self.model, self._last_broadcast, self._trainer.local

    def _state(self, k: int, kept: Any) -> IterationState:
        model, last_broadcast, local = kept
        own = {LOCAL + name: np.asarray(rows) for name, rows in local.items()}
        return IterationState(k, model, {"last_broadcast": last_broadcast, **own})

    def _look(self, k: int, neighbours: dict[int, int], new: frozenset[int]) -> Iteration:
        threshold = self._trainer.threshold(k)
        return ExchangeIteration(k, neighbours, True, self.model, new, threshold, bool(self._drift >= threshold))

    def descend(self, iteration: Any) -> None:
        self._gradient, self._loss, self._trainer.local = self._trainer.gradient(iteration.k, self.model)

    def send(self, iteration: Any, heard: Mapping[int, Heard]) -> None:
        """It was decided before the gradient."""

    def _finish(self, iteration: ExchangeIteration, heard: Mapping[int, Heard]) -> Made:
        steps, model, trainer = [], self.model, self._trainer
        for number, degree in iteration.neighbours.items():  # ascending
            if iteration.is_used(number, heard[number]):
                beta = 1.0 / (1.0 + max(len(iteration.neighbours), degree))
                steps.append(Step(number, beta, model, heard[number][IterationModel].model))
        self._model = trainer.mixed(model, self._gradient, trainer.step_size(iteration.k), steps)
        if iteration.fired:
            self._last_broadcast = model
        made = Made(iteration.fired, self._loss, self._drift, iteration.threshold, {})
        self._drift = trainer.drift(self.model, self._last_broadcast)
        if not math.isfinite(self._drift):
            raise self._diverged(iteration.k)
        return made
