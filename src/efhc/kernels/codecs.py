# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""Codecs, compiled: what `send` of each codec in `efhc.strategies.parts.codecs` says, for many devices at once.

The loops in `SEND_ROWS` give the same numbers and bits as `send`. Compiled loops may reorder sums and join a product
and a sum to one rounding, so nothing here depends on either: the largest is found among whole numbers, sums are exact,
and a product is written to memory before it is added.
"""

from __future__ import annotations

import math

import numpy as np
from numba.core import types
from numba.extending import lower_builtin, type_callable

from efhc.base.compiling import compiled

DIGIT = 11
"""Bits by which `kth_largest` sorts at once."""


# The sizes of messages, as in efhc.strategies.parts.messages


@compiled
def dense_bits(parameters, width, level_bits):
    """8 + n width, or 8 + width + n b for levels of b bits, in whole bytes."""
    bits = 8 + width + parameters * level_bits if level_bits else 8 + parameters * width
    return (bits + 7) // 8 * 8


@compiled
def sparse_bits(parameters, sent, width, level_bits):
    """48 + values + min_p (s (1 + p) + floor((n - s) / 2^p)), in whole bytes; 0 if s = 0."""
    if sent == 0:
        return 0
    positions = parameters
    for p in range(1, 32):
        positions = min(positions, sent * (1 + p) + ((parameters - sent) >> p))
    values = width + sent * level_bits if level_bits else sent * width
    return (48 + values + positions + 7) // 8 * 8


# Steps of the codecs


def whole_number(number):
    """The memory of a number as a whole number of the same size. Those of numbers >= 0 sort alike."""
    return number.view(np.dtype(f"i{number.itemsize}"))


def number_of(whole):
    """The number whose memory this is."""
    return whole.view(np.dtype(f"f{whole.itemsize}"))


# To numba, each is one instruction. Views of arrays would do as well, and take half a second to compile.
_WHOLE = {types.float32: types.int32, types.float64: types.int64}
_NUMBER = {whole: number for number, whole in _WHOLE.items()}


@type_callable(whole_number)
def _type_whole_number(context):
    return _WHOLE.get


@type_callable(number_of)
def _type_number_of(context):
    return _NUMBER.get


@lower_builtin(whole_number, types.Float)
@lower_builtin(number_of, types.Integer)
def _same_memory(context, builder, signature, arguments):
    return builder.bitcast(arguments[0], context.get_value_type(signature.return_type))


@compiled
def rounded_up(threshold, like):
    """The smallest number of the precision of `like` that is at least the threshold."""
    near = like.dtype.type(threshold)
    if near < threshold:
        near = np.nextafter(near, like.dtype.type(np.inf))
    return near


@compiled
def write_difference(y, x, delta):
    """delta = y - x"""
    for t in range(len(delta)):
        delta[t] = y[t] - x[t]


@compiled
def largest_of(delta):
    """max_l |delta_l|; NaN if any is NaN. Whole numbers take one pass of vector instructions, numbers do not."""
    largest = whole_number(abs(delta[0]))
    for t in range(1, len(delta)):
        largest = max(largest, whole_number(abs(delta[t])))
    return number_of(largest)


@compiled
def add(x, q, out):
    """out = x + q; x itself where q = 0."""
    for t in range(len(out)):
        out[t] = x[t] + q[t] if q[t] != 0 else x[t]


@compiled
def to_levels(delta, largest, level_bits, threshold):
    """Replace delta by level step, 0 where nothing is sent; return the number of coordinates sent."""
    precision = delta.dtype.type
    zero, most = precision(0), precision(2 ** (level_bits - 1))
    if not 0 < largest < np.inf:
        return 0
    step, inverse = largest / most, most / largest
    if step == 0 or inverse == np.inf:
        return 0
    sent = 0
    for t in range(len(delta)):
        level = min(max(np.rint(delta[t] * inverse), -most), most)
        is_sent = (level != 0) & (abs(delta[t]) >= threshold)
        sent += is_sent
        delta[t] = level * step if is_sent else zero
    return sent


@compiled
def to_signs(delta, largest, threshold):
    """Replace delta by sign(delta) mean |delta|, 0 where nothing is sent; return the number of coordinates sent."""
    precision, parameters = delta.dtype.type, len(delta)
    if not 0 < largest < np.inf:
        return 0
    exponent = math.frexp(np.float64(largest))[1] - 53
    while parameters:
        exponent, parameters = exponent + 1, parameters >> 1
    exponent = max(-1022, exponent)
    inverse, total, sent = math.ldexp(1.0, -exponent), 0.0, 0
    for t in range(len(delta)):
        is_sent = abs(delta[t]) >= threshold
        sent += is_sent
        in_units = np.rint(np.float64(abs(delta[t])) * inverse)
        total += in_units if is_sent else 0.0
    if sent == 0:
        return 0
    mean = precision(np.ldexp(total / sent, exponent))  # a product could be reordered, and overflow
    if not 0 < mean < np.inf:
        return 0
    for t in range(len(delta)):
        signed = -mean if delta[t] < 0 else mean
        delta[t] = signed if abs(delta[t]) >= threshold else precision(0)
    return sent


@compiled
def kth_largest(sizes, k):
    """The k-th largest of numbers >= 0, as `whole_number`, and how many of its equals are among the k largest."""
    bits = 8 * sizes.itemsize
    shift, prefix, above = bits, 0, 0
    counts = np.empty(2**DIGIT, np.int64)
    while shift > 0:
        low = max(shift - DIGIT, 0)
        for digit in range(len(counts)):
            counts[digit] = 0
        for t in range(len(sizes)):
            whole = whole_number(sizes[t])
            if shift == bits or whole >> shift == prefix:
                counts[(whole >> low) & (2 ** (shift - low) - 1)] += 1
        digit = 2 ** (shift - low) - 1
        while above + counts[digit] < k:
            above += counts[digit]
            digit -= 1
        prefix, shift = (prefix << (shift - low)) | digit, low
    return prefix, k - above


@compiled
def copy(row, out):
    """out = row"""
    for t in range(len(out)):
        out[t] = row[t]


# What each codec sends of the row y to those who know x: `out` is what they know after the message, whose bits are
# returned. `delta` is for numbers in between.


@compiled
def send_full(parameter, y, x, threshold, delta, out):
    """out = y where |y - x| reaches the threshold, else x; all of y if there is no threshold."""
    n, width, sent = len(out), 8 * out.itemsize, 0
    if threshold <= 0:
        copy(y, out)
        return dense_bits(n, width, 0)
    limit = rounded_up(threshold, out)
    for t in range(n):
        is_sent = abs(y[t] - x[t]) >= limit
        sent += is_sent
        out[t] = y[t] if is_sent else x[t]
    return min(dense_bits(n, width, 0), sparse_bits(n, sent, width, 0))


@compiled
def send_levels(level_bits, y, x, threshold, delta, out):
    """out = x + level step"""
    write_difference(y, x, delta)
    sent = to_levels(delta, largest_of(delta), level_bits, rounded_up(threshold, out))
    if sent == 0:
        copy(x, out)
    else:
        add(x, delta, out)
    return sparse_bits(len(out), sent, 8 * out.itemsize, level_bits)


@compiled
def send_signs(parameter, y, x, threshold, delta, out):
    """out = x + sign(delta) mean |delta|"""
    write_difference(y, x, delta)
    n, width, sent = len(out), 8 * out.itemsize, to_signs(delta, largest_of(delta), rounded_up(threshold, out))
    if sent == 0:
        copy(x, out)
    else:
        add(x, delta, out)
    return dense_bits(n, width, 1) if sent == n else sparse_bits(n, sent, width, 1)


@compiled
def send_largest(share, y, x, threshold, delta, out):
    """out = y where |delta| is among the k largest and reaches the threshold, else x."""
    n, width, sent = len(out), 8 * out.itemsize, 0
    k, limit = max(1, int(np.rint(share * n))), rounded_up(threshold, out)
    write_difference(y, x, delta)
    for t in range(n):
        delta[t] = abs(delta[t]) if abs(delta[t]) >= limit else 0
    least, equal = kth_largest(delta, k)
    for t in range(n):
        whole = whole_number(delta[t])
        is_sent = whole > least or (whole == least and equal > 0)
        equal -= whole == least
        is_sent = is_sent and delta[t] != 0
        sent += is_sent
        out[t] = y[t] if is_sent else x[t]
    return min(dense_bits(n, width, 0), sparse_bits(n, sent, width, 0))


def _row_by_row(kind, send):
    """Return the loop that sends rows by a codec; each codec has its own, so that a run compiles the one it uses."""

    def send_rows(parameter, models, who, known, thresholds, chosen, out, bits, low, high):
        """For each row r in low .. high-1: where chosen[r], send the model of device who[r].

        out[r] is what is known after the message with thresholds[r], known[r] before it, and bits[r] is the size of the
        message. Where r is not chosen, out[r] = known[r] and bits[r] stays as it is. `out` may be `known`.
        """
        delta = np.empty(models.shape[1], models.dtype)
        for r in range(low, high):
            if chosen[r]:
                bits[r] = send(parameter, models[who[r]], known[r], thresholds[r], delta, out[r])
            else:
                copy(known[r], out[r])

    send_rows.__qualname__ = f"send_rows_{kind}"
    return compiled(send_rows)


SENDERS = {"full": send_full, "levels": send_levels, "sign": send_signs, "top-k": send_largest}
SEND_ROWS = {kind: _row_by_row(kind, send) for kind, send in SENDERS.items()}
"""The loop of each kind of codec. Its first argument is the codec's `parameter`."""
