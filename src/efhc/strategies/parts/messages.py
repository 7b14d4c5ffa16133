"""A message of a codec, its size in bits, and its bytes on a wire.

A message names coordinates of the n parameters and says what their values are: as numbers, or as levels, whole numbers
l != 0 by which a scale is multiplied and added to what the receiver knows. If it names all coordinates, it is dense.

    part       bits                      present
    kind       8                         always: 2 b + 1 if dense, 2 b if not; b bits per level, 0 for numbers
    count      32                        not dense: s, the number of coordinates
    p          8                         not dense: the parameter of the Rice code of the positions
    scale      32 or 64                  levels
    numbers    32 or 64 each             numbers, in the precision of the models, low byte first
    positions  s (1 + p) + (n - s) / 2^p at most, not dense
    levels     b each                    levels: |l| - 1 in b - 1 bits, then 1 bit that is set if l < 0

The parts follow one another in this order, bits are packed from the lowest of a byte on, and zeros fill the last byte.
A gap g, the number of coordinates left out before the next one, is coded as floor(g / 2^p) zeros and a one, and the
lowest p bits of g. All zeros and ones come first, then the low bits of all gaps, so that both are read without a loop.
Because the gaps add up to at most n - s, the bits of a message are known from n and s: `Message.bits` depends on
nothing else and is never less than what `encode` needs. Decoding trusts nothing: the bytes may come from strangers.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike

from efhc.base.arrays import Floats, Ints
from efhc.base.errors import EfhcError

MOST_LEVEL_BITS = 32
MOST_RICE = 31
"""The largest p."""


class MessageError(EfhcError):
    """Bytes that are not a message for this receiver."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"not a message of a codec: {problem}")


def rice_parameter(parameters: int, sent: int) -> int:
    """The smallest p that minimises `position_bits`; p = 0 is a bitmap."""
    return min(range(MOST_RICE + 1), key=lambda p: position_bits(parameters, sent, p))


def position_bits(parameters: int, sent: int, p: int) -> int:
    """s (1 + p) + floor((n - s) / 2^p), the most bits that any s of n positions need in the Rice code of p."""
    return sent * (1 + p) + ((parameters - sent) >> p)


def dense_bits(parameters: int, width: int, level_bits: int = 0) -> int:
    """The bits of a dense message, in whole bytes: n numbers of `width` bits, or n levels and a scale of `width`."""
    return _whole_bytes(8 + (width + parameters * level_bits if level_bits else parameters * width))


def sparse_bits(parameters: int, sent: int, width: int, level_bits: int = 0) -> int:
    """The bits of a message with s of n coordinates, in whole bytes; 0 if s = 0."""
    if sent == 0:
        return 0
    values = width + sent * level_bits if level_bits else sent * width
    return _whole_bytes(48 + values + position_bits(parameters, sent, rice_parameter(parameters, sent)))


@lru_cache(maxsize=256)
def most_sent(parameters: int, bits: int, width: int, level_bits: int = 0) -> int:
    """Return the largest number of coordinates whose message has at most `bits` bits."""
    if not level_bits and dense_bits(parameters, width) <= bits:
        return parameters
    return bisect_right(range(1, parameters + 1), bits, key=lambda s: sparse_bits(parameters, s, width, level_bits))


def _whole_bytes(bits: int) -> int:
    return -(-bits // 8) * 8


@dataclass(frozen=True, eq=False)
class Message:
    """A change of what the neighbours know of a device's model."""

    parameters: int
    """n"""
    positions: Ints | None
    """The coordinates that are sent, in increasing order; None if all are, in a dense message."""
    values: Floats | Ints
    """One per coordinate that is sent: numbers in the precision of the models, or levels."""
    level_bits: int = 0
    """b, from 1 to 32: each level is one of -2^(b-1), ..., -1, 1, ..., 2^(b-1). 0: the values are numbers."""
    scale: np.floating[Any] | None = None
    """What a level is multiplied by, in the precision of the models; None for numbers."""

    @property
    def precision(self) -> np.dtype[Any]:
        """The precision of the models."""
        return self.values.dtype if self.scale is None else self.scale.dtype

    @property
    def bits(self) -> int:
        """The bits that the message counts, from n and s only; `encode` never needs more."""
        width = 8 * self.precision.itemsize
        if self.positions is None:
            return dense_bits(self.parameters, width, self.level_bits)
        return sparse_bits(self.parameters, len(self.positions), width, self.level_bits)

    @np.errstate(over="ignore", invalid="ignore")
    def applied_to(self, known: Floats) -> Floats:
        """Return what a receiver knows after the message if it knew `known`, (n,), which is not changed."""
        if known.shape != (self.parameters,) or known.dtype != self.precision:
            given = f"{known.shape} of {known.dtype}"
            raise MessageError(f"it is for ({self.parameters},) of {self.precision}, and the receiver knows {given}")
        where = slice(None) if self.positions is None else self.positions
        new = known.copy()
        if self.scale is None:
            new[where] = self.values
        else:
            new[where] += self.values.astype(self.precision) * self.scale
        return new

    def encode(self) -> bytes:
        """Return the bytes of the message."""
        low_byte_first = self.precision.newbyteorder("<")
        parts = [bytes([2 * self.level_bits + (self.positions is None)])]
        bits: list[np.ndarray] = []
        if self.positions is not None:
            p = rice_parameter(self.parameters, len(self.positions))
            parts.append(struct.pack("<IB", len(self.positions), p))
            gaps = np.diff(self.positions, prepend=-1) - 1
            bits += [_unary(gaps >> p), _bits_of(gaps, p)]
        if self.scale is None:
            parts.append(self.values.astype(low_byte_first).tobytes())
        else:
            parts.append(self.scale.astype(low_byte_first).tobytes())
            sizes, b = np.abs(self.values) - 1, self.level_bits
            bits.append(_bits_of(sizes | (self.values < 0).astype(np.int64) << (b - 1), b))
        if bits:
            parts.append(np.packbits(np.concatenate(bits), bitorder="little").tobytes())
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes, parameters: int, precision: DTypeLike) -> Self:
        """Return the message for n = `parameters` that `data` holds; raises `MessageError` if it holds none.

        The memory that this takes is bounded by a multiple of n, whatever `data` is.
        """
        bytes_left = _BitReader(data)
        kind = bytes_left.take(1)[0]
        level_bits, is_dense = divmod(kind, 2)
        if level_bits > MOST_LEVEL_BITS:
            raise MessageError(f"its kind is {kind}, the largest is {2 * MOST_LEVEL_BITS + 1}")
        count, p = (parameters, 0) if is_dense else struct.unpack("<IB", bytes_left.take(5))
        if not 1 <= count <= parameters:
            raise MessageError(f"it has {count} coordinates of {parameters}")
        if p > MOST_RICE:
            raise MessageError(f"its Rice parameter is {p}, the largest is {MOST_RICE}")
        numbers = bytes_left.numbers(1 if level_bits else count, np.dtype(precision))
        if level_bits and not numbers[0] > 0:
            raise MessageError(f"its scale is {numbers[0]}, not a positive number")
        most_bits = count * level_bits + (0 if is_dense else position_bits(parameters, count, p))
        bits = _Bits(bytes_left.rest(_whole_bytes(most_bits) // 8))
        positions = None if is_dense else _positions(bits, parameters, count, p)
        levels = _levels(bits.numbers(count, level_bits), level_bits) if level_bits else None
        bits.end()
        if levels is None:
            return cls(parameters, positions, numbers)
        return cls(parameters, positions, levels, level_bits, numbers[0])


def _positions(bits: _Bits, parameters: int, count: int, p: int) -> Ints:
    quotients = bits.unary(count, (parameters - count) >> p)
    positions: Ints = np.cumsum((quotients << p | bits.numbers(count, p)) + 1) - 1
    if positions[-1] >= parameters:
        raise MessageError(f"it has coordinate {positions[-1]} of {parameters}")
    return positions


def _levels(codes: Ints, level_bits: int) -> Ints:
    is_negative = codes >> (level_bits - 1) != 0
    sizes = (codes & ((1 << (level_bits - 1)) - 1)) + 1
    return np.where(is_negative, -sizes, sizes)


# Bits, one per byte of an array, in whole passes over arrays


def _bits_of(numbers: Ints, width: int) -> np.ndarray:
    """The lowest `width` bits of each number, the lowest first; `width` is at most 32."""
    in_bytes = numbers.astype("<u4").view(np.uint8).reshape(-1, 4)
    return np.unpackbits(in_bytes, axis=1, count=width, bitorder="little").ravel()


def _unary(numbers: Ints) -> np.ndarray:
    """For each number that many zeros, and a one."""
    ends = np.cumsum(numbers + 1) - 1
    bits = np.zeros(ends[-1] + 1, np.uint8)
    bits[ends] = 1
    return bits


class _BitReader:
    """The bytes of a message that are not read yet."""

    def __init__(self, data: bytes) -> None:
        self._left = memoryview(data)

    def take(self, count: int) -> memoryview:
        if len(self._left) < count:
            raise MessageError(f"it ends {count - len(self._left)} bytes too early")
        taken, self._left = self._left[:count], self._left[count:]
        return taken

    def numbers(self, count: int, precision: np.dtype[Any]) -> Floats:
        """Take finite numbers."""
        taken = np.frombuffer(self.take(count * precision.itemsize), precision.newbyteorder("<"))
        numbers: Floats = taken.astype(precision)
        if not np.isfinite(numbers).all():
            raise MessageError("it has a number that is not finite")
        return numbers

    def rest(self, most: int) -> memoryview:
        """Take all that is left. Raises `MessageError` if that is more than `most` bytes."""
        if len(self._left) > most:
            raise MessageError(f"it is {len(self._left) - most} bytes too long")
        return self.take(len(self._left))


class _Bits:
    """The bits of some bytes, and how many of them were read."""

    def __init__(self, data: memoryview) -> None:
        self._bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
        self._read = 0

    def numbers(self, count: int, width: int) -> Ints:
        """Read numbers of `width` bits each; see `_bits_of`."""
        end = self._read + count * width
        if end > len(self._bits):
            raise MessageError(f"it ends {end - len(self._bits)} bits too early")
        packed = np.packbits(self._bits[self._read : end].reshape(count, width), axis=1, bitorder="little")
        in_bytes = np.zeros((count, 4), np.uint8)
        in_bytes[:, : packed.shape[1]] = packed
        self._read = end
        return in_bytes.view("<u4").ravel().astype(np.int64)

    def unary(self, count: int, most: int) -> Ints:
        """Read numbers that add up to at most `most`; see `_unary`."""
        ends = np.flatnonzero(self._bits[self._read : self._read + count + most])[:count]
        if len(ends) < count:
            raise MessageError(f"it has {len(ends)} of {count} positions below the number of parameters")
        self._read += int(ends[-1]) + 1
        return np.diff(ends, prepend=-1) - 1

    def end(self) -> None:
        """Refuse what follows but zeros that fill the last byte."""
        left = self._bits[self._read :]
        if len(left) >= 8 or left.any():
            raise MessageError(f"{len(left)} bits follow its end")
