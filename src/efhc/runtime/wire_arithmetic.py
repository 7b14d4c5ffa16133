"""The arithmetic of `core.half_steps` on nodes: payloads are the bytes of a codec's message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from efhc.base.arrays import Floats
from efhc.base.own_code import quoting
from efhc.core.half_steps import Encoded
from efhc.kernels.step_arithmetic import StepArithmetic
from efhc.strategies.parts.codecs import CodecPolicy
from efhc.strategies.parts.messages import Message, MessageError


class WireArithmetic(StepArithmetic):
    """A `core.half_steps.Arithmetic` whose payloads can be sent, kept on disk and sent again."""

    def __init__(self, codec: Any, problem_with: Callable[[Floats], str | None] = lambda model: None) -> None:
        """`problem_with` returns why a neighbour's model is refused, if it is."""
        super().__init__(codec)
        self._messages = codec if isinstance(codec, CodecPolicy) else None
        self._problem_with = problem_with

    def encode(self, model: Floats, told: Floats, threshold: float, most: int | None = None) -> Encoded | None:
        """Return what is sent of model - told, in at most so many bits; None if that is nothing."""
        threshold = self.fitted(model, told, threshold, most)
        codec = self._messages
        if codec is not None:
            with quoting(codec, f"codec {getattr(codec, 'kind', type(codec).__name__)}"):
                message = codec.message(model, told, threshold)
                return None if message is None else Encoded(message.applied_to(told), message.encode(), message.bits)
        after, bits = self._codec.send(model, told, threshold)
        if not bits:
            return None
        # Only the codec knows how its own message is written: all numbers are sent.
        known: Floats = np.array(after, model.dtype)
        message = Message(len(model), None, known)
        return Encoded(known, message.encode(), max(int(bits), message.bits))

    def decode(self, payload: bytes, heard: Floats) -> Floats:
        """Return what is known after a payload. Raises `ValueError` if the payload or what it makes is refused."""
        try:
            after = Message.decode(payload, len(heard), heard.dtype).applied_to(heard)
        except MessageError as error:
            raise ValueError(str(error)) from None
        if problem := self._problem_with(after):
            raise ValueError(problem)
        return after
