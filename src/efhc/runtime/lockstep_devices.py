"""One device of a node in lockstep: what it computes, and the messages of each iteration.

A link law is a subclass: `LockstepExchange` or `LockstepHalfSteps`. Nothing here waits: `Lockstep` calls `start`,
`descend`, `send` and `finish` of an iteration in its worker thread, and waits for the neighbours before the last two.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from efhc.base.arrays import Floats
from efhc.base.errors import EfhcError
from efhc.core.cost import whole_message_bits
from efhc.core.device import Step
from efhc.core.half_step_messages import Acknowledgement, Frame, Introduction, Send, TakeBack, Violation
from efhc.core.half_steps import HalfSteps
from efhc.runtime.lockstep_neighbours import neighbours_in
from efhc.runtime.node_messages import IterationHeader, IterationModel
from efhc.runtime.state.contents import as_json, described_half_steps, half_steps_from_json, snapshot
from efhc.runtime.state.iterations import IterationState
from efhc.runtime.training import HalfStepsTraining, Trainer

Messages = Mapping[type, Any]
"""The messages of a neighbour about one iteration, by type."""


@dataclass
class Iteration(ABC):
    """One iteration at this device."""

    k: int
    neighbours: dict[int, int]
    """The neighbours in G(k), ascending, and the number of neighbours that each of them has."""
    is_decided: bool
    """Whether the device knows whether it fires."""

    @abstractmethod
    def messages_to(self, number: int, received: Messages) -> list[Any]:
        """Return all messages about this iteration to a neighbour, as far as they are known by now."""

    @abstractmethod
    def is_missing(self, number: int, received: Messages) -> bool:
        """Return whether the device needs another message of a neighbour before it can continue."""


class IterationResult(NamedTuple):
    """The result of one iteration."""

    fired: bool
    loss: float
    drift: float
    threshold: float
    bits: Mapping[int, int]
    """By neighbour, the bits that were sent, if they depend on more than who fired."""


class LockstepDevice(ABC):
    """The device of a node in lockstep."""

    messages: ClassVar[tuple[type, ...]]
    """The messages of an iteration with this link law."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer, self._number = trainer, trainer.device

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
    def state(self, k: int) -> IterationState:
        """Return a checkpoint of iteration k, before any part of it was made. Later iterations do not change it."""

    @abstractmethod
    def start(self, k: int) -> Iteration:
        """Begin iteration k: find the neighbours of this device."""

    def _links(self, k: int) -> tuple[dict[int, int], frozenset[int]]:
        """Return the degrees of the neighbours in G(k), and the neighbours to which the link is new (Event 1)."""
        before, now = self._trainer.scenario.graphs(k)
        links = now.links[now.new_since(before)]
        new = links[(links == self._number).any(axis=1)].ravel().tolist()
        neighbours = {number: int(now.degrees[number]) for number in neighbours_in(now, self._number)}
        return neighbours, frozenset(new) - {self._number}

    @abstractmethod
    def descend(self, iteration: Any) -> None:
        """Compute gradients at the model of this iteration. Raises `Diverged`."""

    def send(self, iteration: Any, received: Mapping[int, Messages]) -> None:  # noqa: B027 - an exchange decides in `start`
        """Decide which frames to send. Called if `start` has not decided it."""

    @abstractmethod
    def finish(self, iteration: Any, received: Mapping[int, Messages]) -> IterationResult:
        """Make the iteration with the messages of all neighbours. Raises `Diverged` if the model is not finite."""


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

    def is_used(self, number: int, received: Messages) -> bool:
        """Return whether models are exchanged with a neighbour."""
        header = received.get(IterationHeader)
        return number in self.new or self.fired or (header is not None and header.fired)

    def messages_to(self, number: int, received: Messages) -> list[Any]:
        header = IterationHeader(self.k, self.fired, len(self.neighbours))
        return [header, IterationModel(self.k, self.model)] if self.is_used(number, received) else [header]

    def is_missing(self, number: int, received: Messages) -> bool:
        return IterationHeader not in received or (self.is_used(number, received) and IterationModel not in received)


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
            self._trainer.restore(state.tensors)
        self._drift = self._trainer.drift(self.model, self._last_broadcast)
        self._keep()

    def _keep(self) -> None:
        """Keep what a checkpoint before the next iteration needs."""
        self._kept = self.model, {"last_broadcast": self._last_broadcast, **self._trainer.tensors()}

    def state(self, k: int) -> IterationState:
        return IterationState(k, *self._kept)

    def start(self, k: int) -> Iteration:
        neighbours, new = self._links(k)
        threshold = self._trainer.threshold(k)
        return ExchangeIteration(k, neighbours, True, self.model, new, threshold, bool(self._drift >= threshold))

    def descend(self, iteration: Any) -> None:
        self._gradient, self._loss, self._trainer.local = self._trainer.gradient(iteration.k, self.model)

    def finish(self, iteration: ExchangeIteration, received: Mapping[int, Messages]) -> IterationResult:
        steps, model, trainer = [], self.model, self._trainer
        for number, degree in iteration.neighbours.items():  # ascending
            if iteration.is_used(number, received[number]):
                beta = 1.0 / (1.0 + max(len(iteration.neighbours), degree))
                steps.append(Step(number, beta, model, received[number][IterationModel].model))
        self._model = trainer.mixed(model, self._gradient, trainer.step_size(iteration.k), steps)
        if iteration.fired:
            self._last_broadcast = model
        made = IterationResult(iteration.fired, self._loss, self._drift, iteration.threshold, {})
        self._drift = trainer.drift(self.model, self._last_broadcast)
        if not math.isfinite(self._drift):
            raise trainer.diverged(iteration.k)
        self._keep()
        return made


# Half-steps
#
# Both ends know the graph. So a link that comes begins with the models of that iteration, and after the barrier each
# end knows that the other has all its messages: nothing is acknowledged. Tokens name the iteration in which a link
# came, so an iteration that is made again sends the same messages again.


@dataclass
class HalfStepsIteration(Iteration):
    """Introductions on new links; then a header to each neighbour, and a frame where its flag is set."""

    introductions: dict[int, Introduction]
    frames: dict[int, Frame] = field(default_factory=dict)

    def messages_to(self, number: int, received: Messages) -> list[Any]:
        found: list[Any] = [self.introductions[number]] if number in self.introductions else []
        if self.is_decided:
            found.append(IterationHeader(self.k, number in self.frames, len(self.neighbours)))
            found += [self.frames[number]] if number in self.frames else []
        return found

    def is_missing(self, number: int, received: Messages) -> bool:
        if not self.is_decided:
            return number in self.introductions and Introduction not in received
        header = received.get(IterationHeader)
        return header is None or (header.fired and Frame not in received)


class LockstepHalfSteps(LockstepDevice):
    """A device that sends frames."""

    messages = (IterationHeader, Introduction, Frame)
    _device: HalfSteps

    def __init__(self, trainer: Trainer, norm_limit: float) -> None:
        super().__init__(trainer)
        self._training = HalfStepsTraining(trainer, norm_limit)
        self._bandwidth = float(trainer.scenario.bandwidths.values[self._number])

    @property
    def model(self) -> Floats:
        model: Floats = self._device.model
        return model

    # Checkpoints

    def begin(self, state: IterationState | None) -> None:
        if state is None:
            self._device = self._training.begin(0, self._trainer.initial_model())
        else:
            tensors = {"array-0": state.model, **state.tensors}
            numbers = {int(name.removeprefix("array-")): name for name in tensors if name.startswith("array-")}
            arrays: dict[Any, Any] = {None: None} | {number: tensors[name] for number, name in numbers.items()}
            device = snapshot(half_steps_from_json(state.facts["device"], arrays))
            self._device = self._training.restore(device, 0, state.facts)
            self._trainer.restore(tensors)
        self._keep()

    def _keep(self) -> None:
        """Keep what a checkpoint before the next iteration needs."""
        self._kept = snapshot(self._device), self._trainer.tensors(), self._training.facts

    def state(self, k: int) -> IterationState:
        device, tensors, facts = self._kept
        arrays, numbers = dict[str, np.ndarray](), {id(device.model): 0}

        def number(array: np.ndarray) -> int:
            known = numbers.setdefault(id(array), len(numbers))
            if known:
                arrays[f"array-{known}"] = array
            return known

        described = json.loads(as_json(described_half_steps(device), number))
        return IterationState(k, device.model, arrays | tensors, {"device": described, **facts})

    # Iterations

    def start(self, k: int) -> Iteration:
        (neighbours, new), device = self._links(k), self._device
        for number in sorted(device.links.keys() - neighbours.keys()):
            for effect in device.link_down(number):
                assert isinstance(effect, TakeBack), "at the barrier, nothing is under way"
                self._trainer.rows.take_back(0, effect.taught)
        shared = self.model if k == 0 and not new and self._all_start_equal() else None
        for number in neighbours:
            if number not in device.links:
                device.count = k
                device.link_up(number, is_new=number in new, shared_start=shared)
        sent = {one.neighbour: one.message for one in device.announce() if isinstance(one, Send)}
        for number, degree in neighbours.items():
            if device.links[number].heard is not None:
                self._acknowledge(number, degree)
        introductions = {n: message for n, message in sent.items() if isinstance(message, Introduction)}
        return HalfStepsIteration(k, neighbours, False, introductions)

    def _all_start_equal(self) -> bool:
        scenario = self._trainer.scenario
        devices = range(len(scenario.bandwidths.values))
        return all(np.array_equal(scenario.initial_model(number), self.model) for number in devices)

    def _acknowledge(self, number: int, degree: int) -> None:
        """Note that a neighbour and this device have all messages of each other."""
        end = self._device.links[number]
        assert end.partner is not None
        message = Acknowledgement(end.partner, end.token, end.last_sent, end.last_received, degree)
        self._device.received(number, message, self._training.arithmetic)

    def descend(self, iteration: Any) -> None:
        self._loss, self._down = self._trainer.descend(iteration.k, self.model, lambda: self._device.gate)

    @np.errstate(over="ignore", invalid="ignore")
    def send(self, iteration: HalfStepsIteration, received: Mapping[int, Messages]) -> None:
        training = self._training
        for number in iteration.introductions:
            self._receive(number, received[number][Introduction], iteration.k)
            self._acknowledge(number, iteration.neighbours[number])
        bits = dict.fromkeys(iteration.introductions, whole_message_bits(self.model[None]))
        training.add_income(sum(bits.values()))
        for effect in training.step(self._loss, self._down):
            if isinstance(effect, Send) and isinstance(effect.message, Frame):
                iteration.frames[effect.neighbour] = effect.message
                bits[effect.neighbour] = bits.get(effect.neighbour, 0) + effect.message.bits
        training.spend(sum(bits.values()), self._bandwidth)
        self._bits = bits
        iteration.is_decided = True

    def _receive(self, number: int, message: Introduction | Frame, k: int) -> None:
        effects = self._device.received(number, message, self._training.arithmetic)
        problems = [effect.problem for effect in effects if isinstance(effect, Violation)]
        if isinstance(message, Frame) and not problems and self._device.links[number].last_received != message.number:
            problems = ["its frame is not the next one on this link"]
        if problems:
            raise EfhcError(f"device {number} cannot be understood in iteration {k}: {problems[0]}")

    @np.errstate(over="ignore", invalid="ignore")
    def finish(self, iteration: HalfStepsIteration, received: Mapping[int, Messages]) -> IterationResult:
        for number, degree in iteration.neighbours.items():  # ascending
            if received[number][IterationHeader].fired:
                self._receive(number, received[number][Frame], iteration.k)
            self._acknowledge(number, degree)
        self._training.add_pull()
        if not np.isfinite(self._device.model).all():
            raise self._trainer.diverged(iteration.k)
        threshold = self._trainer.threshold(iteration.k)
        self._keep()
        return IterationResult(bool(iteration.frames), self._loss, self._training.drift, threshold, self._bits)
