"""Event 3: the weights with which neighbours average."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array

from efhc.core.arrays import Flags, Floats
from efhc.core.graph import Graph


def metropolis_weights(graph: Graph) -> Floats:
    """beta_ij = min(1/(1+d_i), 1/(1+d_j)) for each link, d the degrees in the physical graph."""
    i, j = graph.links.T
    beta: Floats = 1.0 / (1.0 + np.maximum(graph.degrees[i], graph.degrees[j]))
    return beta


def mixing_matrix(graph: Graph, used: Flags) -> csr_array:
    """P: p_ij = beta_ij on used links, p_ii = 1 - sum_j p_ij.

    Symmetric, doubly stochastic and with p_ii > 0, whichever links are used: mixing never moves the mean model.
    """
    devices = np.arange(graph.devices)
    i, j = graph.links[used].T
    beta = metropolis_weights(graph)[used]
    given_away = np.bincount(i, beta, graph.devices) + np.bincount(j, beta, graph.devices)
    entries = np.concatenate([beta, beta, 1.0 - given_away])
    rows, columns = np.concatenate([i, j, devices]), np.concatenate([j, i, devices])
    return csr_array((entries, (rows, columns)), shape=(graph.devices, graph.devices))
