"""What a device sends of the difference between its model and what its neighbours know of it.

With y: `model`, x_hat: `known`, delta = y - x_hat, all of n parameters: a coordinate l may be sent if
|delta_l| >= `threshold`; a threshold of 0 or less allows all. All arithmetic is in the precision of the models except
where a codec says otherwise, and so defined that compiled loops in any order of summation give the same bits
(`efhc.kernels.codecs`). `efhc.strategies.parts.messages` says how many bits a message has.

A codec of your own needs only `send`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from efhc.base.arrays import Flags, Floats
from efhc.base.policy import Policy
from efhc.base.registry import Family
from efhc.strategies.parts.messages import MOST_LEVEL_BITS, Message, dense_bits, most_sent, sparse_bits


class CodecPolicy(Policy, ABC):
    """A codec that a config can name."""

    @abstractmethod
    def message(self, model: Floats, known: Floats, threshold: float) -> Message | None:
        """Return what is sent, None if that is nothing."""

    @property
    def parameter(self) -> int | float:
        """The number that the compiled loop of this kind takes, see `efhc.kernels.codecs.SEND_ROWS`. Default: none."""
        return 0

    @property
    def level_bits(self) -> int:
        """Bits per coordinate that is sent; 0 for whole numbers."""
        return 0

    def most_coordinates(self, bits: int, parameters: int, number_bytes: int) -> int:
        """Return how many of n coordinates fit into a message of `bits` bits."""
        return most_sent(parameters, bits, 8 * number_bytes, self.level_bits)

    def send(self, model: Floats, known: Floats, threshold: float) -> tuple[Floats, int]:
        """Return what the neighbours know afterwards, (n,), and the bits of the message; 0 if nothing is sent.

        Only coordinates with |model - known| >= `threshold` may change. `known` is not changed.
        """
        message = self.message(model, known, threshold)
        return (known.copy(), 0) if message is None else (message.applied_to(known), message.bits)


class FullCodec(CodecPolicy):
    """x_hat_l becomes y_l: all coordinates that the threshold allows are sent as numbers."""

    kind: Literal["full"] = "full"

    def message(self, model: Floats, known: Floats, threshold: float) -> Message | None:
        if threshold <= 0:
            return Message(len(model), None, model.copy())
        return _numbers(model, known, _reaches(_difference(model, known), threshold))


class LevelsCodec(CodecPolicy):
    """x_hat_l grows by a whole number of steps: q_l = level_l step, of L = 2^(bits - 1) steps at most.

        step = max_l |delta_l| / L
        level_l = rint(delta_l (L / max_l |delta_l|)), clipped to -L ... L

    Coordinates whose level is 0 are not sent. Nothing is sent if a step or its inverse is out of the range of the
    precision, or a difference is not finite.
    """

    kind: Literal["levels"] = "levels"
    bits: int = Field(default=3, ge=1, le=MOST_LEVEL_BITS)
    """Bits per level -L ... L (without 0), L = 2^(bits - 1)."""

    @np.errstate(over="ignore", invalid="ignore")
    def message(self, model: Floats, known: Floats, threshold: float) -> Message | None:
        delta = _difference(model, known)
        largest, most = np.abs(delta).max(), delta.dtype.type(2 ** (self.bits - 1))
        if not 0 < largest < np.inf:
            return None
        step, inverse = largest / most, most / largest
        if step == 0 or inverse == np.inf:
            return None
        levels = np.clip(np.rint(delta * inverse), -most, most)
        positions = np.flatnonzero((levels != 0) & _reaches(delta, threshold))
        if not len(positions):
            return None
        return Message(len(model), positions, levels[positions].astype(np.int64), self.bits, step)

    @property
    def parameter(self) -> int:
        return self.bits

    @property
    def level_bits(self) -> int:
        return self.bits


class SignCodec(CodecPolicy):
    """x_hat_l moves by one length: q_l = sign(delta_l) mean |delta| over the coordinates sent, where sign(0) = 1.

    For the mean, each |delta_l| is rounded to a multiple of 2^(e + c - 53), where max_l |delta_l| < 2^e and n < 2^c, so
    that the sum in double precision is exact in any order. If the mean is 0 or not finite, nothing is sent.
    """

    kind: Literal["sign"] = "sign"

    @property
    def level_bits(self) -> int:
        return 1

    @np.errstate(over="ignore", invalid="ignore")
    def message(self, model: Floats, known: Floats, threshold: float) -> Message | None:
        delta = _difference(model, known)
        chosen, largest = _reaches(delta, threshold), np.abs(delta).max()
        if not (chosen.any() and 0 < largest < np.inf):
            return None
        exponent = _exponent_of_unit(float(largest), len(model))
        in_units = np.rint(np.ldexp(np.abs(delta[chosen]).astype(np.float64), -exponent))
        mean = delta.dtype.type(np.ldexp(in_units.sum() / len(in_units), exponent))
        if not 0 < mean < np.inf:
            return None
        signs = np.where(delta[chosen] < 0, -1, 1)
        return Message(len(model), None if chosen.all() else np.flatnonzero(chosen), signs, 1, mean)


class TopKCodec(CodecPolicy):
    """x_hat_l becomes y_l for the k = max(1, round(share n)) largest |delta_l|; of equal ones, the first.

    Coordinates below the threshold, or without a difference, are not sent.
    """

    kind: Literal["top-k"] = "top-k"
    share: float = Field(default=0.01, gt=0, le=1)
    """Share of the coordinates that is sent."""

    def message(self, model: Floats, known: Floats, threshold: float) -> Message | None:
        delta = _difference(model, known)
        sizes = np.where(_reaches(delta, threshold), np.abs(delta), 0)
        k = max(1, round(self.share * len(sizes)))
        least = np.partition(sizes, -k)[-k]
        among = sizes > least
        among[np.flatnonzero(sizes == least)[: k - np.count_nonzero(among)]] = True
        return _numbers(model, known, among & (sizes > 0))

    @property
    def parameter(self) -> float:
        return self.share


@np.errstate(over="ignore", invalid="ignore")
def _difference(model: Floats, known: Floats) -> Floats:
    delta: Floats = model - known
    return delta


def _reaches(delta: Floats, threshold: float) -> Flags:
    """Whether |delta_l| >= threshold, compared in double precision."""
    reaches: Flags = np.abs(delta) >= np.float64(threshold)
    return reaches


def _numbers(model: Floats, known: Floats, chosen: Flags) -> Message | None:
    """The chosen coordinates as numbers: in a dense message, with what is known of the others, if that is shorter."""
    sent, width = int(np.count_nonzero(chosen)), 8 * model.dtype.itemsize
    if sent == 0:
        return None
    if dense_bits(len(model), width) <= sparse_bits(len(model), sent, width):
        return Message(len(model), None, np.where(chosen, model, known))
    return Message(len(model), np.flatnonzero(chosen), model[chosen])


def _exponent_of_unit(largest: float, parameters: int) -> int:
    """Return e + c - 53 where `largest` < 2^e and `parameters` < 2^c; at least -1022: 2^1022 is still a number."""
    return max(-1022, math.frexp(largest)[1] + parameters.bit_length() - 53)


CODECS = Family(CodecPolicy, (__name__,), ("send",), default="full")
AnyCodec = Annotated[CodecPolicy, CODECS]
