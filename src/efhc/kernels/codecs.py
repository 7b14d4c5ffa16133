# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""Codecs, compiled: what `send` of each codec in `efhc.strategies.parts.codecs` says, for many devices at once.

`send_rows` gives the same numbers and bits as `send`. Compiled loops may reorder sums and join a product and a sum to
one rounding, so nothing here depends on either: the largest is found among whole numbers, sums are exact, and a product
is written to memory before it is added.
"""

from __future__ import annotations

import math

import numpy as np
from numba.extending import overload

from efhc.base.compiling import compiled

FULL, LEVELS, SIGN, TOP_K = 0, 1, 2, 3
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


def whole_numbers(row):
    """The memory of numbers as whole numbers of the same size. Those of numbers >= 0 sort alike."""
    return row.view(np.dtype(f"i{row.itemsize}"))


@overload(whole_numbers)
def compiled_whole_numbers(row):  # pragma: no cover - runs inside of numba, once
    """`whole_numbers`, for numba, which must know the type that results."""
    whole = np.int32 if row.dtype.bitwidth == 32 else np.int64
    return lambda row: row.view(whole)


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
    result = np.empty(1, delta.dtype)
    whole, found = whole_numbers(delta), whole_numbers(result)
    no_sign = whole.dtype.type(np.iinfo(whole.dtype).max)
    largest = whole[0] & no_sign
    for t in range(1, len(whole)):
        largest = max(largest, whole[t] & no_sign)
    found[0] = largest
    return result[0]


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
    """The k-th largest of whole numbers >= 0, and how many of those equal to it are among the k largest."""
    shift, above = 8 * sizes.itemsize, 0
    prefix = 0
    counts = np.empty(2**DIGIT, np.int64)
    while shift > 0:
        low = max(shift - DIGIT, 0)
        counts[:] = 0
        for t in range(len(sizes)):
            if shift == 8 * sizes.itemsize or sizes[t] >> shift == prefix:
                counts[(sizes[t] >> low) & (2 ** (shift - low) - 1)] += 1
        digit = 2 ** (shift - low) - 1
        while above + counts[digit] < k:
            above += counts[digit]
            digit -= 1
        prefix, shift = (prefix << (shift - low)) | digit, low
    return prefix, k - above


@compiled
def send_largest(y, x, delta, share, threshold, out):
    """out = y where |delta| is among the k largest and reaches the threshold, else x; return the number sent."""
    k, sent, whole = max(1, int(np.rint(share * len(delta)))), 0, whole_numbers(delta)
    for t in range(len(delta)):
        delta[t] = abs(delta[t]) if abs(delta[t]) >= threshold else 0
    least, equal = kth_largest(whole, k)
    for t in range(len(delta)):
        is_sent = whole[t] > least or (whole[t] == least and equal > 0)
        equal -= whole[t] == least
        is_sent = is_sent and delta[t] != 0
        sent += is_sent
        out[t] = y[t] if is_sent else x[t]
    return sent


@compiled
def send_given(y, x, threshold, out):
    """out = y where |y - x| reaches the threshold, else x; return the number sent."""
    sent = 0
    for t in range(len(out)):
        is_sent = abs(y[t] - x[t]) >= threshold
        sent += is_sent
        out[t] = y[t] if is_sent else x[t]
    return sent


@compiled
def copy(row, out):
    """out = row"""
    for t in range(len(out)):
        out[t] = row[t]


# All codecs


@compiled
def send_row(kind, parameter, y, x, threshold, delta, out):
    """Write to `out` what is known after the message, and return the bits; `delta` is for numbers in between."""
    n, width = len(out), 8 * out.itemsize
    if kind == FULL and threshold <= 0:
        copy(y, out)
        return dense_bits(n, width, 0)
    limit = rounded_up(threshold, out)
    if kind == FULL:
        sent = send_given(y, x, limit, out)
        return min(dense_bits(n, width, 0), sparse_bits(n, sent, width, 0))
    write_difference(y, x, delta)
    if kind == TOP_K:
        sent = send_largest(y, x, delta, parameter, limit, out)
        return min(dense_bits(n, width, 0), sparse_bits(n, sent, width, 0))
    largest = largest_of(delta)
    level_bits = int(parameter) if kind == LEVELS else 1
    sent = to_levels(delta, largest, level_bits, limit) if kind == LEVELS else to_signs(delta, largest, limit)
    if sent == 0:
        copy(x, out)
        return 0
    add(x, delta, out)
    return dense_bits(n, width, 1) if kind == SIGN and sent == n else sparse_bits(n, sent, width, level_bits)


@compiled
def send_rows(kind, parameter, models, who, known, thresholds, chosen, out, bits, low, high):
    """For each row r in low .. high-1 with chosen[r], send the model of device who[r] to those who know known[r].

    `kind` and `parameter` are `CodecPolicy.compiled`. out[r] is what is known afterwards with thresholds[r], and
    bits[r] the bits of the message; out[r] = known[r] and bits[r] = 0 where r is not chosen. `out` may be `known`.
    """
    n = models.shape[1]
    delta = np.empty(n, models.dtype)
    for r in range(low, high):
        if chosen[r]:
            bits[r] = send_row(kind, parameter, models[who[r]], known[r], thresholds[r], delta, out[r])
        else:
            copy(known[r], out[r])
            bits[r] = 0
