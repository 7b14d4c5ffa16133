"""What strategies with a mixing of their own share: the averaging matrix of a graph, and who sends at all."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from efhc.base.arrays import Ints
from efhc.core.graph import Graph
from efhc.core.mixing import mixing_matrix

if TYPE_CHECKING:
    from scipy.sparse import csr_array


@lru_cache(maxsize=4)
def averaging_matrix(graph: Graph, precision: np.dtype) -> csr_array:
    """W: w_ij = beta_ij on every link of the graph, w_ii = 1 - sum_j w_ij. It is symmetric and doubly stochastic."""
    W: csr_array = mixing_matrix(graph, np.ones(len(graph.links), dtype=bool)).astype(precision)
    return W


def broadcast_bits(graph: Graph, bits: int | Ints) -> Ints:
    """Return the bits that each device sends to all of its neighbours, (m,): none where it has no neighbours."""
    sent: Ints = np.where(graph.degrees > 0, bits, 0)
    return sent
