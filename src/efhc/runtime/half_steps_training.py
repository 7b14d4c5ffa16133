"""A device with half-steps on a node: its local step, its budget, and codec messages as bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from efhc.base.arrays import Floats
from efhc.base.own_code import quoting
from efhc.core.cost import BITS_PER_NUMBER
from efhc.core.half_step_messages import Effect
from efhc.core.half_steps import Encoded, HalfSteps
from efhc.core.uplink import Uplink
from efhc.kernels.step_arithmetic import StepArithmetic
from efhc.runtime.mode import problem_with_model
from efhc.runtime.training import Trainer
from efhc.scenarios.decisions import largest_drift
from efhc.strategies.parts.codecs import CodecPolicy
from efhc.strategies.parts.messages import Message, MessageError


class WireArithmetic(StepArithmetic):
    """A `core.half_steps.Arithmetic` whose payloads can be sent, kept on disk and sent again."""

    def __init__(self, codec: Any, problem_with: Callable[[Floats], str | None] = lambda model: None) -> None:
        """`problem_with` returns why a neighbour's model is refused, or None."""
        super().__init__(codec)
        self._messages = codec if isinstance(codec, CodecPolicy) else None
        self._problem_with = problem_with

    def encode(self, model: Floats, told: Floats, threshold: float, most: int | None = None) -> Encoded | None:
        """Return a message about model - told of at most `most` bits, or None if there is nothing to send."""
        threshold = self.fitted(model, told, threshold, most)
        codec = self._messages
        if codec is not None:
            with quoting(codec, f"codec {getattr(codec, 'kind', type(codec).__name__)}"):
                message = codec.message(model, told, threshold)
                return None if message is None else Encoded(message.applied_to(told), message.encode(), message.bits)
        after, bits = self._codec.send(model, told, threshold)
        if not bits:
            return None
        # Only the codec knows how its own message is written, so all numbers are sent.
        known: Floats = np.array(after, model.dtype)
        message = Message(len(model), None, known)
        return Encoded(known, message.encode(), max(int(bits), message.bits))

    def decode(self, payload: bytes, heard: Floats) -> Floats:
        """Return the model that is known after a payload. Raises `ValueError` if it is refused."""
        try:
            after = Message.decode(payload, len(heard), heard.dtype).applied_to(heard)
        except MessageError as error:
            raise ValueError(str(error)) from None
        if problem := self._problem_with(after):
            raise ValueError(problem)
        return after


class HalfStepsTraining:
    """The local steps of a device with half-steps, and what it may send. `device` is set by the mode of the node."""

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

    def new_device(self, session: int, model: Floats | None) -> HalfSteps:
        """Return a device that has made no step."""
        return HalfSteps(self._trainer.device, session, self._parts.link_law, model)

    def warm_up(self) -> None:
        """Compile all that frames need."""
        model = self._trainer.initial_model()
        sums = [np.zeros_like(model) for _ in range(3)]
        arithmetic = WireArithmetic(self._parts.codec)
        arithmetic.encode(model + 1, model, 0.0)
        arithmetic.add_step(sums, 0.5, 0.5, model, model)

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
        k, alpha = device.k, trainer.step_size(device.k)
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
        """What a checkpoint keeps."""
        return {"credit": self.credit, "spent": self.spent}
