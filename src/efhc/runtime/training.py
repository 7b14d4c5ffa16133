"""The learning problem of one device: batches, gradients, local steps, thresholds, Events 3 and 4, and half-steps.

The numbers are those that `efhc run` computes for this device. Nothing here waits or reads a clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import numpy as np

from efhc.base.arrays import Floats
from efhc.base.own_code import quoting
from efhc.core.cost import BITS_PER_NUMBER
from efhc.core.device import Step
from efhc.core.half_step_messages import Effect
from efhc.core.half_steps import Encoded, HalfSteps
from efhc.core.local_steps import LocalRows, Moment
from efhc.core.protocol import Model
from efhc.core.state import Diverged, Local
from efhc.core.uplink import Uplink
from efhc.kernels import model_loops as loops
from efhc.kernels.compiled_arithmetic import StepArithmetic
from efhc.scenarios.decisions import Decisions, drift_of, largest_drift
from efhc.scenarios.scenario import Scenario
from efhc.strategies.forms import Form
from efhc.strategies.parts.codecs import CodecPolicy
from efhc.strategies.parts.messages import Message, MessageError

COLUMNS = 64 * loops.TILE
"""Parameters that are mixed at a time: a whole number of tiles, so that the bits are those of whole rows."""
LOCAL = "local/"
"""What comes before the name of an array that a device does not share, in checkpoints and records."""

Gradient = tuple[Floats, float, Local]
"""A gradient, the loss on its batch, and the arrays that the device does not share after it."""


class Trainer:
    """The learning problem of one device."""

    def __init__(self, scenario: Scenario, device: int, form: Form) -> None:
        assert form.parts is not None
        self.scenario, self.device, self.form, self.parts = scenario, device, form, form.parts
        self._backend, self._reader = scenario.learner.backend, scenario.device_reader()
        self.decisions = Decisions(self.parts.trigger, form.own_memory, self._reader)
        """When the device sends."""
        self.parameters = self._backend.parameters
        """n"""
        self.dtype = np.dtype(scenario.learner.data.precision)
        self.local: Local = self._backend.initial_local(1, device)
        """The arrays that the device does not share, one row each."""
        self.rows = LocalRows(self.parts.local, 1, self.parameters, self.dtype.name)
        """The memory of local steps: momentum, drift correction and the like."""

    def warm_up(self) -> None:
        """Compile all that training needs."""
        model = self.initial_model()
        gradient, _, _ = self.gradient(0, model)
        self.mixed(model, gradient, 0.0, [Step(0, 0.5, model, model)])
        drift_of(model, model)

    def initial_model(self) -> Floats:
        """w_i(0), in memory of its own."""
        return self.scenario.initial_model(self.device)

    def threshold(self, k: int, bandwidth: float | None = None) -> float:
        """threshold_i(k); `bandwidth` is b_i if it is not the scenario's."""
        return float(self.decisions.threshold(self.device, k, bandwidth))

    def gradient(self, k: int, model: Floats) -> Gradient:
        """Return g_i(w_i(k)) in new memory. Raises `Diverged` if the loss is not finite."""
        batch = self._reader.batch(np.array([self.device]), np.array([k]))
        out = np.empty((1, self.parameters), dtype=self.dtype)
        losses, local = self._backend.grads(model[None], batch, self.local, out)
        if not np.isfinite(losses).all():
            raise self.diverged(k, "loss")
        return out[0], float(losses[0]), local

    def diverged(self, k: int, what: str = "model") -> Diverged:
        """Return the error of a loss or model of this device that is not finite."""
        return Diverged(k, what, np.arange(self.device + 1) != self.device)

    def local_steps(
        self, k: int, model: Floats, momentum: Callable[[], float]
    ) -> Generator[tuple[int, Floats], Gradient, tuple[float, Floats]]:
        """Make the local steps of iteration k from `model`. Returns the first loss, and their direction u - h.

        Yields the number of a batch and a model, and expects the gradient there. `momentum` returns the share of
        momentum that counts when that gradient has come.
        """
        steps, alpha = self.parts.local.steps, self.scenario.step_size(k)
        column, x, first = np.full((1, 1), alpha, self.dtype), model, 0.0
        for s in range(steps):
            gradient, loss, self.local = yield k * steps + s, x
            first = loss if s == 0 else first
            moment = Moment(column, np.array([k * steps + s + 1]), np.array([[momentum()]]))
            down = self.rows.descent([0], x[None], gradient[None], [alpha], moment)[0]
            if steps > 1:
                x = x - column[0] * down
        return first, down if steps == 1 else (model - x) / column[0]

    def descend(self, k: int, model: Floats, momentum: Callable[[], float]) -> tuple[float, Floats]:
        """Make the local steps of iteration k, as `local_steps` says, without anything between them."""
        working, gradient = self.local_steps(k, model, momentum), None
        try:
            while True:
                gradient = self.gradient(*(next(working) if gradient is None else working.send(gradient)))
        except StopIteration as done:
            loss, down = done.value
        return loss, down

    def mixed(self, model: Floats, gradient: Floats, alpha: float, steps: Sequence[Step]) -> Floats:
        """Events 3 and 4: w_i + sum beta (u_j - u_i) - alpha g_i, in the gradient's memory; returns it.

        `steps` come by ascending neighbour. Where each u_i is w_i itself, this is the row of P W - alpha G to the last
        bit. Models lie wherever they were received: a few columns of all are brought together at a time.
        """
        others: list[Model] = []
        weights: list[float] = []
        takes: list[bool] = []
        for step in steps:
            others.append(step.received)
            weights.append(step.beta)
            takes.append(step.sent is model)
            if step.sent is not model:
                others.append(step.sent)
                weights.append(-step.beta)
                takes.append(False)
        rows = len(others)
        terms = loops.AddedTerms(
            np.array([[0, 1, 0, 0], [0, 0, 0, rows]]),
            np.arange(2, 2 + rows),
            np.array(weights, self.dtype),
            np.array(takes, bool),
        )
        alphas, unused = np.array([alpha], self.dtype), np.empty(1)
        for left in range(0, self.parameters, COLUMNS):
            columns = slice(left, min(left + COLUMNS, self.parameters))
            pool = np.stack([array[columns] for array in (model, gradient, *others)])
            loops.mix_picked(pool, terms, alphas, unused, 0, 1)
            gradient[columns] = pool[1]
        return gradient

    # Checkpoints

    def tensors(self) -> dict[str, np.ndarray]:
        """Return all that the device remembers besides its model, by name. Later steps do not change it."""
        found = {LOCAL + name: np.asarray(rows) for name, rows in self.local.items()}
        found |= {name: rows.copy() for name, rows in self.rows.tensors().items()}
        return found | {f"trigger/{name}": rows[self.device].copy() for name, rows in self.decisions.memory.items()}

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Continue from the arrays that `tensors` returned. Raises `KeyError` if one is missing."""
        self.local = {name.removeprefix(LOCAL): rows for name, rows in tensors.items() if name.startswith(LOCAL)}
        names = self.rows.tensors().keys()
        if self.rows.arrays or names <= tensors.keys():  # checkpoints of version 0.2 may lack the step sizes alone
            self.rows.restore(tensors)
        for name, rows in self.decisions.memory.items():
            rows[self.device] = tensors[f"trigger/{name}"]


def combined(terms: Sequence[tuple[float, Floats]], rounded_to: str | None = None) -> Floats:
    """Return sum_t weight_t model_t as a new model; its numbers rounded to a shorter type, if one is given.

    A few columns are made at a time, so that nothing of the size of a model is held besides.
    """
    (weight, first), *others = terms
    total = np.empty_like(first)
    kind = first.dtype.type
    for left in range(0, len(first), COLUMNS):
        columns = slice(left, left + COLUMNS)
        part = total[columns]
        np.multiply(first[columns], kind(weight), out=part)
        for other, model in others:
            part += model[columns] * kind(other)
        if rounded_to is not None:
            # What is too large for the shorter type becomes the largest that it has: an infinity would be refused.
            largest = np.finfo(rounded_to).max
            part[:] = np.clip(part, -largest, largest).astype(rounded_to)
    return total


def problem_with_model(model: Floats, own: Floats | None, limit: float) -> str | None:
    """Return why a received model is refused, or None. `own` is this node's model, if it has one.

    The norm of the model may be at most `limit` times that of `own`, or times 1.
    """
    norm = norm_of(model)
    if not math.isfinite(norm) and not np.isfinite(model).all():
        return "its model is not finite"
    largest = float(np.finfo(np.float64).max)  # above this, a norm is infinite although all numbers are finite
    allowed = largest if own is None else limit * max(1.0, norm_of(own))
    if norm > allowed:
        return f"the norm of its model is {norm:.3g}, above the limit of {allowed:.3g}"
    return None


def norm_of(model: Floats) -> float:
    """||w||, summed in double precision without a copy."""
    return math.sqrt(np.einsum("i,i->", model, model, dtype=np.float64))


# Half-steps


class WireArithmetic(StepArithmetic):
    """A `core.half_steps.Arithmetic` whose payloads can be sent, kept on disk and sent again."""

    def __init__(self, codec: Any, problem_with: Callable[[Floats], str | None] = lambda model: None) -> None:
        """`problem_with` returns why a neighbour's model is refused, or None."""
        super().__init__(codec)
        self._messages = codec if isinstance(codec, CodecPolicy) else None
        self._problem_with = problem_with

    def encode(self, model: Floats, known: Floats, threshold: float, most: int | None = None) -> Encoded | None:
        """Return a message about model - known of at most `most` bits, or None if there is nothing to send."""
        threshold = self.fitted(model, known, threshold, most)
        codec = self._messages
        if codec is not None:
            with quoting(codec, f"codec {getattr(codec, 'kind', type(codec).__name__)}"):
                message = codec.message(model, known, threshold)
                return None if message is None else Encoded(message.applied_to(known), message.encode(), message.bits)
        after, bits = self._codec.send(model, known, threshold)
        if not bits:
            return None
        # Only the codec knows how its own message is written, so all numbers are sent.
        whole: Floats = np.array(after, model.dtype)
        message = Message(len(model), None, whole)
        return Encoded(whole, message.encode(), max(int(bits), message.bits))

    def decode(self, payload: bytes, known: Floats) -> Floats:
        """Return the model that is known after a payload. Raises `ValueError` if it is refused."""
        try:
            after = Message.decode(payload, len(known), known.dtype).applied_to(known)
        except MessageError as error:
            raise ValueError(str(error)) from None
        if problem := self._problem_with(after):
            raise ValueError(problem)
        return after


class HalfStepsTraining:
    """The local steps of a device with half-steps, and what it may send."""

    device: HalfSteps

    def __init__(self, trainer: Trainer, norm_limit: float) -> None:
        assert trainer.form.half_steps is not None
        self._trainer, self._parts, self._limit = trainer, trainer.parts, trainer.form.half_steps.limit
        self.arithmetic = WireArithmetic(
            self._parts.codec, lambda model: problem_with_model(model, self.device.model, norm_limit)
        )
        self.credit = 0.0
        """Bits that the device may send, if it has a budget."""
        self.spent = 0.0
        """The transmission time that the device has spent."""
        self.drift = 0.0
        """The largest drift over the links of the device in the last local step."""

    def begin(self, session: int, model: Floats | None) -> HalfSteps:
        """Set `device` to one that has made no step, and return it."""
        self.device = HalfSteps(self._trainer.device, session, self._parts.link_law, model)
        return self.device

    def restore(self, device: HalfSteps, session: int, facts: Mapping[str, Any]) -> HalfSteps:
        """Set `device` to one of a checkpoint, and return it."""
        self.device, self.credit, self.spent = device, facts["credit"], facts["spent"]
        device.session, device.law = session, self._parts.link_law
        return device

    def warm_up(self) -> None:
        """Compile all that frames need."""
        model = self._trainer.initial_model()
        self.arithmetic.encode(model + 1, model, 0.0)
        self.arithmetic.add_step([np.zeros_like(model) for _ in range(3)], 0.5, 0.5, model, model)

    def add_income(self, introduction_bits: float = 0.0) -> None:
        """Add the bits of one iteration to the credit, less those of introductions, which are sent in any case."""
        budget = self._parts.budget
        if budget is not None and self.device.links:
            income = budget.share * BITS_PER_NUMBER * self._trainer.parameters
            self.credit = self.credit + income - introduction_bits / max(1, self.device.degree)

    def spend(self, bits: float, bandwidth: float) -> None:
        """Add the transmission time of these bits."""
        self.spent += bits / max(1, self.device.degree) / BITS_PER_NUMBER / bandwidth

    def _affords(self, bits: float) -> bool:
        is_enough = bits <= self.credit
        self.credit -= bits if is_enough else 0.0
        return is_enough

    def step(
        self, loss: float, down: Floats, bandwidth: float | None = None, uplink: Uplink | None = None
    ) -> list[Effect]:
        """Make a local step in the direction `down`. Returns the effects, frames among them. Raises `Diverged`.

        `bandwidth` is b_i, if it is not the scenario's.
        """
        device, trainer = self.device, self._trainer
        k, alpha = device.k, trainer.scenario.step_size(device.k)
        y = device.model - down.dtype.type(alpha) * down
        if not np.isfinite(y).all():
            raise trainer.diverged(k)
        self.drift = largest_drift(y, device.links.values())
        decide = trainer.decisions.decide(device.number, k, y, (loss, self.spent, device.degree), bandwidth)
        affords = None if self._parts.budget is None else self._affords
        return device.stepped(y, alpha, decide, self.arithmetic, affords, self._limit, uplink)

    def add_pull(self) -> None:
        """Add the steps of links to the model: x += f. h and momentum follow."""
        found = self.device.take_pull()
        if found is not None:
            self.device.model = self._trainer.rows.pulled(0, self.device.model, *found)

    @property
    def facts(self) -> dict[str, float]:
        return {"credit": self.credit, "spent": self.spent}
