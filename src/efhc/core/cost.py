"""What an iteration costs: transmission time, for the links it used."""

from __future__ import annotations

import numpy as np

from efhc.core.arrays import Flags, Floats
from efhc.core.graph import Graph


def transmission_time(graph: Graph, used: Flags, bandwidths: Floats, parameters: int) -> float:
    """(1/m) sum_i (sum_j v_ij / d_i) n / b_i: the mean over devices of link use times model size over bandwidth.

    v_ij: whether link (i, j) is `used`; n: `parameters`; b_i: `bandwidths`. A device without neighbours pays nothing.
    """
    links_used = np.bincount(graph.links[used].ravel(), minlength=graph.devices)
    utilization = links_used / np.maximum(graph.degrees, 1)
    return float(np.mean(utilization * (parameters / bandwidths)))
