"""What an iteration costs: transmission time, for the links it used."""

from __future__ import annotations

import numpy as np

from efhc.base.arrays import Flags, Floats
from efhc.core.graph import Graph


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
