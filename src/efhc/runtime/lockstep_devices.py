"""One device of a node in lockstep: what it computes, and the messages of each iteration.

A link law is a subclass: `LockstepExchange` or `LockstepHalfSteps`. Nothing here waits: `LockstepMode` calls `start`,
`descend`, `decide` and `finish` in its worker thread, and waits for the neighbours before the last two. From `start` to
the end of `finish`, the event loop may call `messages_to` and `is_missing` at any moment: neither reads what `finish`
changes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
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
from efhc.runtime.state.contents import ArrayNumbers, described_half_steps, half_steps_from_json, numbered, snapshot
from efhc.runtime.state.iterations import IterationState
from efhc.runtime.training import HalfStepsTraining, Trainer
from efhc.scenarios.decisions import drift_of

Messages = Mapping[type, Any]
"""The messages of a neighbour about one iteration, by type."""


class IterationResult(NamedTuple):
    """The result of one iteration."""

    fired: bool
    loss: float
    drift: float
    threshold: float
    bits: Mapping[int, int]
    """By neighbour, the bits that were sent, if they depend on more than who fired."""


class LockstepDevice(ABC):
    """The device of a node in lockstep, and its present iteration."""

    messages: ClassVar[tuple[type, ...]]
    """The messages of an iteration with this link law."""
    k: int
    neighbours: dict[int, int]
    """The neighbours in G(k), ascending, and the number of neighbours that each of them has."""
    is_decided = True
    """Whether the device knows what it sends in this iteration."""

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

    def start(self, k: int) -> frozenset[int]:
        """Begin iteration k. Returns the neighbours to which the link is new (Event 1)."""
        before, now = self._trainer.scenario.graphs(k)
        links = now.links[now.new_since(before)]
        new = links[(links == self._number).any(axis=1)].ravel().tolist()
        self.k = k
        self.neighbours = {number: int(now.degrees[number]) for number in neighbours_in(now, self._number)}
        return frozenset(new) - {self._number}

    @abstractmethod
    def messages_to(self, number: int, received: Messages) -> list[Any]:
        """Return all messages about this iteration to a neighbour, as far as they are known by now."""

    @abstractmethod
    def is_missing(self, number: int, received: Messages) -> bool:
        """Return whether the device needs another message of a neighbour before it can continue."""

    @abstractmethod
    def descend(self) -> None:
        """Compute gradients at the model of this iteration. Raises `Diverged`."""

    def decide(self, received: Mapping[int, Messages]) -> None:  # noqa: B027 - an exchange decides in `start`
        """Decide which frames to send. Called if `start` has not decided it."""

    @abstractmethod
    def finish(self, received: Mapping[int, Messages]) -> IterationResult:
        """Make the iteration with the messages of all neighbours. Raises `Diverged` if the model is not finite."""


class LockstepExchange(LockstepDevice):
    """A row of W(k+1) = P(k) W(k) - alpha(k) G(k). Models are exchanged on new links, and where an end fires."""

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
        self._drift = drift_of(self.model, self._last_broadcast)
        self._keep()

    def _keep(self) -> None:
        """Keep what a checkpoint before the next iteration needs."""
        self._kept = self.model, {"last_broadcast": self._last_broadcast, **self._trainer.tensors()}

    def state(self, k: int) -> IterationState:
        return IterationState(k, *self._kept)

    def start(self, k: int) -> frozenset[int]:
        self._new, self._sent = super().start(k), self.model
        self._threshold = self._trainer.threshold(k)
        self._fired = bool(self._drift >= self._threshold)
        return self._new

    def _is_used(self, number: int, received: Messages) -> bool:
        """Return whether models are exchanged with a neighbour."""
        header = received.get(IterationHeader)
        return number in self._new or self._fired or (header is not None and header.fired)

    def messages_to(self, number: int, received: Messages) -> list[Any]:
        header = IterationHeader(self.k, self._fired, len(self.neighbours))
        return [header, IterationModel(self.k, self._sent)] if self._is_used(number, received) else [header]

    def is_missing(self, number: int, received: Messages) -> bool:
        return IterationHeader not in received or (self._is_used(number, received) and IterationModel not in received)

    def descend(self) -> None:
        self._gradient, self._loss, self._trainer.local = self._trainer.gradient(self.k, self.model)

    def finish(self, received: Mapping[int, Messages]) -> IterationResult:
        steps, model, trainer = [], self.model, self._trainer
        for number, degree in self.neighbours.items():  # ascending
            if self._is_used(number, received[number]):
                beta = 1.0 / (1.0 + max(len(self.neighbours), degree))
                steps.append(Step(number, beta, model, received[number][IterationModel].model))
        self._model = trainer.mixed(model, self._gradient, trainer.scenario.step_size(self.k), steps)
        if self._fired:
            self._last_broadcast = model
        made = IterationResult(self._fired, self._loss, self._drift, self._threshold, {})
        self._drift = drift_of(self.model, self._last_broadcast)
        if not math.isfinite(self._drift):
            raise trainer.diverged(self.k)
        self._keep()
        return made


class LockstepHalfSteps(LockstepDevice):
    """A device that sends introductions on new links, then a header to each neighbour, and a frame where it says so.

    Both ends know the graph. So a link that comes begins with the models of that iteration, and after the barrier each
    end knows that the other has all its messages: nothing is acknowledged. Tokens name the iteration in which a link
    came, so an iteration that is made again sends the same messages again.
    """

    messages = (IterationHeader, Introduction, Frame)
    _device: HalfSteps
    _introductions: dict[int, Introduction]
    _frames: dict[int, Frame]

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
        numbers = ArrayNumbers()
        numbers.add(device.model)  # it is array 0
        described, new = numbered(described_half_steps(device), numbers)
        arrays = {f"array-{number}": array for number, array in new.items()}
        return IterationState(k, device.model, arrays | tensors, {"device": described, **facts})

    # Iterations

    def start(self, k: int) -> frozenset[int]:
        new, device = super().start(k), self._device
        for number in sorted(device.links.keys() - self.neighbours.keys()):
            for effect in device.link_down(number):
                assert isinstance(effect, TakeBack), "at the barrier, nothing is under way"
                self._trainer.rows.take_back(0, effect.link_correction)
        shared = self.model if k == 0 and not new and self._all_start_equal() else None
        for number in self.neighbours:
            if number not in device.links:
                device.count = k
                device.link_up(number, is_new=number in new, shared_start=shared)
        sent = {one.neighbour: one.message for one in device.announce() if isinstance(one, Send)}
        for number in self.neighbours:
            if device.links[number].known_here is not None:
                self._acknowledge(number)
        self._introductions = {n: message for n, message in sent.items() if isinstance(message, Introduction)}
        self._frames, self.is_decided = {}, False
        return new

    def _all_start_equal(self) -> bool:
        scenario = self._trainer.scenario
        devices = range(len(scenario.bandwidths.values))
        return all(np.array_equal(scenario.initial_model(number), self.model) for number in devices)

    def _acknowledge(self, number: int) -> None:
        """Note that a neighbour and this device have all messages of each other."""
        end = self._device.links[number]
        assert end.partner is not None
        degree = self.neighbours[number]
        message = Acknowledgement(end.partner, end.token, end.last_sent, end.last_received, degree)
        self._device.received(number, message, self._training.arithmetic)

    def messages_to(self, number: int, received: Messages) -> list[Any]:
        found: list[Any] = [self._introductions[number]] if number in self._introductions else []
        if self.is_decided:
            found.append(IterationHeader(self.k, number in self._frames, len(self.neighbours)))
            found += [self._frames[number]] if number in self._frames else []
        return found

    def is_missing(self, number: int, received: Messages) -> bool:
        if not self.is_decided:
            return number in self._introductions and Introduction not in received
        header = received.get(IterationHeader)
        return header is None or (header.fired and Frame not in received)

    def descend(self) -> None:
        self._loss, self._down = self._trainer.descend(self.k, self.model, lambda: self._device.gate)

    @np.errstate(over="ignore", invalid="ignore")
    def decide(self, received: Mapping[int, Messages]) -> None:
        training = self._training
        for number in self._introductions:
            self._receive(number, received[number][Introduction])
            self._acknowledge(number)
        bits = dict.fromkeys(self._introductions, whole_message_bits(self.model[None]))
        training.add_income(sum(bits.values()))
        for effect in training.step(self._loss, self._down):
            if isinstance(effect, Send) and isinstance(effect.message, Frame):
                self._frames[effect.neighbour] = effect.message
                bits[effect.neighbour] = bits.get(effect.neighbour, 0) + effect.message.bits
        training.spend(sum(bits.values()), self._bandwidth)
        self._bits = bits
        self.is_decided = True  # from here on, the event loop sends the frames

    def _receive(self, number: int, message: Introduction | Frame) -> None:
        effects = self._device.received(number, message, self._training.arithmetic)
        problems = [effect.problem for effect in effects if isinstance(effect, Violation)]
        if isinstance(message, Frame) and not problems and self._device.links[number].last_received != message.number:
            problems = ["its frame is not the next one on this link"]
        if problems:
            raise EfhcError(f"device {number} cannot be understood in iteration {self.k}: {problems[0]}")

    @np.errstate(over="ignore", invalid="ignore")
    def finish(self, received: Mapping[int, Messages]) -> IterationResult:
        for number in self.neighbours:  # ascending
            if received[number][IterationHeader].fired:
                self._receive(number, received[number][Frame])
            self._acknowledge(number)
        self._training.add_pull()
        if not np.isfinite(self._device.model).all():
            raise self._trainer.diverged(self.k)
        threshold = self._trainer.threshold(self.k)
        self._keep()
        return IterationResult(bool(self._frames), self._loss, self._training.drift, threshold, self._bits)
