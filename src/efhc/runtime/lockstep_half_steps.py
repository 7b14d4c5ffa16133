"""The link law `half-steps` on a node in lockstep: the device of `core.half_steps`, and a barrier in each iteration.

Both ends know the graph. So a link that comes begins with the models of that iteration, and at the barrier an end knows
that the other has all that was sent to it: nothing is acknowledged. Tokens name the iteration in which a link came, so
an iteration that is made again says the same again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from efhc.base.arrays import Floats
from efhc.base.errors import EfhcError
from efhc.core.cost import BITS_PER_NUMBER, whole_message_bits
from efhc.core.half_steps import (
    Acknowledgement,
    Frame,
    HalfSteps,
    Introduction,
    Send,
    TakeBack,
    Violation,
)
from efhc.core.local_rows import LocalRows
from efhc.core.local_steps import Moment
from efhc.core.state import Local
from efhc.runtime.lockstep_device import Heard, Iteration, LockstepDevice, Made
from efhc.runtime.messages import IterationHeader
from efhc.runtime.mode import problem_with_model
from efhc.runtime.state.half_steps_contents import half_steps_as_json, half_steps_from_json, snapshot
from efhc.runtime.state.iterations import LOCAL, IterationState
from efhc.runtime.training import Trainer
from efhc.runtime.wire_arithmetic import WireArithmetic
from efhc.scenarios.decisions import largest_drift


@dataclass
class HalfStepsIteration(Iteration):
    """Introductions on links that are new; then a header to each neighbour, and a frame where its flag is set."""

    introductions: dict[int, Introduction]
    frames: dict[int, Frame] = field(default_factory=dict)

    def says(self, number: int, heard: Heard) -> list[Any]:
        said: list[Any] = [self.introductions[number]] if number in self.introductions else []
        if self.is_decided:
            said.append(IterationHeader(self.k, number in self.frames, len(self.neighbours)))
            said += [self.frames[number]] if number in self.frames else []
        return said

    def lacks(self, number: int, heard: Heard) -> bool:
        if not self.is_decided:
            return number in self.introductions and Introduction not in heard
        header = heard.get(IterationHeader)
        return header is None or (header.fired and Frame not in heard)


class _Kept(NamedTuple):
    """A device between two iterations."""

    device: HalfSteps
    tensors: dict[str, np.ndarray]
    local: Local
    credit: float
    spent: float


class LockstepHalfSteps(LockstepDevice):
    """A device that sends frames."""

    messages = (IterationHeader, Introduction, Frame)
    _device: HalfSteps

    def __init__(self, trainer: Trainer, norm_limit: float) -> None:
        super().__init__(trainer)
        assert trainer.form.half_steps is not None
        self._law, self._parts = trainer.form.half_steps, trainer.parts
        self._arithmetic = WireArithmetic(
            self._parts.codec, lambda model: problem_with_model(model, self.model, norm_limit)
        )
        self._rows = LocalRows(self._parts.local, 1, trainer.parameters, trainer.dtype.name)
        self._bandwidth = float(trainer.scenario.bandwidths.values[self._number])
        self._credit, self._spent = 0.0, 0.0
        """Bits that the device may send, if it has a budget; the transmission time that it has spent."""

    @property
    def model(self) -> Floats:
        model: Floats = self._device.model
        return model

    # Checkpoints

    def begin(self, state: IterationState | None) -> None:
        if state is None:
            self._device = HalfSteps(self._number, 0, self._parts.link_law, self._trainer.initial_model())
            return
        tensors = {"array-0": state.model, **state.tensors}
        arrays = {
            int(name.removeprefix("array-")): array for name, array in tensors.items() if name.startswith("array-")
        }
        self._device = snapshot(half_steps_from_json(state.facts["device"], arrays))
        self._device.law = self._parts.link_law
        self._credit, self._spent = state.facts["credit"], state.facts["spent"]
        self._rows.restore(tensors)
        for name, rows in self._trainer.decisions.memory.items():
            rows[self._number] = tensors[f"trigger/{name}"]
        self._local(tensors)

    def _kept(self) -> _Kept:
        tensors = {name: rows.copy() for name, rows in self._rows.tensors().items()}
        for name, rows in self._trainer.decisions.memory.items():
            tensors[f"trigger/{name}"] = rows[self._number].copy()
        return _Kept(snapshot(self._device), tensors, self._trainer.local, self._credit, self._spent)

    def _state(self, k: int, kept: _Kept) -> IterationState:
        model, arrays = kept.device.model, dict[str, np.ndarray]()
        numbers = {id(model): 0}

        def number(array: np.ndarray) -> int:
            known = numbers.setdefault(id(array), len(numbers))
            if known:
                arrays[f"array-{known}"] = array
            return known

        device = half_steps_as_json(kept.device, number)
        local = {LOCAL + name: np.asarray(rows) for name, rows in kept.local.items()}
        facts = {"device": device, "credit": kept.credit, "spent": kept.spent}
        return IterationState(k, model, arrays | kept.tensors | local, facts)

    # Iterations

    def _look(self, k: int, neighbours: dict[int, int], new: frozenset[int]) -> Iteration:
        device = self._device
        for number in sorted(device.links.keys() - neighbours.keys()):
            for effect in device.link_down(number):
                assert isinstance(effect, TakeBack), "at the barrier, nothing is under way"
                self._rows.take_back(0, effect.taught)
        shared = self.model if k == 0 and not new and self._all_start_equal() else None
        for number in neighbours:
            if number not in device.links:
                device.count = k
                device.link_up(number, is_new=number in new, shared_start=shared)
        said = {one.neighbour: one.message for one in device.announce() if isinstance(one, Send)}
        for number, degree in neighbours.items():
            if device.links[number].heard is not None:
                self._settle(number, degree)
        return HalfStepsIteration(
            k, neighbours, False, {n: message for n, message in said.items() if isinstance(message, Introduction)}
        )

    def _all_start_equal(self) -> bool:
        scenario = self._trainer.scenario
        devices = range(len(scenario.bandwidths.values))
        return all(np.array_equal(scenario.initial_model(number), self.model) for number in devices)

    def _settle(self, number: int, degree: int) -> None:
        """A neighbour has all that was sent to it, and this device all that the neighbour has sent."""
        end = self._device.links[number]
        assert end.partner is not None
        message = Acknowledgement(end.partner, end.token, end.out, end.inn, degree)
        self._device.received(number, message, self._arithmetic)

    def descend(self, iteration: Any) -> None:
        k, steps, trainer, x = iteration.k, self._parts.local.steps, self._trainer, self.model
        alpha = trainer.step_size(k)
        column, gate = np.full((1, 1), alpha, trainer.dtype), np.array([[self._device.gate]])
        for s in range(steps):
            gradient, loss, trainer.local = trainer.gradient(k * steps + s, x)
            if s == 0:
                self._loss = loss
            moment = Moment(column, np.array([k * steps + s + 1]), gate)
            down = self._rows.descent([0], x[None], gradient[None], [alpha], moment)[0]
            if steps > 1:
                x = x - column[0] * down
        self._down = down if steps == 1 else (self.model - x) / column[0]

    @np.errstate(over="ignore", invalid="ignore")
    def send(self, iteration: HalfStepsIteration, heard: Mapping[int, Heard]) -> None:
        device, trainer, k = self._device, self._trainer, iteration.k
        for number in iteration.introductions:
            self._receive(number, heard[number][Introduction], k)
            self._settle(number, iteration.neighbours[number])
        alpha = trainer.step_size(k)
        y = device.model - self._down.dtype.type(alpha) * self._down
        if not np.isfinite(y).all():
            raise self._diverged(k)
        self._drift = largest_drift(y, device.links.values())
        bits = dict.fromkeys(iteration.introductions, whole_message_bits(y[None]))
        degree, budget = max(1, device.degree), self._parts.budget
        if budget is not None and device.links:
            income = budget.share * BITS_PER_NUMBER * trainer.parameters
            self._credit = self._credit + income - sum(bits.values()) / degree  # introductions on credit if need be
        decide = trainer.decisions.decide(self._number, k, y, (self._loss, self._spent, device.degree))
        affords = None if budget is None else self._affords
        effects = device.stepped(y, alpha, decide, self._arithmetic, affords, self._law.limit)
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, Frame):
                iteration.frames[effect.neighbour] = effect.message
                bits[effect.neighbour] = bits.get(effect.neighbour, 0) + effect.message.bits
        self._spent += sum(bits.values()) / degree / BITS_PER_NUMBER / self._bandwidth
        self._bits = bits
        iteration.is_decided = True

    def _affords(self, bits: float) -> bool:
        is_enough = bits <= self._credit
        self._credit -= bits if is_enough else 0.0
        return is_enough

    def _receive(self, number: int, message: Introduction | Frame, k: int) -> None:
        effects = self._device.received(number, message, self._arithmetic)
        problems = [effect.problem for effect in effects if isinstance(effect, Violation)]
        if isinstance(message, Frame) and not problems and self._device.links[number].inn != message.number:
            problems = ["its frame is not the next one on this link"]
        if problems:
            raise EfhcError(f"device {number} cannot be understood in iteration {k}: {problems[0]}")

    @np.errstate(over="ignore", invalid="ignore")
    def _finish(self, iteration: HalfStepsIteration, heard: Mapping[int, Heard]) -> Made:
        device, k = self._device, iteration.k
        for number, degree in iteration.neighbours.items():  # ascending
            if heard[number][IterationHeader].fired:
                self._receive(number, heard[number][Frame], k)
            self._settle(number, degree)
        found = device.take_pull()
        if found is not None:
            device.model = self._rows.pulled(0, device.model, *found)
        if not np.isfinite(device.model).all():
            raise self._diverged(k)
        return Made(bool(iteration.frames), self._loss, self._drift, self._trainer.threshold(k), self._bits)
