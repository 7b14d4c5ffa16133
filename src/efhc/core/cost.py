"""What an iteration costs: transmission time, for the links it used or the bits that it sent.

A device that sends to a part of its neighbours occupies the air for that part of the time that sending to all of them
takes. So a broadcast is paid once, and B_ij bits over one link count as B_ij / d_i.
"""

from __future__ import annotations

import numpy as np

from efhc.base.arrays import Flags, Floats, Ints
from efhc.core.graph import Graph

FRAME_HEADER_BYTES = 111
"""Bytes of a half-step's frame besides its payload: those of docs/wire.md, and 22 of a TLS record."""
ACKNOWLEDGEMENT_BYTES = 83
"""Bytes of an acknowledgement of half-steps, likewise."""
ABOUT_BYTES, NEIGHBOUR_BYTES = 12, 4
"""Bytes that a description of the sender adds to a frame, and bytes for each neighbour in it."""
BITS_PER_NUMBER = 32
"""Bits of one parameter of a model that is sent whole. Transmission time is counted in such numbers."""

KIND_BITS = 8
"""In front of every message: what it is."""


def whole_message_bits(models: Floats) -> int:
    """Return the bits of a message with all numbers of a model, as they are held."""
    return int(KIND_BITS + 8 * models.dtype.itemsize * models.shape[1])


def link_times(graph: Graph, bandwidths: Floats, parameters: int) -> Floats:
    """What the use of each link adds to the sum over devices: n / (d_i b_i) + n / (d_j b_j)."""
    per_device = parameters / bandwidths / np.maximum(graph.degrees, 1)
    i, j = graph.links.T
    times: Floats = per_device[i] + per_device[j]
    return times


def transmission_time(graph: Graph, used: Flags, bandwidths: Floats, parameters: int) -> Floats:
    """(1/m) sum_i (sum_j v_ij / d_i) n / b_i: the mean over devices of link use times model size over bandwidth.

    v_ij: whether link (i, j) is `used`, (..., links); n: `parameters`; b_i: `bandwidths`. A device without neighbours
    pays nothing.
    """
    # Not `used @ times`: how BLAS rounds depends on how many iterations it is given at once.
    total: Floats = np.where(used, link_times(graph, bandwidths, parameters), 0.0).sum(axis=-1)
    return total / graph.devices


def exchange_airtime_bits(degrees: Ints, counts: Ints, parameters: int) -> Floats:
    """sum_i sum_j v_ij 32 n / d_i of each iteration: the bits on air of all devices that exchange whole models.

    The used links are given by the `degrees` of their ends, (used links, 2): iteration t used the next `counts[t]` of
    them; n: `parameters`.
    """
    per_end = BITS_PER_NUMBER * parameters / degrees
    iterations = np.repeat(np.arange(len(counts)), counts)
    total = np.bincount(iterations, weights=per_end[:, 0] + per_end[:, 1], minlength=len(counts))
    return total.astype(np.float64, copy=False)


def exchange_bits(graph: Graph, used: Flags, parameters: int) -> Ints:
    """B_ij = B_ji = v_ij 32 n: the bits of whole models over the `used` links, per directed link, (..., 2 links)."""
    bits: Ints = used[..., graph.directed.link] * np.int64(BITS_PER_NUMBER * parameters)
    return bits


def airtime_bits(graph: Graph, bits: Ints) -> Floats:
    """sum_j B_ij / d_i for each device i, (..., m): the bits for which it occupies the air.

    B_ij: `bits` from i to j, in the order of `Graph.directed`, (..., 2 links). A device without neighbours sends none.
    """
    total = np.zeros((*bits.shape[:-1], graph.devices), dtype=np.int64)
    senders = np.flatnonzero(graph.degrees)
    if len(senders):  # whose bits stand side by side
        total[..., senders] = np.add.reduceat(bits, graph.rows.starts[senders], axis=-1)
    airtime: Floats = total / np.maximum(graph.degrees, 1)
    return airtime


def device_times(graph: Graph, bits: Ints, bandwidths: Floats) -> Floats:
    """(sum_j B_ij / d_i) / 32 / b_i for each device i, (..., m): the time for which it transmits.

    B_ij: `bits` from i to j, in the order of `Graph.directed`, (..., 2 links); b_i: `bandwidths`.
    """
    times: Floats = airtime_bits(graph, bits) / BITS_PER_NUMBER / bandwidths
    return times


def transmission_time_of_bits(graph: Graph, bits: Ints, bandwidths: Floats) -> Floats:
    """(1/m) sum_i (sum_j B_ij / d_i) / 32 / b_i: the mean over devices of `device_times`.

    For whole models over used links, B_ij = v_ij 32 n, this is `transmission_time`, up to rounding.
    """
    total: Floats = device_times(graph, bits, bandwidths).sum(axis=-1)
    return total / graph.devices
